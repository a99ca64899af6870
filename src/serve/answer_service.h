#pragma once
// What the APIs stand on: a model to make prompts for, and somebody who answers them. Tests put a script in the engine's place.

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace calandra {

class GrammarCache;

class AnswerService {
 public:
  virtual ~AnswerService() = default;
  /// As Engine::submit() and cancel().
  virtual AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) = 0;
  virtual void cancel(RequestId id) = 0;
  /// As Engine::drain() and cancel_all(): the server ends.
  virtual void drain() {}
  virtual void cancel_all() {}
  /// As Engine::survey_cache() and flush_cache(); here there is no cache.
  // NOLINTBEGIN(performance-unnecessary-value-param): whoever overrides them keeps what they are given
  virtual void survey_cache(SpaceFilter /*shows*/, std::int64_t /*most*/, std::function<void(const PrefixSurvey&)> done) {
    done({});
  }
  virtual void flush_cache(SpaceFilter /*meant*/, std::function<void(const PrefixFlush&)> done) { done({}); }
  // NOLINTEND(performance-unnecessary-value-param)
};

/// What requests are made of. Immutable while it is served; what it points to must outlive it.
struct ServedModel {
  std::vector<std::string> names;  // the first is what replies say, all are what requests may say
  std::int64_t created = 0;        // seconds since 1970, for lists of models
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: only texts can be completed
  GenerationOptions defaults;      // what the checkpoint suggests, its stop ids included; the seed is drawn for each request
  std::int64_t num_samplable = 0;  // ids that can be made, and biased
  std::int64_t context = 0;
  std::int64_t most_answers = kMaxContext;  // to one request: the queue never has room for more
  GrammarCache* grammars = nullptr;         // null: output cannot be constrained

  const std::string& name() const { return names.front(); }
};

/// What every API's handlers get. An answer may outlive it, but not what `model` points to: whoever replies later keeps a copy of the rest.
struct ApiContext {
  const ServedModel& model;
  AnswerService& answers;
  std::optional<std::chrono::nanoseconds> time_limit;  // of a request, from its submission to its end
  std::vector<std::string> api_keys = {};              // none: everyone may ask
  bool isolates_keys = true;                           // prompts of one key's requests find nothing that another's have computed
};

}  // namespace calandra
