#include "checkpoint/synthetic.h"

#include "base/error.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/thread_pool.h"
#include "checkpoint/chat_template.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/synthetic_tokenizer.h"
#include "checkpoint/synthetic_weights.h"
#include "checkpoint/target_folder.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace calandra {
namespace {

namespace fs = std::filesystem;
using Progress = std::function<void(std::int64_t, std::int64_t)>;

struct PlannedTensor {
  TensorSpec spec;
  StoredAs stored = StoredAs::Bf16;
};

struct Plan {
  nlohmann::ordered_json json;
  Config config;
  std::vector<PlannedTensor> tensors;
  std::int64_t parameters = 0;
};

Plan make_plan(const nlohmann::ordered_json& config, SyntheticFormat format) {
  Plan plan;
  plan.json = config;
  plan.config = parse_config(dump_json(plan.json), "config.json");
  for (TensorSpec& spec : list_tensors(plan.config)) {
    plan.parameters += num_elements(spec.shape);
    const StoredAs stored = stored_as(spec, format, plan.config);
    plan.tensors.push_back({std::move(spec), stored});
  }
  return plan;
}

/// The files of a plan, which must outlive them.
ShardPlan cut_shards(const Plan& plan, std::uint64_t seed, std::int64_t shard_bytes) {
  std::vector<ShardTensor> tensors;
  for (const PlannedTensor& planned : plan.tensors) {
    tensors.push_back({stored_headers(planned.spec, planned.stored), [&planned, &plan, seed] {
                         return std::make_shared<const SyntheticTensor>(planned.spec, planned.stored, seed, plan.config);
                       }});
  }
  return {std::move(tensors), shard_bytes};
}

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

void write_shards(const ShardPlan& shards, const SyntheticOptions& options, NewFolder& folder, const Progress& progress) {
  ThreadPool pool(options.num_threads);
  std::int64_t done = 0;
  const std::int64_t total = shards.bytes();
  const BytesWritten written = [&](std::int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  for (std::size_t i = 0; i < shards.num_shards(); ++i) {
    SafetensorsWriter writer(folder.file(shards.name_of(i)), shards.headers_of(i));
    if (options.headers_only) {
      writer.skip_rest();
    } else {
      shards.write(i, writer, pool, written);
    }
    writer.finish();
  }
}

}  // namespace

std::vector<TensorHeader> synthetic_tensors(const SyntheticOptions& options) {
  const Plan plan = make_plan(synthetic_config(options), options.format);
  return cut_shards(plan, options.seed, options.shard_bytes).headers();
}

SyntheticSize make_checkpoint(const SyntheticOptions& options, const fs::path& folder, const Progress& progress) {
  return make_checkpoint(synthetic_config(options), options, folder, progress);
}

SyntheticSize make_checkpoint(const nlohmann::ordered_json& config, const SyntheticOptions& options, const fs::path& folder,
                              const Progress& progress) {
  const Plan plan = make_plan(config, options.format);
  const ShardPlan shards = cut_shards(plan, options.seed, options.shard_bytes);
  const SyntheticSize size = {plan.parameters, shards.bytes(), static_cast<std::int64_t>(shards.num_shards())};

  NewFolder target(folder);
  if (!options.headers_only) require_space(folder, size.tensor_bytes);
  write_shards(shards, options, target, progress);
  if (shards.has_index()) target.write_text(ShardPlan::kIndexName, shards.index());
  target.write_text("tokenizer.json", tokenizer_json(plan.config.vocab));
  target.write_text("tokenizer_config.json", tokenizer_config_json(plan.config.vocab, plan.config.context));
  target.write_text("chat_template.jinja", ling_chat_template());
  target.write_text("generation_config.json", dump_json(synthetic_generation_config(plan.json), 2) + "\n");
  target.write_text("config.json", dump_json(plan.json, 2) + "\n");
  target.complete();
  return size;
}

}  // namespace calandra
