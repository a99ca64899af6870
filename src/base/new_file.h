#pragma once
// A file in the making. It is written beside its place and appears under its name, whole and on disk, only with commit();
// without that nothing is left behind. Of a symbolic link the target is written. Every failure, a full disk for example,
// throws Error that names the path.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace calandra {

class NewFile {
 public:
  /// Who may read and write a file that replaces none; the process's umask takes away from it.
  enum class Access : unsigned { Everybody = 0666, Owner = 0600 };

  /// Throws Error if something is there that is no regular file: a folder, a device.
  explicit NewFile(const std::filesystem::path& path, Access access = Access::Everybody);
  ~NewFile();
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(std::span<const std::byte> bytes);
  /// Makes the file `size_bytes` long; what was not written is a hole of zeros.
  void extend_to(std::int64_t size_bytes);
  /// Syncs the file, renames it and syncs its folder. Replaces an older file of that name. Nothing may be written after it.
  void commit();

 private:
  std::filesystem::path path_;     // as asked for, to be named
  std::filesystem::path place_;    // absolute, links resolved
  std::filesystem::path partial_;  // beside the place, until commit()
  int fd_ = -1;
};

/// What a NewFile was to become whose process was killed: "NAME" if the file it has left is called "NAME.1234.1.partial".
std::optional<std::string> name_begun(std::string_view left);

/// A whole text file by way of NewFile.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace calandra
