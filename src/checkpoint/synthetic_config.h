#pragma once
// What a synthetic checkpoint is like: a released model, whole or a slice of it, in one of the published formats; and its
// config.json. The values of the released models stand here and nowhere else (docs/model.md 1.1, 1.2).

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

enum class LingModel : std::uint8_t { Tiny30, Flash30, Flash31 };

/// "ling-3.0-tiny", "ling-3.0-flash", "ling-3.1-flash"
std::string_view name_of(LingModel model);
/// Throws Error that lists the names.
LingModel ling_model_of(std::string_view name);

/// Formats of the releases: BF16; block FP8 with F32 scales; with F8_E8M0 scales and more left in BF16; routed experts in
/// MXFP4 and the rest in block FP8 with F32 scales that are powers of two.
enum class SyntheticFormat : std::uint8_t { Bf16, Fp8, Fp8E8m0, Fp4 };

/// "bf16", "fp8", "fp8-ue8m0", "fp4"
std::string_view name_of(SyntheticFormat format);
/// Throws Error that lists the names.
SyntheticFormat synthetic_format_of(std::string_view name);

/// Bytes of tensors in a shard, as the releases cut them.
inline constexpr std::int64_t kDefaultShardBytes = 4'500'000'000;

struct SyntheticOptions {
  LingModel model = LingModel::Tiny30;
  SyntheticFormat format = SyntheticFormat::Bf16;
  std::optional<std::int64_t> layers;   // a slice: whole groups, at most as many as the model has
  std::optional<std::int64_t> experts;  // a multiple of the 8 router groups, at least 16
  std::optional<std::int64_t> vocab;
  std::uint64_t seed = 0;
  bool headers_only = false;  // sparse files: all tensors are holes of zeros
  std::int64_t shard_bytes = kDefaultShardBytes;
  int num_threads = 0;  // 0: one per core. The files do not depend on it
};

/// config.json. Throws Error that names the option, its value and what is possible.
nlohmann::ordered_json synthetic_config(const SyntheticOptions& options);

/// generation_config.json of that config.
nlohmann::ordered_json synthetic_generation_config(const nlohmann::ordered_json& config);

}  // namespace calandra
