#include "verify/server_answer.h"

#include "base/error.h"
#include "base/json.h"
#include "loadtest/reply_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace calandra {
namespace {

std::optional<double> number_in(const Json& json, std::string_view key) {
  const Json* value = member(json, key);
  return value != nullptr && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

/// {"content": [{"token", "logprob", "top_logprobs": [{"token", "logprob"}]}]}
std::vector<ScoredToken> tokens_of_chat(const Json& logprobs) {
  std::vector<ScoredToken> tokens;
  const Json* content = member(logprobs, "content");
  if (content == nullptr || !content->is_array()) return tokens;
  for (const Json& entry : *content) {
    const std::optional<double> logprob = number_in(entry, "logprob");
    if (!logprob) return {};
    ScoredToken token;
    token.text = text_in(entry, "token");
    token.logprob = *logprob;
    if (const Json* top = member(entry, "top_logprobs"); top != nullptr && top->is_array()) {
      for (const Json& other : *top) {
        if (const auto of_other = number_in(other, "logprob")) token.others.emplace_back(text_in(other, "token"), *of_other);
      }
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// {"tokens": [...], "token_logprobs": [...], "top_logprobs": [{TOKEN: logprob}]}
std::vector<ScoredToken> tokens_of_completion(const Json& logprobs) {
  std::vector<ScoredToken> tokens;
  const Json* texts = member(logprobs, "tokens");
  const Json* scores = member(logprobs, "token_logprobs");
  const Json* top = member(logprobs, "top_logprobs");
  if (texts == nullptr || !texts->is_array() || scores == nullptr || !scores->is_array() || scores->size() != texts->size())
    return tokens;
  for (std::size_t i = 0; i < texts->size(); ++i) {
    const Json& text = (*texts)[i];
    const Json& score = (*scores)[i];
    if (!text.is_string() || !score.is_number()) return {};
    ScoredToken token;
    token.text = text.get<std::string>();
    token.logprob = score.get<double>();
    if (top != nullptr && top->is_array() && i < top->size() && (*top)[i].is_object()) {
      for (const auto& [other, of_other] : (*top)[i].items()) {
        if (of_other.is_number()) token.others.emplace_back(other, of_other.get<double>());
      }
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string shown(const std::vector<ScoredToken>& tokens, std::size_t i) {
  return i < tokens.size() ? fmt::format("\"{}\" {:.9g}", printable(tokens[i].text), tokens[i].logprob) : "nothing";
}

/// Of the log probabilities of one token in two answers, and of those of the same other tokens.
double apart(const ScoredToken& a, const ScoredToken& b) {
  double largest = a.text == b.text ? std::fabs(a.logprob - b.logprob) : 0;
  for (const auto& [text, logprob] : a.others) {
    const auto same = std::ranges::find(b.others, text, &std::pair<std::string, double>::first);
    if (same != b.others.end()) largest = std::max(largest, std::fabs(logprob - same->second));
  }
  return largest;
}

bool are_same(const ScoredToken& a, const ScoredToken& b) {
  return a.text == b.text && a.logprob == b.logprob && a.others == b.others;
}

}  // namespace

ServerAnswer read_answer(LoadApi api, std::string_view body) {
  const std::optional<Json> json = try_parse_json(body);
  const Json* choices = json ? member(*json, "choices") : nullptr;
  if (choices == nullptr || !choices->is_array() || choices->empty())
    fail("reply: found '{}', expected choices[0]", error_message(body));
  const Json& choice = choices->front();
  ServerAnswer answer;
  if (const Json* message = member(choice, "message")) {
    for (const std::string_view key : {"reasoning_content", "reasoning", "content"}) answer.text += text_in(*message, key);
  } else {
    answer.text = text_in(choice, "text");
  }
  if (const Json* logprobs = member(choice, "logprobs"))
    answer.tokens = api == LoadApi::Chat ? tokens_of_chat(*logprobs) : tokens_of_completion(*logprobs);
  answer.usage = usage_of(body);
  return answer;
}

std::optional<AnswerDifference> difference_of(const ServerAnswer& expected, const ServerAnswer& found) {
  AnswerDifference difference;
  difference.in_text = expected.text != found.text;
  const auto& was = expected.tokens;
  const auto& is = found.tokens;
  for (std::size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
    const bool is_there = i < was.size() && i < is.size();
    if (is_there && are_same(was[i], is[i])) continue;
    if (is_there) difference.largest = std::max(difference.largest, apart(was[i], is[i]));
    if (!difference.token) {
      difference.token = i;
      difference.expected = shown(was, i);
      difference.found = shown(is, i);
    }
    // What follows another token is another text.
    if (!is_there || was[i].text != is[i].text) break;
  }
  if (!difference.in_text && !difference.token) return std::nullopt;
  return difference;
}

}  // namespace calandra
