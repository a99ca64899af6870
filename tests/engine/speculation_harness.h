#pragma once
// Answers with drafts beside answers without, and drafters that are right, wrong or lucky as often as a test wants.

#include "engine/prefix_harness.h"

#include "base/digest.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
};

}  // namespace calandra
