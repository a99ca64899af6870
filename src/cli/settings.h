#pragma once
// What an answer is made with: the command line's wishes where there are any, else what the checkpoint suggests; and how a
// person is told.

#include "cli/commands.h"
#include "engine/generate.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace calandra {

/// "fp32", "bf16", "fp8"
std::string_view name_of(Activations activations);
std::string_view name_of(CacheType type);

/// What a model computes with, of which answers and speeds depend: "bf16 activations, bf16 kv, 2 threads, avx2"
std::string computing_line(const Model& model);
nlohmann::ordered_json computing_as_json(const Model& model);

/// Short enough to be typed again.
std::uint64_t random_seed();

/// Throws UsageError for values out of range.
GenerationOptions generation_options(const RunArguments& arguments, const Model& model);

/// All of `options`, and what else the answer depends on.
nlohmann::ordered_json settings_as_json(const GenerationOptions& options, const Model& model);

/// `options` with what settings_as_json() once said of sampling and ending. Throws Error that names `where`.
GenerationOptions with_saved_settings(const GenerationOptions& options, const nlohmann::ordered_json& saved,
                                      const std::string& where);

/// "temperature 0.7, top-k 20, top-p 0.95, min-p 0, seed 12; context 32,768; bf16 activations, bf16 kv, 2 threads, avx2"
std::string settings_line(const GenerationOptions& options, const Model& model);

/// "12 prompt tokens (4 reused) at 310.2 tokens/s, 48 made at 102.5 tokens/s"
std::string speed_line(const Generation& made);

/// Why an answer ended where the model did not want to; empty if it did.
std::string ending_line(const Generation& made);

}  // namespace calandra
