#include "checkpoint/convert.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/summary.h"
#include "checkpoint/weight_errors.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "engine/compare.h"
#include "engine/window_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace calandra {
namespace {

/// What --check finds.
struct Check {
  WeightErrors weights;
  ModelComparison models;
  std::int64_t tokens = 0;
  std::int64_t window = 0;
};

/// The text's tokens, before the work begins: it may take hours.
std::vector<std::int32_t> tokens_of(const std::filesystem::path& folder, const std::filesystem::path& file) {
  const std::filesystem::path tokenizer = folder / "tokenizer.json";
  if (!is_there(tokenizer)) fail("{}: no tokenizer.json, which --check needs", folder.string());
  const std::string text = read_text(file);
  std::vector<std::int32_t> tokens = Tokenizer::load(tokenizer).encode(text);
  if (tokens.size() < 2) fail("{}: a text of {} tokens, expected at least 2", input_name(file), tokens.size());
  return tokens;
}

/// False if it was told to end.
bool carry_out(const Conversion& conversion, const std::filesystem::path& folder) {
  ProgressBar bar("Converting");
  const InterruptWatch interrupt(InterruptWatch::Second::Ignored, InterruptWatch::Ending::Asked);
  struct Stopped {};
  ConversionProgress last;
  try {
    conversion.write(folder, [&](const ConversionProgress& progress) {
      last = progress;
      if (InterruptWatch::pending()) throw Stopped();
      bar.update(progress.done_bytes, progress.total_bytes);
    });
  } catch (const Stopped&) {
    bar.clear();
    write_note(fmt::format("calandra: {}: stopped with {} of {} files finished; the same command goes on from there\n",
                           one_line(folder.string()), last.finished_shards, last.num_shards));
    return false;
  }
  return true;
}

Check check(const ConvertArguments& arguments, const std::filesystem::path& source, std::span<const std::int32_t> tokens) {
  Check check;
  {
    ProgressBar bar("Comparing weights");
    check.weights = compare_weights(source, arguments.folder, arguments.options.num_threads,
                                    [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  }
  ModelArguments before, after;
  before.model = source.string();
  after.model = arguments.folder.string();
  before.threads = after.threads = arguments.options.num_threads;
  const auto old_model = open_model(before), new_model = open_model(after);
  check.tokens = std::ssize(tokens);
  check.window = arguments.window == 0 ? old_model->config().context : arguments.window;
  ProgressBar bar("Comparing predictions");
  check.models = compare_models(*old_model, *new_model, tokens, {.window = arguments.window},
                                [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  return check;
}

std::vector<WeightError> worst_of(const WeightErrors& errors) {
  constexpr std::size_t kMost = 5;
  std::vector<WeightError> worst(std::min(kMost, errors.tensors.size()));
  std::partial_sort_copy(errors.tensors.begin(), errors.tensors.end(), worst.begin(), worst.end(),
                         [](const WeightError& a, const WeightError& b) { return a.relative_rms() > b.relative_rms(); });
  return worst;
}

std::string as_text(const Check& check) {
  std::string text = "relative rms error of the weights\n";
  for (const WeightErrorClass& sum : check.weights.classes) {
    text += fmt::format("  {:<15} {:<10} {:.4f} over {} {}\n", name_of(sum.component), name_of(sum.after), sum.relative_rms(),
                        with_commas(sum.tensors), sum.tensors == 1 ? "matrix" : "matrices");
  }
  for (const WeightError& tensor : worst_of(check.weights))
    text += fmt::format("  worst: {:.4f} {}\n", tensor.relative_rms(), for_terminal(tensor.name));
  text += fmt::format("  {} matrices are the same to the byte\n", with_commas(check.weights.equal_tensors));
  const ModelComparison& m = check.models;
  text += fmt::format("KL divergence {:.4f} nats per token, at worst {:.4f} at token {}\n", m.mean_divergence(),
                      m.worst_divergence, with_commas(m.worst_position));
  text += fmt::format("perplexity {:.4f} before, {:.4f} after: {:.4f} and {:.4f} nats per token\n", m.before.perplexity(),
                      m.after.perplexity(), m.before.mean_nats(), m.after.mean_nats());
  text += fmt::format("{} tokens, {} of them predicted, in windows of {}\n", with_commas(check.tokens),
                      with_commas(m.before.predicted_tokens), with_commas(check.window));
  return text;
}

Json as_json(const Check& check) {
  Json json = {{"classes", Json::array()}, {"tensors", Json::array()}};
  for (const WeightErrorClass& sum : check.weights.classes) {
    json["classes"].push_back({{"component", name_of(sum.component)},
                               {"after", name_of(sum.after)},
                               {"tensors", sum.tensors},
                               {"relative_rms_error", sum.relative_rms()}});
  }
  for (const WeightError& tensor : check.weights.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"component", name_of(tensor.component)},
                               {"before", name_of(tensor.before)},
                               {"after", name_of(tensor.after)},
                               {"relative_rms_error", tensor.relative_rms()}});
  }
  const ModelComparison& m = check.models;
  json["equal_tensors"] = check.weights.equal_tensors;
  json["kl_divergence"] = {{"mean", m.mean_divergence()}, {"worst", m.worst_divergence}, {"worst_token", m.worst_position}};
  json["perplexity"] = {{"before", m.before.perplexity()}, {"after", m.after.perplexity()}};
  json["nats_per_token"] = {{"before", m.before.mean_nats()}, {"after", m.after.mean_nats()}};
  json["tokens"] = check.tokens;
  json["predicted_tokens"] = m.before.predicted_tokens;
  json["window"] = check.window;
  return json;
}

}  // namespace

int convert_command(const ConvertArguments& arguments) {
  if (arguments.window != 0 && !arguments.check) throw UsageError("--window: expected --check FILE beside it");
  const std::filesystem::path source = locate_checkpoint(arguments.model);
  std::vector<std::int32_t> tokens;
  if (arguments.check) tokens = tokens_of(source, *arguments.check);
  const Conversion conversion(source, arguments.options);
  check_window(arguments.window, conversion.config().context);
  const bool was_finished = conversion.is_finished(arguments.folder);
  if (!was_finished) {
    for (const std::string& remark : conversion.remarks()) write_note(fmt::format("note: {}\n", one_line(remark)));
    if (!carry_out(conversion, arguments.folder)) return kExitInterrupted;
  }
  const auto target = name_of(arguments.options.target);
  if (!arguments.json) {
    write_out(fmt::format("{}: {}{} of {}, {} parameters, {} tensor bytes have become {} in {} file{}\n",
                          one_line(arguments.folder.string()), was_finished ? "finished before: " : "", target,
                          one_line(short_name(arguments.model)), with_commas(conversion.parameters()),
                          with_commas(conversion.source_bytes()), with_commas(conversion.tensor_bytes()), conversion.num_shards(),
                          conversion.num_shards() == 1 ? "" : "s"));
    if (arguments.check) write_out(as_text(check(arguments, source, tokens)));
    return kExitSuccess;
  }
  Json json = {
      {"model", source.string()},           {"folder", arguments.folder.string()},   {"to", target},
      {"finished_before", was_finished},    {"parameters", conversion.parameters()}, {"source_bytes", conversion.source_bytes()},
      {"bytes", conversion.tensor_bytes()}, {"files", conversion.num_shards()},      {"remarks", conversion.remarks()}};
  if (arguments.check) json["check"] = as_json(check(arguments, source, tokens));
  write_out(dump_json(json, 2) + "\n");
  return kExitSuccess;
}

}  // namespace calandra
