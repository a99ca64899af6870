#include "checkpoint/storage.h"

#include "base/error.h"
#include "base/integer.h"
#include "kernels/quantize.h"
#include "tensor/element.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace calandra {
namespace {

constexpr std::int64_t kPieceElements = 1 << 17;

template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> bytes_of_rows(ConstRows rows) {
  std::vector<std::byte> out;
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const auto row = std::as_bytes(std::span(rows.row(r), static_cast<std::size_t>(rows.cols)));
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

std::vector<std::byte> bf16_bytes_of(ConstRows rows) {
  std::vector<std::byte> out(static_cast<std::size_t>(rows.rows * rows.cols) * sizeof(std::uint16_t));
  std::byte* at = out.data();
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    for (std::int64_t c = 0; c < rows.cols; ++c, at += sizeof(std::uint16_t)) {
      const std::uint16_t code = bf16_encode(rows.row(r)[c]);
      std::memcpy(at, &code, sizeof(code));
    }
  }
  return out;
}

/// "model.layers.3.attention.q_proj" of its weight.
std::string_view module_of(const TensorSpec& spec) {
  std::string_view name = spec.name;
  name.remove_suffix(std::string_view(".weight").size());
  return name;
}

bool is_module(const TensorSpec& spec) { return spec.shape.size() == 2 && spec.name.ends_with(".weight"); }

/// The shortest end of `module` that is no part of any of `others`.
std::string_view shortest_own_end(std::string_view module, std::span<const std::string_view> others) {
  for (std::size_t dot = module.rfind('.'); dot != std::string_view::npos && dot > 0; dot = module.rfind('.', dot - 1)) {
    const std::string_view end = module.substr(dot + 1);
    const auto has_it = [end](std::string_view other) { return other.find(end) != std::string_view::npos; };
    if (std::none_of(others.begin(), others.end(), has_it)) return end;
  }
  return module;
}

std::vector<std::string> modules_to_not_convert(std::span<const StoredSpec> tensors) {
  std::vector<std::string_view> converted, kept;
  for (const auto& [spec, stored] : tensors) {
    if (!is_module(*spec)) continue;
    // The experts of a layer differ by a number that the end of no other module has.
    const bool is_repeated = spec->role == Role::ExpertProjection && spec->name.find(".experts.0.") == std::string::npos;
    if (!is_quantised(stored)) {
      kept.push_back(module_of(*spec));
    } else if (!is_repeated) {
      converted.push_back(module_of(*spec));
    }
  }
  std::vector<std::string> entries;
  for (const std::string_view module : kept) {
    const std::string_view entry = shortest_own_end(module, converted);
    if (std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.emplace_back(entry);
  }
  return entries;
}

}  // namespace

StoredAs stored_as(const TensorSpec& spec, SyntheticFormat format, const Config& config) {
  const StoredAs quantised = format == SyntheticFormat::Bf16      ? StoredAs::Bf16
                             : format == SyntheticFormat::Fp8     ? StoredAs::Fp8
                             : format == SyntheticFormat::Fp8E8m0 ? StoredAs::Fp8E8m0
                                                                  : StoredAs::Fp8PowerOfTwo;
  switch (spec.role) {
    case Role::DecayRate:
    case Role::DecayBias:
    case Role::RouterBias: return StoredAs::F32;
    case Role::Projection: return quantised;
    case Role::ExpertProjection: return format == SyntheticFormat::Fp4 ? StoredAs::Mxfp4 : quantised;
    case Role::MlaProjection: return format == SyntheticFormat::Fp8E8m0 ? StoredAs::Bf16 : quantised;
    case Role::AttentionGate:
      return format == SyntheticFormat::Fp8E8m0 || spec.layer < config.layers ? StoredAs::Bf16 : quantised;
    case Role::Embedding:
    case Role::Head:
    case Role::Norm:
    case Role::Beta:
    case Role::Router:
    case Role::Conv:
    case Role::MtpJoin: return StoredAs::Bf16;
  }
  fail("{}: a role without a rule for storing it", spec.name);
}

std::vector<TensorHeader> stored_headers(const TensorSpec& spec, StoredAs stored) {
  if (stored == StoredAs::F32) return {{spec.name, ElementType::F32, spec.shape}};
  if (stored == StoredAs::Bf16) return {{spec.name, ElementType::BF16, spec.shape}};
  const std::int64_t rows = spec.shape.at(0), cols = spec.shape.at(1);
  const std::string scale_name = spec.name + "_scale_inv";
  if (stored == StoredAs::Mxfp4) {
    if (cols % kMxGroup != 0)
      fail("{}: MXFP4 needs a multiple of {} columns, its shape is {}", spec.name, kMxGroup, to_string(spec.shape));
    return {{spec.name, ElementType::U8, {rows, cols / 2}}, {scale_name, ElementType::F8_E8M0, {rows, cols / kMxGroup}}};
  }
  const ElementType scale = stored == StoredAs::Fp8E8m0 ? ElementType::F8_E8M0 : ElementType::F32;
  return {{spec.name, ElementType::F8_E4M3, spec.shape},
          {scale_name, scale, {ceil_div(rows, kScaleBlock), ceil_div(cols, kScaleBlock)}}};
}

std::int64_t rows_per_piece(std::int64_t rows, std::int64_t cols) {
  return std::min(rows, ceil_div(std::max(kPieceElements / cols, std::int64_t{1}), kScaleBlock) * kScaleBlock);
}

EncodedPiece encode_rows(ConstRows rows, StoredAs stored) {
  switch (stored) {
    case StoredAs::F32: return {bytes_of_rows(rows), {}};
    case StoredAs::Bf16: return {bf16_bytes_of(rows), {}};
    case StoredAs::Mxfp4: {
      const MxBlocks blocks = quantize_mxfp4(rows);
      return {bytes_of<std::uint8_t>(blocks.packed), bytes_of<std::uint8_t>(blocks.e8m0)};
    }
    case StoredAs::Fp8:
    case StoredAs::Fp8E8m0:
    case StoredAs::Fp8PowerOfTwo: {
      const Fp8Blocks blocks = quantize_fp8(rows, stored != StoredAs::Fp8);
      return {bytes_of<std::uint8_t>(blocks.codes),
              stored == StoredAs::Fp8E8m0 ? bytes_of<std::uint8_t>(blocks.e8m0) : bytes_of<float>(blocks.scales)};
    }
  }
  fail("a form of storage without an encoder");
}

nlohmann::ordered_json quantization_config(std::span<const StoredSpec> tensors) {
  const auto has = [&](auto&& property) { return std::any_of(tensors.begin(), tensors.end(), property); };
  if (!has([](const StoredSpec& t) { return is_quantised(t.stored); })) return nullptr;
  nlohmann::ordered_json config = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kScaleBlock, kScaleBlock}},
                                   {"modules_to_not_convert", modules_to_not_convert(tensors)}};
  if (!has([](const StoredSpec& t) { return t.stored == StoredAs::Fp8; })) config["scale_fmt"] = "ue8m0";
  if (has([](const StoredSpec& t) { return t.spec->role == Role::ExpertProjection && t.stored == StoredAs::Mxfp4; })) {
    config["routed_experts_quant_method"] = "mxfp4";
    config["routed_experts_group_size"] = kMxGroup;
  }
  return config;
}

}  // namespace calandra
