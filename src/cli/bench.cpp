#include "engine/bench.h"

#include "base/json.h"
#include "checkpoint/summary.h"
#include "cli/commands.h"
#include "cli/exclusive.h"
#include "cli/open_model.h"
#include "cli/settings.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace calandra {
namespace {

constexpr double kGiga = 1e9;

std::vector<std::int64_t> those_up_to(std::int64_t most, std::span<const std::int64_t> numbers) {
  std::vector<std::int64_t> kept;
  std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(kept), [&](std::int64_t number) { return number <= most; });
  return kept;
}

/// What was asked for is measured or refused; of what was not, that which the context holds.
BenchOptions bench_options(const BenchArguments& arguments, const Model& model) {
  BenchOptions options;
  const std::int64_t context = model.config().context;
  options.prompts = arguments.prompts.value_or(those_up_to(context, kBenchPrompts));
  if (options.prompts == std::vector<std::int64_t>{0}) options.prompts.clear();
  options.decode_tokens = arguments.decode_tokens;
  options.depths =
      arguments.depths.value_or(those_up_to(std::max<std::int64_t>(0, context - arguments.decode_tokens), kBenchDepths));
  options.batches = arguments.batches.value_or(std::vector<std::int64_t>(kBenchBatches.begin(), kBenchBatches.end()));
  if (options.prompts.empty() && options.decode_tokens == 0)
    fail("bench: the usual prompts do not fit the context of {}, expected lengths with --prompt", context);
  options.rounds = arguments.rounds.value_or(arguments.exclusive ? kExclusiveBenchRounds : kBenchRounds);
  options.machine.threads = model.compute().threads().num_threads();
  options.machine.isa = model.compute().kernels().isa;
  return options;
}

void check_usage(const BenchArguments& arguments) {
  if (arguments.json && arguments.csv) throw UsageError("--json and --csv exclude each other");
  const bool prompts = !arguments.prompts || *arguments.prompts != std::vector<std::int64_t>{0};
  if (!prompts && arguments.decode_tokens == 0) throw UsageError("--prompt 0 --decode 0: nothing is left to measure");
  if (arguments.prompts && prompts && std::count(arguments.prompts->begin(), arguments.prompts->end(), 0) > 0)
    throw UsageError("--prompt: found 0 among other lengths, expected lengths from 1, or 0 alone for no prompts");
}

Spread spread_over(const std::vector<MachineLimits>& limits, double MachineLimits::*figure) {
  std::vector<double> figures;
  figures.reserve(limits.size());
  for (const MachineLimits& limit : limits) figures.push_back(limit.*figure);
  return spread_of(std::move(figures));
}

void add(Json& json, const std::string& name, const Spread& spread) {
  json[name] = spread.median;
  json[name + "_min"] = spread.least;
  json[name + "_max"] = spread.most;
}

// ---------------------------------------------------------------- for programs

/// What a token costs, part by part.
Json bytes_by_part(const BenchRow& row) {
  const auto a_token = [&](std::int64_t amount) {
    return static_cast<double>(amount) / static_cast<double>(row.what.all_tokens());
  };
  Json json = Json::object();
  for (std::size_t i = 0; i < kNumComponents; ++i) {
    if (row.cost.weight_bytes[i] > 0) json[std::string(name_of(static_cast<Component>(i)))] = a_token(row.cost.weight_bytes[i]);
  }
  json["state"] = a_token(row.cost.state_bytes);
  json["latents"] = a_token(row.cost.latent_bytes);
  return json;
}

double seconds_a_token(const BenchRow& row, Family family) {
  return row.profile.seconds(family) / static_cast<double>(row.what.all_tokens() * row.runs);
}

Json seconds_by_family(const BenchRow& row) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kFamilyNames.size(); ++i)
    json[std::string(kFamilyNames[i])] = seconds_a_token(row, static_cast<Family>(i));
  return json;
}

Json as_json(const BenchRow& row, const std::vector<MachineLimits>& limits) {
  Json json = {{"kind", row.what.kind == BenchCase::Kind::Prompt ? "prompt" : "decode"},
               {"tokens", row.what.tokens},
               {"depth", row.what.depth},
               {"batch", row.what.batch},
               {"rounds", row.seconds.size()},
               {"runs", row.runs}};
  add(json, "tokens_per_second", row.tokens_per_second());
  json["bytes_per_token"] = row.bytes_per_token();
  json["operations_per_token"] = row.operations_per_token();
  json["experts_per_layer"] = row.experts_per_layer();
  add(json, "bytes_per_second", row.bytes_per_second());
  add(json, "share_of_bandwidth", row.share_of_bandwidth(limits));
  add(json, "operations_per_second", row.operations_per_second());
  add(json, "share_of_peak", row.share_of_peak(limits));
  json["bytes_by_part"] = bytes_by_part(row);
  json["seconds_by_family"] = seconds_by_family(row);
  return json;
}

Json as_json(const std::vector<MachineLimits>& limits) {
  const MachineLimits& last = limits.back();
  Json json = {{"threads", last.threads},
               {"pinned", last.pinned},
               {"read_bytes", last.read_bytes},
               {"reads", last.tries},
               {"arithmetic", last.arithmetic}};
  add(json, "bytes_per_second", spread_over(limits, &MachineLimits::bytes_per_second));
  add(json, "operations_per_second", spread_over(limits, &MachineLimits::operations_per_second));
  return json;
}

Json as_json(const BenchResult& result, const Model& model, const std::string& exclusive) {
  Json json = {{"model", short_name(model.name())}, {"parameters", summarize(model.checkpoint()).parameters}};
  json.update(computing_as_json(model));
  json.update(
      {{"exclusive", exclusive}, {"complete", result.complete}, {"machine", as_json(result.limits)}, {"rows", Json::array()}});
  for (const BenchRow& row : result.rows) json["rows"].push_back(as_json(row, result.limits));
  return json;
}

