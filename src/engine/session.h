#pragma once
// The second public noun. A Session is one timeline of tokens and the memory that goes with it. A caller hands over the whole
// history each time; the session reuses what it holds, resumes from a boundary, or starts again, and the logits are
// bit for bit the same whichever it was.

#include "cache/object_store.h"
#include "engine/model.h"
#include "memory/sequence_memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace calandra {

/// Tokens of a prompt in one forward pass: enough to use every weight many times, few enough to stop quickly.
inline constexpr std::int64_t kPrefillTokens = 512;

/// Rows of logits held at a time where those of many tokens are wanted: 157,184 floats each in the released models.
inline constexpr std::int64_t kLogitRows = 64;

/// The tokens that `context` asks for: 0 takes the model's. Throws Error for more than those, or fewer than none.
std::int64_t checked_context(const Model& model, std::int64_t context);

class Session {
 public:
  /// Called with (tokens done, tokens to do) between steps of a prefill; false stops it.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  /// Called with the logits [vocab] after the first `position` tokens.
  using RowVisitor = std::function<void(std::int64_t position, std::span<const float> logits)>;

  /// `context` tokens at most; 0 takes the model's. Memory is reserved, and becomes resident as it is used.
  explicit Session(Model& model, std::int64_t context = 0, FreedMemory freed = FreedMemory::AsIs);

  /// Logits [vocab] after the last token of `history`, valid until the next call. Empty if `progress` stopped the prefill;
  /// what was done until then is kept. Throws Error if the history is empty or longer than the context.
  std::span<const float> logits(std::span<const std::int32_t> history, const Progress& progress = {});

  /// The same, with the logits after every shorter beginning of `history`, in order, for `visit`. Those of what is in memory are gone, so
  /// nothing is reused; and the boundaries go. Holds kLogitRows rows.
  std::span<const float> all_logits(std::span<const std::int32_t> history, const Progress& progress, const RowVisitor& visit);

  /// Remembers this moment: a later history that leaves the present one after it resumes here. The last few are kept.
  void keep_boundary();

  // ---- For speculation (engine/speculation.h), while a history is one token ahead of what is in memory.

  /// Room for that token and so many drafts behind it.
  void reserve_drafts(std::int64_t drafts);
  /// Logits [1 + drafts, vocab] after `history` and after each draft, valid until the next call. What is in memory stays until its commit()
  /// (model/forward.h), after which follow() is due.
  ConstRows verify(std::span<const std::int32_t> history, std::span<const std::int32_t> drafts);
  /// What is in memory has moved on by tokens of `history`.
  void follow(std::span<const std::int32_t> history);

  /// Writes what is in memory to `objects`, for load() in this or another process, if it is a beginning of `history`. Throws Error if it cannot
  /// be written.
  void save(const std::shared_ptr<ObjectStore>& objects, std::span<const std::int32_t> history) const;
  /// Goes on from the deepest position in `objects` that is a prefix of `history`, if that spares more than what is in memory. What is damaged, or
  /// of another model or program, is as good as not there.
  void load(const std::shared_ptr<ObjectStore>& objects, std::span<const std::int32_t> history);

  std::int64_t context() const { return context_; }
  /// Tokens in memory.
  std::int64_t position() const { return memory_->position(); }
  /// Tokens of the last history that did not have to be computed.
  std::int64_t num_reused_tokens() const { return num_reused_tokens_; }
  SequenceMemory& memory() { return *memory_; }

 private:
  void check_length(std::int64_t length) const;
  void rewind(std::int64_t common);
  std::span<const float> extend(std::span<const std::int32_t> history, const Progress& progress, const RowVisitor& visit);
  void visit_rows(ConstRows hidden, std::int64_t position, const RowVisitor& visit);

  Model& model_;
  std::int64_t context_;
  MemoryPool pool_;
  std::vector<std::int32_t> tokens_;  // what memory_ holds
  std::unique_ptr<SequenceMemory> memory_;
  std::vector<std::unique_ptr<Boundary>> boundaries_;  // of prefixes of tokens_, shallow first
  std::vector<float> logits_;                          // after tokens_, or empty
  std::int64_t num_reused_tokens_ = 0;
  // Of verify(): the last token and its drafts, and the logits after each.
  std::vector<std::int32_t> verified_;
  std::vector<float> verified_logits_;
};

}  // namespace calandra
