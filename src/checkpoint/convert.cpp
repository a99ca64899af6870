#include "checkpoint/convert.h"

#include "base/error.h"
#include "base/integer.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/new_file.h"
#include "checkpoint/stored_weights.h"
#include "checkpoint/target_folder.h"
#include "kernels/kernels.h"
#include "tensor/element.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <system_error>
#include <unordered_map>
#include <utility>

namespace calandra {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kTargetNames = {"fp8", "fp4", "fp4-all"};
constexpr std::string_view kConfigName = "config.json";

/// Key of the shards' metadata that names the conversion; its value changes with the rules of this file.
constexpr const char* kDigestKey = "calandra_conversion";
constexpr std::string_view kRules = "calandra conversion 1";

/// Bytes of a tensor that is copied, between two looks at the clock.
constexpr std::int64_t kCopyBytes = 1 << 20;

/// How few bits a weight has: what is coarser is never made finer.
int coarseness(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return 0;
    case WeightFormat::F16: return 1;
    case WeightFormat::BF16: return 2;
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return 3;
    case WeightFormat::Mxfp4: return 4;
  }
  return 0;
}

int coarseness(StoredAs stored) {
  return stored == StoredAs::Mxfp4 ? 4 : is_quantised(stored) ? 3 : stored == StoredAs::Bf16 ? 2 : 0;
}

/// How a matrix of the source is stored, as far as config.json cares: F16 is as little quantised as BF16.
StoredAs form_of(const WeightMatrix& matrix, const Config& config) {
  switch (matrix.format) {
    case WeightFormat::F32: return StoredAs::F32;
    case WeightFormat::F16:
    case WeightFormat::BF16: return StoredAs::Bf16;
    case WeightFormat::Fp8: return config.fp8_power_of_two_activations ? StoredAs::Fp8PowerOfTwo : StoredAs::Fp8;
    case WeightFormat::Fp8E8m0: return StoredAs::Fp8E8m0;
    case WeightFormat::Mxfp4: return StoredAs::Mxfp4;
  }
  return StoredAs::Bf16;
}

/// The kind of block FP8 for tensors that become it: the source's own, so that one checkpoint has one; otherwise the release's.
StoredAs fp8_form(const BoundTensors& source, ConversionTarget target) {
  for (const BoundTensor& tensor : source.tensors) {
    if (tensor.matrix && coarseness(tensor.matrix.format) == coarseness(StoredAs::Fp8))
      return form_of(tensor.matrix, source.config);
  }
  return target == ConversionTarget::Fp8 && !source.config.fp8_power_of_two_activations ? StoredAs::Fp8 : StoredAs::Fp8PowerOfTwo;
}

/// Decides how a matrix is to be stored.
class Recipe {
 public:
  Recipe(const ConversionOptions& options, const BoundTensors& source)
      : options_(options), config_(source.config), fp8_(fp8_form(source, options.target)) {
    if (config_.tied_head && options.head) {
      fail("--head: found tie_word_embeddings in config.json, which makes the embedding the head; expected a head of its own");
    }
  }

  /// Nothing for what stays as it is.
  std::optional<StoredAs> wanted(const TensorSpec& spec) {
    if (spec.role == Role::Head) return wanted_head(spec);
    const SyntheticFormat release = options_.target == ConversionTarget::Fp8 ? SyntheticFormat::Fp8 : SyntheticFormat::Fp4;
    const StoredAs released = stored_as(spec, release, config_);
    if (!is_quantised(released)) return std::nullopt;
    return released == StoredAs::Mxfp4 || options_.target == ConversionTarget::Fp4All ? mxfp4(spec) : fp8_;
  }

  /// Matrices that were to be MXFP4 and cannot be.
  const std::vector<std::string>& ragged() const { return ragged_; }

 private:
  std::optional<StoredAs> wanted_head(const TensorSpec& spec) {
    if (!options_.head) return options_.target == ConversionTarget::Fp4All ? std::optional(mxfp4(spec)) : std::nullopt;
    switch (*options_.head) {
      case HeadFormat::Bf16: return StoredAs::Bf16;
      case HeadFormat::Fp8: return fp8_;
      case HeadFormat::Fp4: return mxfp4(spec);
    }
    return std::nullopt;
  }

  StoredAs mxfp4(const TensorSpec& spec) {
    if (spec.shape.at(1) % kMxGroup == 0) return StoredAs::Mxfp4;
    ragged_.push_back(spec.name);
    return fp8_;
  }

