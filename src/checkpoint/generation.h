#pragma once
// How a checkpoint's makers suggest to sample: generation_config.json.

#include "checkpoint/config.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace calandra {

inline constexpr double kMostTemperature = 100;  // far beyond any use; larger ones are mistakes

/// generation_config.json, with the fall-backs of config.json.
struct GenerationDefaults {
  double temperature = 1.0;  // up to kMostTemperature; 0 if do_sample is false
  double top_p = 1.0;
  double min_p = 0.0;
  int top_k = 0;                      // 0: off
  std::vector<std::int64_t> eos_ids;  // of both files, config.json's first
  std::vector<std::string> remarks;   // keys that are not followed, one sentence each
};

/// `text` is the content of generation_config.json, `where` its path. Throws Error that names the key.
GenerationDefaults parse_generation(const std::string& text, const std::string& where, const Config& config);

/// Reads it from `folder`; without the file the defaults.
GenerationDefaults read_generation(const std::filesystem::path& folder, const Config& config);

}  // namespace calandra
