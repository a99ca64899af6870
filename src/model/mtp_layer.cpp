// The multi-token-prediction layer: row i joins the hidden row of token i with the embedding of token i + 1 and predicts
// token i + 2 (docs/model.md, MTP).

#include "model/forward.h"
#include "model/workspace.h"

#include <algorithm>
#include <array>

namespace calandra {

ConstRows ForwardPass::mtp_rows(ConstRows hidden, std::span<const std::int32_t> next_tokens, std::span<const Segment> segments,
                                Observer* observer) {
  const MtpWeights& w = *weights_.mtp;
  const std::int64_t rows = hidden.rows, h = config_.hidden;
  const Rows joined = work_->mtp_joined.take(rows, 2 * h);
  const Rows embedding = joined.columns(0, h);
  embed(next_tokens, embedding);
  norm_rows(embedding, w.embedding_norm, embedding, Outputs::Rounded);
  norm_rows(hidden, w.hidden_norm, joined.columns(h, h), Outputs::Rounded);
  const Rows x = work_->mtp_x.take(rows, h);
  compute_.linear(w.join, joined, x);
  place(segments);
  run_block(config_.layers, x, segments, observer);
  const Rows u = work_->mtp_out.take(rows, h);
  norm_rows(x, w.final_norm, u, Outputs::Exact);
  return u;
}

/// Rows are gathered, then made at once: at most so many.
void ForwardPass::begin_mtp(std::int64_t most_rows) {
  work_->mtp_inputs = work_->mtp_hidden.take(most_rows, config_.hidden);
  work_->mtp_tokens.clear();
  work_->mtp_segments.clear();
}

/// Adds the rows of a sequence at position p that have been put off, and those that `tokens` complete, which come from p on: the row of its last
/// token and of all of `tokens` but the last. A row that a draft has made is not made again, unless it is the only one. hidden [tokens - 1, h]
/// are the rows of `tokens`.
void ForwardPass::add_mtp(SequenceMemory& memory, std::span<const std::int32_t> tokens, ConstRows hidden) {
  const std::int64_t position = memory.position(), put_off = std::ssize(memory.mtp_tokens_put_off());
  const bool is_made = tokens.size() > 1 && memory.has_mtp_row(tokens[0]);
  const bool resumes = position > 0 && !tokens.empty() && !is_made;
  const auto given = tokens.subspan(resumes || tokens.empty() ? 0 : 1);
  std::vector<std::int32_t>& next = work_->mtp_tokens;
  const std::int64_t first = position > 0 && !is_made ? position - 1 - put_off : position;
  const Segment part{&memory, first, std::ssize(next), put_off + std::ssize(given)};
  if (part.rows == 0) return;
  std::int64_t row = part.first_row + put_off;
  std::ranges::copy(memory.mtp_hidden_put_off(), work_->mtp_inputs.row(part.first_row));
  if (resumes) std::ranges::copy(memory.last_hidden(), work_->mtp_inputs.row(row++));
  for (std::int64_t t = 0; row < part.end_row(); ++t) std::copy_n(hidden.row(t), config_.hidden, work_->mtp_inputs.row(row++));
  next.insert(next.end(), memory.mtp_tokens_put_off().begin(), memory.mtp_tokens_put_off().end());
  next.insert(next.end(), given.begin(), given.end());
  work_->mtp_segments.push_back(part);
}

/// The rows that add_mtp() would add to those put off are put off.
void ForwardPass::put_off_mtp(SequenceMemory& memory, std::span<const std::int32_t> tokens, ConstRows hidden) {
  if (memory.position() > 0 && !memory.has_mtp_row(tokens[0])) memory.put_off_mtp_row(memory.last_hidden(), tokens[0]);
  for (std::size_t t = 1; t < tokens.size(); ++t)
    memory.put_off_mtp_row(span_of(hidden, static_cast<std::int64_t>(t) - 1), tokens[t]);
}

/// Those rows, after final_layernorm.
ConstRows ForwardPass::finish_mtp(Observer* observer) {
  const auto rows = std::ssize(work_->mtp_tokens);
  if (rows == 0) return {};
  const ConstRows u = mtp_rows(work_->mtp_inputs.slice(0, rows), work_->mtp_tokens, work_->mtp_segments, observer);
  for (const Segment& part : work_->mtp_segments) part.memory->clear_mtp_put_off();
  return u;
}

void ForwardPass::settle(SequenceMemory& memory) {
  const auto rows = std::ssize(memory.mtp_tokens_put_off());
  if (rows == 0) return;
  const ThreadPool::Step step(compute_.threads());
  begin_mtp(rows);
  add_mtp(memory, {}, {});
  finish_mtp(nullptr);
}

/// The rows that a pass completes: from the last token before each slice up to the last but one of the slice.
void ForwardPass::fill_mtp(std::span<const Segment> segments, std::span<const Slice> slices, ConstRows hidden,
                           Observer* observer) {
  std::int64_t most_rows = hidden.rows;
  for (const Segment& segment : segments) most_rows += std::ssize(segment.memory->mtp_tokens_put_off());
  begin_mtp(most_rows);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].tentative()) continue;
    SequenceMemory& memory = *segments[s].memory;
    // Streams in step with each other do not all have their rows made in the same pass.
    const bool made_many = std::ssize(work_->mtp_tokens) >= 2 * kMostMtpRowsPutOff;
    const std::int64_t most = (made_many ? 2 : 1) * kMostMtpRowsPutOff, put_off = std::ssize(memory.mtp_tokens_put_off());
    if (slices[s].puts_off_mtp && segments[s].rows == 1 && segments[s].boundaries.empty() && memory.position() > 0 &&
        put_off < most) {
      put_off_mtp(memory, slices[s].tokens, {});
      continue;
    }
    add_mtp(memory, slices[s].tokens, hidden.slice(segments[s].first_row, segments[s].rows));
  }
  const ConstRows u = finish_mtp(observer);
  if (observer != nullptr && u.rows > 0) observer->mtp_output(u);
}

