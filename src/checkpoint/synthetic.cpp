#include "checkpoint/synthetic.h"

#include "base/error.h"
#include "base/new_file.h"
#include "base/thread_pool.h"
#include "checkpoint/chat_template.h"
#include "checkpoint/synthetic_tokenizer.h"
#include "checkpoint/synthetic_weights.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace calandra {
namespace {

namespace fs = std::filesystem;
using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Elements encoded between two writes: the results of all threads wait in memory.
constexpr std::int64_t kBatchElements = 1 << 24;

struct PlannedTensor {
  TensorSpec spec;
  StoredAs stored = StoredAs::Bf16;
  std::vector<TensorHeader> headers;
  std::int64_t bytes = 0;
};

struct Plan {
  nlohmann::ordered_json json;
  Config config;
  std::vector<PlannedTensor> tensors;
  SyntheticSize size;
};

Plan make_plan(const nlohmann::ordered_json& config, SyntheticFormat format) {
  Plan plan;
  plan.json = config;
  plan.config = parse_config(plan.json.dump(), "config.json");
  for (TensorSpec& spec : list_tensors(plan.config)) {
    PlannedTensor tensor;
    tensor.stored = stored_as(spec, format, plan.config);
    tensor.headers = stored_headers(spec, tensor.stored);
    for (const TensorHeader& header : tensor.headers) tensor.bytes += num_bytes(header.type, header.shape);
    plan.size.parameters += num_elements(spec.shape);
    plan.size.tensor_bytes += tensor.bytes;
    tensor.spec = std::move(spec);
    plan.tensors.push_back(std::move(tensor));
  }
  return plan;
}

std::vector<TensorHeader> headers_of(std::span<const PlannedTensor> tensors) {
  std::vector<TensorHeader> headers;
  for (const PlannedTensor& tensor : tensors) headers.insert(headers.end(), tensor.headers.begin(), tensor.headers.end());
  return headers;
}

/// Cuts in file order into shards of at most `shard_bytes`, or one tensor.
std::vector<std::span<const PlannedTensor>> cut_shards(std::span<const PlannedTensor> tensors, std::int64_t shard_bytes) {
  std::vector<std::span<const PlannedTensor>> shards;
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && bytes + tensors[i].bytes > shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

/// Draws and encodes the tensors of a shard, batch after batch, all threads on a batch.
class ShardWriter {
 public:
  ShardWriter(SafetensorsWriter& writer, ThreadPool& pool, const std::function<void(std::int64_t)>& written)
      : writer_(writer), pool_(pool), written_(written) {}

  void write(std::span<const PlannedTensor> tensors, std::uint64_t seed, const Config& config) {
    for (const PlannedTensor& planned : tensors) {
      const auto tensor = std::make_shared<const SyntheticTensor>(planned.spec, planned.stored, seed, config);
      for (std::int64_t piece = 0; piece < tensor->num_pieces(); ++piece) {
        batch_.push_back({tensor, piece, {}});
        batch_elements_ += tensor->elements_of_piece();
        if (batch_elements_ >= kBatchElements) flush();
      }
    }
    flush();
  }

 private:
  struct Job {
    std::shared_ptr<const SyntheticTensor> tensor;
    std::int64_t piece;
    EncodedPiece result;
  };

  void flush() {
    pool_.for_each(static_cast<std::int64_t>(batch_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Job& job = batch_[static_cast<std::size_t>(i)];
        job.result = job.tensor->encode(job.piece);
      }
    });
    for (const Job& job : batch_) {
      put(job.result.data);
      scales_.insert(scales_.end(), job.result.scales.begin(), job.result.scales.end());
      if (job.piece + 1 < job.tensor->num_pieces()) continue;
      put(scales_);
      scales_.clear();
    }
    batch_.clear();
    batch_elements_ = 0;
  }

  void put(std::span<const std::byte> bytes) {
    writer_.write(bytes);
    written_(static_cast<std::int64_t>(bytes.size()));
  }

  SafetensorsWriter& writer_;
  ThreadPool& pool_;
  const std::function<void(std::int64_t)>& written_;
  std::vector<Job> batch_;
  std::int64_t batch_elements_ = 0;
  std::vector<std::byte> scales_;  // of the tensor at hand: they follow its data
};

/// A folder and those above it, where they were missing. Unless keep() is called, they are removed again if they are empty.
class CreatedFolders {
 public:
  explicit CreatedFolders(const fs::path& path) {
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_directory(path, error)) {
      fail("{}: found a file, expected a new or empty folder", path.string());
    }
    const auto missing = [&](const fs::path& at) { return fs::symlink_status(at, error).type() == fs::file_type::not_found; };
    for (fs::path at = fs::absolute(path, error); missing(at) && at.has_relative_path(); at = at.parent_path()) {
      if (at.has_filename()) created_.push_back(at);
    }
    fs::create_directories(path, error);
    if (!error) return;
    remove();
    fail("{}: cannot be created: {}", path.string(), error.message());
  }
  ~CreatedFolders() { remove(); }
  CreatedFolders(const CreatedFolders&) = delete;
  CreatedFolders& operator=(const CreatedFolders&) = delete;

