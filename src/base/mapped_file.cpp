#include "base/mapped_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

namespace calandra {
namespace {

/// Closes a descriptor when it goes out of scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK opening a named pipe waits for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail("{}: cannot stat: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    fail("{}: found a {}, expected a file", path.string(),
         S_ISDIR(status.st_mode)    ? "folder"
         : S_ISFIFO(status.st_mode) ? "pipe"
                                    : "device");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty range cannot be mapped
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail("{}: cannot map {} bytes: {}", path.string(), size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* begin = const_cast<std::byte*>(mapped.data());
  std::size_t size = mapped.size();
  // Whole pages only: the others belong to neighbours too.
  if (std::align(page, page, begin, size) == nullptr) return;
  ::madvise(begin, size / page * page, MADV_DONTNEED);  // advice may be ignored
}

bool is_there(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status own = fs::symlink_status(path, error);
  if (own.type() == fs::file_type::not_found) return false;
  if (own.type() == fs::file_type::none) fail("{}: cannot look for it: {}", path.string(), error.message());
  if (own.type() != fs::file_type::symlink || fs::exists(path, error)) return true;
  const std::string why = error ? error.message() : "nothing is there";
  fail("{}: a link to {}: {}", path.string(), fs::read_symlink(path, error).string(), why);
}

std::string read_text_file(const std::filesystem::path& path, std::size_t limit_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > limit_bytes) {
    fail("{}: {} bytes, expected at most {}", path.string(), bytes.size(), limit_bytes);
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace calandra
