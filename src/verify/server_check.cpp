#include "verify/server_check.h"

#include "base/error.h"
#include "base/json.h"
#include "loadtest/http_client.h"
#include "loadtest/introduction.h"
#include "loadtest/reply_listener.h"
#include "verify/purpose.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace calandra {
namespace {

/// Tokens beside each that was made whose log probability is compared, too.
constexpr int kTopLogprobs = 5;
constexpr std::int64_t kTrialWords = 32, kTrialTokens = 4;

/// The user wants no more.
struct CheckStopped {};

using Messages = std::vector<ChatMessage>;

/// A request that is asked several times.
struct Question {
  std::string name;  // "turn 2 of conversation 1"
  Messages messages;
  std::optional<ServerAnswer> first;
};

/// `fields` is an object or empty; what it has already stays.
std::string with_field(const std::string& fields, const std::string& key, const Json& value) {
  Json all = fields.empty() ? Json::object() : parse_json(fields, "--extra");
  if (!all.contains(key)) all[key] = value;
  return dump_json(all);
}

class ServerCheck {
 public:
  ServerCheck(const ServerCheckOptions& options, const std::function<bool(double)>& progress)
      : options_(options),
        progress_(progress),
        draws_(options.server.seed, {kServerDraws}),
        client_(options.server.url, request_fields(options.server, "calandra-verify"), request_timeout(options.server)) {
    report_.steps = {step("first", "new prompts, the first turns of conversations"),
                     step("again", "the same once more"),
                     step("next turn", "behind the answer; and another end of the same prompt"),
                     step("next again", "the same once more"),
                     step("busy", "all of these at once among other prompts"),
                     step("evicted", "all of these after other prompts")};
  }

  ServerReport run() {
    try {
      introduce_ourselves();
      for (std::int64_t round = 1; round <= options_.rounds; ++round) converse(round);
      ask_among_others();
      ask_after_others();
    } catch (const CheckStopped&) {
      report_.is_interrupted = true;
    }
    return std::move(report_);
  }

 private:
  enum Step : std::size_t { kFirst, kAgain, kNext, kNextAgain, kBusy, kEvicted };

  static ServerStep step(std::string_view name, std::string_view about) {
    ServerStep made;
    made.name = name;
    made.about = about;
    return made;
  }

  std::int64_t evict_tokens() const {
    return options_.evict_tokens > 0 ? options_.evict_tokens : kEvictPrompts * options_.prompt_tokens;
  }

  /// By tokens of prompts, all in all.
  double part_done() const {
    const auto turns = static_cast<double>(options_.rounds * options_.prompt_tokens);
    const double all = 10 * turns + static_cast<double>(options_.concurrency * options_.prompt_tokens / 2 + evict_tokens());
    return std::min(1.0, static_cast<double>(tokens_done_) / all);
  }

  void run_client() {
    if (!client_.run([this] { return !progress_ || progress_(part_done()); })) throw CheckStopped();
  }

  // ---------------------------------------------------------------- what the server takes

  void introduce_ourselves() {
    LoadOptions plain = options_.server;
    plain.extra_fields = with_field(plain.extra_fields, "temperature", 0);
    const auto target = introduce(client_, plain, [this] { return !progress_ || progress_(0); });
    if (!target) throw CheckStopped();
    target_ = *target;
    report_.model = target_.options.model;
    ask_for_logprobs();
  }

  void ask_for_logprobs() {
    const std::string plain = target_.options.extra_fields;
    const bool is_chat = target_.options.api == LoadApi::Chat;
    const std::string least = with_field(plain, "logprobs", is_chat ? Json(true) : Json(1));
    const std::string most =
        is_chat ? with_field(least, "top_logprobs", kTopLogprobs) : with_field(plain, "logprobs", kTopLogprobs);
    for (const std::string& fields : {most, least}) {
      target_.options.extra_fields = fields;
      const HttpReply reply = send({new_prompt(kTrialWords)}, kTrialTokens).front();
      try {
        report_.has_logprobs = !answer_of(reply).tokens.empty();
        if (report_.has_logprobs) return;
        report_.no_logprobs = "the answer has none";
      } catch (const Error& error) {
        if (report_.no_logprobs.empty()) report_.no_logprobs = error.what();
      }
    }
    target_.options.extra_fields = plain;
  }

  // ---------------------------------------------------------------- asking

  std::string words(std::int64_t tokens) { return random_words(draws_, target_.scale.words_of_message(tokens)); }
  static ChatMessage user(std::string text) { return {.role = "user", .content = std::move(text)}; }
  Messages new_prompt(std::int64_t tokens) { return {user(words(tokens))}; }

  std::vector<HttpReply> send(const std::vector<Messages>& prompts, std::int64_t answer_tokens) {
    std::vector<HttpReply> replies(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::string body = request_body(target_.options, target_.form, prompts[i], answer_tokens, false);
      client_.send({.target = target_of(target_.options), .body = body},
                   std::make_shared<ReplyListener>([&replies, i](HttpReply& got) { replies[i] = std::move(got); }));
    }
    run_client();
    return replies;
  }

  ServerAnswer answer_of(const HttpReply& reply) const {
    if (reply.end != HttpEnd::Whole) fail("{}", reply.why);
    if (reply.status != 200) fail("{}: {}", reply.status, error_message(reply.body));
    return read_answer(target_.options.api, reply.body);
  }

