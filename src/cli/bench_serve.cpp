#include "base/json.h"
#include "base/new_file.h"
#include "cli/commands.h"
#include "cli/file_limit.h"
#include "cli/open_model.h"
#include "cli/server_options.h"
#include "cli/terminal.h"
#include "loadtest/curve_svg.h"
#include "loadtest/load_run.h"
#include "text/unicode.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {
namespace {

constexpr double kMilli = 1e-3;
/// A client that sends later than this cannot keep up: the server is not the cause.
constexpr double kLateSeconds = 10 * kMilli;

/// A level and what is said of it.
struct MeasuredLevel {
  const LevelResult* result;
  LevelFigures figures;
};

LoadOptions load_options(const BenchServeArguments& arguments) {
  LoadOptions load = server_options(arguments.load, arguments.url, arguments.seed);
  if (arguments.trace) {
    if (load.turns > 1) throw UsageError("--turns and --trace exclude each other: a trace has lengths of single requests");
    if (arguments.svg) throw UsageError("--svg and --trace exclude each other: a trace is one level, which makes no curve");
    load.trace = parse_trace(read_input(*arguments.trace), input_name(*arguments.trace));
    load.levels = {{.kind = LoadLevel::Kind::Trace, .amount = 1}};
  } else if (!arguments.rates.empty()) {
    for (const double rate : arguments.rates) load.levels.push_back({.kind = LoadLevel::Kind::Rate, .amount = rate});
  } else {
    std::span<const std::int64_t> users = arguments.users;
    if (users.empty()) users = kBenchUsers;
    for (const std::int64_t number : users) load.levels.push_back({.amount = static_cast<double>(number)});
  }
  return load;
}

// ---------------------------------------------------------------- for programs

Json seconds_json(const Percentiles& percentiles) {
  return {{"count", percentiles.count}, {"mean", percentiles.mean}, {"p50", percentiles.p50},
          {"p90", percentiles.p90},     {"p99", percentiles.p99},   {"max", percentiles.most}};
}

Json lengths_json(const LengthRange& range) { return {{"least", range.least}, {"most", range.most}}; }

const char* kind_name(LoadLevel::Kind kind) {
  switch (kind) {
    case LoadLevel::Kind::Users: return "concurrency";
    case LoadLevel::Kind::Rate: return "rate";
    case LoadLevel::Kind::Trace: break;
  }
  return "trace";
}

const RequestResult* first_failure(const LevelResult& result) {
  for (const RequestResult& record : result.records) {
    if (record.failure != Failure::None) return &record;
  }
  return nullptr;
}

Json level_json(const MeasuredLevel& measured) {
  const LevelFigures& figures = measured.figures;
  Json failures = Json::object();
  for (std::size_t i = 1; i < kFailureNames.size(); ++i) failures[std::string(kFailureNames[i])] = figures.by_failure[i];
  const RequestResult* failure = first_failure(*measured.result);
  return {{"kind", kind_name(measured.result->level.kind)},
          {"amount", measured.result->level.amount},
          {"complete", measured.result->is_complete},
          {"seconds", measured.result->seconds},
          {"ok", figures.ok},
          {"failed", figures.failed()},
          {"failures", std::move(failures)},
          {"first_failure", failure == nullptr ? Json() : Json(failure->message)},
          {"unfinished", measured.result->num_unfinished},
          {"prompt_tokens", figures.prompt_tokens},
          {"output_tokens", figures.output_tokens},
          {"estimated", figures.estimated},
          {"requests_per_second", figures.requests_per_second},
          {"output_tokens_per_second", figures.output_tokens_per_second},
          {"total_tokens_per_second", figures.total_tokens_per_second},
          {"cached_share", figures.cached_share ? Json(*figures.cached_share) : Json()},
          {"tokens_per_chunk", figures.tokens_per_chunk},
          {"in_flight", figures.in_flight},
          {"time_to_first_token_seconds", seconds_json(figures.first_token)},
          {"time_to_first_token_from_send_seconds", seconds_json(figures.first_token_from_send)},
          {"inter_token_latency_seconds", seconds_json(figures.token_pace)},
          {"gap_seconds", seconds_json(figures.gap)},
          {"end_to_end_seconds", seconds_json(figures.end_to_end)},
          {"lateness_seconds", seconds_json(figures.lateness)}};
}

Json load_json(const LoadOptions& load, const LoadResult& result, const std::vector<MeasuredLevel>& levels) {
  Json json = {{"client", version_text()},
               {"url", load.url.text()},
               {"api", load.api == LoadApi::Chat ? "chat" : "completions"},
               {"model", result.model},
               {"seed", load.seed},
               {"prompt_tokens", load.trace.empty() ? lengths_json(load.prompt_tokens) : Json()},
               {"output_tokens", load.trace.empty() ? lengths_json(load.output_tokens) : Json()},
               {"shared_prefix_tokens", load.shared_prefix_tokens},
               {"turns", load.turns},
               {"ignore_eos", result.form.ignore_eos},
               {"tokens_per_word", result.scale.tokens_per_word},
               {"complete", !result.is_interrupted && !result.gone},
               {"levels", Json::array()}};
  for (const MeasuredLevel& level : levels) json["levels"].push_back(level_json(level));
  return json;
}

// ---------------------------------------------------------------- for people

std::string level_label(const LevelResult& result) {
  std::string label;
  switch (result.level.kind) {
    case LoadLevel::Kind::Users:
      label = fmt::format("{:g} user{}", result.level.amount, result.level.amount == 1 ? "" : "s");
      break;
    case LoadLevel::Kind::Rate: label = fmt::format("{:g} arrivals/s", result.level.amount); break;
    case LoadLevel::Kind::Trace: label = "trace"; break;
  }
  return result.is_complete ? label : label + ", cut off";
}

std::string lengths_text(const LengthRange& range) {
  return range.least == range.most ? std::to_string(range.least) : fmt::format("{} to {}", range.least, range.most);
}

/// "prompts of 512 tokens behind 1000 that all share, answers of 128, 4 turns"
std::string load_text(const LoadOptions& load) {
  if (!load.trace.empty()) return fmt::format("{} requests of a trace", load.trace.size());
  std::string text = fmt::format("prompts of {} tokens", lengths_text(load.prompt_tokens));
  if (load.shared_prefix_tokens > 0) text += fmt::format(" behind {} that all share", load.shared_prefix_tokens);
  text += fmt::format(", answers of {}", lengths_text(load.output_tokens));
  if (load.turns > 1) text += fmt::format(", {} turns", load.turns);
  return text;
}

std::string load_header(const LoadOptions& load, const LoadResult& result) {
  return fmt::format("{} at {}; {}; seed {}\n", for_terminal(lossy_utf8(result.model)), load.url.text(), load_text(load),
                     load.seed);
}

std::string throughput_table(const std::vector<MeasuredLevel>& levels) {
  std::string text = fmt::format("\n{:<24}{:>8}{:>8}{:>10}{:>12}{:>17}{:>16}{:>11}{:>9}\n", "", "ok", "failed", "seconds",
                                 "requests/s", "output tokens/s", "all tokens/s", "in flight", "cached");
  for (const auto& [result, figures] : levels) {
    text += fmt::format("{:<24}{:>8}{:>8}{:>10.1f}{:>12.2f}{:>17.1f}{:>16.1f}{:>11.1f}{:>9}\n", level_label(*result), figures.ok,
                        figures.failed(), result->seconds, figures.requests_per_second, figures.output_tokens_per_second,
                        figures.total_tokens_per_second, figures.in_flight,
                        figures.cached_share ? fmt::format("{:.1f} %", 100 * *figures.cached_share) : "-");
  }
  return text;
}

/// "     12.1     13.0" for the ones that were measured.
std::string cells(const Percentiles& percentiles, std::initializer_list<double Percentiles::*> which) {
  std::string text;
  for (double Percentiles::*figure : which) {
    text += percentiles.count > 0 ? fmt::format("{:>10.1f}", percentiles.*figure / kMilli) : fmt::format("{:>10}", "-");
  }
  return text;
}

std::string latency_table(const std::vector<MeasuredLevel>& levels) {
  const bool is_open = levels.front().result->level.is_open();
  std::string text = fmt::format("\n{:<24}{:>30}{:>30}{:>30}{:>20}", "milliseconds", "to the first token", "between tokens",
                                 "between chunks", "end to end");
  text += is_open ? fmt::format("{:>10}\n", "sent late") : "\n";
  text += fmt::format("{:<24}", "");
  for (int i = 0; i < 3; ++i) text += fmt::format("{:>10}{:>10}{:>10}", "p50", "p90", "p99");
  text += fmt::format("{:>10}{:>10}", "p50", "p99");
  text += is_open ? fmt::format("{:>10}\n", "p99") : "\n";
  using P = Percentiles;
  for (const auto& [result, figures] : levels) {
    text += fmt::format("{:<24}", level_label(*result));
    for (const P* three : {&figures.first_token, &figures.token_pace, &figures.gap})
      text += cells(*three, {&P::p50, &P::p90, &P::p99});
    text += cells(figures.end_to_end, {&P::p50, &P::p99});
    text += (is_open ? cells(figures.lateness, {&P::p99}) : "") + "\n";
  }
  return text;
}

/// What a reader of the tables has to know.
std::string load_notes(const LoadOptions& load, const LoadResult& result, const std::vector<MeasuredLevel>& levels) {
  std::string notes;
  const auto note = [&](const std::string& text) { notes += fmt::format("note: {}\n", one_line(text)); };
  if (!result.form.ignore_eos) note("the server refuses ignore_eos: answers may be shorter than they were to be");
  if (!result.scale.is_measured) note("the server does not count tokens: lengths of prompts are estimated");
  std::int64_t estimated = 0;
  double tokens_per_chunk = 0;
  for (const auto& [level, figures] : levels) {
    estimated += figures.estimated;
    tokens_per_chunk = std::max(tokens_per_chunk, figures.tokens_per_chunk);
    if (level->level.is_open() && figures.lateness.p99 > kLateSeconds) {
      note(fmt::format("{}: this client could not keep up: it sent requests up to {:.1f} ms late", level_label(*level),
                       figures.lateness.most / kMilli));
    }
    if (const RequestResult* failure = first_failure(*level)) {
      std::string kinds;
      for (std::size_t i = 1; i < kFailureNames.size(); ++i) {
        if (figures.by_failure[i] == 0) continue;
        kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kFailureNames[i], figures.by_failure[i]);
      }
      note(fmt::format("{}: failed: {}; the first: {}", level_label(*level), kinds, lossy_utf8(failure->message)));
    }
  }
  if (estimated > 0) note("the server sends no usage: tokens of answers are counted by chunks, those of prompts estimated");
  if (tokens_per_chunk > 1.05)
    note(fmt::format("a chunk has {:.2f} tokens: the time between chunks is not that between tokens", tokens_per_chunk));
  if (load.turns == 1 && load.shared_prefix_tokens == 0) return notes;
  for (const auto& [level, figures] : levels) {
    if (figures.ok > 0 && !figures.cached_share) {
      note("the server does not say what was cached (usage.prompt_tokens_details.cached_tokens)");
      break;
    }
  }
  return notes;
}

