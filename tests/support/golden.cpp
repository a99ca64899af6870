#include "support/golden.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "tensor/element.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <type_traits>

namespace calandra {
namespace {

/// Every element of type Stored at `data`, through `convert`.
template <class Stored, class Convert>
auto convert_all(std::span<const std::byte> data, Convert&& convert) {
  std::vector<std::invoke_result_t<Convert, Stored>> values;
  values.reserve(data.size() / sizeof(Stored));
  for (std::size_t at = 0; at < data.size(); at += sizeof(Stored)) {
    values.push_back(convert(load_unaligned<Stored>(data.data() + at)));
  }
  return values;
}

template <class Stored>
std::vector<std::int64_t> integers(std::span<const std::byte> data) {
  return convert_all<Stored>(data, [](Stored value) { return static_cast<std::int64_t>(value); });
}

bool same_size(std::span<const float> actual, std::span<const float> expected, std::string_view what) {
  if (actual.size() == expected.size()) return true;
  ADD_FAILURE() << what << ": " << actual.size() << " values, expected " << expected.size();
  return false;
}

double rms(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

std::string describe(std::span<const float> actual, std::span<const float> expected, const LargestDifference& largest) {
  if (actual.empty()) return "no values";
  return fmt::format("largest difference {:.3g} at {}: {} instead of {}", largest.value, largest.index, actual[largest.index],
                     expected[largest.index]);
}

}  // namespace

bool long_tests() {
  const char* value = std::getenv("CALANDRA_LONG_TESTS");
  return value != nullptr && std::string_view(value) == "1";
}

std::filesystem::path source_path(std::string_view relative) { return std::filesystem::path(CALANDRA_SOURCE_DIR) / relative; }

Config published_config(std::string_view model) {
  const std::filesystem::path path = source_path(fmt::format("tests/data/configs/{}.json", model));
  return parse_config(read_text_file(path), path.string());
}

std::filesystem::path golden_path(std::string_view name) { return source_path("tests/data/golden") / name; }

const std::vector<std::string>& golden_variants() {
  static const std::vector<std::string> names = {"a_tiny_bf16", "b_flash_bf16", "c_flash31_fp8",
                                                 "d_mix_fp4",   "e_tiny_ue8m0", "f_odd_f32"};
  return names;
}

const TensorView& GoldenTensors::at(std::string_view name) const {
  const auto found = file_.tensors().find(name);
  if (found == file_.tensors().end()) fail("{}: no tensor {}", file_.path().string(), name);
  return found->second;
}

bool GoldenTensors::contains(std::string_view name) const { return file_.tensors().find(name) != file_.tensors().end(); }

const Shape& GoldenTensors::shape(std::string_view name) const { return at(name).shape; }

std::span<const std::byte> GoldenTensors::bytes(std::string_view name) const { return at(name).data; }

std::vector<float> GoldenTensors::floats(std::string_view name) const {
  const TensorView& view = at(name);
  switch (view.type) {
    case ElementType::F32: return convert_all<float>(view.data, [](float value) { return value; });
    case ElementType::BF16: return convert_all<std::uint16_t>(view.data, bf16_decode);
    case ElementType::F16: return convert_all<std::uint16_t>(view.data, f16_decode);
    default: fail("{}: {} is {}, expected F32, BF16 or F16", file_.path().string(), name, name_of(view.type));
  }
}

std::vector<std::int64_t> GoldenTensors::ints(std::string_view name) const {
  const TensorView& view = at(name);
  switch (view.type) {
    case ElementType::I64:
    case ElementType::U64: return integers<std::int64_t>(view.data);
    case ElementType::I32: return integers<std::int32_t>(view.data);
    case ElementType::U32: return integers<std::uint32_t>(view.data);
    case ElementType::I16: return integers<std::int16_t>(view.data);
    case ElementType::U16:
    case ElementType::BF16:
    case ElementType::F16: return integers<std::uint16_t>(view.data);
    case ElementType::I8: return integers<std::int8_t>(view.data);
    case ElementType::U8:
    case ElementType::Bool:
    case ElementType::F8_E4M3:
    case ElementType::F8_E5M2:
    case ElementType::F8_E8M0: return integers<std::uint8_t>(view.data);
    default: fail("{}: {} is {}, expected integers or codes", file_.path().string(), name, name_of(view.type));
  }
}

double relative_rms_error(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  if (actual.empty()) return 0;
  double sum = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    sum += difference * difference;
  }
  if (!std::isfinite(sum)) return std::numeric_limits<double>::infinity();
  const double error = std::sqrt(sum / static_cast<double>(actual.size()));
  const double scale = rms(expected);
  return scale > 0 ? error / scale : error;
}

LargestDifference largest_difference(std::span<const float> actual, std::span<const float> expected) {
  LargestDifference largest;
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(difference <= largest.value)) largest = {difference, i};  // also for NaN
    if (std::isnan(difference)) break;
  }
  return largest;
}

void expect_close(std::span<const float> actual, std::span<const float> expected, double limit, std::string_view what) {
  if (!same_size(actual, expected, what)) return;
  const double error = relative_rms_error(actual, expected);
  EXPECT_LE(error, limit) << what << ": " << describe(actual, expected, largest_difference(actual, expected));
}

void expect_close_to_largest(std::span<const float> actual, std::span<const float> expected, double limit,
                             std::string_view what) {
  if (!same_size(actual, expected, what)) return;
  double largest_expected = 0;
  for (const float value : expected) largest_expected = std::max(largest_expected, std::fabs(static_cast<double>(value)));
  const LargestDifference largest = largest_difference(actual, expected);
  EXPECT_LE(largest.value, limit * largest_expected) << what << ": " << describe(actual, expected, largest);
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected, std::string_view what) {
  if (!same_size(actual, expected, what)) return;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
    ADD_FAILURE() << what << ": " << fmt::format("{} instead of {} at {}", actual[i], expected[i], i);
    return;
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "calandra-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail("{}: cannot create a temporary folder", name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) fail("{}: cannot write", path.string());
}

Files files_in(const std::filesystem::path& folder) {
  Files files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = read_text_file(entry.path());
  return files;
}

}  // namespace calandra
