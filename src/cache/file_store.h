#pragma once
// Objects as the files of a folder, which belongs to one process at a time. Files appear under their names when they are whole and on
// the disk; what a process that was killed has left unfinished is removed by the next one.

#include "cache/object_store.h"

#include <filesystem>

namespace calandra {

class FileStore : public ObjectStore {
 public:
  /// Makes the folder, for its owner alone, if it is not there. Throws Error if it cannot be written, or another process has it.
  explicit FileStore(const std::filesystem::path& folder);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  std::string description() const override { return folder_.string(); }
  std::vector<ListedObject> list() override;
  std::unique_ptr<ObjectReader> open(const ObjectName& name) override;
  std::unique_ptr<ObjectWriter> create(const ObjectName& name) override;
  void remove(const ObjectName& name) override;
  void touch(const ObjectName& name) override;
  void expect(const ObjectName& name) override;

 private:
  std::filesystem::path path_of(const ObjectName& name) const;

  std::filesystem::path folder_;
  int lock_ = -1;
};

}  // namespace calandra
