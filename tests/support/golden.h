#pragma once
// What tests of all rooms share: golden data, comparison of tensors, temporary folders.

#include "base/error.h"
#include "checkpoint/config.h"
#include "tensor/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// Whether the environment asks for the long form of tests (CALANDRA_LONG_TESTS=1).
bool long_tests();

/// A file of the source tree: source_path("models/austen-5m").
std::filesystem::path source_path(std::string_view relative);

/// tests/data/golden/NAME. The folders of models are listed by golden_variants().
std::filesystem::path golden_path(std::string_view name);

/// Configuration of a released model, "ling-3.1-flash" for example, as published.
Config published_config(std::string_view model);

/// "a_tiny_bf16" to "f_odd_f32".
const std::vector<std::string>& golden_variants();

/// The tensors of one safetensors file, decoded on request. Throws Error if a tensor is missing.
class GoldenTensors {
 public:
  static GoldenTensors load(const std::filesystem::path& file) { return GoldenTensors(file); }

  bool contains(std::string_view name) const;
  const Shape& shape(std::string_view name) const;
  /// F32, BF16 or F16 as float32.
  std::vector<float> floats(std::string_view name) const;
  /// Any integer type; single-byte codes are integers from 0 to 255.
  std::vector<std::int64_t> ints(std::string_view name) const;
  /// As stored. Lives as long as this object.
  std::span<const std::byte> bytes(std::string_view name) const;
  const SafetensorsFile& file() const { return file_; }

 private:
  explicit GoldenTensors(const std::filesystem::path& file) : file_(file) {}
  const TensorView& at(std::string_view name) const;

  SafetensorsFile file_;
};

/// rms(actual - expected) / rms(expected); infinite if a value is not finite or the sizes differ; plain rms(actual) if
/// `expected` is all zero.
double relative_rms_error(std::span<const float> actual, std::span<const float> expected);

/// Largest |actual - expected| and where it is.
struct LargestDifference {
  double value = 0;
  std::size_t index = 0;
};
LargestDifference largest_difference(std::span<const float> actual, std::span<const float> expected);

/// Fails the test if the relative rms error exceeds `limit`; the message has the error, the largest difference and its index.
void expect_close(std::span<const float> actual, std::span<const float> expected, double limit, std::string_view what);

/// Fails the test if a value differs by more than `limit` times the largest |expected|.
void expect_close_to_largest(std::span<const float> actual, std::span<const float> expected, double limit, std::string_view what);

/// Fails the test unless both hold the same bits; the message has the first difference.
void expect_same_bits(std::span<const float> actual, std::span<const float> expected, std::string_view what);

/// A fresh folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::string_view content);

/// The files of a folder without sub-folders: name and content.
using Files = std::map<std::string, std::string>;
Files files_in(const std::filesystem::path& folder);

/// The message of the Error that `action` throws, or "" if it throws none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace calandra
