#include "cli/open_model.h"

#include "base/mapped_file.h"
#include "cli/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace calandra {
namespace {

std::string read_stdin() {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof(buffer), stdin)) {
    text.append(buffer, count);
    if (text.size() > kMostBytes) fail("standard input: more than {} bytes", kMostBytes);
  }
  if (std::ferror(stdin) != 0) fail("standard input: {}", std::strerror(errno));
  return text;
}

}  // namespace

std::unique_ptr<Model> open_model(const ModelArguments& arguments, bool with_mtp) {
  ProgressBar bar("Loading " + short_name(arguments.model));
  const ModelOptions options{arguments.overrides, arguments.activations, arguments.threads, with_mtp};
  return std::make_unique<Model>(arguments.model, options,
                                 [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
}

std::string short_name(const std::string& folder_or_name) {
  std::filesystem::path path(folder_or_name);
  if (path.is_relative() && std::distance(path.begin(), path.end()) == 2 && !std::filesystem::exists(path)) return folder_or_name;
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().empty() || path.filename() == "." ? folder_or_name : path.filename().string();
}

std::string read_input(const std::filesystem::path& file) { return file == "-" ? read_stdin() : read_text_file(file); }

}  // namespace calandra
