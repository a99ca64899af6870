#include "engine/bench.h"

#include "base/json.h"
#include "checkpoint/summary.h"
#include "cli/commands.h"
#include "cli/exclusive.h"
#include "cli/open_model.h"
#include "cli/settings.h"
#include "cli/terminal.h"
#include "engine/draft_bench.h"

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

int rounds_of(const BenchArguments& arguments) {
  return arguments.rounds.value_or(arguments.exclusive ? kExclusiveBenchRounds : kBenchRounds);
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
  options.rounds = rounds_of(arguments);
  options.machine.threads = model.compute().threads().num_threads();
  options.machine.isa = model.compute().kernels().isa;
  return options;
}

void check_usage(const BenchArguments& arguments) {
  if (arguments.json && arguments.csv) throw UsageError("--json and --csv exclude each other");
  if (!arguments.drafts.empty()) {
    if (arguments.prompts) throw UsageError("--draft and --prompt exclude each other: --depth says how long the prompts are");
    if (arguments.decode_tokens < 2)
      throw UsageError(fmt::format("--decode {}: expected at least 2 with --draft", arguments.decode_tokens));
    return;
  }
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

/// What stands above the rows, whatever they are.
Json head_as_json(const Model& model, const std::string& exclusive, bool complete) {
  Json json = {{"model", short_name(model.name())}, {"parameters", summarize(model.checkpoint()).parameters}};
  json.update(computing_as_json(model));
  json.update({{"exclusive", exclusive}, {"complete", complete}});
  return json;
}

Json as_json(const BenchResult& result, const Model& model, const std::string& exclusive) {
  Json json = head_as_json(model, exclusive, result.complete);
  json["machine"] = as_json(result.limits);
  json["rows"] = Json::array();
  for (const BenchRow& row : result.rows) json["rows"].push_back(as_json(row, result.limits));
  return json;
}

/// Adds what is in `json` to `flat`, nested names with a point: bytes_by_part.kda.
void flatten(const Json& json, const std::string& prefix, Json& flat) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      flatten(value, prefix + name + ".", flat);
    } else {
      flat[prefix + name] = value;
    }
  }
}

