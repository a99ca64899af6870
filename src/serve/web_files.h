#pragma once
// The files of the folder web, in the program itself: a server needs none on disk. Defined in a source that the build makes of them
// (cmake/embed_files.cmake).

#include <span>
#include <string_view>

namespace calandra {

struct WebFile {
  std::string_view name;  ///< without a folder
  std::string_view bytes;
  std::string_view sha256;  ///< of the bytes, in hexadecimal
};

std::span<const WebFile> web_files();

}  // namespace calandra