  void keep() { created_.clear(); }

 private:
  void remove() const {
    std::error_code ignored;
    for (const fs::path& folder : created_) fs::remove(folder, ignored);
  }

  std::vector<fs::path> created_;  // deepest first
};

/// The folder being filled. Unless complete() is called, what was written is removed again.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path), created_(path) {
    std::error_code error;
    const fs::directory_iterator found(path, error);
    if (error) fail("{}: cannot be read: {}", path.string(), error.message());
    if (found != fs::directory_iterator()) {
      fail("{}: found {} in it, expected a new or empty folder", path.string(), printable(found->path().filename().string()));
    }
  }
  ~NewFolder() {
    std::error_code ignored;
    for (const fs::path& file : files_) fs::remove(file, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void require_space(std::int64_t bytes) const {
    std::error_code error;
    const fs::space_info space = fs::space(path_, error);
    if (!error && space.available < static_cast<std::uintmax_t>(bytes)) {
      fail("{}: {} bytes are needed, {} are free", path_.string(), bytes, space.available);
    }
  }

  /// Path of a file about to be written.
  fs::path file(const std::string& name) {
    files_.push_back(path_ / name);
    return files_.back();
  }

  void write_text(const std::string& name, std::string_view text) { write_text_file(file(name), text); }

  void complete() {
    files_.clear();
    created_.keep();
  }

 private:
  fs::path path_;
  CreatedFolders created_;
  std::vector<fs::path> files_;
};

std::string index_json(std::span<const std::span<const PlannedTensor>> shards, const std::vector<std::string>& names,
                       std::int64_t bytes) {
  std::string out = fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", bytes);
  const char* separator = "\n";
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const TensorHeader& header : headers_of(shards[i])) {
      fmt::format_to(std::back_inserter(out), "{}    \"{}\": \"{}\"", separator, header.name, names[i]);
      separator = ",\n";
    }
  }
  out += "\n  }\n}\n";
  return out;
}

std::vector<std::string> shard_names(std::size_t count) {
  if (count == 1) return {"model.safetensors"};
  std::vector<std::string> names;
  for (std::size_t i = 1; i <= count; ++i) names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, count));
  return names;
}

void write_shards(const Plan& plan, const SyntheticOptions& options, NewFolder& folder,
                  std::span<const std::span<const PlannedTensor>> shards, const std::vector<std::string>& names,
                  const Progress& progress) {
  ThreadPool pool(options.num_threads);
  std::int64_t done = 0;
  const std::function<void(std::int64_t)> written = [&](std::int64_t bytes) {
    done += bytes;
    if (progress) progress(done, plan.size.tensor_bytes);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    SafetensorsWriter writer(folder.file(names[i]), headers_of(shards[i]));
    if (options.headers_only) {
      writer.skip_rest();
    } else {
      ShardWriter(writer, pool, written).write(shards[i], options.seed, plan.config);
    }
    writer.finish();
  }
}

}  // namespace

std::vector<TensorHeader> synthetic_tensors(const SyntheticOptions& options) {
  return headers_of(make_plan(synthetic_config(options), options.format).tensors);
}

SyntheticSize make_checkpoint(const SyntheticOptions& options, const fs::path& folder, const Progress& progress) {
  return make_checkpoint(synthetic_config(options), options, folder, progress);
}

SyntheticSize make_checkpoint(const nlohmann::ordered_json& config, const SyntheticOptions& options, const fs::path& folder,
                              const Progress& progress) {
  if (options.shard_bytes < 1) fail("shards of {} bytes: expected at least 1", options.shard_bytes);
  Plan plan = make_plan(config, options.format);
  const auto shards = cut_shards(plan.tensors, options.shard_bytes);
  const std::vector<std::string> names = shard_names(shards.size());
  plan.size.shards = static_cast<std::int64_t>(shards.size());

  NewFolder target(folder);
  if (!options.headers_only) target.require_space(plan.size.tensor_bytes);
  write_shards(plan, options, target, shards, names, progress);
  if (shards.size() > 1) target.write_text("model.safetensors.index.json", index_json(shards, names, plan.size.tensor_bytes));
  target.write_text("tokenizer.json", tokenizer_json(plan.config.vocab));
  target.write_text("tokenizer_config.json", tokenizer_config_json(plan.config.vocab, plan.config.context));
  target.write_text("chat_template.jinja", ling_chat_template());
  target.write_text("generation_config.json", synthetic_generation_config(plan.json).dump(2) + "\n");
  target.write_text("config.json", plan.json.dump(2) + "\n");
  target.complete();
  return plan.size;
}

}  // namespace calandra