/// The rows alone: a line of names, then a line for each. What one row has and another lacks is empty there.
std::string as_csv(const Json& rows) {
  std::vector<Json> flat_rows;
  std::vector<std::string> names;
  for (const Json& row : rows) {
    Json flat = Json::object();
    flatten(row, "", flat);
    for (const auto& [name, value] : flat.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    flat_rows.push_back(std::move(flat));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  for (const Json& row : flat_rows) {
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

// ---------------------------------------------------------------- drafts

/// What prompts are pieces of, unless a text is given: prose that no model was trained on, in the language of the bundled one.
constexpr std::string_view kDraftText =
    R"(The family had been settled at Ashcombe for so many years, that nobody in the neighbourhood could remember a time when a Mr. Harding
had not been expected to open the ball at the assembly rooms, or to be consulted upon the repair of the church. He was a man of easy
temper and moderate understanding, fond of his daughters, and fonder of his dinner; and as long as both were before him at the usual
hour, he was very well disposed to think favourably of all the world.

"My dear sir," said Mrs. Lovell, as she took off her gloves, "you cannot have heard the news, or you would not sit there so quietly
with your newspaper. The great house is let at last, and to a gentleman of very good fortune, who is to come down on Thursday with two
of his sisters."

"And what is that to me?" replied he. "I shall call upon him, to be sure; but I do not know that his having sisters is any reason for
my being in a hurry."

Anne, who was at work near the window, could not help smiling; but she said nothing, for she had long been convinced that her opinion
would be asked for only when it was certain not to be followed. She had received a letter from her brother that morning, and every line
of it had given her some uneasiness. He wrote that he had been detained in town by business, that he was not able to say when it would
be settled, and that he begged she would not mention it to her father before she had seen him again.

In the evening they walked to the village. The weather had been so wet for a week together, that the ladies had been confined to the
house, and the pleasure of being again in the open air, with a fine sky above them and a dry lane under their feet, was enough to put
every one in spirits. They had scarcely reached the bridge, when they were overtaken by Captain Wells, who had been riding, and who
dismounted immediately to join them. He was so lively and so agreeable, that even Mrs. Lovell, who did not like officers, allowed
before they parted that he was a very sensible young man.
)";

DraftBenchOptions draft_bench_options(const BenchArguments& arguments, const Model& model) {
  DraftBenchOptions options;
  options.settings = arguments.drafts;
  options.temperatures = arguments.draft_temperatures;
  options.depths = arguments.depths.value_or(std::vector<std::int64_t>(kDraftBenchDepths.begin(), kDraftBenchDepths.end()));
  options.batches = arguments.batches.value_or(std::vector<std::int64_t>(kDraftBenchBatches.begin(), kDraftBenchBatches.end()));
  options.tokens = arguments.decode_tokens;
  options.oracle_tokens = arguments.draft_acceptance;
  options.rounds = rounds_of(arguments);
  if (arguments.draft_text) {
    options.text = model.tokenizer().encode(read_text(*arguments.draft_text));
    if (options.text.empty()) fail("{}: expected text, found none", input_name(*arguments.draft_text));
  } else if (const Tokenizer* const tokenizer = model.tokenizer_if_any()) {
    options.text = tokenizer->encode(kDraftText);
  }
  return options;
}

/// "auto", "2"
std::string name_of(const DraftSetting& setting) { return setting.automatic ? "auto" : std::to_string(setting.drafts); }

Json as_json(const DrafterStatistics& drafter) {
  Json json = {{"steps", drafter.steps},
               {"drafted", drafter.num_drafted()},
               {"accepted", drafter.num_accepted()},
               {"mean_tokens", drafter.mean_tokens()}};
  Json& places = json["acceptance"] = Json::object();  // of those that were looked at
  for (std::size_t place = 0; place < drafter.drafted.size(); ++place) {
    if (drafter.looked_at[place] == 0) continue;
    places[std::to_string(place + 1)] =
        static_cast<double>(drafter.accepted[place]) / static_cast<double>(drafter.looked_at[place]);
  }
  return json;
}

Json as_json(const DraftBenchRow& row, const DraftBenchOptions& options) {
  Json json = {{"kind", "draft"},
               {"drafts", name_of(row.setting)},
               {"temperature", row.temperature},
               {"tokens", options.tokens},
               {"depth", row.depth},
               {"batch", row.batch},
               {"rounds", row.rates.size()},
               {"runs", row.runs},
               {"steps", row.steps},
               {"tokens_per_step", row.tokens_per_step()}};
  add(json, "tokens_per_second", row.tokens_per_second());
  add(json, "gain", row.gain());
  add(json, "predicted_gain", row.predicted_gain());
  add(json, "measured_over_predicted", row.measured_over_predicted());
  Json& drafters = json["drafters"] = Json::object();
  for (const DrafterStatistics& drafter : row.drafters) drafters[drafter.name] = as_json(drafter);
  return json;
}

/// Of a small model or a large one.
std::string rate_text(double tokens_per_second) {
  return tokens_per_second < 10 ? fmt::format("{:.2f}", tokens_per_second) : fmt::format("{:.1f}", tokens_per_second);
}

std::string drafts_header(const DraftBenchOptions& options, const Model& model, std::size_t rounds) {
  const std::string drafters =
      options.oracle_tokens ? fmt::format("; an oracle's drafts, for {} tokens a step", *options.oracle_tokens) : "";
  return fmt::format("{}, {} parameters; {}; answers of {} tokens{}; median of {} round{}\n", short_name(model.name()),
                     short_count(summarize(model.checkpoint()).parameters), computing_line(model), options.tokens, drafters,
                     rounds, rounds == 1 ? "" : "s");
}

/// "mtp 1.82 in 214 steps, 41 %"
std::string drafters_of(const DraftBenchRow& row) {
  std::string text;
  for (const DrafterStatistics& drafter : row.drafters) {
    if (drafter.steps == 0) continue;
    text += fmt::format("{}{} {:.2f} in {} steps, {:.0f} %", text.empty() ? "" : "; ", drafter.name, drafter.mean_tokens(),
                        drafter.steps,
                        100.0 * static_cast<double>(drafter.num_accepted()) / static_cast<double>(drafter.num_drafted()));
  }
  return text;
}

std::string drafts_table(const DraftBenchResult& result) {
  std::string text =
      fmt::format("\n{:<24}{:>7}{:>10}{:>22}{:>14}{:>7}{:>16}{:>11}{:>9}  {}\n", "", "drafts", "tokens/s", "min to max",
                  "tokens a step", "gain", "min to max", "predicted", "of that", "tokens a step, and accepted, of each drafter");
  for (const DraftBenchRow& row : result.rows) {
    const Spread speed = row.tokens_per_second(), gain = row.gain();
    const std::string line =
        fmt::format("{:<24}{:>7}{:>10}{:>22}{:>14.2f}{:>7.2f}{:>16}{:>11.2f}{:>9.2f}  {}",
                    fmt::format("temp {}, at {} x {}", row.temperature, row.depth, row.batch), name_of(row.setting),
                    rate_text(speed.median), fmt::format("{} to {}", rate_text(speed.least), rate_text(speed.most)),
                    row.tokens_per_step(), gain.median, fmt::format("{:.2f} to {:.2f}", gain.least, gain.most),
                    row.predicted_gain().median, row.measured_over_predicted().median, drafters_of(row));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// ---------------------------------------------------------------- both

/// What a measurement prints, and whether all of it was done.
struct Report {
  std::string text;  // empty: nothing was measured
  bool complete = true;
};

/// Shows how far a measurement has come; false ends it.
class Meter {
 public:
  auto on_phase() {
    return [this](const std::string& phase) { bar_.begin_phase(phase); };
  }
  auto progress() {
    return [this](std::int64_t done, std::int64_t total) {
      bar_.update(done, total);
      return !InterruptWatch::pending();
    };
  }

 private:
  const InterruptWatch watch_{InterruptWatch::Second::EndsProgram};
  ProgressBar bar_{"Measuring"};
};

Report measure_speed(const BenchArguments& arguments, const std::string& exclusive) {
  const auto model = open_model(arguments.model);
  BenchResult result;
  {
    Meter meter;
    BenchOptions options = bench_options(arguments, *model);
    options.on_phase = meter.on_phase();
    result = run_bench(*model, options, meter.progress());
  }
  if (result.rows.empty()) return {"", result.complete};
  const Json json = as_json(result, *model, exclusive);
  if (arguments.json) return {dump_json(json, 2) + "\n", result.complete};
  if (arguments.csv) return {as_csv(json["rows"]), result.complete};
  return {header(result, *model) + rows_table(result) + families_table(result), result.complete};
}

Report measure_drafts(const BenchArguments& arguments, const std::string& exclusive) {
  const auto plain = open_model(arguments.model);
  const auto with_mtp = plain->checkpoint().weights().mtp ? open_model(arguments.model, true) : nullptr;
  DraftBenchOptions options = draft_bench_options(arguments, *plain);
  DraftBenchResult result;
  {
    Meter meter;
    options.on_phase = meter.on_phase();
    result = run_draft_bench(*plain, with_mtp ? *with_mtp : *plain, options, meter.progress());
  }
  if (result.rows.empty()) return {"", result.complete};
  Json json = head_as_json(*plain, exclusive, result.complete);
  if (options.oracle_tokens) json["oracle_tokens"] = *options.oracle_tokens;
  json["rows"] = Json::array();
  for (const DraftBenchRow& row : result.rows) json["rows"].push_back(as_json(row, options));
  if (arguments.json) return {dump_json(json, 2) + "\n", result.complete};
  if (arguments.csv) return {as_csv(json["rows"]), result.complete};
  return {drafts_header(options, *plain, result.rows[0].rates.size()) + drafts_table(result), result.complete};
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
  const Report report = arguments.drafts.empty() ? measure_speed(arguments, exclusive) : measure_drafts(arguments, exclusive);
  if (!report.text.empty()) write_out(report.text);
  if (report.complete) return kExitSuccess;
  write_note("calandra: bench: stopped before all was measured\n");
  return kExitInterrupted;
}

}  // namespace calandra
