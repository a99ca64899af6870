#pragma once
// Every intermediate value of a run, for people who port or debug: hidden states, router choices, states, latents, logits and
// MTP rows, under the names of docs/trace.md.

#include "engine/model.h"
#include "tensor/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace calandra {

struct TraceOptions {
  std::vector<std::int32_t> ids;     // the prompt
  std::int64_t greedy = 0;           // tokens to go on with, each the largest logit
  std::vector<std::int64_t> splits;  // positions at which the prompt is cut; states are dumped there too
  int drafts = 3;                    // MTP drafts after the first greedy token
};

/// A named array of F32, I32 or I64.
struct TraceTensor {
  ElementType type = ElementType::F32;
  Shape shape;
  std::vector<std::byte> data;
};

struct Trace {
  std::map<std::string, TraceTensor> tensors;
  std::vector<std::int32_t> greedy_ids;
  std::vector<std::int32_t> draft_ids;  // MTP's chain after greedy_ids[0]; empty without MTP
};

/// Throws Error for an empty prompt, ids outside the vocabulary, splits that do not rise inside the prompt.
Trace run_trace(Model& model, const TraceOptions& options);

/// Throws Error that names the path.
void write_trace(const Trace& trace, const std::filesystem::path& path);

}  // namespace calandra
