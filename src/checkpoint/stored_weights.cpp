#include "checkpoint/stored_weights.h"

#include "base/error.h"
#include "base/integer.h"
#include "tensor/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace calandra {
namespace {

/// Parts of names of tensors that some checkpoints carry and no engine needs.
constexpr std::string_view kUseless[] = {"shared_head.head", "embed_tokens", "inv_freq", "slope", "model.mtp"};

bool is_useless(std::string_view name) {
  return std::any_of(std::begin(kUseless), std::end(kUseless),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

std::string file_of(const StoredTensor& tensor) { return tensor.file->path().filename().string(); }

[[noreturn]] void wrong_shape(const std::string& name, const StoredTensor& tensor, const std::string& expected) {
  fail("{}: expected {} from config.json, found {} in {}", name, expected, to_string(tensor.view.shape), file_of(tensor));
}

[[noreturn]] void wrong_type(const std::string& name, const StoredTensor& tensor, std::string_view expected) {
  fail("{}: expected {}, found {} in {}", name, expected, name_of(tensor.view.type), file_of(tensor));
}

/// F32, BF16 or F16, or nothing.
std::optional<WeightFormat> plain_format(ElementType type) {
  switch (type) {
    case ElementType::F32: return WeightFormat::F32;
    case ElementType::BF16: return WeightFormat::BF16;
    case ElementType::F16: return WeightFormat::F16;
    default: return std::nullopt;
  }
}

bool accepts(const TensorSpec& spec, const Shape& found) {
  if (found == spec.shape || std::find(spec.other_shapes.begin(), spec.other_shapes.end(), found) != spec.other_shapes.end()) {
    return true;
  }
  return spec.role == Role::DecayRate && num_elements(found) == num_elements(spec.shape);
}

bool is_e8m0(ElementType type) { return type == ElementType::F8_E8M0 || type == ElementType::U8; }

[[noreturn]] void bad_scale(const std::string& name, const StoredTensor& scale, std::size_t index, std::string_view found,
                            std::string_view expected) {
  fail("{}: scale {} is {} in {}, expected {}", name, index, found, file_of(scale), expected);
}

void check_f32_scales(const std::string& name, const StoredTensor& scale) {
  const auto data = scale.view.data;
  for (std::size_t i = 0; i < data.size() / sizeof(float); ++i) {
    const auto value = load_unaligned<float>(data.data() + i * sizeof(float));
    if (!(value >= 0 && value <= kMostFp8Scale)) bad_scale(name, scale, i, fmt::format("{}", value), "a number from 0 to 2^119");
  }
}

void check_e8m0_scales(const std::string& name, const StoredTensor& scale) {
  constexpr std::uint8_t kMostByte = 127 + 119;
  static_assert(kMostFp8Scale == 0x1p119f);
  const auto data = scale.view.data;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto byte = std::to_integer<std::uint8_t>(data[i]);
    if (byte > kMostByte) bad_scale(name, scale, i, fmt::format("byte {}", byte), fmt::format("0 to {}", kMostByte));
  }
}

/// There are many: a search that the library does fast.
void check_mxfp4_scales(const std::string& name, const StoredTensor& scale) {
  const auto data = scale.view.data;
  if (data.empty()) return;
  const void* nan = std::memchr(data.data(), 0xFF, data.size());
  if (nan == nullptr) return;
  const auto index = static_cast<std::size_t>(static_cast<const std::byte*>(nan) - data.data());
  bad_scale(name, scale, index, "byte 255", "0 to 254");
}

/// A view of the weight's data; format and scales are to be filled in.
WeightMatrix matrix_of(const TensorSpec& spec, const StoredTensor& tensor, WeightFormat format) {
  WeightMatrix matrix;
  matrix.format = format;
  matrix.rows = spec.shape[0];
  matrix.cols = spec.shape[1];
  matrix.stored_cols = matrix.cols;
  matrix.data = tensor.view.data.data();
  return matrix;
}

/// e4m3 codes [o, i] and one scale for each block of 128 x 128.
WeightMatrix block_fp8(const TensorSpec& spec, const std::string& name, const StoredTensor& tensor, const std::string& scale_name,
                       const StoredTensor& scale) {
  if (tensor.view.type != ElementType::F8_E4M3) wrong_type(name, tensor, "F8_E4M3 beside " + scale_name);
  const Shape grid = {ceil_div(spec.shape[0], kScaleBlock), ceil_div(spec.shape[1], kScaleBlock)};
  const bool single = num_elements(grid) == 1 && num_elements(scale.view.shape) == 1;  // stored with any number of extents
  if (scale.view.shape != grid && !single) wrong_shape(scale_name, scale, to_string(grid));

  if (scale.view.type != ElementType::F32 && !is_e8m0(scale.view.type)) wrong_type(scale_name, scale, "F32, F8_E8M0 or U8");
  WeightMatrix matrix = matrix_of(spec, tensor, scale.view.type == ElementType::F32 ? WeightFormat::Fp8 : WeightFormat::Fp8E8m0);
  matrix.scales = scale.view.data.data();
  return matrix;
}

/// Pairs of e2m1 codes [o, i / 2] under any one-byte type, or F4 [o, i], and one scale for 32 columns of a row.
WeightMatrix mxfp4(const TensorSpec& spec, const StoredTensor& tensor, const std::string& scale_name, const StoredTensor& scale) {
  const Shape groups = {spec.shape[0], spec.shape[1] / kMxGroup};
  if (scale.view.shape != groups) wrong_shape(scale_name, scale, to_string(groups));
  if (!is_e8m0(scale.view.type)) wrong_type(scale_name, scale, "F8_E8M0 or U8");
  WeightMatrix matrix = matrix_of(spec, tensor, WeightFormat::Mxfp4);
  matrix.scales = scale.view.data.data();
  return matrix;
}

/// Whether the tensor has the extents of a packed 4-bit weight.
bool is_packed(const TensorSpec& spec, const TensorView& view) {
  const std::int64_t outputs = spec.shape[0];
  const std::int64_t inputs = spec.shape[1];
  if (inputs % kMxGroup != 0) return false;
  if (view.type == ElementType::F4) return view.shape == spec.shape;
  return bits_of(view.type) == 8 && view.shape == Shape{outputs, inputs / 2};
}

std::vector<float> decode(const TensorView& view, WeightFormat format) {
  std::vector<float> values(static_cast<std::size_t>(num_elements(view.shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (format == WeightFormat::F32) {
      values[i] = load_unaligned<float>(view.data.data() + 4 * i);
    } else {
      const auto code = load_unaligned<std::uint16_t>(view.data.data() + 2 * i);
      values[i] = format == WeightFormat::BF16 ? bf16_decode(code) : f16_decode(code);
    }
  }
  return values;
}

}  // namespace

void check_scales(const std::string& name, const StoredTensor& scale, WeightFormat format) {
  const auto check = format == WeightFormat::Mxfp4 ? check_mxfp4_scales
                     : format == WeightFormat::Fp8 ? check_f32_scales
                                                   : check_e8m0_scales;
  check(name, scale);
}

StoredWeights::StoredWeights(const Shards& shards, std::filesystem::path folder,
                             std::function<void(std::int64_t, std::int64_t)> progress, ScaleCheck scale_check)
    : shards_(shards), folder_(std::move(folder)), progress_(std::move(progress)), scale_check_(scale_check) {
  for (const auto& [name, tensor] : shards_.tensors) bytes_total_ += std::ssize(tensor.view.data);
}

StoredWeights::Named StoredWeights::find(const std::string& name) {
  const auto found = shards_.tensors.find(name);
  if (found == shards_.tensors.end()) return {};
  if (used_.insert(&found->second).second && progress_) {
    bytes_done_ += std::ssize(found->second.view.data);
    progress_(bytes_done_, bytes_total_);
  }
  return {&found->first, &found->second};
}

StoredWeights::Named StoredWeights::require(const TensorSpec& spec) {
  Named named = find(spec.name);
  if (named.tensor == nullptr && !spec.alias.empty()) named = find(spec.alias);
  if (named.tensor == nullptr) {
    fail("{}: {} is missing, expected {} from config.json", folder_.string(), spec.name, to_string(spec.shape));
  }
  return named;
}

StoredWeights::Named StoredWeights::find_scale(const std::string& weight_name) {
  const Named inverse = find(weight_name + "_scale_inv");
  return inverse.tensor != nullptr ? inverse : find(weight_name + "_scale");
}

WeightMatrix StoredWeights::matrix(const TensorSpec& spec) {
  const auto [name, tensor] = require(spec);
  const auto [scale_name, scale] = find_scale(*name);
  if (scale != nullptr) {
    const bool packed = is_packed(spec, tensor->view);
    if (!packed && tensor->view.shape != spec.shape) {
      wrong_shape(*name, *tensor, fmt::format("{}, or its packed 4-bit form,", to_string(spec.shape)));
    }
    const WeightMatrix matrix =
        packed ? mxfp4(spec, *tensor, *scale_name, *scale) : block_fp8(spec, *name, *tensor, *scale_name, *scale);
    if (scale_check_ == ScaleCheck::Full) check_scales(*scale_name, *scale, matrix.format);
    return matrix;
  }
  const std::optional<WeightFormat> format = plain_format(tensor->view.type);
  if (!format) wrong_type(*name, *tensor, fmt::format("F32, BF16 or F16, or a scale {}_scale_inv beside it", *name));
  if (!accepts(spec, tensor->view.shape)) wrong_shape(*name, *tensor, to_string(spec.shape));
  return matrix_of(spec, *tensor, *format);
}

std::vector<float> StoredWeights::vector(const TensorSpec& spec) {
  const auto [name, tensor] = require(spec);
  const std::optional<WeightFormat> format = plain_format(tensor->view.type);
  if (!format) wrong_type(*name, *tensor, "F32, BF16 or F16");
  if (!accepts(spec, tensor->view.shape)) wrong_shape(*name, *tensor, to_string(spec.shape));
  std::vector<float> values = decode(tensor->view, *format);
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    fail("{}: element {} is {} in {}, expected a finite number", *name, bad - values.begin(), *bad, file_of(*tensor));
  }
  return values;
}

bool StoredWeights::has_mtp(const Config& config) {
  const std::string prefix = layer_prefix(config.layers);
  for (auto entry = shards_.tensors.lower_bound(prefix); entry != shards_.tensors.end(); ++entry) {
    if (!entry->first.starts_with(prefix)) break;
    if (!is_useless(entry->first)) return true;
  }
  return false;
}

std::vector<std::string> StoredWeights::surplus() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : shards_.tensors) {
    if (!used_.contains(&tensor) && !is_useless(name)) names.push_back(name);
  }
  return names;
}

}  // namespace calandra