  /// All at once, beside the others, of which nothing is compared.
  void ask(Step number, const std::vector<Question*>& questions, std::vector<Messages> others = {}) {
    ServerStep& step = report_.steps[number];
    std::vector<Messages> prompts = std::move(others);
    const std::size_t num_others = prompts.size();
    for (const Question* question : questions) prompts.push_back(question->messages);
    const std::vector<HttpReply> replies = send(prompts, options_.answer_tokens);
    for (std::size_t i = num_others; i < replies.size(); ++i) {
      Question& question = *questions[i - num_others];
      ++step.requests;
      tokens_done_ += options_.prompt_tokens;
      try {
        take(step, question, answer_of(replies[i]));
      } catch (const Error& error) {
        if (step.failed++ == 0) step.first_failure = error.what();
      }
    }
  }

  void take(ServerStep& step, Question& question, ServerAnswer answer) const {
    if (report_.has_logprobs && answer.tokens.empty()) fail("an answer without log probabilities, where others had some");
    if (answer.usage) {
      step.prompt_tokens += answer.usage->prompt_tokens;
      if (answer.usage->cached_tokens) step.cached_tokens = step.cached_tokens.value_or(0) + *answer.usage->cached_tokens;
    }
    if (!question.first) {
      question.first = std::move(answer);
      return;
    }
    ++step.compared;
    const auto difference = difference_of(*question.first, answer);
    if (!difference) return;
    ++(difference->in_text ? step.other_text : step.other_logprobs);
    step.largest = std::max(step.largest, difference->largest);
    if (step.first) return;
    step.first = difference;
    step.first_request = question.name;
  }

  // ---------------------------------------------------------------- the ways

  void converse(std::int64_t round) {
    Question& opening = add(fmt::format("turn 1 of conversation {}", round), new_prompt(options_.prompt_tokens));
    ask(kFirst, {&opening});
    ask(kAgain, {&opening});
    if (!opening.first) return;
    Messages next = opening.messages;
    next.push_back({.role = "assistant", .content = opening.first->text});
    next.push_back(user(words(options_.prompt_tokens / 8)));
    // The same beginning, and another end.
    const std::string& text = opening.messages.front().content;
    const std::size_t left_at = text.find(' ', text.size() / 2);
    Messages fork = {user(text.substr(0, left_at) + " " + words(options_.prompt_tokens / 8))};
    Question& turn = add(fmt::format("turn 2 of conversation {}", round), std::move(next));
    Question& other = add(fmt::format("another end of conversation {}", round), std::move(fork));
    for (const Step step : {kNext, kNextAgain}) {
      ask(step, {&turn});
      ask(step, {&other});
    }
  }

  Question& add(std::string name, Messages messages) {
    questions_.push_back(std::make_unique<Question>());
    questions_.back()->name = std::move(name);
    questions_.back()->messages = std::move(messages);
    return *questions_.back();
  }

  std::vector<Question*> answered() const {
    std::vector<Question*> all;
    for (const auto& question : questions_) {
      if (question->first) all.push_back(question.get());
    }
    return all;
  }

  void ask_among_others() {
    std::vector<Messages> others;
    for (std::int64_t i = 0; i < options_.concurrency; ++i)
      others.push_back(new_prompt(draws_.length({.least = 1, .most = options_.prompt_tokens})));
    ask(kBusy, answered(), std::move(others));
  }

  void ask_after_others() {
    for (std::int64_t left = evict_tokens(); left > 0;) {
      std::vector<Messages> others;
      const std::int64_t before = left;
      for (std::int64_t i = 0; i < options_.concurrency && left > 0; ++i, left -= options_.prompt_tokens)
        others.push_back(new_prompt(options_.prompt_tokens));
      send(others, 1);
      tokens_done_ += before - left;
    }
    for (Question* question : answered()) ask(kEvicted, {question});
  }

  const ServerCheckOptions& options_;
  const std::function<bool(double)>& progress_;
  Draws draws_;
  ServerReport report_;
  LoadTarget target_;
  std::vector<std::unique_ptr<Question>> questions_;
  std::int64_t tokens_done_ = 0;
  // Last, so that what is under way in it is dropped before what it tells.
  HttpClient client_;
};

}  // namespace

ServerVerdict ServerReport::verdict() const {
  bool is_whole = has_logprobs && !is_interrupted;
  std::int64_t compared = 0;
  for (const ServerStep& step : steps) {
    if (step.differing() > 0) return ServerVerdict::Different;
    is_whole = is_whole && step.failed == 0;
    compared += step.compared;
  }
  return is_whole && compared > 0 ? ServerVerdict::Same : ServerVerdict::Untested;
}

std::optional<double> ServerReport::cached_share(std::initializer_list<std::string_view> names) const {
  std::int64_t cached = 0, tokens = 0;
  for (const ServerStep& step : steps) {
    if (std::ranges::find(names, step.name) == names.end()) continue;
    if (!step.cached_tokens) return std::nullopt;
    cached += *step.cached_tokens;
    tokens += step.prompt_tokens;
  }
  return tokens > 0 ? std::optional(static_cast<double>(cached) / static_cast<double>(tokens)) : std::nullopt;
}

std::optional<bool> ServerReport::saw_eviction() const {
  constexpr double kClearly = 0.95;  // caches that keep whole blocks find a little more or less
  const auto before = cached_share({"again", "next again"}), after = cached_share({"evicted"});
  if (!before || !after) return std::nullopt;
  return *after < kClearly * *before;
}

ServerReport check_server(const ServerCheckOptions& options, const std::function<bool(double done)>& progress) {
  return ServerCheck(options, progress).run();
}

}  // namespace calandra
