#pragma once
// The safetensors format: 8-byte little-endian header length, JSON header, data. Reader on mapped memory, streaming
// writer. Facts: https://huggingface.co/docs/safetensors

#include "base/mapped_file.h"
#include "tensor/element_type.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

using Shape = std::vector<std::int64_t>;

/// "[2048, 1536]"
std::string to_string(const Shape& shape);

/// Product of the extents; 1 for a scalar. Throws Error if an extent is negative or the product exceeds 63 bits.
std::int64_t num_elements(const Shape& shape);

/// Bytes of a tensor of this type and shape. Throws Error as num_elements, and if F4 elements leave half a byte.
std::int64_t num_bytes(ElementType type, const Shape& shape);

/// A tensor inside a mapped file. The data need not be aligned.
struct TensorView {
  ElementType type = ElementType::F32;
  Shape shape;
  std::span<const std::byte> data;
};

/// What the bytes of a file say. The views point into those bytes.
struct SafetensorsContent {
  std::map<std::string, TensorView, std::less<>> tensors;  // in name order
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the bytes of a whole file: header inside the file and at most 100 MB, every tensor known in type, its
/// range inside the data and as long as its shape says, ranges neither overlapping nor leaving holes, no name twice.
/// Throws Error that names `where` and the tensor.
SafetensorsContent parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// One file, mapped and checked by parse_safetensors().
class SafetensorsFile {
 public:
  /// Throws Error that names the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In name order.
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

/// What a writer will be given, in order.
struct TensorHeader {
  std::string name;
  ElementType type = ElementType::F32;
  Shape shape;
};

/// Writes one file front to back; memory use is what the caller hands over at a time. The file appears under its name
/// only when finish() has returned (written beside it, synced, renamed); without finish() nothing is left behind.
class SafetensorsWriter {
 public:
  /// All members throw Error on any write failure, for example a full disk, naming the path.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorHeader>& tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  /// The next bytes of the data, tensor after tensor in header order, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  /// Leaves all remaining data as a hole of zeros (a sparse file).
  void skip_rest();
  /// Throws if less was written than the header says. Nothing may be called after it.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace calandra
