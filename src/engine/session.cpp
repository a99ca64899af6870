#include "engine/session.h"

#include "base/error.h"
#include "cache/boundary_tier.h"
#include "engine/fingerprint.h"

#include <algorithm>
#include <future>
#include <limits>

namespace calandra {
namespace {

// Boundaries kept: the end of the prompt before and a few older ones.
constexpr std::size_t kBoundaries = 4;

/// Blocks for one sequence of `context` tokens, the boundaries beside it, and one sequence that resumes from one of them.
std::int64_t blocks_for(const MemoryLayout& layout, std::int64_t context) {
  const auto boundaries = static_cast<std::int64_t>(kBoundaries);
  const std::int64_t partial_pages = 2 * (boundaries + 1);
  return layout.sequence_blocks(context) + (boundaries + 1) * layout.fixed_blocks() + partial_pages;
}

/// Objects of one conversation: with room for what it was when it was saved before, whose runs it shares.
TierOptions tier_options(const Model& model, std::int64_t tokens) {
  const MemoryLayout layout = model.layout();
  const std::int64_t token_bytes = layout.cache_bytes_per_token() + layout.mtp_cache_bytes_per_token();
  const std::int64_t bytes = layout.state_bytes() + layout.tails_bytes() + (tokens + kRunTokens) * token_bytes;
  return {
      .model = fingerprint_of(model), .limit_bytes = 2 * bytes, .hidden = model.config().hidden, .least_tokens = 1, .note = {}};
}

}  // namespace

std::int64_t checked_context(const Model& model, std::int64_t context) {
  const std::int64_t limit = model.config().context;
  if (context < 0 || context > limit)
    fail("context of {} tokens: expected 1 to the model's {} (--context N asks for more by name)", context, limit);
  return context == 0 ? limit : context;
}

Session::Session(Model& model, std::int64_t context, FreedMemory freed)
    : model_(model),
      context_(checked_context(model, context)),
      pool_(model.layout(), blocks_for(model.layout(), context_), freed),
      memory_(SequenceMemory::create(pool_)) {
  tokens_.reserve(static_cast<std::size_t>(context_));
}

std::span<const float> Session::logits(std::span<const std::int32_t> history, const Progress& progress) {
  check_length(std::ssize(history));
  const auto length = static_cast<std::int64_t>(history.size());
  const auto common = std::mismatch(tokens_.begin(), tokens_.end(), history.begin(), history.end()).first - tokens_.begin();
  if (common == length && length == position() && !logits_.empty()) {
    num_reused_tokens_ = length;
    return logits_;
  }
  rewind(std::min<std::int64_t>(common, length - 1));
  return extend(history, progress, {});
}

std::span<const float> Session::all_logits(std::span<const std::int32_t> history, const Progress& progress,
                                           const RowVisitor& visit) {
  check_length(std::ssize(history));
  rewind(0);
  return extend(history, progress, visit);
}

void Session::check_length(std::int64_t length) const {
  if (length == 0) fail("history: no tokens, expected at least 1");
  if (length > context_) fail("history of {} tokens: expected at most the context of {}", length, context_);
}

/// Computes what `history` has beyond the tokens in memory, and its logits.
std::span<const float> Session::extend(std::span<const std::int32_t> history, const Progress& progress, const RowVisitor& visit) {
  const auto length = static_cast<std::int64_t>(history.size());
  num_reused_tokens_ = position();
  logits_.clear();
  const std::int64_t start = position();
  ConstRows hidden;
  while (position() < length) {
    if (progress && !progress(position() - start, length - start)) return {};
    const auto chunk = history.subspan(static_cast<std::size_t>(position()),
                                       static_cast<std::size_t>(std::min(kPrefillTokens, length - position())));
    if (!memory_->reserve(position() + static_cast<std::int64_t>(chunk.size())))
      fail("memory pool is full at {} tokens", position());
    const Slice slice{memory_.get(), chunk, {}, false, true};
    hidden = model_.forward().run(std::span(&slice, 1));
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    const std::int64_t but_last = hidden.rows - (position() == length ? 1 : 0);
    if (visit) visit_rows(hidden.slice(0, but_last), position() - hidden.rows + 1, visit);
  }
  logits_.resize(static_cast<std::size_t>(model_.config().vocab));
  model_.forward().head(hidden.slice(hidden.rows - 1, 1), {logits_.data(), 1, model_.config().vocab, model_.config().vocab});
  return logits_;
}

void Session::reserve_drafts(std::int64_t drafts) {
  if (!memory_->reserve(position() + 1 + drafts)) fail("memory pool is full at {} tokens", position());
}

ConstRows Session::verify(std::span<const std::int32_t> history, std::span<const std::int32_t> drafts) {
  check_length(std::ssize(history) + std::ssize(drafts));
  if (std::ssize(history) != position() + 1) fail("drafts behind {} tokens: expected {}", history.size(), position() + 1);
  reserve_drafts(std::ssize(drafts));
  verified_.assign(1, history.back());
  verified_.insert(verified_.end(), drafts.begin(), drafts.end());
  const Slice slice{memory_.get(), verified_, {}, true};
  const ConstRows hidden = model_.forward().run(std::span(&slice, 1));
  const std::int64_t vocab = model_.config().vocab;
  verified_logits_.resize(static_cast<std::size_t>(hidden.rows * vocab));
  const Rows logits{verified_logits_.data(), hidden.rows, vocab, vocab};
  model_.forward().head(hidden, logits);
  return logits;
}

void Session::follow(std::span<const std::int32_t> history) {
  logits_.clear();
  const auto known = history.first(static_cast<std::size_t>(position()));
  tokens_.assign(known.begin(), known.end());
}

/// `position` is that of the first row's logits.
void Session::visit_rows(ConstRows hidden, std::int64_t position, const RowVisitor& visit) {
  const std::int64_t vocab = model_.config().vocab;
  std::vector<float> values(static_cast<std::size_t>(std::min(kLogitRows, hidden.rows) * vocab));
  for (std::int64_t first = 0; first < hidden.rows; first += kLogitRows) {
    const std::int64_t rows = std::min(kLogitRows, hidden.rows - first);
    const Rows logits{values.data(), rows, vocab, vocab};
    model_.forward().head(hidden.slice(first, rows), logits);
    for (std::int64_t row = 0; row < rows; ++row)
      visit(position + first + row, {logits.row(row), static_cast<std::size_t>(vocab)});
  }
}

void Session::rewind(std::int64_t common) {
  if (position() <= common) return;
  while (!boundaries_.empty() && boundaries_.back()->position() > common) boundaries_.pop_back();
  memory_.reset();  // frees its blocks before the next takes some
  memory_ = boundaries_.empty() ? SequenceMemory::create(pool_) : SequenceMemory::resume(pool_, *boundaries_.back());
  tokens_.resize(static_cast<std::size_t>(position()));
}

void Session::save(const std::shared_ptr<ObjectStore>& objects, std::span<const std::int32_t> history) const {
  if (position() == 0 || std::ranges::mismatch(tokens_, history).in1 != tokens_.end()) return;
  model_.forward().settle(*memory_);
  const auto boundary = memory_->snapshot();
  if (!boundary) fail("memory pool is full at {} tokens", position());
  BoundaryTier tier(objects, tier_options(model_, position()));
  TokenChain chain = tier.chain("");
  chain.extend(tokens_);
  tier.write(chain, tokens_, *boundary, 0);
  tier.finish();
  if (tier.find(chain, tokens_, position()) < position())
    fail("{}: cannot be written: {}", objects->description(), tier.statistics().last_error);
}

void Session::load(const std::shared_ptr<ObjectStore>& objects, std::span<const std::int32_t> history) {
  check_length(std::ssize(history));
  TierOptions options = tier_options(model_, std::ssize(history));
  options.limit_bytes = std::numeric_limits<std::int64_t>::max();  // whatever is there stays, also another model's
  BoundaryTier tier(objects, options);
  TokenChain chain = tier.chain("");
  chain.extend(history);
  const std::int64_t found = tier.find(chain, history, std::ssize(history) - 1);
  const auto common = std::mismatch(tokens_.begin(), tokens_.end(), history.begin(), history.end()).first - tokens_.begin();
  if (found <= common) return;
  boundaries_.clear();
  rewind(0);
  if (!memory_->reserve(found)) fail("memory pool is full at {} tokens", found);
  std::promise<void> done;
  const auto reading = tier.read(chain, history, found, *memory_, [&] { done.set_value(); });
  done.get_future().wait();
  if (reading->state() == BoundaryReading::State::Done) {
    memory_->arrive(found);
    tokens_.assign(history.begin(), history.begin() + found);
    logits_.clear();
  } else {
    memory_.reset();
    memory_ = SequenceMemory::create(pool_);
  }
}

void Session::keep_boundary() {
  if (!boundaries_.empty() && boundaries_.back()->position() == position()) return;
  if (boundaries_.size() == kBoundaries) boundaries_.erase(boundaries_.begin());
  model_.forward().settle(*memory_);
  if (auto boundary = memory_->snapshot()) boundaries_.push_back(std::move(boundary));
}

}  // namespace calandra
