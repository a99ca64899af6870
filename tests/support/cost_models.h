#pragma once
// What steps of the released models cost, from their headers alone.

#include "plan/cost.h"
#include "support/released.h"

#include <map>
#include <utility>

namespace calandra {

/// Of a whole released model, with its MTP layer if it has one; made once, since its headers are a hundred thousand.
inline const CostModel& cost_model(const SyntheticOptions& options) {
  static std::map<std::pair<LingModel, SyntheticFormat>, CostModel> made;
  const auto key = std::pair(options.model, options.format);
  const auto found = made.find(key);
  if (found != made.end()) return found->second;
  const Config config = config_of(options);
  return made.emplace(key, CostModel(config, summary_of(options), memory_layout(config, CacheType::BF16, true))).first->second;
}

inline const CostModel& cost_model(LingModel model, SyntheticFormat format) { return cost_model(whole(model, format)); }

}  // namespace calandra
