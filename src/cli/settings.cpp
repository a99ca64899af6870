#include "cli/settings.h"

#include "checkpoint/generation.h"
#include "checkpoint/key_reader.h"
#include "cli/open_model.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>

namespace calandra {
namespace {

/// Short enough to be typed again.
std::uint64_t random_seed() { return std::random_device{}(); }

}  // namespace

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
  options.sampling = {.temperature = arguments.temperature.value_or(suggested.temperature),
                      .top_k = arguments.top_k.value_or(suggested.top_k),
                      .top_p = arguments.top_p.value_or(suggested.top_p),
                      .min_p = arguments.min_p.value_or(suggested.min_p),
                      .seed = arguments.seed.value_or(random_seed())};
  options.max_tokens = arguments.max_tokens.value_or(arguments.uses_template() ? 0 : kCompletionTokens);
  options.stop = arguments.stop;
  if (!arguments.ignore_eos) options.stop_ids = stop_ids_of(model);
  try {
    check(options);
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
                                 {"seed", sampling.seed},
                                 {"max_tokens", options.max_tokens},
                                 {"stop", options.stop},
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
  result.max_tokens = keys.integer("max_tokens", 0, INT64_MAX);
  const nlohmann::ordered_json* seed = keys.find("seed");
  if (seed == nullptr || !seed->is_number_unsigned()) keys.refuse("seed", "an integer from 0 to 2^64 - 1");
  seed->get_to(result.sampling.seed);
  const nlohmann::ordered_json* stop = keys.find("stop");
  const auto is_text = [](const nlohmann::ordered_json& value) { return value.is_string(); };
  if (stop == nullptr || !stop->is_array() || !std::all_of(stop->begin(), stop->end(), is_text)) {
    keys.refuse("stop", "a list of texts");
  }
  stop->get_to(result.stop);
  try {
    check(result);
  } catch (const Error& error) {
    fail("{}: {}", keys.where(), error.what());
  }
  return result;
}

std::string settings_line(const GenerationOptions& options, const Model& model) {
  const SamplingOptions& sampling = options.sampling;
  return fmt::format("temperature {:g}, top-k {}, top-p {:g}, min-p {:g}, seed {}; context {}; {}", sampling.temperature,
                     sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed, with_commas(model.config().context),
                     computing_line(model));
}

std::string speed_line(const Generation& made) {
  const std::string reused = made.reused_tokens > 0 ? fmt::format(" ({} reused)", made.reused_tokens) : "";
  return fmt::format("{} prompt tokens{} at {:.1f} tokens/s, {} made at {:.1f} tokens/s", made.prompt_tokens, reused,
                     made.prompt_tokens_per_second(), made.ids.size(), made.generation_tokens_per_second());
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
