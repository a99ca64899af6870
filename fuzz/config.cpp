// Any text as config.json and as generation_config.json: read or refused, what is read keeps its promises.

#include "checkpoint/config.h"
#include "base/error.h"
#include "checkpoint/generation.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  calandra::Config config;
  config.vocab = 1000;
  try {
    config = calandra::parse_config(text, "fuzz");
    require(config.layers > 0 && std::ssize(config.mla_layers) == config.layers);
    require(config.heads > 0 && config.head_dim > 0 && config.hidden > 0 && config.context > 0);
    require(config.experts == 0 ||
            (config.top_k > 0 && config.top_k <= config.experts && config.experts % config.num_groups == 0));
    require(std::isfinite(config.attention_scale()));
    for (const double frequency : calandra::rope_parameters(config).inverse_frequencies) require(std::isfinite(frequency));
  } catch (const calandra::Error&) {
  }
  try {
    calandra::parse_generation(text, "fuzz", config);
  } catch (const calandra::Error&) {
  }
  return 0;
}
