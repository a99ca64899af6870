#include "checkpoint/generation.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/key_reader.h"

#include <algorithm>

namespace calandra {

GenerationDefaults parse_generation(const std::string& text, const std::string& where, const Config& config) {
  const Json json = parse_json_object(text, where);
  KeyReader keys(json, where);
  GenerationDefaults defaults;
  defaults.temperature = keys.optional_number("temperature", 0, kMostTemperature).value_or(defaults.temperature);
  if (!keys.optional_flag("do_sample").value_or(true)) defaults.temperature = 0;
  defaults.top_p = keys.optional_number("top_p", 0, 1).value_or(defaults.top_p);
  if (defaults.top_p == 0) keys.refuse("top_p", "more than 0, at most 1");
  defaults.min_p = keys.optional_number("min_p", 0, 1).value_or(defaults.min_p);
  defaults.top_k =
      static_cast<int>(std::max<std::int64_t>(0, keys.optional_integer("top_k", -1, INT32_MAX).value_or(0)));  // -1: off, too
  defaults.eos_ids = config.eos_ids;
  for (const std::int64_t id : keys.integers("eos_token_id", 0, config.vocab - 1)) {
    if (std::find(defaults.eos_ids.begin(), defaults.eos_ids.end(), id) == defaults.eos_ids.end()) defaults.eos_ids.push_back(id);
  }
  keys.ignore({"bos_token_id", "pad_token_id", "transformers_version", "_from_model_config", "max_new_tokens", "max_length"});
  for (const std::string& key : keys.unknown()) {
    if (key == "repetition_penalty" && json.at(key) == 1) continue;
    defaults.remarks.push_back(fmt::format("generation_config.json: {} is {}, a suggestion that is not followed", printable(key),
                                           describe(json.at(key))));
  }
  return defaults;
}

GenerationDefaults read_generation(const std::filesystem::path& folder, const Config& config) {
  const std::filesystem::path path = folder / "generation_config.json";
  const std::string text = is_there(path) ? read_config_text(path) : "{}";
  return parse_generation(text, path.string(), config);
}

}  // namespace calandra
