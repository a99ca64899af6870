#include "tensor/safetensors.h"

#include "base/error.h"
#include "base/new_file.h"
#include "tensor/element.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

namespace calandra {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::string_view kMetadataKey = "__metadata__";

/// Product of the extents, or nothing if one is negative or the product overflows.
std::optional<std::int64_t> checked_elements(const Shape& shape) {
  std::int64_t product = 1;
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
    overflow = overflow || __builtin_mul_overflow(product, extent, &product);
  }
  if (empty) return 0;
  if (overflow) return std::nullopt;
  return product;
}

/// Bytes of a tensor, or nothing if they overflow or are no whole number.
std::optional<std::int64_t> checked_bytes(ElementType type, const Shape& shape) {
  const std::optional<std::int64_t> elements = checked_elements(shape);
  std::int64_t bits = 0;
  if (!elements || __builtin_mul_overflow(*elements, std::int64_t{bits_of(type)}, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// A tensor's entry in the header while it is checked.
struct Entry {
  ElementType type = ElementType::F32;
  Shape shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A list of at most `limit` non-negative integers.
std::vector<std::int64_t> read_extents(simdjson::dom::element value, std::size_t limit, std::string_view what,
                                       const std::string& owner) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) fail("{}: {} is no list", owner, what);
  std::vector<std::int64_t> extents;
  for (const simdjson::dom::element element : array) {
    std::int64_t extent = 0;
    if (element.get(extent) != simdjson::SUCCESS || extent < 0) fail("{}: {} must hold integers from 0 to 2^63 - 1", owner, what);
    if (extents.size() == limit) fail("{}: {} has more than {} values", owner, what, limit);
    extents.push_back(extent);
  }
  return extents;
}

Entry read_entry(simdjson::dom::element value, const std::string& owner) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) fail("{}: expected an object with dtype, shape and data_offsets", owner);
  Entry entry;
  bool has_type = false;
  bool has_shape = false;
  bool has_offsets = false;
  const auto once = [&](bool& seen, std::string_view key) {
    if (std::exchange(seen, true)) fail("{}: found {} twice, expected once", owner, key);
  };
  for (const auto [key, field] : object) {
    if (key == "dtype") {
      once(has_type, key);
      std::string_view name;
      if (field.get(name) != simdjson::SUCCESS) fail("{}: dtype is no string", owner);
      const std::optional<ElementType> type = element_type_of(name);
      if (!type) fail("{}: unknown dtype {}", owner, printable(name));
      entry.type = *type;
    } else if (key == "shape") {
      once(has_shape, key);
      entry.shape = read_extents(field, 64, "shape", owner);
    } else if (key == "data_offsets") {
      once(has_offsets, key);
      const std::vector<std::int64_t> offsets = read_extents(field, 2, "data_offsets", owner);
      if (offsets.size() != 2) fail("{}: data_offsets has {} values, expected 2", owner, offsets.size());
      entry.begin = offsets[0];
      entry.end = offsets[1];
    }
  }
  if (!has_type) fail("{}: dtype is missing", owner);
  if (!has_shape) fail("{}: shape is missing", owner);
  if (!has_offsets) fail("{}: data_offsets is missing", owner);
  return entry;
}

void check_entry(const Entry& entry, std::int64_t data_bytes, const std::string& owner) {
  const std::optional<std::int64_t> bytes = checked_bytes(entry.type, entry.shape);
  if (!bytes) {
    fail("{}: {} elements of shape {} are no whole number of bytes below 2^60", owner, name_of(entry.type),
         to_string(entry.shape));
  }
  if (entry.end < entry.begin) fail("{}: data_offsets [{}, {}] run backwards", owner, entry.begin, entry.end);
  if (entry.end - entry.begin != *bytes) {
    fail("{}: data_offsets [{}, {}] hold {} bytes, expected {} for {} {}", owner, entry.begin, entry.end, entry.end - entry.begin,
         *bytes, name_of(entry.type), to_string(entry.shape));
  }
  if (entry.end > data_bytes) {
    fail("{}: data_offsets [{}, {}] reach beyond the file, which holds {} bytes of data", owner, entry.begin, entry.end,
         data_bytes);
  }
}

struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::string_view name;
};

/// Ranges must cover [0, data_bytes) exactly once.
void check_cover(std::vector<Range> ranges, std::int64_t data_bytes, const std::string& where) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin < covered) {
      fail("{}: {}: data_offsets [{}, {}] overlap another tensor", where, printable(range.name), range.begin, range.end);
    }
    if (range.begin > covered) {
      fail("{}: {}: data_offsets [{}, {}] leave a hole after byte {} of the data", where, printable(range.name), range.begin,
           range.end, covered);
    }
    covered = range.end;
  }
  if (covered != data_bytes) fail("{}: {} bytes after the last tensor, expected none", where, data_bytes - covered);
}