  const ConversionOptions& options_;
  const Config& config_;
  StoredAs fp8_;
  std::vector<std::string> ragged_;
};

/// A tensor of the source, each piece of which is made from bytes that no other piece needs: read once, they need not stay in memory.
class SourcePieces : public TensorPieces {
 public:
  EncodedPiece encode(std::int64_t piece) const final {
    EncodedPiece made = make(piece);
    for (const std::span<const std::byte> bytes : sources_of(piece)) release_pages(bytes);
    return made;
  }

 private:
  virtual EncodedPiece make(std::int64_t piece) const = 0;
  /// Of the tensor, and of its scales if the piece has all of them.
  virtual std::array<std::span<const std::byte>, 2> sources_of(std::int64_t piece) const = 0;
};

/// The largest magnitude that a form holds with a scale that may be opened again.
float most_of(StoredAs stored) {
  switch (stored) {
    case StoredAs::Fp8:
    case StoredAs::Fp8PowerOfTwo:
    case StoredAs::Fp8E8m0: return kE4m3Largest * kMostFp8Scale;
    case StoredAs::Bf16: return 0x1.FEp127f;  // above it is half a step to infinity
    case StoredAs::F32:
    case StoredAs::Mxfp4: return std::numeric_limits<float>::max();
  }
  return std::numeric_limits<float>::max();
}

/// A matrix of the source in another form.
class ConvertedMatrix : public SourcePieces {
 public:
  ConvertedMatrix(const BoundTensor& source, StoredAs stored, const Kernels& kernels)
      : source_(source),
        matrix_(source.matrix),
        stored_(stored),
        kernels_(kernels),
        rows_(rows_per_piece(matrix_.rows, matrix_.cols)) {}

  std::int64_t num_pieces() const override { return ceil_div(matrix_.rows, rows_); }
  std::int64_t elements_of_piece() const override { return rows_ * matrix_.cols; }

 private:
  EncodedPiece make(std::int64_t piece) const override {
    const std::int64_t begin = piece * rows_, count = rows_of(piece);
    const auto cols = static_cast<std::size_t>(matrix_.cols);
    std::vector<float> values(static_cast<std::size_t>(count) * cols);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::span<float> row = std::span(values).subspan(static_cast<std::size_t>(r) * cols, cols);
      kernels_.decode_row(matrix_, begin + r, row);
      const auto bad = std::find_if(row.begin(), row.end(), [&](float value) { return !(std::fabs(value) <= most_); });
      if (bad != row.end()) fail_at(begin + r, bad - row.begin(), *bad);
    }
    return encode_rows({values.data(), count, matrix_.cols, matrix_.cols}, stored_);
  }

  std::array<std::span<const std::byte>, 2> sources_of(std::int64_t piece) const override {
    const std::span<const std::byte> data = source_.stored.front()->view.data;
    const std::size_t row_bytes = data.size() / static_cast<std::size_t>(matrix_.rows);
    return {
        data.subspan(static_cast<std::size_t>(piece * rows_) * row_bytes, static_cast<std::size_t>(rows_of(piece)) * row_bytes)};
  }

  std::int64_t rows_of(std::int64_t piece) const { return std::min(rows_, matrix_.rows - piece * rows_); }

  [[noreturn]] void fail_at(std::int64_t row, std::int64_t col, float value) const {
    const std::string expected =
        std::isfinite(value) ? fmt::format("at most {}, which is what the new format holds", most_) : "a finite number";
    fail("{}: element [{}, {}] is {} in {}, expected {}", source_.spec.name, row, col, value,
         source_.stored.front()->file->path().filename().string(), expected);
  }

  const BoundTensor& source_;
  const WeightMatrix& matrix_;
  StoredAs stored_;
  float most_ = most_of(stored_);
  const Kernels& kernels_;
  std::int64_t rows_;
};

/// A tensor of the source, with its scales if it has some, as it is.
class CopiedTensor : public SourcePieces {
 public:
  explicit CopiedTensor(std::span<const StoredTensor* const> stored) : data_(stored.front()->view.data) {
    if (stored.size() > 1) scales_ = stored.back()->view.data;
  }

  std::int64_t num_pieces() const override { return ceil_div(std::ssize(data_), kCopyBytes); }
  std::int64_t elements_of_piece() const override { return std::min<std::int64_t>(std::ssize(data_), kCopyBytes); }

