#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

namespace calandra {
namespace {

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

/// Caches of the Hugging Face tools, in the order in which those tools prefer them.
std::vector<std::filesystem::path> cache_folders() {
  std::vector<std::filesystem::path> folders;
  const auto add = [&](const char* variable, const char* below) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') folders.push_back(std::filesystem::path(value) / below);
  };
  add("HF_HUB_CACHE", "");
  add("HF_HOME", "hub");
  add("XDG_CACHE_HOME", "huggingface/hub");
  add("HOME", ".cache/huggingface/hub");
  return folders;
}

/// One part of owner/name: what the hub allows, so that no part can lead out of the cache.
bool is_hub_word(std::string_view word) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !word.empty() && word != "." && word != ".." && std::all_of(word.begin(), word.end(), allowed);
}

/// The snapshot that refs/main names, or an empty path and the reason in `tried`.
std::filesystem::path snapshot_in(const std::filesystem::path& model, std::vector<std::string>& tried) {
  const std::filesystem::path reference = model / "refs" / "main";
  std::error_code ignored;
  if (!std::filesystem::exists(reference, ignored)) {
    tried.push_back(reference.string());
    return {};
  }
  std::string revision = read_text_file(reference, 4096);
  revision.erase(revision.find_last_not_of(" \r\n\t") + 1);
  if (!is_hub_word(revision)) fail("{}: expected the name of a snapshot", reference.string());
  std::filesystem::path snapshot = model / "snapshots" / revision;
  if (is_folder(snapshot)) return snapshot;
  tried.push_back(snapshot.string());
  return {};
}

}  // namespace

std::filesystem::path locate_checkpoint(const std::string& folder_or_name) {
  if (is_folder(folder_or_name)) return folder_or_name;
  std::vector<std::string> tried;
  const std::size_t slash = folder_or_name.find('/');
  if (slash != std::string::npos) {
    const std::string_view name = folder_or_name;
    const std::string_view owner = name.substr(0, slash);
    const std::string_view model = name.substr(slash + 1);
    if (is_hub_word(owner) && is_hub_word(model)) {
      for (const std::filesystem::path& cache : cache_folders()) {
        std::filesystem::path snapshot = snapshot_in(cache / fmt::format("models--{}--{}", owner, model), tried);
        if (!snapshot.empty()) return snapshot;
      }
    }
  }
  if (folder_or_name.empty()) fail("found an empty name, expected a model's folder or owner/name");
  std::error_code ignored;
  if (std::filesystem::exists(folder_or_name, ignored)) {
    fail("{}: found a file, expected the folder of a model", folder_or_name);
  }
  if (tried.empty()) fail("{}: no such folder, and no owner/name of a model", folder_or_name);
  fail("{}: no such folder, nor in the Hugging Face cache, where {} would be (`hf download` puts it there)", folder_or_name,
       fmt::join(tried, " or "));
}

}  // namespace calandra
