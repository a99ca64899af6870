#include "engine/drafter.h"

#include <algorithm>
#include <exception>

namespace calandra {
namespace {

class MtpDrafter : public Drafter {
 public:
  explicit MtpDrafter(Model& model) : model_(model) {}

  std::string_view name() const override { return kMtpDrafter; }
  bool runs_mtp() const override { return true; }
  std::int64_t look(DraftedAnswer&) override { return kMostDrafts; }

  void draft(std::span<DraftedAnswer* const> answers) override {
    begin(answers);
    while (!going_on_.empty()) {
      draw();
      run_layer();
    }
  }

 private:
  struct Chain {
    DraftedAnswer* answer = nullptr;
    std::unique_ptr<AnswerGuide> guide;
    bool goes_on = true;
  };

  void begin(std::span<DraftedAnswer* const> answers) {
    going_on_.clear();
    rows_.clear();
    for (DraftedAnswer* answer : answers) {
      going_on_.push_back({answer, answer->guide != nullptr ? answer->guide->fork() : nullptr});
      rows_.insert(rows_.end(), answer->mtp_row.begin(), answer->mtp_row.end());
    }
  }

  /// The next draft of each.
  void draw() {
    const std::int64_t vocab = model_.config().vocab, count = std::ssize(going_on_);
    logits_.resize(static_cast<std::size_t>(count * vocab));
    model_.forward().head(rows(), {logits_.data(), count, vocab, vocab});
    model_.compute().threads().for_each(count, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        const std::span<const float> logits(logits_.data() + i * vocab, static_cast<std::size_t>(model_.num_samplable()));
        draw(going_on_[static_cast<std::size_t>(i)], logits);
      }
    });
  }

  void draw(Chain& chain, std::span<const float> logits) const {
    DraftedAnswer& answer = *chain.answer;
    try {
      const auto allowed = chain.guide ? chain.guide->allowed() : std::span<const std::uint64_t>();
      const std::int32_t id = answer.builder.sample(logits, answer.drafts, allowed);
      if (chain.guide) chain.guide->push(id);
      answer.drafts.push_back(id);
      chain.goes_on = std::ssize(answer.drafts) < answer.wanted && !answer.builder.is_stop_id(id);
    } catch (const std::exception&) {
      chain.goes_on = false;  // if the answer cannot go on, whoever draws its tokens finds out
    }
  }

  /// The rows after these drafts, of those that want another.
  void run_layer() {
    slices_.clear();
    const std::int64_t width = model_.config().hidden;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < going_on_.size(); ++i) {
      if (!going_on_[i].goes_on) continue;
      const auto row = rows_.begin() + static_cast<std::ptrdiff_t>(i) * width;
      std::copy(row, row + width, rows_.begin() + static_cast<std::ptrdiff_t>(kept) * width);
      if (kept != i) going_on_[kept] = std::move(going_on_[i]);
      const DraftedAnswer& answer = *going_on_[kept++].answer;
      const std::int64_t position = answer.memory->position() + std::ssize(answer.drafts) - 1;
      slices_.push_back({answer.memory, position, std::span(answer.drafts).last(1)});
    }
    going_on_.resize(kept);
    rows_.resize(kept * static_cast<std::size_t>(width));
    if (kept == 0) return;
    const ConstRows u = model_.forward().mtp(slices_, rows());
    std::copy_n(u.data, rows_.size(), rows_.begin());
  }

  ConstRows rows() const {
    const std::int64_t width = model_.config().hidden;
    return {rows_.data(), std::ssize(rows_) / width, width, width};
  }

  Model& model_;
  std::vector<Chain> going_on_;
  std::vector<float> rows_;  // [going on, h] from which their next drafts are drawn
  std::vector<float> logits_;
  std::vector<MtpSlice> slices_;
};

class LookupDrafter : public Drafter {
 public:
  std::string_view name() const override { return kLookupDrafter; }

  std::int64_t look(DraftedAnswer& answer) override {
    const SuffixIndex::Match match = answer.suffixes.find(answer.tokens);
    answer.match_end = match.end;
    return match.length > 0 ? kMostDrafts : 0;
  }

  void draft(std::span<DraftedAnswer* const> answers) override {
    for (DraftedAnswer* answer : answers) {
      // A text that repeats itself to its end goes on repeating what was drafted.
      const auto size = std::ssize(answer->tokens);
      for (std::int64_t at = answer->match_end; std::ssize(answer->drafts) < answer->wanted; ++at) {
        const std::int32_t id =
            at < size ? answer->tokens[static_cast<std::size_t>(at)] : answer->drafts[static_cast<std::size_t>(at - size)];
        answer->drafts.push_back(id);
        if (answer->builder.is_stop_id(id)) break;
      }
    }
  }
};

}  // namespace

std::unique_ptr<Drafter> mtp_drafter(Model& model) { return std::make_unique<MtpDrafter>(model); }

std::unique_ptr<Drafter> lookup_drafter() { return std::make_unique<LookupDrafter>(); }

}  // namespace calandra
