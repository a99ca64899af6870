#pragma once
// A path: one way in which an answer can come about, other than alone. Whoever adds one, such as boundaries from a disk or an engine that
// has been started again, writes a function that asks for the cases of the script that way, and names it in verify_paths().

#include "engine/engine.h"
#include "loadtest/draws.h"
#include "verify/findings.h"
#include "verify/script.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

/// What a path asks with, and where it says what came of it. One engine at a time, and nothing else on the model beside it.
class PathRun {
 public:
  using Cases = std::vector<const VerifyCase*>;

  /// `tick` is called while answers are waited for; what it throws ends the path.
  PathRun(Model& model, const VerifyScript& script, Draws draws, std::function<void()> tick);

  Model& model() { return model_; }
  const VerifyScript& script() const { return script_; }
  Draws& draws() { return draws_; }
  PathFindings& findings() { return findings_; }
  void tick() const { tick_(); }

  Cases cases() const;
  Cases cases_of(VerifyCase::Kind kind) const;
  /// In random order.
  Cases shuffled(Cases cases);

  /// Memory for `longest` sequences of the longest length, or for those blocks; one cache or none.
  EngineOptions engine_options(std::int64_t num_longest, bool prefix_cache) const;
  EngineOptions engine_options_with_blocks(std::int64_t blocks, bool prefix_cache) const;
  /// Steps of random sizes.
  ScheduleLimits random_limits();

  /// Asks and waits, and compares what comes.
  void ask(Engine& engine, const VerifyCase& one) { ask_all(engine, {&one}); }
  /// The same of several at once, beside `neighbours` other requests of random lengths, which come in between.
  void ask_all(Engine& engine, const Cases& cases, std::size_t neighbours = 0);
  /// Asks for something else, of so many tokens, and waits.
  void ask_other(Engine& engine, std::int64_t prompt_tokens);

  /// For paths without an engine: what token `i` of the answer would be drawn from.
  void compare(const VerifyCase& one, std::int64_t i, std::span<const float> logits) { findings_.rows.compare(one, i, logits); }

 private:
  AnswerRequest other_request(std::int64_t prompt_tokens);

  Model& model_;
  const VerifyScript& script_;
  Draws draws_;
  std::function<void()> tick_;
  PathFindings findings_;
};

struct VerifyPath {
  std::string_view name;   // "busy"
  std::string_view about;  // a line for a person
  std::function<void(PathRun&)> take;
};

/// All there are.
const std::vector<VerifyPath>& verify_paths();

}  // namespace calandra
