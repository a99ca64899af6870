#pragma once
// How the formats of the releases store a tensor: as which elements, under which names, what its bytes are, and what config.json
// says of it all. For what writes checkpoints; the reader (stored_weights.h) goes by the files alone.

#include "checkpoint/synthetic_config.h"
#include "checkpoint/weights.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

/// Fp8: F32 scales amax / 448; Fp8PowerOfTwo: F32 scales that are powers of two.
enum class StoredAs : std::uint8_t { F32, Bf16, Fp8, Fp8E8m0, Fp8PowerOfTwo, Mxfp4 };
constexpr bool is_quantised(StoredAs stored) { return stored != StoredAs::F32 && stored != StoredAs::Bf16; }

/// How a tensor is stored in a format.
StoredAs stored_as(const TensorSpec& spec, SyntheticFormat format, const Config& config);

/// The tensor and, if it is quantised, its scales.
std::vector<TensorHeader> stored_headers(const TensorSpec& spec, StoredAs stored);

/// Rows of a matrix that are encoded at a time: whole scale blocks, few enough that their float32 values stay in the second-level
/// cache. Pieces do not touch each other: any thread can make them.
std::int64_t rows_per_piece(std::int64_t rows, std::int64_t cols);

/// Consecutive bytes of a tensor and of its scales.
struct EncodedPiece {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
};
EncodedPiece encode_rows(ConstRows rows, StoredAs stored);

/// A tensor of a checkpoint and how it is stored there.
struct StoredSpec {
  const TensorSpec* spec = nullptr;
  StoredAs stored = StoredAs::Bf16;
};

/// quantization_config of a checkpoint of these tensors; null if none is quantised. Entries of modules_to_not_convert hold for both
/// readings found in the wild: as whole segments at the end of a module's path, and as a part of it anywhere.
nlohmann::ordered_json quantization_config(std::span<const StoredSpec> tensors);

}  // namespace calandra
