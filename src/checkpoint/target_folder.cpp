#include "checkpoint/target_folder.h"

#include "base/error.h"
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace calandra {

CreatedFolders::CreatedFolders(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  if (path.empty()) fail("found an empty name, expected the folder to write");
  std::error_code error;
  if (is_there(path) && !fs::is_directory(path, error)) {
    fail("{}: found a file, expected a new or empty folder", path.string());
  }
  const auto missing = [&](const fs::path& at) { return fs::symlink_status(at, error).type() == fs::file_type::not_found; };
  for (fs::path at = fs::absolute(path, error); missing(at) && at.has_relative_path(); at = at.parent_path()) {
    if (at.has_filename()) created_.push_back(at);
  }
  fs::create_directories(path, error);
  if (!error) return;
  remove();
  fail("{}: cannot be created: {}", path.string(), error.message());
}

void CreatedFolders::remove() const {
  std::error_code ignored;
  for (const std::filesystem::path& folder : created_) std::filesystem::remove(folder, ignored);
}

FolderLock::FolderLock(const std::filesystem::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) fail("{}: cannot be opened: {}", folder.string(), std::strerror(errno));
  // Where a file system knows no locks, there is none.
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  fail("{}: another process is writing to it", folder.string());
}

FolderLock::~FolderLock() { ::close(fd_); }

void require_space(const std::filesystem::path& folder, std::int64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes)) {
    fail("{}: {} bytes are needed, {} are free", folder.string(), bytes, space.available);
  }
}

}  // namespace calandra
