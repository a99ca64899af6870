#include "checkpoint/shards.h"

#include "base/error.h"
#include "base/mapped_file.h"

#include <simdjson.h>

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

namespace calandra {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor -> file name

struct Index {
  WeightMap weight_map;
  std::int64_t total_size = -1;  // -1: not stated
};

/// A file name alone: a shard must lie in the folder.
void check_shard_name(std::string_view shard, std::string_view tensor, const std::string& where) {
  constexpr std::size_t kLongestName = 255;  // what file systems allow
  const bool plain = !shard.empty() && shard.size() <= kLongestName && shard != "." && shard != ".." &&
                     shard.find('/') == std::string_view::npos && shard.find('\0') == std::string_view::npos;
  if (!plain) {
    fail("{}: {}: found file \"{}\", expected the name of a file in the same folder, of at most {} bytes", where,
         printable(tensor), printable(shard), kLongestName);
  }
}

Index read_index(const std::filesystem::path& path) {
  const std::string where = path.string();
  const MappedFile file(path);
  if (file.bytes().empty()) fail("{}: no JSON object: the file is empty", where);
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  const auto parsed = parser.parse(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()).get(root);
  if (parsed != simdjson::SUCCESS) fail("{}: no JSON object: {}", where, simdjson::error_message(parsed));
  simdjson::dom::object weight_map;
  if (root["weight_map"].get(weight_map) != simdjson::SUCCESS) fail("{}: weight_map is missing or no object", where);

  Index index;
  for (const auto [tensor, value] : weight_map) {
    std::string_view shard;
    if (value.get(shard) != simdjson::SUCCESS) fail("{}: {}: expected the name of a file", where, printable(tensor));
    check_shard_name(shard, tensor, where);
    if (!index.weight_map.emplace(tensor, shard).second) fail("{}: {} appears twice", where, printable(tensor));
  }
  if (root["metadata"]["total_size"].get(index.total_size) != simdjson::SUCCESS) index.total_size = -1;
  return index;
}

/// Opens a file and adds its tensors.
void add_file(const std::filesystem::path& path, Shards& shards) {
  const SafetensorsFile* file = shards.files.emplace_back(std::make_unique<SafetensorsFile>(path)).get();
  for (const auto& [name, view] : file->tensors()) {
    const auto [place, added] = shards.tensors.emplace(name, StoredTensor{view, file});
    if (!added) fail("{}: {} is also in {}", path.string(), printable(name), place->second.file->path().filename().string());
  }
}

void check_against_index(const Index& index, const std::filesystem::path& path, Shards& shards) {
  for (const auto& [tensor, shard] : index.weight_map) {
    const auto found = shards.tensors.find(tensor);
    if (found == shards.tensors.end()) {
      fail("{}: {} should be in {}, which lacks it", path.string(), printable(tensor), printable(shard));
    }
    const std::string actual = found->second.file->path().filename().string();
    if (actual != shard) {
      fail("{}: {} should be in {}, found it in {}", path.string(), printable(tensor), printable(shard), printable(actual));
    }
  }
  std::int64_t total = 0;
  for (const auto& [name, tensor] : shards.tensors) total += std::ssize(tensor.view.data);
  if (index.total_size >= 0 && index.total_size != total) {
    shards.remarks.push_back(fmt::format("{} states {} tensor bytes, the files hold {}", kIndexName, index.total_size, total));
  }
  if (index.weight_map.size() != shards.tensors.size()) {
    shards.remarks.push_back(
        fmt::format("{} names {} tensors, the files hold {}", kIndexName, index.weight_map.size(), shards.tensors.size()));
  }
}

}  // namespace

Shards open_shards(const std::filesystem::path& folder) {
  Shards shards;
  const std::filesystem::path index_path = folder / kIndexName;
  if (is_there(index_path)) {
    const Index index = read_index(index_path);
    std::set<std::string> names;
    for (const auto& [tensor, shard] : index.weight_map) names.insert(shard);
    for (const std::string& name : names) add_file(folder / name, shards);
    check_against_index(index, index_path, shards);
    return shards;
  }
  const std::filesystem::path single = folder / kSingleName;
  if (!is_there(single)) fail("{}: found neither {} nor {}", folder.string(), kSingleName, kIndexName);
  add_file(single, shards);
  return shards;
}

}  // namespace calandra