 private:
  EncodedPiece make(std::int64_t piece) const override {
    const auto [part, scales] = sources_of(piece);
    return {{part.begin(), part.end()}, {scales.begin(), scales.end()}};
  }

  std::array<std::span<const std::byte>, 2> sources_of(std::int64_t piece) const override {
    const auto rest = data_.subspan(static_cast<std::size_t>(piece * kCopyBytes));
    return {rest.first(std::min(rest.size(), static_cast<std::size_t>(kCopyBytes))), piece == 0 ? scales_ : decltype(scales_)()};
  }

  std::span<const std::byte> data_, scales_;
};

/// Reads all scales of a tensor that has some: bind_tensors() did not.
void check_scales_of(const BoundTensor& tensor) {
  if (tensor.matrix.scales != nullptr) check_scales(tensor.names.back(), *tensor.stored.back(), tensor.matrix.format);
}

ShardTensor copy_of(const BoundTensor& tensor) {
  ShardTensor copy;
  for (std::size_t i = 0; i < tensor.stored.size(); ++i) {
    const TensorView& view = tensor.stored[i]->view;
    copy.headers.push_back({tensor.names[i], view.type, view.shape});
  }
  copy.pieces = [&tensor] {
    check_scales_of(tensor);
    return std::make_shared<const CopiedTensor>(tensor.stored);
  };
  return copy;
}

/// FNV-1a, 64 bits: tells conversions apart, keeps no secrets.
class Digest {
 public:
  void add(std::string_view text) {
    add_bytes(std::as_bytes(std::span(text)));
    add_number(std::ssize(text));  // so that no two lists of texts are alike
  }
  void add_number(std::int64_t number) { add_bytes(std::as_bytes(std::span(&number, 1))); }
  void add_bytes(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) state_ = (state_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
  }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

/// "3 tensors, a among them"
std::string counted(const std::vector<std::string>& names) {
  return names.size() == 1 ? names[0] : fmt::format("{} tensors, {} among them,", names.size(), names[0]);
}

bool is_weight_file(const std::string& name) { return name.ends_with(".safetensors") || name == ShardPlan::kIndexName; }

bool has_content(const fs::path& path, std::span<const std::byte> expected) {
  const MappedFile file(path);
  const auto found = file.bytes();
  if (found.size() != expected.size()) return false;
  return found.empty() || std::memcmp(found.data(), expected.data(), found.size()) == 0;  // it may be large
}
bool has_content(const fs::path& path, std::string_view expected) {
  return has_content(path, std::as_bytes(std::span(expected)));
}

/// `between` is called after every few megabytes.
void copy_file(const fs::path& from, const fs::path& to, const std::function<void()>& between) {
  const MappedFile source(from);
  NewFile copy(to);
  for (auto rest = source.bytes(); !rest.empty();) {
    const auto part = rest.first(std::min(rest.size(), static_cast<std::size_t>(kCopyBytes)));
    copy.write(part);
    release_pages(part);
    rest = rest.subspan(part.size());
    between();
  }
  copy.commit();
}

}  // namespace

std::string_view name_of(ConversionTarget target) { return kTargetNames[static_cast<std::size_t>(target)]; }

Conversion::Conversion(fs::path source, const ConversionOptions& options)
    : folder_(std::move(source)), num_threads_(options.num_threads), source_(bind_tensors(folder_)) {
  plan_tensors(options);
  plan_other_files();
  digest_ = digest_of(options);
}

