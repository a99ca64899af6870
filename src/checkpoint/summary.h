#pragma once
// What a checkpoint holds, by parts of the network: parameters, bytes, types, what a token uses, and everything odd. Looks at
// names, types and shapes only, never at the data of a tensor. For `calandra inspect` and the planner.

#include "checkpoint/checkpoint.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// "embedding", "head", "kda", "mla", "dense_mlp", "routed_experts", "shared_experts", "router", "norms", "mtp"
std::string_view name_of(Component component);

struct ComponentSummary {
  Component component = Component::Norm;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;                             // scales included
  std::map<ElementType, std::int64_t> bytes_by_type;  // scales have their own type
};

struct ModelSummary {
  std::vector<ComponentSummary> components;  // those that have tensors, in the order of Component

  std::int64_t main_parameters = 0;  // without the MTP layer
  std::int64_t main_bytes = 0;
  std::int64_t parameters = 0;  // with it
  std::int64_t bytes = 0;

  /// Parameters a token passes through: everything but MTP and the experts not chosen.
  std::int64_t active_parameters = 0;                 // the embedding is one row: not counted
  std::int64_t active_parameters_with_embedding = 0;  // as vendors count
  /// Weights read to decode one token alone, without the embedding's row, caches and states.
  std::int64_t bytes_per_token = 0;

  std::vector<std::string> missing;  // tensors of the config that are not there
  std::vector<std::string> surplus;  // tensors that the config does not know
  std::vector<std::string> remarks;  // everything odd, one sentence each
};

/// From headers alone. Remarks: limit lists, missing and surplus tensors, and the config's own.
ModelSummary summarize(const Config& config, std::span<const TensorHeader> tensors);

/// The same for an opened checkpoint, with the remarks of opening it and of its README.md.
ModelSummary summarize(const Checkpoint& checkpoint);

/// A model card's largest claim about the context, if the config says something else: a sentence for `remarks`. Looks at
/// lines that speak of context, for numbers such as 262144, 131,072, 256K or 1M.
std::optional<std::string> contradicted_context_claim(std::string_view card, std::int64_t context);

nlohmann::ordered_json to_json(const ModelSummary& summary);

}  // namespace calandra
