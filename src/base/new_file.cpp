#include "base/new_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace calandra {

namespace {

/// `path`, absolute and without symbolic links, so that a link is not replaced by a file.
std::filesystem::path place_of(const std::filesystem::path& path) {
  if (path.empty()) fail("found an empty file name, expected where to write");
  std::error_code error;
  std::filesystem::path place = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (error) fail("{}: cannot create: {}", path.string(), error.message());
  if (std::filesystem::exists(place, error) && !std::filesystem::is_regular_file(place, error)) {
    fail("{}: cannot be replaced: found no regular file, expected one or none", path.string());
  }
  return place;
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) fail("{}: cannot sync: {}", folder.string(), std::strerror(error));
}

// Two threads that write the same file have one each.
constexpr std::string_view kPartialSuffix = ".partial";
std::atomic<std::uint64_t> num_partials = 0;

}  // namespace

NewFile::NewFile(const std::filesystem::path& path, Access access)
    : path_(path),
      place_(place_of(path)),
      partial_(place_.string() + fmt::format(".{}.{}{}", ::getpid(), ++num_partials, kPartialSuffix)) {
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, static_cast<mode_t>(access));
  if (fd_ < 0) fail("{}: cannot create: {}", path_.string(), std::strerror(errno));
  struct stat old {};  // what it replaces may have been closed to others
  if (::stat(place_.c_str(), &old) == 0 && ::fchmod(fd_, old.st_mode & 0777) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    ::close(fd_);
    fail("{}: cannot keep its permissions: {}", path_.string(), std::strerror(error));
  }
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      place_(std::move(other.place_)),
      partial_(std::move(other.partial_)),
      fd_(std::exchange(other.fd_, -1)) {}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(place_, other.place_);
  std::swap(partial_, other.partial_);
  std::swap(fd_, other.fd_);
  return *this;
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail("{}: cannot write: {}", path_.string(), std::strerror(done < 0 ? errno : ENOSPC));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void NewFile::extend_to(std::int64_t size_bytes) {
  if (::ftruncate(fd_, size_bytes) != 0) {
    fail("{}: cannot extend to {} bytes: {}", path_.string(), size_bytes, std::strerror(errno));
  }
}

void NewFile::commit() {
  if (::fsync(fd_) != 0) fail("{}: cannot sync: {}", path_.string(), std::strerror(errno));
  if (::rename(partial_.c_str(), place_.c_str()) != 0) {
    fail("{}: cannot rename {}: {}", path_.string(), partial_.string(), std::strerror(errno));
  }
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("{}: cannot close: {}", path_.string(), std::strerror(errno));
  sync_folder(place_.parent_path());
}

std::optional<std::string> name_begun(std::string_view left) {
  if (!left.ends_with(kPartialSuffix)) return std::nullopt;
  left.remove_suffix(kPartialSuffix.size());
  for (int number = 0; number < 2; ++number) {  // of the process, and its file's
    const std::size_t before = left.find_last_not_of("0123456789");
    if (before == std::string_view::npos || left[before] != '.' || before + 1 == left.size()) return std::nullopt;
    left = left.substr(0, before);
  }
  return left.empty() ? std::nullopt : std::optional<std::string>(left);
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace calandra
