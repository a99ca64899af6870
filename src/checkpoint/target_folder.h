#pragma once
// The folder that a checkpoint is written to.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace calandra {

/// A folder and those above it, where they were missing. Unless keep() is called, they are removed again if they are empty.
class CreatedFolders {
 public:
  /// Throws Error that names the path: a file or a link to nothing is there, it is empty, or it cannot be created.
  explicit CreatedFolders(const std::filesystem::path& path);
  ~CreatedFolders() { remove(); }
  CreatedFolders(const CreatedFolders&) = delete;
  CreatedFolders& operator=(const CreatedFolders&) = delete;

  void keep() { created_.clear(); }

 private:
  void remove() const;

  std::vector<std::filesystem::path> created_;  // deepest first
};

/// One writer at a time: held by this process until it ends, however it ends.
class FolderLock {
 public:
  /// Throws Error that names the folder if another process holds it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// Throws Error that names the folder if its disk has less left.
void require_space(const std::filesystem::path& folder, std::int64_t bytes);

}  // namespace calandra
