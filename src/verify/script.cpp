#include "verify/script.h"

#include "base/error.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "verify/purpose.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kConversations = 2, kTurns = 3;
constexpr int kForks = 2, kSamples = 4, kGrowing = 4;

Tokens joined(Tokens first, std::span<const std::int32_t> second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The first number of tokens, from `least` on, that fills its blocks.
std::int64_t border_of_a_block(const MemoryLayout& layout, std::int64_t least, std::int64_t most) {
  for (std::int64_t tokens = least; tokens <= most; ++tokens) {
    if (layout.sequence_blocks(tokens + 1) > layout.sequence_blocks(tokens)) return tokens;
  }
  return 0;
}

class ScriptMaker {
 public:
  ScriptMaker(Model& model, const VerifyOptions& options, std::uint64_t round, const std::function<void()>& tick)
      : model_(model),
        options_(options),
        draws_(options.seed, {kScriptDraws, round}),
        tick_(tick),
        message_ends_(stop_ids_of(model)) {}

  VerifyScript make() {
    for (int i = 1; i <= kConversations; ++i) add_conversation(i);
    add_samples();
    add("a prompt of one token", tokens(1));
    add("the longest prompt", tokens(longest()));
    add_growing();
    for (const VerifyCase& one : script_.cases) script_.longest = std::max(script_.longest, one.length());
    return std::move(script_);
  }

 private:
  std::int64_t longest() const { return options_.prompt_tokens; }
  Tokens tokens(std::int64_t count) { return random_tokens(model_, draws_, count); }
  /// From 1 to `most`.
  std::int64_t length(std::int64_t most) { return 1 + static_cast<std::int64_t>(draws_.below(static_cast<std::size_t>(most))); }

  /// Random tokens, mostly with the mark that ends a message: behind it a prefix cache keeps a boundary.
  Tokens message(std::int64_t count) {
    Tokens made = tokens(count);
    if (!message_ends_.empty() && draws_.below(4) > 0) made.back() = message_ends_[draws_.below(message_ends_.size())];
    return made;
  }

  /// Turns that each have all that was said before; then others that leave the last one in the middle.
  void add_conversation(int number) {
    Tokens history;
    for (int turn = 1; turn <= kTurns; ++turn) {
      const std::int64_t room = longest() - std::ssize(history);
      if (room < 1) break;
      const Tokens prompt = joined(history, message(std::min(room, longest() / 8 + length(longest() / 4))));
      history = joined(prompt, add(fmt::format("turn {} of conversation {}", turn, number), prompt).ids);
    }
    const Tokens last = script_.cases.back().prompt;
    const auto left_at = static_cast<std::size_t>(length(std::ssize(last) - 1));
    const Tokens common(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(left_at));
    for (int fork = 1; fork <= kForks; ++fork) {
      const std::int64_t room = longest() - std::ssize(common);
      add(fmt::format("fork {} of conversation {} at {}", fork, number, left_at), joined(common, tokens(length(room))));
    }
    Tokens edited = last;
    const auto at = draws_.below(edited.size());
    edited[at] = static_cast<std::int32_t>((edited[at] + length(model_.num_samplable() - 1)) % model_.num_samplable());
    add(fmt::format("conversation {} with token {} replaced", number, at), std::move(edited));
  }

  void add_samples() {
    const Tokens prompt = tokens(longest() / 8 + length(longest() / 4));
    SamplingOptions sampling = next_sampling();
    sampling.temperature = 1;
    for (int i = 0; i < kSamples; ++i)
      add(fmt::format("answer {} of {} to one prompt", i + 1, kSamples), prompt, VerifyCase::Kind::Sample, sampling, i);
  }

  void add_growing() {
    const std::int64_t most = model_.config().context - options_.answer_tokens;
    const std::int64_t border = border_of_a_block(model_.layout(), options_.answer_tokens + 1, most);
    if (border == 0) return;
    script_.block_border = border;
    // Memory is there for the prompt and a token more; the second token of the answer lies beyond it.
    for (int i = 1; i <= kGrowing; ++i) {
      add(fmt::format("prompt {} that nearly fills a block", i), tokens(border - 1), VerifyCase::Kind::Growing, next_sampling(),
          0);
    }
  }

  /// By turns the likeliest token, and one drawn.
  SamplingOptions next_sampling() {
    SamplingOptions sampling;
    sampling.temperature = script_.cases.size() % 2 == 0 ? 0 : 1;
    sampling.seed = draws_.below(std::size_t{1} << 32);
    return sampling;
  }

  const VerifyCase& add(const std::string& name, Tokens prompt) {
    return add(name, std::move(prompt), VerifyCase::Kind::Plain, next_sampling(), 0);
  }

  const VerifyCase& add(const std::string& name, Tokens prompt, VerifyCase::Kind kind, const SamplingOptions& sampling,
                        int sample) {
    VerifyCase made;
    made.name = name;
    made.kind = kind;
    made.prompt = std::move(prompt);
    made.sampling = sampling;
    made.sample = static_cast<std::uint32_t>(sample);
    answer_alone(made);
    script_.cases.push_back(std::move(made));
    return script_.cases.back();
  }

  void answer_alone(VerifyCase& made) const {
    Session session(model_, made.num_prompt() + options_.answer_tokens);
    Tokens history = made.prompt;
    for (std::int64_t i = 0; i < options_.answer_tokens; ++i) {
      tick_();
      const auto logits = session.logits(history).first(static_cast<std::size_t>(model_.num_samplable()));
      made.logits.insert(made.logits.end(), logits.begin(), logits.end());
      Draw draw;
      draw.position = std::ssize(history);
      draw.sample = made.sample;
      made.ids.push_back(sample(logits, made.sampling, draw));
      history.push_back(made.ids.back());
    }
  }

  Model& model_;
  const VerifyOptions& options_;
  Draws draws_;
  const std::function<void()>& tick_;
  const std::vector<std::int32_t> message_ends_;  // tokens
  VerifyScript script_;
};

}  // namespace

void check(const VerifyOptions& options, const Model& model) {
  const std::int64_t most = model.config().context - options.answer_tokens;
  if (options.answer_tokens < kLeastVerifyAnswer)
    fail("answers of {} tokens: expected at least {}", options.answer_tokens, kLeastVerifyAnswer);
  if (options.prompt_tokens < kLeastVerifyPrompt || options.prompt_tokens > most)
    fail("prompts of up to {} tokens: expected {} to {}, which leaves room for an answer in the context", options.prompt_tokens,
         kLeastVerifyPrompt, most);
}

VerifyScript make_script(Model& model, const VerifyOptions& options, std::uint64_t round, const std::function<void()>& tick) {
  return ScriptMaker(model, options, round, tick).make();
}

std::vector<std::int32_t> random_tokens(const Model& model, Draws& draws, std::int64_t count) {
  Tokens made(static_cast<std::size_t>(count));
  for (std::int32_t& token : made)
    token = static_cast<std::int32_t>(draws.below(static_cast<std::size_t>(model.num_samplable())));
  return made;
}

}  // namespace calandra