/// The rows alone: a line of names, then a line for each. Nested names get a point: bytes_by_part.kda. A part that one row has and
/// another lacks is empty there.
std::string as_csv(const BenchResult& result) {
  std::vector<Json> rows;
  std::vector<std::string> names;
  for (const BenchRow& row : result.rows) {
    Json flat = Json::object();
    const Json json = as_json(row, result.limits);
    for (const auto& [name, value] : json.items()) {
      if (!value.is_object()) flat[name] = value;
      if (!value.is_object()) continue;
      for (const auto& [part, amount] : value.items()) flat[fmt::format("{}.{}", name, part)] = amount;
    }
    for (const auto& [name, value] : flat.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    rows.push_back(std::move(flat));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  for (const Json& row : rows) {
    text += "\n";
    for (const std::string& name : names) {
      if (&name != names.data()) text += ",";
      const auto found = row.find(name);
      if (found != row.end()) text += found->is_string() ? found->get<std::string>() : found->dump();
    }
  }
  return text + "\n";
}

// ---------------------------------------------------------------- for people

std::string range(const Spread& spread, double unit) {
  return fmt::format("{:.1f} ({:.1f} to {:.1f})", spread.median / unit, spread.least / unit, spread.most / unit);
}

std::string header(const BenchResult& result, const Model& model) {
  const MachineLimits& last = result.limits.back();
  std::string text =
      fmt::format("{}, {} parameters; {}; median of {} rounds\n", short_name(model.name()),
                  short_count(summarize(model.checkpoint()).parameters), computing_line(model), result.limits.size());
  text += fmt::format("memory  {} GB/s: best of {} reads of {} by {} {} thread{}{}\n",
                      range(spread_over(result.limits, &MachineLimits::bytes_per_second), kGiga), last.tries,
                      short_bytes(last.read_bytes), last.threads, last.pinned ? "pinned" : "unpinned",
                      last.threads == 1 ? "" : "s", last.short_of_memory ? "; memory is short" : "");
  text += fmt::format("peak    {} GFLOP/s: {}\n", range(spread_over(result.limits, &MachineLimits::operations_per_second), kGiga),
                      last.arithmetic);
  return text;
}

std::string label(const BenchCase& what) {
  if (what.kind == BenchCase::Kind::Prompt) return fmt::format("prompt {}", what.tokens);
  return fmt::format("decode {} at {} x {}", what.tokens, what.depth, what.batch);
}

std::string rows_table(const BenchResult& result) {
  std::string text = fmt::format("\n{:<24}{:>10}{:>22}{:>15}{:>9}{:>8}{:>11}{:>10}{:>9}\n", "", "tokens/s", "min to max",
                                 "MB a token", "experts", "GB/s", "of memory", "GFLOP/s", "of peak");
  for (const BenchRow& row : result.rows) {
    const Spread speed = row.tokens_per_second();
    text += fmt::format("{:<24}{:>10.1f}{:>22}{:>15.3f}{:>9.1f}{:>8.2f}{:>9.1f} %{:>10.1f}{:>7.1f} %\n", label(row.what),
                        speed.median, fmt::format("{:.1f} to {:.1f}", speed.least, speed.most), row.bytes_per_token() / 1e6,
                        row.experts_per_layer(), row.bytes_per_second().median / kGiga,
                        100 * row.share_of_bandwidth(result.limits).median, row.operations_per_second().median / kGiga,
                        100 * row.share_of_peak(result.limits).median);
  }
  return text;
}

std::string families_table(const BenchResult& result) {
  std::string text = fmt::format("\n{:<24}", "microseconds a token");
  for (const std::string_view name : kFamilyNames) text += fmt::format("{:>15}", name);
  text += "\n";
  for (const BenchRow& row : result.rows) {
    text += fmt::format("{:<24}", label(row.what));
    for (std::size_t i = 0; i < kFamilyNames.size(); ++i)
      text += fmt::format("{:>15.1f}", 1e6 * seconds_a_token(row, static_cast<Family>(i)));
    text += "\n";
  }
  return text;
}

}  // namespace

int bench_command(const BenchArguments& arguments) {
  check_usage(arguments);
  std::string exclusive = arguments.exclusive ? "yes" : "no";
  if (arguments.exclusive) {
    std::string refused;
    if (const std::optional<int> code = go_on_undisturbed(refused)) return *code;
    if (!refused.empty()) {
      write_note(fmt::format("note: --exclusive is not permitted in full ({}): others may disturb the figures\n", refused));
      exclusive = refused;
    }
  }
  const auto model = open_model(arguments.model);
  const InterruptWatch watch(InterruptWatch::Second::EndsProgram);
  ProgressBar bar("Measuring");
  BenchOptions options = bench_options(arguments, *model);
  options.on_phase = [&](const std::string& phase) { bar.begin_phase(phase); };
  const BenchResult result = run_bench(*model, options, [&](std::int64_t done, std::int64_t total) {
    bar.update(done, total);
    return !InterruptWatch::pending();
  });
  bar.clear();
  if (!result.rows.empty()) {
    if (arguments.json) {
      write_out(dump_json(as_json(result, *model, exclusive), 2) + "\n");
    } else if (arguments.csv) {
      write_out(as_csv(result));
    } else {
      write_out(header(result, *model) + rows_table(result) + families_table(result));
    }
  }
  if (result.complete) return kExitSuccess;
  write_note("calandra: bench: stopped before all was measured\n");
  return kExitInterrupted;
}

}  // namespace calandra
