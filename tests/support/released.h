#pragma once
// The released models as their headers tell them: config and stored tensors, without a byte of weights.

#include "base/json.h"
#include "checkpoint/summary.h"
#include "checkpoint/synthetic.h"

#include <nlohmann/json.hpp>

namespace calandra {

inline SyntheticOptions whole(LingModel model, SyntheticFormat format) {
  SyntheticOptions options;
  options.model = model;
  options.format = format;
  return options;
}

inline Config config_of(const SyntheticOptions& options) {
  return parse_config(dump_json(synthetic_config(options)), "config.json");
}

inline ModelSummary summary_of(const SyntheticOptions& options) {
  return summarize(config_of(options), synthetic_tensors(options));
}

}  // namespace calandra
