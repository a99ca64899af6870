#include "cache/file_store.h"

#include "base/error.h"
#include "base/new_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace calandra {
namespace {

constexpr std::string_view kRunSuffix = ".run", kEndSuffix = ".end";

/// A descriptor that is closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// A named pipe must not hold up who opens it.
Descriptor open_file(const std::filesystem::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

class FileReader : public ObjectReader {
 public:
  FileReader(std::filesystem::path path, Descriptor file, std::int64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {
    ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  std::int64_t size() const override { return size_; }

  void read(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = ::read(file_.get(), bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("{}: cannot read: {}", path_.string(), std::strerror(errno));
      if (done == 0) fail("{}: ends after {} bytes, expected {} more", path_.string(), size_, bytes.size());
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::int64_t size_ = 0;
};

class FileWriter : public ObjectWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path) : file_(path, NewFile::Access::Owner) {}
  void write(std::span<const std::byte> bytes) override { file_.write(bytes); }
  void commit() override { file_.commit(); }

 private:
  NewFile file_;
};

std::optional<ObjectName> name_of(const std::filesystem::path& path) {
  const std::optional<Digest> digest = digest_of_hex(path.stem().string());
  const std::string suffix = path.extension().string();
  if (!digest) return std::nullopt;
  if (suffix == kRunSuffix) return ObjectName{ObjectKind::Run, *digest};
  if (suffix == kEndSuffix) return ObjectName{ObjectKind::End, *digest};
  return std::nullopt;
}

/// Of an object that was never finished.
bool is_partial(const std::filesystem::directory_entry& entry) {
  const std::optional<std::string> begun = name_begun(entry.path().filename().string());
  return begun && name_of(*begun) && std::filesystem::is_regular_file(entry.symlink_status());
}

}  // namespace

FileStore::FileStore(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty()) fail("found an empty name, expected a folder for the prefix cache");
  folder_ = std::filesystem::absolute(folder, error);
  if (std::filesystem::exists(folder_, error) && !std::filesystem::is_directory(folder_, error))
    fail("{}: found no folder, expected one, or nothing, for the prefix cache", folder.string());
  if (std::filesystem::create_directories(folder_, error))
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, error);
  if (error) fail("{}: cannot make the folder: {}", folder.string(), error.message());
  const std::filesystem::path lock = folder_ / "lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) fail("{}: cannot be written: {}", folder.string(), std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail("{}: another process keeps its prefix cache there, expected a folder of its own for each", folder.string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (is_partial(entry)) std::filesystem::remove(entry.path(), error);
  }
}

FileStore::~FileStore() { ::close(lock_); }

std::filesystem::path FileStore::path_of(const ObjectName& name) const {
  std::string file = name.digest.hex();
  file += name.kind == ObjectKind::Run ? kRunSuffix : kEndSuffix;
  return folder_ / file;
}

std::vector<ListedObject> FileStore::list() {
  std::vector<ListedObject> objects;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::optional<ObjectName> name = name_of(entry.path());
    struct stat status {};
    if (!name || ::stat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    objects.push_back({*name, status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
  }
  if (error) fail("{}: cannot be read: {}", folder_.string(), error.message());
  return objects;
}

std::unique_ptr<ObjectReader> FileStore::open(const ObjectName& name) {
  const std::filesystem::path path = path_of(name);
  Descriptor file = open_file(path);
  struct stat status {};
  const bool opened = file.get() >= 0 && ::fstat(file.get(), &status) == 0;
  if (!opened && errno != ENOENT) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  if (!opened || !S_ISREG(status.st_mode)) return nullptr;
  return std::make_unique<FileReader>(path, std::move(file), status.st_size);
}

std::unique_ptr<ObjectWriter> FileStore::create(const ObjectName& name) { return std::make_unique<FileWriter>(path_of(name)); }

void FileStore::remove(const ObjectName& name) {
  const std::filesystem::path path = path_of(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("{}: cannot remove: {}", path.string(), std::strerror(errno));
}

void FileStore::touch(const ObjectName& name) {
  const std::filesystem::path path = path_of(name);
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) != 0) fail("{}: cannot touch: {}", path.string(), std::strerror(errno));
}

void FileStore::expect(const ObjectName& name) {
  const Descriptor file = open_file(path_of(name));
  if (file.get() >= 0) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_WILLNEED);
}

}  // namespace calandra
