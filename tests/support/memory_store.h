#pragma once
// Objects in memory, which can be damaged, and fail as disks do.

#include "base/error.h"
#include "cache/object_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace calandra {

class MemoryStore : public ObjectStore {
 public:
  struct Object {
    std::vector<std::byte> bytes;
    std::int64_t used = 0;
  };
  using Key = std::pair<ObjectKind, Digest>;

  /// Asked before every read, write, commit and open, by that word: true makes it fail.
  std::function<bool(const char* what)> fails = [](const char*) { return false; };

  std::string description() const override { return "memory"; }
  std::vector<ListedObject> list() override {
    const std::lock_guard lock(mutex_);
    std::vector<ListedObject> all;
    for (const auto& [key, object] : objects_) all.push_back({{key.first, key.second}, std::ssize(object.bytes), object.used});
    return all;
  }
  std::unique_ptr<ObjectReader> open(const ObjectName& name) override {
    maybe_fail("open");
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find({name.kind, name.digest});
    if (found == objects_.end()) return nullptr;
    return std::make_unique<Reader>(*this, found->second.bytes);
  }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name) override {
    maybe_fail("open");
    return std::make_unique<Writer>(*this, Key{name.kind, name.digest});
  }
  void remove(const ObjectName& name) override {
    const std::lock_guard lock(mutex_);
    objects_.erase({name.kind, name.digest});
  }
  void touch(const ObjectName& name) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = objects_.find({name.kind, name.digest}); found != objects_.end()) found->second.used = ++clock_;
  }
  void expect(const ObjectName&) override { ++num_expected_; }

  std::int64_t num_expected() const { return num_expected_; }

  /// Changes the objects as whoever has the disk could; nobody else may be at it.
  std::map<Key, Object>& objects() { return objects_; }

 private:
  class Reader : public ObjectReader {
   public:
    Reader(MemoryStore& store, std::vector<std::byte> bytes) : store_(store), bytes_(std::move(bytes)) {}
    std::int64_t size() const override { return std::ssize(bytes_); }
    void read(std::span<std::byte> into) override {
      store_.maybe_fail("read");
      if (into.size() > bytes_.size() - taken_) fail("the object ends");
      if (!into.empty()) std::memcpy(into.data(), bytes_.data() + taken_, into.size());
      taken_ += into.size();
    }

   private:
    MemoryStore& store_;
    std::vector<std::byte> bytes_;
    std::size_t taken_ = 0;
  };
  class Writer : public ObjectWriter {
   public:
    Writer(MemoryStore& store, Key key) : store_(store), key_(std::move(key)) {}
    void write(std::span<const std::byte> bytes) override {
      store_.maybe_fail("write");
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    void commit() override {
      store_.maybe_fail("commit");
      const std::lock_guard lock(store_.mutex_);
      store_.objects_[key_] = {std::move(bytes_), ++store_.clock_};
    }

   private:
    MemoryStore& store_;
    Key key_;
    std::vector<std::byte> bytes_;
  };

  void maybe_fail(const char* what) {
    const std::lock_guard lock(fails_mutex_);
    if (fails(what)) fail("injected: {}", what);
  }

  std::mutex mutex_, fails_mutex_;
  std::map<Key, Object> objects_;
  std::int64_t clock_ = 0;
  std::atomic<std::int64_t> num_expected_ = 0;
};

}  // namespace calandra
