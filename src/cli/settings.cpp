#include "cli/settings.h"

#include "checkpoint/generation.h"
#include "checkpoint/key_reader.h"
#include "cli/open_model.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <random>

namespace calandra {
namespace {

/// As in OpenAI's API: {"12": -100}.
nlohmann::ordered_json logit_bias_as_json(const std::vector<TokenBias>& biases) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [token, bias] : biases) json[std::to_string(token)] = bias;
  return json;
}

/// Absent: none. Ids and values that cannot be are left to check().
std::vector<TokenBias> read_logit_bias(KeyReader& keys) {
  const nlohmann::ordered_json* const json = keys.find("logit_bias");
  if (json == nullptr) return {};
  std::map<std::int32_t, float> biases;
  const auto refuse = [&] { keys.refuse("logit_bias", "an object of token ids and numbers"); };
  if (!json->is_object()) refuse();
  for (const auto& [id, bias] : json->items()) {
    std::int32_t token = 0;
    const auto [stop, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    if (error != std::errc() || stop != id.data() + id.size() || !bias.is_number()) refuse();
    biases[token] = bias.get<float>();
  }
  std::vector<TokenBias> ascending;
  ascending.reserve(biases.size());
  for (const auto& [token, bias] : biases) ascending.push_back({token, bias});
  return ascending;
}

}  // namespace

std::uint64_t random_seed() { return std::random_device{}(); }

std::string_view name_of(Activations activations) {
  switch (activations) {
    case Activations::Fp32: return "fp32";
    case Activations::Bf16: return "bf16";
    case Activations::Fp8: return "fp8";
  }
  return "";
}

std::string_view name_of(CacheType type) {
  switch (type) {
    case CacheType::F32: return "fp32";
    case CacheType::BF16: return "bf16";
    case CacheType::Fp8: return "fp8";
  }
  return "";
}

std::string computing_line(const Model& model) {
  return fmt::format("{} activations, {} kv, {} threads, {}", name_of(model.options().activations),
                     name_of(model.layout().types.latents), model.compute().threads().num_threads(),
                     name_of(model.compute().kernels().isa));
}

nlohmann::ordered_json computing_as_json(const Model& model) {
  return {{"activations", name_of(model.options().activations)},
          {"kv", name_of(model.layout().types.latents)},
          {"threads", model.compute().threads().num_threads()},
          {"instruction_set", name_of(model.compute().kernels().isa)}};
}