void Conversion::plan_tensors(const ConversionOptions& options) {
  const Kernels& kernels = kernels_for(choose_isa());
  Recipe recipe(options, source_);
  std::vector<ShardTensor> tensors;
  std::vector<StoredSpec> result;
  std::vector<std::string> coarser;
  bool changed = false;
  for (const BoundTensor& tensor : source_.tensors) {
    const std::optional<StoredAs> wanted = tensor.matrix ? recipe.wanted(tensor.spec) : std::nullopt;
    const int step = wanted ? coarseness(*wanted) - coarseness(tensor.matrix.format) : 0;
    if (step > 0) {
      tensors.push_back({stored_headers(tensor.spec, *wanted), [&tensor, stored = *wanted, &kernels] {
                           check_scales_of(tensor);
                           return std::make_shared<const ConvertedMatrix>(tensor, stored, kernels);
                         }});
      changed = true;
    } else {
      tensors.push_back(copy_of(tensor));
      if (step < 0) coarser.push_back(tensor.spec.name);
    }
    if (tensor.matrix) result.push_back({&tensor.spec, step > 0 ? *wanted : form_of(tensor.matrix, source_.config)});
  }
  for (const BoundTensor& tensor : source_.surplus) tensors.push_back(copy_of(tensor));
  shards_.emplace(std::move(tensors), options.shard_bytes);

  const fs::path config = folder_ / kConfigName;
  Json json = parse_json(read_text_file(config), config.string());
  json.erase("quantization_config");
  if (auto scheme = quantization_config(result); !scheme.is_null()) json["quantization_config"] = std::move(scheme);
  config_text_ = dump_json(json, 2) + "\n";

  if (!changed)
    remarks_.push_back(fmt::format("every tensor is stored as {} asks for, or coarser: a copy", name_of(options.target)));
  if (!coarser.empty())
    remarks_.push_back(fmt::format("{} stored coarser than asked for: copied as stored",
                                   counted(coarser) + (coarser.size() == 1 ? " is" : " are")));
  if (!recipe.ragged().empty()) {
    remarks_.push_back(fmt::format("{} no multiple of {} columns wide, which MXFP4 needs: block FP8 instead",
                                   counted(recipe.ragged()) + (recipe.ragged().size() == 1 ? " is" : " are"), kMxGroup));
  }
  if (source_.config.tied_head && options.target == ConversionTarget::Fp4All) {
    remarks_.emplace_back("the head is the embedding (tie_word_embeddings): it stays as stored");
  }
}

void Conversion::plan_other_files() {
  std::error_code error;
  std::vector<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    const bool is_shard = std::any_of(source_.shards.files.begin(), source_.shards.files.end(),
                                      [&](const auto& file) { return file->path().filename() == name; });
    if (name == kConfigName || name == ShardPlan::kIndexName || is_shard) continue;
    if (entry.is_regular_file(ignored) && !is_weight_file(name) && !name_begun(name)) {
      other_bytes_ += std::ssize(MappedFile(entry.path()).bytes());  // one that cannot be read is named now, not hours later
      other_files_.push_back(name);
    } else {
      left.push_back(name);
    }
  }
  if (error) fail("{}: cannot be read: {}", folder_.string(), error.message());
  std::sort(other_files_.begin(), other_files_.end());
  std::sort(left.begin(), left.end());
  for (std::string& name : left) name = printable(name);
  if (!left.empty()) remarks_.push_back(fmt::format("not copied from the model's folder: {}", fmt::join(left, ", ")));
}

std::string Conversion::digest_of(const ConversionOptions& options) const {
  constexpr std::int64_t kSamples = 128;  // each a read from a random place of the disk
  constexpr std::size_t kSampleBytes = 64;
  Digest digest;
  digest.add(kRules);
  digest.add(name_of(options.target));
  digest.add_number(options.head ? static_cast<int>(*options.head) : -1);
  digest.add_number(options.shard_bytes);
  digest.add(read_text_file(folder_ / kConfigName));
  for (const auto& [name, tensor] : source_.shards.tensors) {
    digest.add(name);
    digest.add(calandra::name_of(tensor.view.type));
    digest.add(to_string(tensor.view.shape));
  }
  std::int64_t matrices = 0;
  const std::int64_t step = ceil_div(std::ssize(source_.tensors), kSamples);
  for (const BoundTensor& tensor : source_.tensors) {
    const std::span<const std::byte> data = tensor.stored.front()->view.data;
    if (!tensor.matrix) {
      digest.add_bytes(data);  // small, and was read when it was bound
    } else if (matrices++ % step == 0) {
      digest.add_bytes(data.first(std::min(data.size(), kSampleBytes)));
    }
  }
  return digest.text();
}

std::int64_t Conversion::parameters() const {
  return std::transform_reduce(source_.tensors.begin(), source_.tensors.end(), std::int64_t{0}, std::plus<>(),
                               [](const BoundTensor& tensor) { return num_elements(tensor.spec.shape); });
}

std::int64_t Conversion::source_bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : source_.shards.tensors) sum += std::ssize(tensor.view.data);
  return sum;
}

