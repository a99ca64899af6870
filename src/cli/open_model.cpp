#include "cli/open_model.h"

#include "cli/terminal.h"
#include "text/unicode.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

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

void warn_if_larger_than_memory(std::int64_t weight_bytes) {
  const std::int64_t memory_bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE);
  if (memory_bytes <= 0 || weight_bytes <= memory_bytes) return;
  write_note(fmt::format("note: weights of {} on a machine with {} of memory: they are read from disk again and again\n",
                         short_bytes(weight_bytes), short_bytes(memory_bytes)));
}

}  // namespace

std::unique_ptr<Model> open_model(const ModelArguments& arguments, bool with_mtp) {
  ProgressBar bar("Loading " + short_name(arguments.model));
  const ModelOptions options{arguments.overrides, arguments.activations, arguments.latents, arguments.threads, with_mtp};
  bool first = true;
  auto model = std::make_unique<Model>(arguments.model, options, [&](std::int64_t done, std::int64_t total) {
    if (std::exchange(first, false)) warn_if_larger_than_memory(total);
    bar.update(done, total);
  });
  bar.clear();
  if (const auto remark = model->config().untrained_context_remark()) write_note(fmt::format("note: {}\n", *remark));
  return model;
}

std::string short_name(const std::string& folder_or_name) {
  std::filesystem::path path(folder_or_name);
  std::error_code ignored;
  if (path.is_relative() && std::distance(path.begin(), path.end()) == 2 && !std::filesystem::exists(path, ignored)) {
    return folder_or_name;
  }
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().empty() || path.filename() == "." ? folder_or_name : path.filename().string();
}

std::string read_input(const std::filesystem::path& file) {
  if (file == "-") return read_stream(stdin, input_name(file));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "r"), &std::fclose);
  if (!stream) fail("{}: cannot open: {}", file.string(), std::strerror(errno));
  return read_stream(stream.get(), input_name(file));
}

std::string read_text(const std::filesystem::path& file) {
  std::string text = read_input(file);
  if (!is_valid_utf8(text))
    write_note(fmt::format("note: {} is not all UTF-8; U+FFFD stands for stray bytes\n", one_line(input_name(file))));
  return text;
}

std::string input_name(const std::filesystem::path& file) { return file == "-" ? "standard input" : file.string(); }

}  // namespace calandra