std::string load_svg(const LoadOptions& load, const LoadResult& result, const std::vector<MeasuredLevel>& levels) {
  using Figure = std::optional<double>;
  Curve curve;
  curve.title = fmt::format("{}: speed under load", lossy_utf8(result.model));
  curve.subtitle = load_text(load);
  curve.x_title =
      levels.front().result->level.is_open() ? "arrivals a second (Poisson, open loop)" : "users at a time (closed loop)";
  const auto series = [&](const std::string& name, auto&& figure_of) {
    CurveSeries made = {.name = name, .values = {}};
    for (const MeasuredLevel& level : levels) made.values.push_back(figure_of(level.figures));
    return made;
  };
  const auto milliseconds = [&](const std::string& name, Percentiles LevelFigures::*what, double Percentiles::*which) {
    return series(name, [=](const LevelFigures& figures) -> Figure {
      return (figures.*what).count > 0 ? Figure((figures.*what).*which / kMilli) : Figure();
    });
  };
  for (const MeasuredLevel& level : levels) curve.x.push_back(level.result->level.amount);
  curve.panels = {{.title = "Output tokens/s, all answers together",
                   .series = {series("output tokens/s",
                                     [](const LevelFigures& figures) { return Figure(figures.output_tokens_per_second); })}},
                  {.title = "Time to first token, ms",
                   .is_logarithmic = true,
                   .series = {milliseconds("p50", &LevelFigures::first_token, &Percentiles::p50),
                              milliseconds("p99", &LevelFigures::first_token, &Percentiles::p99)}},
                  {.title = "Time between tokens, ms (mean of a request)",
                   .is_logarithmic = true,
                   .series = {milliseconds("p50", &LevelFigures::token_pace, &Percentiles::p50),
                              milliseconds("p99", &LevelFigures::token_pace, &Percentiles::p99)}}};
  return curve_svg(curve);
}

