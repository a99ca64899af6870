#include "engine/perplexity.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <chrono>

namespace calandra {

int perplexity_command(const PerplexityArguments& arguments) {
  const std::string text = read_text(arguments.file);
  const auto model = open_model(arguments.model);
  const std::vector<std::int32_t> tokens = model->tokenizer().encode(text);

  ProgressBar bar("Measuring");
  const auto start = std::chrono::steady_clock::now();
  const PerplexityResult result = measure_perplexity(*model, tokens, {.window = arguments.window},
                                                     [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();

  const double tokens_per_second = static_cast<double>(tokens.size()) / seconds;
  const std::int64_t window = arguments.window == 0 ? model->config().context : arguments.window;
  if (arguments.json) {
    const Json json = {{"perplexity", result.perplexity()},
                       {"nats_per_token", result.mean_nats()},
                       {"bits_per_byte", result.bits_per_byte()},
                       {"tokens", tokens.size()},
                       {"predicted_tokens", result.predicted_tokens},
                       {"window", window},
                       {"seconds", seconds},
                       {"tokens_per_second", tokens_per_second}};
    write_out(dump_json(json) + "\n");
  } else {
    write_out(
        fmt::format("perplexity {:.4f}: {:.4f} nats per token, {:.4f} bits per byte\n"
                    "{} tokens, {} of them predicted, in windows of {}; {:.1f} tokens/s\n",
                    result.perplexity(), result.mean_nats(), result.bits_per_byte(), with_commas(std::ssize(tokens)),
                    with_commas(result.predicted_tokens), with_commas(window), tokens_per_second));
  }
  return kExitSuccess;
}

}  // namespace calandra
