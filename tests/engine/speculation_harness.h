#pragma once
// Answers with drafts beside answers without, and drafters that are right, wrong or lucky as often as a test wants.

#include "engine/prefix_harness.h"

#include "base/digest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace calandra {

/// Drafts what `propose` says comes after an answer's tokens.
class ScriptedDrafter : public Drafter {
 public:
  using Propose = std::function<Tokens(const Tokens& tokens, std::int64_t wanted)>;
  explicit ScriptedDrafter(Propose propose) : propose_(std::move(propose)) {}

  std::string_view name() const override { return "scripted"; }
  std::int64_t look(DraftedAnswer&) override { return kMostDrafts; }
  void draft(std::span<DraftedAnswer* const> answers) override {
    for (DraftedAnswer* answer : answers) {
      answer->drafts = propose_(answer->tokens, answer->wanted);
      answer->drafts.resize(std::min<std::size_t>(answer->drafts.size(), static_cast<std::size_t>(answer->wanted)));
    }
  }

 private:
  Propose propose_;
};

/// Another drafter, asked only where `when` says so: who drafts may change from step to step of an answer.
class DrafterAtTimes : public Drafter {
 public:
  using When = std::function<bool(const Tokens& tokens)>;
  DrafterAtTimes(std::shared_ptr<Drafter> inner, When when) : inner_(std::move(inner)), when_(std::move(when)) {}

  std::string_view name() const override { return inner_->name(); }
  bool runs_mtp() const override { return inner_->runs_mtp(); }
  std::int64_t look(DraftedAnswer& answer) override { return when_(answer.tokens) ? inner_->look(answer) : 0; }
  void draft(std::span<DraftedAnswer* const> answers) override { inner_->draft(answers); }

 private:
  std::shared_ptr<Drafter> inner_;
  When when_;
};

/// Another drafter, and what it has drafted after which tokens.
class RecordedDrafter : public Drafter {
 public:
  explicit RecordedDrafter(std::shared_ptr<Drafter> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  bool runs_mtp() const override { return inner_->runs_mtp(); }
  std::int64_t look(DraftedAnswer& answer) override { return inner_->look(answer); }
  void draft(std::span<DraftedAnswer* const> answers) override {
    inner_->draft(answers);
    for (const DraftedAnswer* answer : answers) drafted[answer->tokens] = answer->drafts;
  }
  std::map<Tokens, Tokens> drafted;  // read between answers

 private:
  std::shared_ptr<Drafter> inner_;
};

/// Lets an answer be these tokens, and hears them.
class ScriptGuide : public AnswerGuide {
 public:
  ScriptGuide(Tokens script, std::int64_t num_tokens)
      : script_(std::move(script)), bits_(static_cast<std::size_t>(num_tokens + 63) / 64) {}
  std::span<const std::uint64_t> allowed() override {
    std::ranges::fill(bits_, 0);
    const auto token = static_cast<std::size_t>(script_.at(told.size()));
    bits_[token / 64] = std::uint64_t{1} << (token % 64);
    return bits_;
  }
  void push(std::int32_t id) override { told.push_back(id); }
  std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<ScriptGuide>(*this); }
  Tokens told;

 private:
  Tokens script_;
  std::vector<std::uint64_t> bits_;
};

/// What may come depends on all that came: a mask of another position, or one that has heard a draft, lets something else through.
class HistoryGuide : public AnswerGuide {
 public:
  explicit HistoryGuide(std::int64_t num_tokens) : num_tokens_(num_tokens) {}
  std::span<const std::uint64_t> allowed() override {
    bits_.assign(static_cast<std::size_t>(num_tokens_ + 63) / 64, 0);
    for (std::int64_t id = 0; id < num_tokens_; ++id) {
      if (may_come(id)) bits_[static_cast<std::size_t>(id / 64)] |= std::uint64_t{1} << (id % 64);
    }
    return bits_;
  }
  void push(std::int32_t id) override {
    if (!may_come(id)) ++broken;
    told.push_back(id);
    sum_ = sum_ * 31 + static_cast<std::uint64_t>(id);
  }
  std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<HistoryGuide>(*this); }
  Tokens told;
  int broken = 0;

 private:
  bool may_come(std::int64_t id) const { return (static_cast<std::uint64_t>(id) + sum_) % 3 == 0; }

  std::int64_t num_tokens_;
  std::uint64_t sum_ = 1;
  std::vector<std::uint64_t> bits_;
};

/// Every row of logits that an answer's tokens were drawn from.
class LogitRecord : public LogitListener {
 public:
  void drawn_from(std::int64_t position, std::span<const float> logits) override {
    positions.push_back(position);
    rows.emplace_back(logits.begin(), logits.end());
  }
  std::vector<std::int64_t> positions;
  std::vector<std::vector<float>> rows;
};

struct Answered {
  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  std::shared_ptr<LogitRecord> logits = std::make_shared<LogitRecord>();
};