/// The rows that the tokens complete which were right, unless they can wait, and those that predict what comes after `next`, which are returned.
ConstRows ForwardPass::commit_mtp(std::span<const Commit> commits) {
  std::int64_t most_rows = 0;
  for (const Commit& commit : commits) most_rows += commit.count + 1 + std::ssize(commit.memory->mtp_tokens_put_off());
  begin_mtp(most_rows);
  std::vector<std::int32_t>& tokens = work_->committed_tokens;
  std::vector<std::int64_t>& wanted = work_->wanted_mtp_rows;
  wanted.clear();
  for (const Commit& commit : commits) {
    tokens.clear();
    ConstRows hidden;
    if (const Segment* const segment = tentative_segment(commit); segment != nullptr && commit.count > 0) {
      const auto first = work_->replay_tokens.begin() + segment->first_replay_row;
      tokens.assign(first, first + commit.count);
      hidden = work_->final_rows.slice(segment->first_row, segment->rows);
    }
    if (commit.next) tokens.push_back(*commit.next);
    const std::int64_t put_off = std::ssize(commit.memory->mtp_tokens_put_off());
    if (!tokens.empty() && !commit.next && put_off + std::ssize(tokens) <= kMostMtpRowsPutOff) {
      put_off_mtp(*commit.memory, tokens, hidden);
    } else if (!tokens.empty()) {
      add_mtp(*commit.memory, tokens, hidden);
    }
    if (commit.next) wanted.push_back(std::ssize(work_->mtp_tokens) - 1);
  }
  finish_mtp(nullptr);
  const Rows u = work_->mtp_out.take(std::ssize(work_->mtp_tokens), config_.hidden);
  for (std::size_t i = 0; i < wanted.size(); ++i)  // never behind where it stands
    std::copy_n(u.row(wanted[i]), u.cols, u.row(static_cast<std::int64_t>(i)));
  return u.slice(0, std::ssize(wanted));
}

ConstRows ForwardPass::mtp(std::span<const MtpSlice> slices, ConstRows hidden, Observer* observer) {
  const ThreadPool::Step step(compute_.threads());
  std::vector<Segment>& segments = work_->mtp_segments;
  std::vector<std::int32_t>& tokens = work_->mtp_tokens;
  segments.clear();
  tokens.clear();
  for (const MtpSlice& slice : slices) {
    segments.push_back({slice.memory, slice.first, std::ssize(tokens), std::ssize(slice.next_tokens)});
    tokens.insert(tokens.end(), slice.next_tokens.begin(), slice.next_tokens.end());
  }
  return mtp_rows(hidden, tokens, segments, observer);
}

}  // namespace calandra