bool Conversion::is_made(const fs::path& file, std::size_t shard) const {
  const SafetensorsFile made(file);
  const auto digest = made.metadata().find(kDigestKey);
  if (digest == made.metadata().end() || digest->second != digest_) return false;
  const std::vector<TensorHeader> headers = shards_->headers_of(shard);
  return made.tensors().size() == headers.size() && std::ranges::all_of(headers, [&](const TensorHeader& header) {
           const auto found = made.tensors().find(header.name);
           return found != made.tensors().end() && found->second.type == header.type && found->second.shape == header.shape;
         });
}

/// Which shards are there. Throws Error for a file that this conversion would not have written.
std::vector<bool> Conversion::shards_in(const fs::path& target) const {
  std::unordered_map<std::string, std::size_t> shard_numbers;
  for (std::size_t i = 0; i < num_shards(); ++i) shard_numbers.emplace(shards_->name_of(i), i);
  const auto is_other = [&](const std::string& name) {
    return std::binary_search(other_files_.begin(), other_files_.end(), name);
  };
  const auto is_planned = [&](const std::string& name) {
    return shard_numbers.contains(name) || is_other(name) || name == kConfigName ||
           (shards_->has_index() && name == ShardPlan::kIndexName);
  };
  const auto is_ours = [&](const fs::path& file, const std::string& name) {
    if (const auto begun = name_begun(name)) return is_planned(*begun);
    if (const auto shard = shard_numbers.find(name); shard != shard_numbers.end()) return is_made(file, shard->second);
    if (name == kConfigName) return has_content(file, config_text_);
    if (is_other(name)) return has_content(file, MappedFile(folder_ / name).bytes());
    return is_planned(name) && has_content(file, shards_->index());
  };
  std::vector<bool> made(num_shards(), false);
  std::error_code error;
  if (fs::equivalent(target, folder_, error)) fail("{}: found the model itself, expected another folder", target.string());
  for (const fs::directory_entry& entry : fs::directory_iterator(target, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_ours(entry.path(), name)) {
      fail("{}: found {}, which {}; expected a new or empty folder, or what this conversion of the same model left",
           target.string(), printable(name), is_planned(name) ? "is of another model or conversion" : "is no part of it");
    }
    if (const auto shard = shard_numbers.find(name); shard != shard_numbers.end()) made[shard->second] = true;
  }
  if (error) fail("{}: cannot be read: {}", target.string(), error.message());
  return made;
}

bool Conversion::is_finished(const fs::path& target) const {
  if (!is_there(target / kConfigName)) return false;
  const std::vector<bool> made = shards_in(target);
  return std::find(made.begin(), made.end(), false) == made.end();
}

void Conversion::write_shards(const fs::path& target, const std::vector<bool>& made,
                              const std::function<void(const ConversionProgress&)>& progress) const {
  ConversionProgress state;
  state.total_bytes = tensor_bytes();
  state.num_shards = num_shards();
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i]) continue;
    state.done_bytes += shards_->bytes_of(i);
    ++state.finished_shards;
  }
  require_space(target, state.total_bytes - state.done_bytes + other_bytes_);
  ThreadPool pool(num_threads_);
  const BytesWritten written = [&](std::int64_t bytes) {
    state.done_bytes += bytes;
    if (progress) progress(state);
  };
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i]) continue;
    SafetensorsWriter writer(target / shards_->name_of(i), shards_->headers_of(i), {{"format", "pt"}, {kDigestKey, digest_}});
    shards_->write(i, writer, pool, written);
    writer.finish();
    ++state.finished_shards;
  }
}

void Conversion::write(const fs::path& target, const std::function<void(const ConversionProgress&)>& progress) const {
  CreatedFolders created(target);
  const FolderLock lock(target);
  const std::vector<bool> made = shards_in(target);
  for (const fs::directory_entry& entry : fs::directory_iterator(target)) {
    std::error_code ignored;  // it is in nobody's way
    if (name_begun(entry.path().filename().string())) fs::remove(entry.path(), ignored);
  }
  write_shards(target, made, progress);
  if (shards_->has_index()) write_text_file(target / ShardPlan::kIndexName, shards_->index());
  const auto look = [&] {
    if (progress) progress({tensor_bytes(), tensor_bytes(), num_shards(), num_shards()});
  };
  for (const std::string& name : other_files_) copy_file(folder_ / name, target / name, look);
  write_text_file(target / kConfigName, config_text_);
  created.keep();
}

}  // namespace calandra
