#include "verify/verify.h"

#include "base/json.h"
#include "checkpoint/summary.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/settings.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace calandra {
namespace {

// ---------------------------------------------------------------- for programs

Json optional_text(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

Json as_json(const std::optional<RowDifference>& first) {
  if (!first) return {};
  return {{"request", first->request},
          {"position", first->position},
          {"token", first->token},
          {"expected", first->expected},
          {"found", first->found}};
}

Json as_json(const PathFindings& path) {
  return {{"path", path.name},
          {"about", path.about},
          {"holds", path.holds()},
          {"requests", path.requests},
          {"rows", path.rows.rows()},
          {"prompt_tokens", path.prompt_tokens},
          {"cached_tokens", path.cached_tokens},
          {"different_rows", path.rows.different()},
          {"largest_difference", path.rows.largest()},
          {"first_difference", as_json(path.rows.first())},
          {"answers_with_other_tokens", path.other_tokens},
          {"failure", optional_text(path.failure)},
          {"not_taken", optional_text(path.not_taken)}};
}

Json as_json(const VerifyReport& report, const VerifyOptions& options, const Model& model) {
  Json json = {{"program", version_text()}, {"model", short_name(model.name())}};
  json.update(computing_as_json(model));
  json.update({{"seed", options.seed},
               {"rounds", options.rounds},
               {"prompt_tokens", options.prompt_tokens},
               {"answer_tokens", options.answer_tokens},
               {"complete", report.is_complete},
               {"holds", report.holds()}});
  json["alone"] = {{"requests", report.requests}, {"rows", report.rows}, {"logits_of_a_row", report.width}};
  json["paths"] = Json::array();
  for (const PathFindings& path : report.paths) json["paths"].push_back(as_json(path));
  json["control"] = {{"bits_turned", report.bits_turned},
                     {"bits_seen", report.bits_seen},
                     {"rows", report.control.rows()},
                     {"different_rows", report.control.different()},
                     {"largest_difference", report.control.largest()}};
  return json;
}

// ---------------------------------------------------------------- for people

std::string header(const VerifyOptions& options, const Model& model) {
  return fmt::format("{}, {} parameters; {}; seed {}\n\n{:<16}{:>10}{:>8}{:>15}{:>13}{:>11}   {}\n", short_name(model.name()),
                     short_count(summarize(model.checkpoint()).parameters), computing_line(model), options.seed, "path",
                     "requests", "rows", "prompt tokens", "from cache", "different", "");
}

std::string verdict_of(const PathFindings& path) {
  if (path.differs()) return "DIFFERENT";
  if (path.failure) return "FAILED";
  return path.not_taken ? "not taken" : "ok";
}

std::string row_of(const PathFindings& path) {
  return fmt::format("{:<16}{:>10}{:>8}{:>15}{:>13}{:>11}   {:<10}{}\n", path.name, with_commas(path.requests),
                     with_commas(path.rows.rows()), with_commas(path.prompt_tokens), with_commas(path.cached_tokens),
                     with_commas(path.rows.different()), verdict_of(path), path.about);
}

/// What is wrong with a path, a line each.
std::string remarks_on(const PathFindings& path) {
  std::string text;
  if (const auto& first = path.rows.first()) {
    text += fmt::format(
        "{}: {} of {} rows differ, by {:.3g} at most; the first: {}, after {} tokens, token {}: found {:.9g}, alone {:.9g}\n",
        path.name, path.rows.different(), path.rows.rows(), path.rows.largest(), first->request, first->position, first->token,
        first->found, first->expected);
  }
  if (path.other_tokens > 0)
    text += fmt::format("{}: {} answers have other tokens; rows behind these are not compared\n", path.name, path.other_tokens);
  if (path.failure) text += fmt::format("{}: {}\n", path.name, one_line(*path.failure));
  if (path.not_taken) text += fmt::format("{}: {}\n", path.name, *path.not_taken);
  return text;
}

std::string footer(const VerifyReport& report) {
  std::string text = fmt::format(
      "\ncontrol: {} of {} bits that were turned in a state on purpose were seen: {} of {} rows differ, by {:.3g} at most\n",
      report.bits_seen, report.bits_turned, report.control.different(), report.control.rows(), report.control.largest());
  std::int64_t rows = 0;
  for (const PathFindings& path : report.paths) {
    text += remarks_on(path);
    rows += path.rows.rows();
  }
  if (report.holds()) {
    return text + fmt::format("The promise holds: {} rows of {} logits are, bit for bit, those of {} requests alone.\n",
                              with_commas(rows), with_commas(report.width), with_commas(report.requests));
  }
  const bool differs = std::ranges::any_of(report.paths, &PathFindings::differs);
  if (differs)
    return text + "THE PROMISE IS BROKEN. This is a fault of Calandra or of this machine: please report it with the seed.\n";
  return text + "The promise was not shown to hold.\n";
}

class Printer : public VerifyListener {
 public:
  explicit Printer(bool prints_rows) : prints_rows_(prints_rows) {}

  bool doing(std::string_view what, std::int64_t done, std::int64_t total) override {
    if (what != what_) {
      what_ = what;
      bar_ = std::make_unique<ProgressBar>(fmt::format("{:<16}", what));
    }
    bar_->update(done, total);
    return !InterruptWatch::pending();
  }
  void finished(const PathFindings& path) override {
    bar_.reset();
    what_.clear();
    if (prints_rows_) write_out(row_of(path));
  }
  void clear() { bar_.reset(); }

 private:
  bool prints_rows_;
  std::string what_;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace

int verify_model(const VerifyArguments& arguments) {
  VerifyOptions options;
  options.prompt_tokens = arguments.prompt_tokens.value_or(options.prompt_tokens);
  options.answer_tokens = arguments.answer_tokens.value_or(options.answer_tokens);
  options.rounds = arguments.rounds.value_or(options.rounds);
  options.seed = arguments.seed ? *arguments.seed : random_seed();
  const auto model = open_model(arguments.model);
  check(options, *model);
  const InterruptWatch watch(InterruptWatch::Second::EndsProgram);
  Printer printer(!arguments.json);
  if (!arguments.json) write_out(header(options, *model));
  const VerifyReport report = verify(*model, options, printer);
  printer.clear();
  write_out(arguments.json ? dump_json(as_json(report, options, *model), 2) + "\n" : footer(report));
  if (!report.is_complete) {
    write_note("calandra: verify: stopped before all was compared\n");
    return kExitInterrupted;
  }
  return report.holds() ? kExitSuccess : kExitError;
}

int verify_command(const VerifyArguments& arguments) {
  return arguments.url ? verify_server(arguments) : verify_model(arguments);
}

}  // namespace calandra
