#pragma once
// Writes the tensors of a checkpoint into safetensors shards of bounded size, front to back. Tensors are made in pieces, a batch of them
// by all threads at a time: memory does not grow with the checkpoint, and the files do not depend on the threads.

#include "base/thread_pool.h"
#include "checkpoint/storage.h"
#include "tensor/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace calandra {

/// A tensor that is made piece by piece, in any order and by any thread.
class TensorPieces {
 public:
  virtual ~TensorPieces() = default;
  virtual std::int64_t num_pieces() const = 0;
  /// At most: what a piece costs to make.
  virtual std::int64_t elements_of_piece() const = 0;
  virtual EncodedPiece encode(std::int64_t piece) const = 0;
};

/// A tensor to be written and how to make it.
struct ShardTensor {
  std::vector<TensorHeader> headers;                            // the tensor and, if its pieces have scales, these
  std::function<std::shared_ptr<const TensorPieces>()> pieces;  // called when its turn comes
  std::int64_t bytes() const;
};

/// What a writer of shards is to tell of the bytes it has written since the last time.
using BytesWritten = std::function<void(std::int64_t bytes)>;

/// The files that some tensors go to.
class ShardPlan {
 public:
  /// In this order, in shards of at most `shard_bytes`, or one tensor. Throws Error if that is less than 1.
  ShardPlan(std::vector<ShardTensor> tensors, std::int64_t shard_bytes);

  std::size_t num_shards() const { return ends_.size(); }
  /// "model-00001-of-00003.safetensors", or "model.safetensors" if it is alone.
  std::string name_of(std::size_t shard) const;
  std::vector<TensorHeader> headers_of(std::size_t shard) const;
  std::int64_t bytes_of(std::size_t shard) const;
  std::int64_t bytes() const;
  std::vector<TensorHeader> headers() const;

  bool has_index() const { return num_shards() > 1; }
  static constexpr const char* kIndexName = "model.safetensors.index.json";
  /// Its text.
  std::string index() const;

  /// Makes and writes the data of a shard.
  void write(std::size_t shard, SafetensorsWriter& writer, ThreadPool& pool, const BytesWritten& written) const;

 private:
  std::span<const ShardTensor> tensors_of(std::size_t shard) const;

  std::vector<ShardTensor> tensors_;
  std::vector<std::size_t> ends_;  // of every shard, in tensors_
};

}  // namespace calandra
