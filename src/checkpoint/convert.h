#pragma once
// Conversion of a checkpoint into fewer bits: the linears in block FP8 or MXFP4 by the rules of docs/model.md 3.4 and 3.5, from the
// values that the source's codes and scales mean. What is stored so already, or coarser, is copied byte for byte, and so is all
// that is no linear.

#include "checkpoint/bound_tensors.h"
#include "checkpoint/shard_writer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// What the linears become (docs/formats.md says which stay as they are):
///   Fp8     block FP8, as Ling-3.1-flash is published
///   Fp4     routed experts MXFP4, those of the MTP layer included; the rest as Fp8; as Ling-3.0-flash-fp4 is published
///   Fp4All  MXFP4, and the head too; of the engines only Calandra is known to read it
enum class ConversionTarget : std::uint8_t { Fp8, Fp4, Fp4All };

/// "fp8", "fp4", "fp4-all"
std::string_view name_of(ConversionTarget target);

enum class HeadFormat : std::uint8_t { Bf16, Fp8, Fp4 };

struct ConversionOptions {
  ConversionTarget target = ConversionTarget::Fp4;
  std::optional<HeadFormat> head;  // unset: as stored, but MXFP4 for Fp4All
  std::int64_t shard_bytes = kDefaultShardBytes;
  int num_threads = 0;  // 0: one per core. The files do not depend on it
};

struct ConversionProgress {
  std::int64_t done_bytes = 0;  // of tensors written, those of earlier runs included
  std::int64_t total_bytes = 0;
  std::size_t finished_shards = 0;
  std::size_t num_shards = 0;
};

/// A conversion that was decided, tensor by tensor, and not yet carried out.
class Conversion {
 public:
  /// Opens the source: headers, small vectors and a sample of the matrices are read. Throws Error as Checkpoint::open() does, and for
  /// options that do not fit the model.
  Conversion(std::filesystem::path source, const ConversionOptions& options);

  const Config& config() const { return source_.config; }
  std::int64_t parameters() const;
  std::int64_t source_bytes() const;
  std::int64_t tensor_bytes() const { return shards_->bytes(); }
  std::size_t num_shards() const { return shards_->num_shards(); }
  /// Every tensor that is written, in order.
  std::vector<TensorHeader> headers() const { return shards_->headers(); }
  /// What was not done as one might expect, one sentence each.
  const std::vector<std::string>& remarks() const { return remarks_; }

  /// Whether `target` holds all files of this very conversion.
  bool is_finished(const std::filesystem::path& target) const;

  /// Writes the folder: shards, the source's other files, config.json last, so that a folder without it is known to be unfinished.
  /// Every file appears whole or not at all. What this conversion wrote to `target` before is kept and not made again; anything
  /// else there is refused by name, before a byte is written. An exception of `progress` (called after every few megabytes; may be
  /// empty) stops it; finished shards stay. Same source and options, same bytes. Memory: what a few pieces take, 50 to
  /// some hundred megabytes, whatever the size.
  void write(const std::filesystem::path& target, const std::function<void(const ConversionProgress&)>& progress = {}) const;

 private:
  void plan_tensors(const ConversionOptions& options);
  void plan_other_files();
  std::string digest_of(const ConversionOptions& options) const;
  std::vector<bool> shards_in(const std::filesystem::path& target) const;
  bool is_made(const std::filesystem::path& file, std::size_t shard) const;
  void write_shards(const std::filesystem::path& target, const std::vector<bool>& made,
                    const std::function<void(const ConversionProgress&)>& progress) const;

  std::filesystem::path folder_;
  int num_threads_;
  BoundTensors source_;
  std::optional<ShardPlan> shards_;
  std::string config_text_;               // of the new config.json
  std::vector<std::string> other_files_;  // names of files to copy
  std::int64_t other_bytes_ = 0;          // their sizes
  std::vector<std::string> remarks_;
  std::string digest_;  // names this conversion in the metadata of its shards
};

}  // namespace calandra
