// Any bytes as the body of a request to each API, which the first byte chooses: a whole answer, a stream, or a refusal of 400 or 404 that says why,
// never a failure of ours. The engine is one that says the same to everybody.

#include "base/json.h"
#include "serve/anthropic_messages.h"
#include "serve/api_error.h"
#include "serve/exchange.h"
#include "serve/grammar_cache.h"
#include "serve/model_endpoints.h"
#include "serve/openai_chat.h"
#include "serve/openai_completions.h"
#include "serve/openai_responses.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

namespace {

using namespace calandra;

constexpr std::int32_t kStopId = 3;

void require(bool condition) {
  if (!condition) std::abort();
}

class SameAnswer final : public AnswerService {
 public:
  AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) override {
    require(!request.prompt.empty());
    AnswerStep step;
    step.text = "Yes.</think><tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_value>\n</tool_call>";
    listener->gained(100, step);
    step.text.clear();
    step.finish = FinishReason::Stop;
    listener->gained(kStopId, step);
    AnswerSummary summary;
    summary.prompt_tokens = std::ssize(request.prompt);
    summary.made_tokens = 2;
    listener->ended(summary, {});
    return RequestId{++num_requests_};
  }
  void cancel(RequestId) override {}

 private:
  std::uint64_t num_requests_ = 0;
};

const ServedModel& served_model() {
  static const std::filesystem::path folder = std::filesystem::path(CALANDRA_SOURCE_DIR) / "models/austen-5m";
  static const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  static const ChatTemplate chat_template = ChatTemplate::load(folder);
  static GrammarCache grammars(tokenizer, std::vector<std::int32_t>{kStopId}, 4096);
  static const ServedModel model = [] {
    ServedModel made;
    made.names = {"austen-5m"};
    made.tokenizer = &tokenizer;
    made.chat_template = &chat_template;
    made.defaults.stop_ids = {kStopId};
    made.num_samplable = 4096;
    made.context = 100'000;
    made.most_answers = 16;
    made.grammars = &grammars;
    return made;
  }();
  return model;
}

struct Path {
  const char* path;
  void (*api)(const ApiContext&, const HttpRequest&, const HttpResponder&);
  HttpResponse (*tool)(const ServedModel&, const HttpRequest&);
};

constexpr Path kPaths[] = {{"/v1/chat/completions", openai_chat, nullptr},
                           {"/v1/completions", openai_completions, nullptr},
                           {"/v1/responses", openai_responses, nullptr},
                           {"/v1/messages", anthropic_messages, nullptr},
                           {"/v1/messages/count_tokens", anthropic_count_tokens, nullptr},
                           {"/tokenize", nullptr, tokenize},
                           {"/detokenize", nullptr, detokenize_tokens},
                           {"/apply-template", nullptr, apply_template}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const Path& path = kPaths[data[0] % std::size(kPaths)];
  HttpRequest request;
  request.method = "POST";
  request.path = path.path;
  request.id = "req-0a1b2c3d-7";
  request.peer = "127.0.0.1:4711";
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);

  SameAnswer answers;
  ReplyForm form;
  form.minor_version = 0;  // a stream without chunks around it
  const auto exchange = std::make_shared<Exchange>(form, std::size_t{1} << 28, [] {});
  HttpResponder responder(exchange);
  bool is_refused = false;
  try {
    if (path.api != nullptr) path.api({served_model(), answers, std::nullopt}, request, responder);
    if (path.tool != nullptr) require(responder.reply(path.tool(served_model(), request)));
  } catch (const std::exception& thrown) {
    const ApiError error = api_error_of(thrown);
    is_refused = true;
    require(error.status == 400 || error.status == 404);
    require(!error.message.empty() && error.message.find_first_of("\r\n") == std::string::npos);
    require(responder.reply(error_response(error, path.path)));
  }
  require(exchange->is_finished());
  const std::string reply = exchange->take().bytes;
  const std::size_t head_end = reply.find("\r\n\r\n");
  require(reply.starts_with(is_refused ? "HTTP/1.1 4" : "HTTP/1.1 200 ") && head_end != std::string::npos);
  const std::string_view body = std::string_view(reply).substr(head_end + 4);
  const bool is_stream = reply.find("text/event-stream") < head_end;
  require(is_stream ? body.ends_with("\n\n") : try_parse_json(body).has_value());
  return 0;
}