/// Of a folder: the last part of a test's name.
inline std::string name_of_model(const testing::TestParamInfo<std::string>& test) {
  std::string name = test.param.substr(test.param.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class SpeculationTest : public PrefixEngineTest {
 protected:
  /// With its MTP layer.
  static Model& drafting_model(const std::string& name = "models/austen-5m") {
    static std::map<std::string, std::unique_ptr<Model>> loaded;
    std::unique_ptr<Model>& model = loaded[name];
    if (!model) model = std::make_unique<Model>(source_path(name).string(), ModelOptions{.threads = 2, .with_mtp = true});
    return *model;
  }

  static EngineOptions options_with(const Model& model, std::int64_t drafts, std::shared_ptr<Drafter> drafter = {}) {
    EngineOptions options = room_for(model, 48, std::min<std::int64_t>(512, model.config().context));
    options.freed = FreedMemory::Poisoned;
    options.speculation.setting = {.automatic = false, .drafts = drafts};
    if (drafter) options.speculation.drafters = {std::move(drafter)};
    return options;
  }
  static std::int64_t num_drafted(const EngineStatistics& statistics) {
    std::int64_t drafted = 0;
    for (const DrafterStatistics& drafter : statistics.drafters) drafted += drafter.num_drafted();
    return drafted;
  }

  /// All at once.
  static std::vector<Answered> answers(Engine& engine, const std::vector<AnswerRequest>& requests) {
    std::vector<Answered> all(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      AnswerRequest wanted = requests[i];
      wanted.logits = all[i].logits;
      submit(engine, wanted, all[i].heard);
    }
    for (const Answered& one : all) one.heard->wait();
    return all;
  }

  static void expect_same(const Answered& actual, const Answered& expected, const std::string& what) {
    EXPECT_EQ(actual.heard->ids, expected.heard->ids) << what;
    EXPECT_EQ(actual.heard->text, expected.heard->text) << what;
    EXPECT_EQ(actual.heard->summary.outcome, expected.heard->summary.outcome) << what;
    EXPECT_EQ(actual.heard->summary.made_tokens, expected.heard->summary.made_tokens) << what;
    EXPECT_EQ(actual.heard->logprobs, expected.heard->logprobs) << what;
    EXPECT_EQ(actual.heard->prompt, expected.heard->prompt) << what;
    EXPECT_EQ(actual.logits->positions, expected.logits->positions) << what;
    ASSERT_EQ(actual.logits->rows.size(), expected.logits->rows.size()) << what;
    for (std::size_t i = 0; i < actual.logits->rows.size(); ++i)
      expect_same_bits(actual.logits->rows[i], expected.logits->rows[i], what + ": logits");
  }

  /// What answers to these requests are, token by token: for drafters that know.
  class Truth {
   public:
    Truth(const std::vector<AnswerRequest>& requests, const std::vector<Answered>& plain) {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        known_.push_back(joined(requests[i].prompt, plain[i].heard->ids));
        prompts_.push_back(requests[i].prompt.size());
      }
    }
    /// Tokens after `tokens`, which begin with one of the prompts.
    Tokens after(const Tokens& tokens, std::int64_t count) const {
      for (std::size_t i = 0; i < known_.size(); ++i) {
        if (known_[i].size() < tokens.size() || !std::equal(tokens.begin(), tokens.end(), known_[i].begin())) continue;
        const auto begin = known_[i].begin() + std::ssize(tokens);
        return {begin, begin + std::min<std::ptrdiff_t>(count, known_[i].end() - begin)};
      }
      return {};
    }

   private:
    std::vector<Tokens> known_;
    std::vector<std::size_t> prompts_;
  };

  /// Drafts what comes, then tokens that do not: `right(tokens)` of them.
  static std::shared_ptr<Drafter> partly_right(const Truth& truth, const Model& model,
                                               std::function<std::int64_t(const Tokens& tokens)> right) {
    const auto vocab = static_cast<std::int32_t>(model.num_samplable());
    return std::make_shared<ScriptedDrafter>([=, right = std::move(right)](const Tokens& tokens, std::int64_t wanted) {
      Tokens next = truth.after(tokens, wanted);
      for (std::int64_t i = right(tokens); i < std::ssize(next); ++i)
        next[static_cast<std::size_t>(i)] = (next[static_cast<std::size_t>(i)] + 1) % vocab;
      return next;
    });
  }
  /// A number that changes from step to step of every answer.
  static std::uint64_t luck(const Tokens& tokens, std::uint64_t seed = 0) {
    const std::array<std::int32_t, 2> ends{tokens.front(), tokens.back()};
    std::mt19937_64 random(seed + 1000 * tokens.size() + static_cast<std::uint64_t>(ends[0] * 7919 + ends[1]));
    return random() >> 16;
  }
};

/// Bytes of what a sequence remembers, by array. The draft layer's rows are one fewer than its tokens.
struct MemoryContents {
  std::vector<std::byte> states, tails, latents, mtp_latents, hidden;

  explicit MemoryContents(SequenceMemory& memory) {
    const MemoryLayout& layout = memory.layout();
    const auto add = [](std::vector<std::byte>& to, const void* data, std::int64_t bytes) {
      const auto* const from = static_cast<const std::byte*>(data);
      to.insert(to.end(), from, from + bytes);
    };
    for (std::int64_t layer = 0; layer < layout.kda_layers; ++layer) {
      for (std::int64_t head = 0; head < layout.heads; ++head) {
        const std::span<const float> state = memory.state(layer, head);
        add(states, state.data(), static_cast<std::int64_t>(state.size_bytes()));
      }
      add(tails, memory.tails(layer), layout.tail_bytes);
    }
    for (std::int64_t layer = 0; layer < layout.mla_layers; ++layer) {
      const LatentCache cache = memory.latents(layer);
      for (std::int64_t t = 0; t < memory.position(); ++t) add(latents, cache.row(t), cache.row_bytes);
    }
    if (layout.mtp_layers > 0) {
      const LatentCache cache = memory.mtp_latents();
      for (std::int64_t t = 0; t + 1 < memory.position(); ++t) add(mtp_latents, cache.row(t), cache.row_bytes);
    }
    add(hidden, memory.last_hidden().data(), static_cast<std::int64_t>(memory.last_hidden().size_bytes()));
  }
};

}  // namespace calandra
