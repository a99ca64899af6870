#include "cli/open_model.h"

#include "base/mapped_file.h"
#include "cli/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace calandra {
namespace {

std::string read_stream(std::FILE* stream, const std::string& name) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof(buffer), stream)) {
    text.append(buffer, count);
    if (text.size() > kMostBytes) fail("{}: more than {} bytes", name, kMostBytes);
  }
  if (std::ferror(stream) != 0) fail("{}: {}", name, std::strerror(errno));
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

std::string read_input(const std::filesystem::path& file) {
  if (file == "-") return read_stream(stdin, "standard input");
  if (!std::filesystem::is_fifo(file)) return read_text_file(file);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "r"), &std::fclose);
  if (!stream) fail("{}: cannot open: {}", file.string(), std::strerror(errno));
  return read_stream(stream.get(), file.string());
}

}  // namespace calandra
