#include "checkpoint/shard_writer.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <numeric>
#include <utility>

namespace calandra {
namespace {

/// Elements encoded between two writes: the results of all threads wait in memory.
constexpr std::int64_t kBatchElements = 1 << 24;

/// Makes pieces, batch after batch, all threads on a batch.
class BatchWriter {
 public:
  BatchWriter(SafetensorsWriter& writer, ThreadPool& pool, const BytesWritten& written)
      : writer_(writer), pool_(pool), written_(written) {}

  void add(const std::shared_ptr<const TensorPieces>& tensor) {
    for (std::int64_t piece = 0; piece < tensor->num_pieces(); ++piece) {
      batch_.push_back({tensor, piece, {}});
      batch_elements_ += tensor->elements_of_piece();
      if (batch_elements_ >= kBatchElements) flush();
    }
  }

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

 private:
  struct Job {
    std::shared_ptr<const TensorPieces> tensor;
    std::int64_t piece;
    EncodedPiece result;
  };

  void put(std::span<const std::byte> bytes) {
    writer_.write(bytes);
    written_(static_cast<std::int64_t>(bytes.size()));
  }

  SafetensorsWriter& writer_;
  ThreadPool& pool_;
  const BytesWritten& written_;
  std::vector<Job> batch_;
  std::int64_t batch_elements_ = 0;
  std::vector<std::byte> scales_;  // of the tensor at hand: they follow its data
};

std::int64_t sum_of_bytes(std::span<const ShardTensor> tensors) {
  return std::transform_reduce(tensors.begin(), tensors.end(), std::int64_t{0}, std::plus<>(), std::mem_fn(&ShardTensor::bytes));
}

std::vector<TensorHeader> all_headers(std::span<const ShardTensor> tensors) {
  std::vector<TensorHeader> headers;
  for (const ShardTensor& tensor : tensors) headers.insert(headers.end(), tensor.headers.begin(), tensor.headers.end());
  return headers;
}

}  // namespace

std::int64_t ShardTensor::bytes() const {
  std::int64_t sum = 0;
  for (const TensorHeader& header : headers) sum += num_bytes(header.type, header.shape);
  return sum;
}

ShardPlan::ShardPlan(std::vector<ShardTensor> tensors, std::int64_t shard_bytes) : tensors_(std::move(tensors)) {
  if (shard_bytes < 1) fail("shards of {} bytes: expected at least 1", shard_bytes);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::int64_t own = tensors_[i].bytes();
    if (i > (ends_.empty() ? 0 : ends_.back()) && bytes + own > shard_bytes) {
      ends_.push_back(i);
      bytes = 0;
    }
    bytes += own;
  }
  ends_.push_back(tensors_.size());
}

std::string ShardPlan::name_of(std::size_t shard) const {
  if (num_shards() == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards());
}

std::span<const ShardTensor> ShardPlan::tensors_of(std::size_t shard) const {
  const std::size_t begin = shard == 0 ? 0 : ends_[shard - 1];
  return std::span(tensors_).subspan(begin, ends_[shard] - begin);
}

std::vector<TensorHeader> ShardPlan::headers_of(std::size_t shard) const { return all_headers(tensors_of(shard)); }
std::vector<TensorHeader> ShardPlan::headers() const { return all_headers(tensors_); }
std::int64_t ShardPlan::bytes_of(std::size_t shard) const { return sum_of_bytes(tensors_of(shard)); }
std::int64_t ShardPlan::bytes() const { return sum_of_bytes(tensors_); }

std::string ShardPlan::index() const {
  std::string out = fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", bytes());
  const char* separator = "\n";
  for (std::size_t shard = 0; shard < num_shards(); ++shard) {
    for (const TensorHeader& header : headers_of(shard)) {
      fmt::format_to(std::back_inserter(out), "{}    {}: \"{}\"", separator, dump_json(header.name), name_of(shard));
      separator = ",\n";
    }
  }
  out += "\n  }\n}\n";
  return out;
}

void ShardPlan::write(std::size_t shard, SafetensorsWriter& writer, ThreadPool& pool, const BytesWritten& written) const {
  BatchWriter batches(writer, pool, written);
  for (const ShardTensor& tensor : tensors_of(shard)) batches.add(tensor.pieces());
  batches.flush();
}

}  // namespace calandra