void read_metadata(simdjson::dom::element value, std::map<std::string, std::string>& metadata, const std::string& where) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) fail("{}: {}: expected an object of strings", where, kMetadataKey);
  for (const auto [key, field] : object) {
    std::string_view text;
    if (field.get(text) != simdjson::SUCCESS) fail("{}: {}: {} is no string", where, kMetadataKey, printable(key));
    if (!metadata.emplace(key, text).second) fail("{}: {}: {} appears twice", where, kMetadataKey, printable(key));
  }
}

/// The JSON text in the file's first bytes.
std::string_view header_text(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLengthBytes) {
    fail("{}: {} bytes, expected at least the {} of a safetensors header length", where, file.size(), kLengthBytes);
  }
  const auto length = load_unaligned<std::uint64_t>(file.data());
  if (length > kMaxHeaderBytes) fail("{}: header length {}, expected at most {}", where, length, kMaxHeaderBytes);
  if (length > file.size() - kLengthBytes) fail("{}: header length {} exceeds the file of {} bytes", where, length, file.size());
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length));
  if (!text.starts_with('{')) fail("{}: the header is no JSON object", where);
  return text;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out += '"';
}

}  // namespace

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::int64_t num_elements(const Shape& shape) {
  const std::optional<std::int64_t> elements = checked_elements(shape);
  if (!elements) fail("shape {} has a negative extent or too many elements", to_string(shape));
  return *elements;
}

std::int64_t num_bytes(ElementType type, const Shape& shape) {
  const std::optional<std::int64_t> bytes = checked_bytes(type, shape);
  if (!bytes) fail("{} elements of shape {} are no whole number of bytes below 2^60", name_of(type), to_string(shape));
  return *bytes;
}

SafetensorsContent parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  const std::string_view text = header_text(file, where);
  const auto data = file.subspan(kLengthBytes + text.size());
  const auto data_bytes = static_cast<std::int64_t>(data.size());

  simdjson::dom::parser parser;
  simdjson::dom::object header;
  const auto parsed = parser.parse(text.data(), text.size()).get(header);
  if (parsed != simdjson::SUCCESS) fail("{}: the header is no JSON object: {}", where, simdjson::error_message(parsed));

  SafetensorsContent content;
  std::vector<Range> ranges;
  bool has_metadata = false;
  for (const auto [name, value] : header) {
    if (name == kMetadataKey) {
      if (std::exchange(has_metadata, true)) fail("{}: {} appears twice", where, kMetadataKey);
      read_metadata(value, content.metadata, where);
      continue;
    }
    const std::string owner = where + ": " + printable(name);
    const Entry entry = read_entry(value, owner);
    check_entry(entry, data_bytes, owner);
    const auto view = data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin));
    const auto [place, added] = content.tensors.emplace(name, TensorView{entry.type, entry.shape, view});
    if (!added) fail("{}: the name appears twice in the header", owner);
    ranges.push_back({entry.begin, entry.end, place->first});
  }
  check_cover(std::move(ranges), data_bytes, where);
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(parse_safetensors(file_.bytes(), path.string())) {}

struct SafetensorsWriter::State {
  NewFile file;
  std::int64_t header_bytes = 0;
  std::int64_t data_bytes = 0;
  std::int64_t written = 0;  // of the data
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorHeader>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    std::vector<std::string> fields;
    fields.reserve(metadata.size());
    for (const auto& [key, value] : metadata) fields.push_back(json_string(key) + ":" + json_string(value));
    header += fmt::format("\"{}\":{{{}}}", kMetadataKey, fmt::join(fields, ","));
  }
  std::int64_t offset = 0;
  std::vector<std::string_view> names;
  for (const TensorHeader& tensor : tensors) {
    std::int64_t end = 0;
    if (__builtin_add_overflow(offset, num_bytes(tensor.type, tensor.shape), &end)) {
      fail("{}: the tensors are too large", path.string());
    }
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "",
                          json_string(tensor.name), name_of(tensor.type), fmt::join(tensor.shape, ","), offset, end);
    offset = end;
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) fail("{}: {} would be written twice", path.string(), printable(*twice));
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    fail("{}: the header would have {} bytes, expected at most {}", path.string(), header.size(), kMaxHeaderBytes);
  }

  const std::uint64_t length = header.size();
  state_ = std::make_unique<State>(State{NewFile(path), static_cast<std::int64_t>(kLengthBytes + header.size()), offset});
  state_->file.write(std::as_bytes(std::span(&length, 1)));
  state_->file.write(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (count > state_->data_bytes - state_->written) {
    fail("{}: more data than the header's {} bytes", state_->file.path().string(), state_->data_bytes);
  }
  state_->file.write(bytes);
  state_->written += count;
}

void SafetensorsWriter::skip_rest() {
  state_->file.extend_to(state_->header_bytes + state_->data_bytes);
  state_->written = state_->data_bytes;
}

void SafetensorsWriter::finish() {
  if (state_->written != state_->data_bytes) {
    fail("{}: {} bytes of data written, the header says {}", state_->file.path().string(), state_->written, state_->data_bytes);
  }
  state_->file.commit();
}

}  // namespace calandra
