#include "loadtest/introduction.h"

#include "base/error.h"
#include "base/json.h"
#include "loadtest/reply_listener.h"
#include "loadtest/stream_listener.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

/// Words of the two prompts that tokens are counted with.
constexpr std::int64_t kFewWords = 32, kManyWords = 160;
constexpr std::int64_t kTrialTokens = 4;
constexpr std::uint64_t kTrial = 1000;  // what random numbers are for: unlike those of a load

/// Ctrl-C while the server was still being asked what it is.
struct Interrupted {};

class Introduction {
 public:
  Introduction(HttpClient& client, const LoadOptions& options, std::function<bool()> tick)
      : client_(client), tick_(std::move(tick)), target_{.options = options, .form = {}, .scale = {}} {}

  LoadTarget run() {
    if (target_.options.model.empty()) target_.options.model = find_model();
    settle_form();
    count_tokens();
    return target_;
  }

 private:
  HttpReply fetch(const HttpCall& call) {
    HttpReply reply;
    client_.send(call, std::make_shared<ReplyListener>([&](HttpReply& got) { reply = std::move(got); }));
    if (!client_.run(tick_)) throw Interrupted();
    if (reply.end != HttpEnd::Whole) fail("{}: {}", call.target, reply.why);
    return reply;
  }

  std::string find_model() {
    const std::string target = target_.options.url.base + "/models";
    const HttpReply reply = fetch({.method = "GET", .target = target, .body = {}});
    if (reply.status != 200)
      fail("{}: {}: {} (--model names one without asking)", target, reply.status, error_message(reply.body));
    const Json json = parse_json(reply.body, target);
    const auto data = json.is_object() ? json.find("data") : json.end();
    if (data != json.end() && data->is_array() && !data->empty() && data->front().is_object()) {
      const auto id = data->front().find("id");
      if (id != data->front().end() && id->is_string()) return id->get<std::string>();
    }
    fail("{}: found no model, expected data[0].id (--model names one without asking)", target);
  }

  std::vector<ChatMessage> trial_of(std::int64_t words) const {
    Draws draws(target_.options.seed, {kTrial, static_cast<std::uint64_t>(words)});
    return {{.role = "user", .content = random_words(draws, words)}};
  }

  /// Servers refuse a field they do not know with 400 or 422. If that is not the cause, the first refusal says what is.
  void settle_form() {
    std::string first_refusal;
    for (const RequestForm& form : forms_to_try(target_.options.api)) {
      StreamReply reply;
      const std::string body = request_body(target_.options, form, trial_of(kFewWords), kTrialTokens, true);
      client_.send({.target = target_of(target_.options), .body = body},
                   std::make_shared<StreamListener>([&](StreamReply& got) { reply = std::move(got); }));
      if (!client_.run(tick_)) throw Interrupted();
      if (reply.failure == Failure::None) {
        target_.form = form;
        return;
      }
      if (first_refusal.empty()) first_refusal = reply.message;
      if (reply.status != 400 && reply.status != 422) break;
    }
    fail("{}: {}", target_of(target_.options), first_refusal);
  }

  /// Without a stream, since then every server says what it has counted.
  void count_tokens() {
    const auto tokens_of = [&](std::int64_t words) {
      const std::string body = request_body(target_.options, target_.form, trial_of(words), 1, false);
      const HttpReply reply = fetch({.target = target_of(target_.options), .body = body});
      const auto usage = usage_of(reply.body);
      return usage ? usage->prompt_tokens : 0;
    };
    const std::int64_t few = tokens_of(kFewWords), many = tokens_of(kManyWords);
    if (few > 0) target_.scale = PromptScale::measured(kFewWords, few, kManyWords, many);
  }

  HttpClient& client_;
  std::function<bool()> tick_;
  LoadTarget target_;
};

}  // namespace

std::optional<LoadTarget> introduce(HttpClient& client, const LoadOptions& options, const std::function<bool()>& tick) {
  try {
    return Introduction(client, options, tick).run();
  } catch (const Interrupted&) {
    return std::nullopt;
  }
}

}  // namespace calandra
