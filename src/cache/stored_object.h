#pragma once
// The bytes of an object: a header that says what it is and of which tokens, the payload, and the payload's checksum. An object is used
// only where every byte of its header is the one expected and the checksum fits.

#include "base/error.h"
#include "cache/object_store.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace calandra {

/// Raised whenever the same header could mean other bytes.
inline constexpr std::uint32_t kStoredFormat = 1;

struct ObjectHeader {
  std::uint32_t format = kStoredFormat;
  ObjectKind kind{};
  Digest model;                     // whose numbers these are (engine/fingerprint.h)
  Digest name;                      // TokenChain::run(), or names_of_ends()
  Digest parent;                    // name of the runs before `begin`
  std::int64_t begin = 0, end = 0;  // tokens
  std::int64_t payload = 0;         // bytes
  /// Of an end: TokenChain::space(), filled up with zeros.
  std::array<char, 160> space{};

  ObjectName object() const { return {kind, name}; }
  friend bool operator==(const ObjectHeader&, const ObjectHeader&) = default;
};

/// Bytes of a whole object of that payload.
std::int64_t object_bytes(std::int64_t payload);

/// The header of an object, if it is whole and of this format: it is the one of that name, and the object is as long as it says.
std::optional<ObjectHeader> read_header(ObjectReader& reader, const ObjectName& name);

/// Writes an object piece by piece.
class StoredObjectWriter {
 public:
  StoredObjectWriter(ObjectStore& store, const ObjectHeader& header);
  void write(std::span<const std::byte> bytes);
  /// After header.payload bytes.
  void commit();

 private:
  std::unique_ptr<ObjectWriter> object_;
  Xxh3 sum_;
};

/// An object is not there, not whole, or not the one expected: reading it again will not help.
class DamagedObject : public Error {
 public:
  using Error::Error;
};

/// Reads an object piece by piece. Throws DamagedObject, and what the store throws.
class StoredObjectReader {
 public:
  StoredObjectReader(ObjectStore& store, const ObjectHeader& expected);
  void read(std::span<std::byte> bytes);
  /// After expected.payload bytes: whether they are what was written.
  void check();

 private:
  std::string name_;
  std::unique_ptr<ObjectReader> object_;
  Xxh3 sum_;
};

}  // namespace calandra