void write_whole(std::optional<NewFile>& file, std::string_view text) {
  if (!file) return;
  file->write(std::as_bytes(std::span(text)));
  file->commit();
}

int exit_code_of(const LoadResult& result, const std::vector<MeasuredLevel>& levels) {
  if (result.is_interrupted) {
    write_note("calandra: bench serve: stopped before all was measured\n");
    return kExitInterrupted;
  }
  if (result.gone) {
    write_note(fmt::format("calandra: bench serve: the server is gone: {}\n", one_line(*result.gone)));
    return kExitError;
  }
  for (const MeasuredLevel& level : levels) {
    if (level.figures.ok > 0) return kExitSuccess;
  }
  write_note("calandra: bench serve: no request went well\n");
  return kExitError;
}

}  // namespace

int bench_serve_command(const BenchServeArguments& arguments) {
  raise_file_limit();
  const LoadOptions load = load_options(arguments);
  // Before anything is measured: a place that cannot be written would be found out too late.
  std::optional<NewFile> json, svg;
  const bool json_to_stdout = arguments.json == "-";
  if (arguments.json && !json_to_stdout) json.emplace(*arguments.json);
  if (arguments.svg) svg.emplace(*arguments.svg);

  const InterruptWatch watch(InterruptWatch::Second::EndsProgram);
  ProgressBar bar("Measuring");
  const LoadResult result = run_load(load, [&](double done) {
    bar.update(std::llround(1000 * done), 1000);
    return !InterruptWatch::pending();
  });
  bar.clear();

  std::vector<MeasuredLevel> levels;
  for (const LevelResult& level : result.levels) {
    if (!level.records.empty()) levels.push_back({&level, figures_of(level)});
  }
  if (!levels.empty()) {
    const std::string as_json = dump_json(load_json(load, result, levels), 2) + "\n";
    write_out(json_to_stdout ? as_json : load_header(load, result) + throughput_table(levels) + latency_table(levels));
    write_whole(json, as_json);
    if (svg) write_whole(svg, load_svg(load, result, levels));
    write_note(load_notes(load, result, levels));
  }
  return exit_code_of(result, levels);
}

}  // namespace calandra
