#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/file_limit.h"
#include "cli/server_options.h"
#include "cli/settings.h"
#include "cli/terminal.h"
#include "text/unicode.h"
#include "verify/server_check.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>

namespace calandra {
namespace {

constexpr int kExitUntested = 2;

ServerCheckOptions check_options(const VerifyArguments& arguments) {
  ServerCheckOptions options;
  try {
    options.server = server_options(arguments.server, *arguments.url, arguments.seed);
  } catch (const Error& error) {
    throw UsageError(error.what());  // not the code that says that something differs
  }
  options.prompt_tokens = arguments.prompt_tokens.value_or(options.prompt_tokens);
  options.answer_tokens = arguments.answer_tokens.value_or(options.answer_tokens);
  options.rounds = arguments.rounds.value_or(static_cast<int>(options.rounds));
  options.concurrency = arguments.concurrency;
  options.evict_tokens = arguments.evict_tokens.value_or(0);
  return options;
}

const char* name_of(ServerVerdict verdict) {
  switch (verdict) {
    case ServerVerdict::Same: return "same";
    case ServerVerdict::Different: return "different";
    case ServerVerdict::Untested: break;
  }
  return "untested";
}

Json as_json(const ServerStep& step) {
  Json first;
  if (step.first) {
    first = {{"request", step.first_request},
             {"token", step.first->token ? Json(*step.first->token) : Json()},
             {"expected", step.first->expected},
             {"found", step.first->found}};
  }
  return {{"step", step.name},
          {"about", step.about},
          {"requests", step.requests},
          {"failed", step.failed},
          {"first_failure", step.failed > 0 ? Json(step.first_failure) : Json()},
          {"prompt_tokens", step.prompt_tokens},
          {"cached_tokens", step.cached_tokens ? Json(*step.cached_tokens) : Json()},
          {"compared", step.compared},
          {"other_text", step.other_text},
          {"other_logprobs", step.other_logprobs},
          {"largest_difference", step.largest},
          {"first_difference", std::move(first)}};
}

Json as_json(const ServerReport& report, const ServerCheckOptions& options) {
  Json json = {{"program", version_text()},
               {"url", options.server.url.text()},
               {"model", report.model},
               {"seed", options.server.seed},
               {"rounds", options.rounds},
               {"prompt_tokens", options.prompt_tokens},
               {"answer_tokens", options.answer_tokens},
               {"complete", !report.is_interrupted},
               {"logprobs", report.has_logprobs},
               {"verdict", name_of(report.verdict())},
               {"steps", Json::array()}};
  for (const ServerStep& step : report.steps) json["steps"].push_back(as_json(step));
  return json;
}

std::string table(const ServerReport& report, const ServerCheckOptions& options) {
  std::string text =
      fmt::format("{} at {}; prompts of {} tokens, answers of {}; seed {}\n\n{:<14}{:>10}{:>8}{:>16}{:>16}{:>10}\n",
                  for_terminal(lossy_utf8(report.model)), options.server.url.text(), options.prompt_tokens, options.answer_tokens,
                  options.server.seed, "", "requests", "cached", "other logprobs", "other text", "failed");
  for (const ServerStep& step : report.steps) {
    const auto share = report.cached_share({step.name});
    const auto of_compared = [&](std::int64_t number) {
      return step.compared > 0 ? fmt::format("{} of {}", number, step.compared) : std::string("-");
    };
    text += fmt::format("{:<14}{:>10}{:>8}{:>16}{:>16}{:>10}   {}\n", step.name, step.requests,
                        share ? fmt::format("{:.0f} %", 100 * *share) : "-", of_compared(step.other_logprobs),
                        of_compared(step.other_text), step.failed, step.about);
  }
  return text;
}

/// Whether the server has shown that answers came from a cache, and that they later did not.
std::string cache_in_words(const ServerReport& report) {
  const auto first = report.cached_share({"first"}), again = report.cached_share({"again"});
  if (!again) {
    return "cache: not reported (usage.prompt_tokens_details.cached_tokens is absent), so it is not known which answers came from "
           "one\n";
  }
  if (*again <= first.value_or(0)) return "cache: none was seen; the server says that a prompt sent again was computed again\n";
  std::string text = fmt::format("cache: seen; of prompts sent again {:.0f} % of the tokens came from it\n", 100 * *again);
  const std::optional<bool> evicted = report.saw_eviction();
  if (!evicted) return text;
  text += *evicted ? fmt::format("eviction: seen; after the other prompts {:.0f} % still did\n",
                                 100 * report.cached_share({"evicted"}).value_or(0))
                   : "eviction: not seen; --evict-tokens asks for more other prompts\n";
  return text;
}

std::string differences_in_words(const ServerReport& report) {
  std::string text;
  for (const ServerStep& step : report.steps) {
    const std::string name(step.name);
    if (step.failed > 0)
      text += fmt::format("{}: {} failed; the first: {}\n", name, step.failed, one_line(lossy_utf8(step.first_failure)));
    if (!step.first) continue;
    text += fmt::format("{}: {} of {} answers differ, log probabilities by {:.3g} at most; the first: {}", name, step.differing(),
                        step.compared, step.largest, step.first_request);
    text += step.first->token ? fmt::format(", token {}: found {}, the first time {}\n", *step.first->token + 1,
                                            one_line(lossy_utf8(step.first->found)), one_line(lossy_utf8(step.first->expected)))
                              : ", in its text\n";
  }
  return text;
}

std::string verdict_in_words(const ServerReport& report) {
  std::int64_t compared = 0, differing = 0, other_text = 0;
  for (const ServerStep& step : report.steps) {
    compared += step.compared;
    differing += step.differing();
    other_text += step.other_text;
  }
  const std::string closeness = report.has_logprobs ? "text and log probabilities, to the last digit sent"
                                                    : fmt::format("by their text alone: no log probabilities ({})",
                                                                  one_line(lossy_utf8(report.no_logprobs)));
  switch (report.verdict()) {
    case ServerVerdict::Same: return fmt::format("All {} answers are the same as the first time: {}.\n", compared, closeness);
    case ServerVerdict::Different:
      return fmt::format("{} of {} answers are NOT the same as the first time, {} of them in the text ({}).\n", differing,
                         compared, other_text, report.has_logprobs ? "temperature 0" : closeness);
    case ServerVerdict::Untested: break;
  }
  return fmt::format("Not tested: {} answers were compared and no difference was found, {}.\n", compared, closeness);
}

}  // namespace

int verify_server(const VerifyArguments& arguments) {
  raise_file_limit();
  const ServerCheckOptions options = check_options(arguments);
  const InterruptWatch watch(InterruptWatch::Second::EndsProgram);
  ProgressBar bar("Asking");
  ServerReport report;
  try {
    report = check_server(options, [&](double done) {
      bar.update(std::llround(1000 * done), 1000);
      return !InterruptWatch::pending();
    });
  } catch (const Error& error) {
    bar.clear();
    write_note(fmt::format("calandra: verify: {}\n", one_line(error.what())));
    return kExitUntested;
  }
  bar.clear();
  write_out(arguments.json ? dump_json(as_json(report, options), 2) + "\n"
                           : table(report, options) + "\n" + cache_in_words(report) + differences_in_words(report) +
                                 verdict_in_words(report));
  if (report.is_interrupted) {
    write_note("calandra: verify: stopped before all was compared\n");
    return kExitInterrupted;
  }
  switch (report.verdict()) {
    case ServerVerdict::Same: return kExitSuccess;
    case ServerVerdict::Different: return kExitError;
    case ServerVerdict::Untested: break;
  }
  return kExitUntested;
}

}  // namespace calandra
