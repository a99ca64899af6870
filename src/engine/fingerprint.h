#pragma once
// What numbers computed by this process depend on, as one name: two processes of one fingerprint compute the same bits from the same tokens.

#include "base/digest.h"
#include "engine/model.h"

namespace calandra {

/// Of this program, the instruction set it uses, the settings of the model that change numbers, its config, and its weights: the names, sizes,
/// times and headers of their files, and up to kSampledPieces pieces spread over their bytes. Weights of hundreds of gigabytes are not read for
/// it: files that were changed in place, keep their size and had their time set back could be taken for what they were.
Digest fingerprint_of(const Model& model);

inline constexpr std::int64_t kSampledPieces = 4096;  // of 4 KiB

}  // namespace calandra
