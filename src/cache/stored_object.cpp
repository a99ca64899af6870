#include "cache/stored_object.h"

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace calandra {
namespace {

constexpr std::array<char, 8> kMagic = {'c', 'a', 'l', 'a', 'n', 'd', 'r', 'a'};

// As it lies in the file.
struct HeaderBytes {
  std::array<char, 8> magic;
  ObjectHeader header;
  Checksum sum;  // of all before
};
static_assert(std::is_trivially_copyable_v<HeaderBytes> && std::endian::native == std::endian::little);
static_assert(sizeof(HeaderBytes) == 8 + 8 + 3 * 32 + 3 * 8 + 160 + 16, "no padding");

HeaderBytes bytes_of(const ObjectHeader& header) {
  HeaderBytes bytes{kMagic, header, {}};
  bytes.sum = Xxh3().update(std::as_bytes(std::span(&bytes, 1)).first(offsetof(HeaderBytes, sum))).checksum();
  return bytes;
}

std::span<const std::byte> view(const HeaderBytes& bytes) { return std::as_bytes(std::span(&bytes, 1)); }

std::optional<ObjectHeader> next_header(ObjectReader& reader) {
  HeaderBytes bytes{};
  reader.read(std::as_writable_bytes(std::span(&bytes, 1)));
  const HeaderBytes expected = bytes_of(bytes.header);
  const bool whole = std::memcmp(&bytes, &expected, sizeof bytes) == 0;
  if (!whole || bytes.header.format != kStoredFormat) return std::nullopt;
  return bytes.header;
}

}  // namespace

std::int64_t object_bytes(std::int64_t payload) {
  return static_cast<std::int64_t>(sizeof(HeaderBytes)) + payload + static_cast<std::int64_t>(sizeof(Checksum));
}

std::optional<ObjectHeader> read_header(ObjectReader& reader, const ObjectName& name) {
  if (reader.size() < object_bytes(0)) return std::nullopt;
  const std::optional<ObjectHeader> header = next_header(reader);
  const bool fits = header && header->object() == name && header->payload == reader.size() - object_bytes(0) &&
                    header->begin >= 0 && header->begin <= header->end;
  return fits ? header : std::nullopt;
}

StoredObjectWriter::StoredObjectWriter(ObjectStore& store, const ObjectHeader& header) : object_(store.create(header.object())) {
  object_->write(view(bytes_of(header)));
}

void StoredObjectWriter::write(std::span<const std::byte> bytes) {
  sum_.update(bytes);
  object_->write(bytes);
}

void StoredObjectWriter::commit() {
  object_->write(sum_.checksum().bytes);
  object_->commit();
}

StoredObjectReader::StoredObjectReader(ObjectStore& store, const ObjectHeader& expected)
    : name_(fmt::format("{}: object {}", store.description(), expected.name.hex())), object_(store.open(expected.object())) {
  if (!object_) throw DamagedObject(name_ + ": is not there");
  const std::optional<ObjectHeader> found = read_header(*object_, expected.object());
  if (!found) throw DamagedObject(name_ + ": its header is damaged, or of another format");
  if (*found != expected) throw DamagedObject(name_ + ": of other tokens or another model than expected");
}

void StoredObjectReader::read(std::span<std::byte> bytes) {
  object_->read(bytes);
  sum_.update(bytes);
}

void StoredObjectReader::check() {
  Checksum written;
  object_->read(written.bytes);
  if (written != sum_.checksum())
    throw DamagedObject(fmt::format("{}: its checksum is {}, expected {}", name_, sum_.checksum().hex(), written.hex()));
}

}  // namespace calandra