GenerationOptions generation_options(const RunArguments& arguments, const Model& model) {
  const GenerationDefaults& suggested = model.checkpoint().generation();
  GenerationOptions options;
  options.sampling = {.logit_bias = {},
                      .repetition_penalty = arguments.repetition_penalty,
                      .frequency_penalty = arguments.frequency_penalty,
                      .presence_penalty = arguments.presence_penalty,
                      .temperature = arguments.temperature.value_or(suggested.temperature),
                      .top_k = arguments.top_k.value_or(suggested.top_k),
                      .top_p = arguments.top_p.value_or(suggested.top_p),
                      .min_p = arguments.min_p.value_or(suggested.min_p),
                      .seed = arguments.seed.value_or(random_seed())};
  for (const auto& [token, bias] : arguments.logit_bias) options.sampling.logit_bias.push_back({token, bias});
  options.max_tokens = arguments.max_tokens.value_or(arguments.uses_template() ? 0 : kCompletionTokens);
  options.min_tokens = arguments.min_tokens;
  if (!arguments.ignore_eos) options.stop_ids = stop_ids_of(model);
  try {
    options.stop = arguments.stop;
    check(options, model.num_samplable());
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return options;
}

nlohmann::ordered_json settings_as_json(const GenerationOptions& options, const Model& model) {
  const SamplingOptions& sampling = options.sampling;
  nlohmann::ordered_json json = {{"temperature", sampling.temperature},
                                 {"top_k", sampling.top_k},
                                 {"top_p", sampling.top_p},
                                 {"min_p", sampling.min_p},
                                 {"presence_penalty", sampling.presence_penalty},
                                 {"frequency_penalty", sampling.frequency_penalty},
                                 {"repetition_penalty", sampling.repetition_penalty},
                                 {"logit_bias", logit_bias_as_json(sampling.logit_bias)},
                                 {"seed", sampling.seed},
                                 {"max_tokens", options.max_tokens},
                                 {"min_tokens", options.min_tokens},
                                 {"stop", options.stop.texts()},
                                 {"stop_ids", options.stop_ids},
                                 {"model", short_name(model.name())},
                                 {"context", model.config().context}};
  json.update(computing_as_json(model));
  return json;
}

GenerationOptions with_saved_settings(const GenerationOptions& options, const nlohmann::ordered_json& saved,
                                      const std::string& where) {
  GenerationOptions result = options;
  KeyReader keys(saved, where + ": settings");
  result.sampling.temperature = keys.number("temperature", 0, kMostTemperature);
  result.sampling.top_k = static_cast<int>(keys.integer("top_k", 0, INT32_MAX));
  result.sampling.top_p = keys.number("top_p", 0, 1);
  result.sampling.min_p = keys.number("min_p", 0, 1);
  // Since then: files without them were made with none of this.
  result.sampling.presence_penalty = keys.optional_number("presence_penalty", -kMostPenalty, kMostPenalty).value_or(0);
  result.sampling.frequency_penalty = keys.optional_number("frequency_penalty", -kMostPenalty, kMostPenalty).value_or(0);
  result.sampling.repetition_penalty =
      keys.optional_number("repetition_penalty", kLeastRepetitionPenalty, kMostRepetitionPenalty).value_or(1);
  result.sampling.logit_bias = read_logit_bias(keys);
  result.max_tokens = keys.integer("max_tokens", 0, INT64_MAX);
  result.min_tokens = keys.optional_integer("min_tokens", 0, INT64_MAX).value_or(0);
  const nlohmann::ordered_json* seed = keys.find("seed");
  if (seed == nullptr || !seed->is_number_unsigned()) keys.refuse("seed", "an integer from 0 to 2^64 - 1");
  seed->get_to(result.sampling.seed);
  const nlohmann::ordered_json* stop = keys.find("stop");
  const auto is_text = [](const nlohmann::ordered_json& value) { return value.is_string(); };
  if (stop == nullptr || !stop->is_array() || !std::all_of(stop->begin(), stop->end(), is_text)) {
    keys.refuse("stop", "a list of texts");
  }
  try {
    result.stop = stop->get<std::vector<std::string>>();
    check(result);
  } catch (const Error& error) {
    fail("{}: {}", keys.where(), error.what());
  }
  return result;
}

std::string settings_line(const GenerationOptions& options, const Model& model) {
  const SamplingOptions& sampling = options.sampling;
  std::string line = fmt::format("temperature {:g}, top-k {}, top-p {:g}, min-p {:g}, ", sampling.temperature, sampling.top_k,
                                 sampling.top_p, sampling.min_p);
  // Rarely used: named where they are.
  if (sampling.repetition_penalty != 1) line += fmt::format("repeat penalty {:g}, ", sampling.repetition_penalty);
  if (sampling.frequency_penalty != 0) line += fmt::format("frequency penalty {:g}, ", sampling.frequency_penalty);
  if (sampling.presence_penalty != 0) line += fmt::format("presence penalty {:g}, ", sampling.presence_penalty);
  if (!sampling.logit_bias.empty()) line += fmt::format("{} biased tokens, ", sampling.logit_bias.size());
  return line + fmt::format("seed {}; context {}; {}", sampling.seed, with_commas(model.config().context), computing_line(model));
}

std::string speed_line(const Generation& made) {
  const std::string reused = made.reused_tokens > 0 ? fmt::format(" ({} reused)", made.reused_tokens) : "";
  const std::int64_t drafted = made.accepted_drafts + made.rejected_drafts;
  const std::string drafts = drafted > 0 ? fmt::format(" ({} of {} drafts accepted)", made.accepted_drafts, drafted) : "";
  return fmt::format("{} prompt tokens{} at {:.1f} tokens/s, {} made{} at {:.1f} tokens/s", made.prompt_tokens, reused,
                     made.prompt_tokens_per_second(), made.ids.size(), drafts, made.generation_tokens_per_second());
}

std::string ending_line(const Generation& made) {
  switch (made.finish_reason) {
    case FinishReason::Stop: return "";
    case FinishReason::Cancelled: return "stopped";
    case FinishReason::Length: break;
  }
  return made.context_full ? "cut: the context is full (--context)"
                           : fmt::format("cut after {} tokens (--max-tokens)", made.ids.size());
}

}  // namespace calandra
