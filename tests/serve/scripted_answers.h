#pragma once
// An engine for tests of the APIs: it answers every request with the same script, at once and in the caller's thread.

#include "base/json.h"
#include "serve/answer_service.h"
#include "serve/http_message.h"
#include "serve/http_responder.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct Script {
  std::vector<std::string> pieces = {};  // the answer's text, one a token
  AnswerOutcome outcome = AnswerOutcome::Stop;
  bool ends_by_string = false;  // Stop is a stop string's work, not a stop id's
  std::int64_t cached_tokens = 0, kept_tokens = 0, marked_tokens = 0;
  std::int64_t accepted_drafts = 0, rejected_drafts = 0;
  std::vector<std::int32_t> ids = {};       // of the pieces; unset: from 100 on
  std::vector<LogprobEntry> logprobs = {};  // of the pieces
  std::vector<LogprobEntry> prompt_logprobs = {};
  std::string error = {};
  std::function<AnswerSubmission()> refusal = {};  // what to say instead of taking it in
};

class ScriptedAnswers final : public AnswerService {
 public:
  AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) override;
  void cancel(RequestId) override {}

  Script script;
  std::vector<AnswerRequest> requests;
};

/// The text in pieces of whole characters, cut where `seed` says.
std::vector<std::string> random_pieces(std::string_view text, std::uint64_t seed);

struct ServerEvent {
  std::string name;
  nlohmann::ordered_json data;
};

struct ApiReply {
  int status = 0;
  std::string head;  // all of it
  std::string body;

  nlohmann::ordered_json json() const { return parse_json(body, "test"); }
  /// Fails the test for what is no stream of events with a name each.
  std::vector<ServerEvent> events() const;
  /// {"type", "message", ...} of either API's error.
  nlohmann::ordered_json error() const { return json().at("error"); }
};

/// The bundled model behind one handler, without sockets.
class ApiBench {
 public:
  using Handler = void (*)(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);

  explicit ApiBench(Handler handler);

  /// An error that is thrown becomes the reply, in the shape of the path.
  ApiReply ask(const nlohmann::ordered_json& body, std::string_view path) const;
  ApiReply ask_text(std::string body, std::string_view path) const;

  const ServedModel& model() const { return model_; }
  /// The text of the prompt that was submitted last.
  std::string last_prompt() const;

  mutable ScriptedAnswers answers;

 private:
  Handler handler_;
  ServedModel model_;
};

}  // namespace calandra
