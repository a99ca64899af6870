#pragma once
// A file mapped read-only. The bytes live as long as the object; pages are read by the system when touched.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace calandra {

class MappedFile {
 public:
  /// Throws Error that names the path if it cannot be opened, is no regular file or cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// For who reads a mapped file once, front to back: these bytes need not stay in memory. They can be read again at any time.
void release_pages(std::span<const std::byte> mapped);

/// Whether something has that name. Throws Error that names it where that cannot be told, and for a symbolic link to nothing:
/// half a download, and no reason to do without the file.
bool is_there(const std::filesystem::path& path);

/// Whole content of a small text file. Throws Error that names the path, also if it is larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t limit_bytes = std::size_t{1} << 30);

}  // namespace calandra
