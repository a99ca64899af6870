#include "serve/scripted_answers.h"

#include "base/json.h"
#include "serve/api_error.h"
#include "serve/exchange.h"
#include "serve/grammar_cache.h"

#include <gtest/gtest.h>

#include <charconv>
#include <random>
#include <sstream>

namespace calandra {
namespace {

const std::filesystem::path kBundled = std::filesystem::path(CALANDRA_SOURCE_DIR) / "models/austen-5m";

const Tokenizer& bundled_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(kBundled / "tokenizer.json");
  return tokenizer;
}

const ChatTemplate& bundled_template() {
  static const ChatTemplate chat_template = ChatTemplate::load(kBundled);
  return chat_template;
}

constexpr std::int32_t kStopId = 3;
constexpr std::int64_t kNumSamplable = 4096;

GrammarCache& bundled_grammars() {
  static GrammarCache grammars(bundled_tokenizer(), std::vector<std::int32_t>{kStopId}, kNumSamplable);
  return grammars;
}

}  // namespace

AnswerSubmission ScriptedAnswers::submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) {
  requests.push_back(std::move(request));
  if (script.refusal) return script.refusal();
  AnswerSummary summary;
  summary.outcome = script.outcome;
  summary.error = script.error;
  summary.prompt_tokens = std::ssize(requests.back().prompt);
  summary.cached_tokens = script.cached_tokens;
  summary.kept_tokens = script.kept_tokens;
  summary.marked_tokens = script.marked_tokens;
  summary.accepted_drafts = script.accepted_drafts;
  summary.rejected_drafts = script.rejected_drafts;
  if (!script.prompt_logprobs.empty()) listener->prompt_logprobs(script.prompt_logprobs);
  AnswerStep step;
  for (std::size_t i = 0; i < script.pieces.size(); ++i) {
    step.text = script.pieces[i];
    if (script.ends_by_string && i + 1 == script.pieces.size()) step.finish = FinishReason::Stop;
    step.logprobs.reset();
    if (i < script.logprobs.size()) step.logprobs = script.logprobs[i];
    listener->gained(i < script.ids.size() ? script.ids[i] : 100 + static_cast<std::int32_t>(i), step);
    ++summary.made_tokens;
  }
  if (script.outcome == AnswerOutcome::Stop && !script.ends_by_string) {
    step.text.clear();
    step.finish = FinishReason::Stop;
    listener->gained(kStopId, step);
    ++summary.made_tokens;
  }
  listener->ended(summary, {});
  return RequestId{requests.size()};
}

std::vector<std::string> random_pieces(std::string_view text, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::uint64_t longest = 1 + random() % 12;
  std::vector<std::string> pieces;
  while (!text.empty()) {
    std::size_t size = std::min<std::size_t>(text.size(), 1 + random() % longest);
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

std::vector<ServerEvent> ApiReply::events() const {
  std::vector<ServerEvent> events;
  std::istringstream lines(body);
  std::string name, data, blank;
  while (std::getline(lines, name)) {
    EXPECT_TRUE(std::getline(lines, data) && std::getline(lines, blank)) << name;
    EXPECT_TRUE(name.starts_with("event: ")) << name;
    EXPECT_TRUE(data.starts_with("data: ")) << data;
    EXPECT_EQ(blank, "");
    events.push_back({name.substr(7), parse_json(data.substr(6), "test")});
  }
  return events;
}

ApiBench::ApiBench(Handler handler) : handler_(handler) {
  model_.names = {"austen-5m", "default"};
  model_.tokenizer = &bundled_tokenizer();
  model_.chat_template = &bundled_template();
  model_.defaults.stop_ids = {kStopId};
  model_.num_samplable = kNumSamplable;
  model_.grammars = &bundled_grammars();
  model_.context = 100'000;
  model_.most_answers = 100;
}

ApiReply ApiBench::ask(const nlohmann::ordered_json& body, std::string_view path) const {
  return ask_text(dump_json(body), path);
}

ApiReply ApiBench::ask_text(std::string body, std::string_view path) const {
  HttpRequest request;
  request.method = "POST";
  request.path = request.target = path;
  request.id = "req-0a1b2c3d-7";
  request.peer = "127.0.0.1:4711";
  request.body = std::move(body);
  ReplyForm form;
  form.minor_version = 0;  // a stream without chunks around it
  const auto exchange = std::make_shared<Exchange>(form, std::size_t{1} << 24, [] {});
  {
    HttpResponder responder(exchange);
    try {
      handler_({model_, answers, std::nullopt}, request, responder);
    } catch (const std::exception& error) {
      EXPECT_TRUE(responder.reply(error_response(api_error_of(error), path))) << "thrown after a reply: " << error.what();
    }
  }
  EXPECT_TRUE(exchange->is_finished());
  const std::string bytes = exchange->take().bytes;
  const std::size_t head_end = bytes.find("\r\n\r\n");
  ApiReply reply;
  reply.head = bytes.substr(0, head_end);
  reply.body = bytes.substr(head_end + 4);
  std::from_chars(reply.head.data() + 9, reply.head.data() + 12, reply.status);
  return reply;
}

std::string ApiBench::last_prompt() const {
  std::string text;
  for (const std::int32_t id : answers.requests.back().prompt) text += model_.tokenizer->token_bytes(id);
  return text;
}

}  // namespace calandra
