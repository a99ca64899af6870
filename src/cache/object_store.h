#pragma once
// Where a tier keeps its objects: immutable, there as a whole or not at all, each under a name of its own. A folder is one
// (file_store.h); one that several servers share would be another. Whatever fails throws Error. From several threads at once.

#include "base/digest.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace calandra {

enum class ObjectKind : std::uint32_t {
  Run = 1,  // the rows of a run of tokens
  End = 2,  // of a boundary: the rows after its last whole run, and all that does not grow
};

struct ObjectName {
  ObjectKind kind{};
  Digest digest;
  friend bool operator==(const ObjectName&, const ObjectName&) = default;
};

/// One object from its first byte to its last.
class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  virtual std::int64_t size() const = 0;
  /// The next bytes, all of them or an Error.
  virtual void read(std::span<std::byte> bytes) = 0;
};

/// An object in the making: nothing is left of it without commit().
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// It is there now, also after a loss of power.
  virtual void commit() = 0;
};

struct ListedObject {
  ObjectName name;
  std::int64_t bytes = 0;
  std::int64_t used = 0;  // when it was last written or touched: nanoseconds since 1970
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  /// In messages: the folder, the address.
  virtual std::string description() const = 0;
  virtual std::vector<ListedObject> list() = 0;
  /// nullptr if there is none.
  virtual std::unique_ptr<ObjectReader> open(const ObjectName& name) = 0;
  virtual std::unique_ptr<ObjectWriter> create(const ObjectName& name) = 0;
  /// Nothing happens if there is none.
  virtual void remove(const ObjectName& name) = 0;
  /// Remembers that it was used now.
  virtual void touch(const ObjectName& name) = 0;
  /// It is going to be opened soon. Returns at once.
  virtual void expect(const ObjectName& name) = 0;
};

}  // namespace calandra
