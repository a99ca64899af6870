#pragma once
// The first of the two public nouns. A Model is a loaded checkpoint, ready to compute: weights mapped, tokenizer and template
// read, threads started. Sessions (engine/session.h) run on it. One thread at a time may compute on a model.

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "memory/pool.h"
#include "model/forward.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

namespace calandra {

struct ModelOptions {
  ConfigOverrides overrides = {};
  Activations activations = Activations::Bf16;
  std::optional<CacheType> latents = {};  // how they are kept; unset: as exact as the activations
  int threads = 0;                        // 0: one per core
  bool with_mtp = false;                  // fill the MTP layer's cache, for drafts
};

class Model {
 public:
  /// `folder_or_name` as for locate_checkpoint(). Throws Error.
  Model(const std::string& folder_or_name, const ModelOptions& options, const Checkpoint::Progress& progress = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// As it was asked for: a folder, or owner/name.
  const std::string& name() const { return name_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Config& config() const { return checkpoint_.config(); }
  const ModelOptions& options() const { return options_; }
  ForwardPass& forward() { return forward_; }
  const Compute& compute() const { return compute_; }
  MemoryLayout layout() const {
    return memory_layout(config(), cache_types(options_.activations, options_.latents), forward_.with_mtp());
  }

  /// Throws Error if the folder has no tokenizer.json; a model without one still computes on token ids.
  const Tokenizer& tokenizer() const;
  /// The same; null in place of the error.
  const Tokenizer* tokenizer_if_any() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  /// Throws Error if the folder has a template that cannot be used; completions do without.
  const ChatTemplate& chat_template() const;

  /// Logits that can be sampled: rows past the tokenizer's last token mean nothing.
  std::int64_t num_samplable() const;

 private:
  std::string name_;
  ModelOptions options_;
  Checkpoint checkpoint_;
  ThreadPool threads_;
  Compute compute_;
  ForwardPass forward_;
  std::optional<Tokenizer> tokenizer_;
  std::variant<ChatTemplate, Error> chat_template_;
};

}  // namespace calandra
