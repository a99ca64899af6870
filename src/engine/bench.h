#pragma once
// How fast a model runs here, and how that compares with what the machine can do: prompts of some lengths, and decoding behind some
// depths of context with some numbers of sequences. In rounds: each measures the machine and then every row once, so that what is
// compared was measured side by side, and a row's figures come from all of the time the measurement took.

#include "engine/model.h"
#include "model/profile.h"
#include "plan/cost.h"
#include "plan/machine.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace calandra {

struct BenchOptions {
  std::vector<std::int64_t> prompts;  // tokens of each prompt; empty: none is measured
  std::int64_t decode_tokens = 0;     // of every sequence; 0: no decoding is measured
  std::vector<std::int64_t> depths;   // tokens before the first decoded one
  std::vector<std::int64_t> batches;  // sequences that are decoded together
  int rounds = 1;
  double least_seconds = 0.5;  // of a row in a round: what takes less is run again until it has taken that long
  MachineOptions machine;
  std::function<void(const std::string& phase)> on_phase = {};  // hears what comes next: "round 1 of 3"
};

/// What is measured: a prompt, or one depth and batch of decoding.
struct BenchCase {
  enum class Kind : std::uint8_t { Prompt, Decode };
  Kind kind = Kind::Prompt;
  std::int64_t tokens = 0;  // of each sequence
  std::int64_t depth = 0;
  std::int64_t batch = 1;

  std::int64_t all_tokens() const { return tokens * batch; }
};

/// The median of some figures, with the least and the largest.
struct Spread {
  double median = 0, least = 0, most = 0;
};
/// Throws Error for no figures at all.
Spread spread_of(std::vector<double> figures);

struct BenchRow {
  BenchCase what;
  // The same in every run: so are the tokens, and with them the experts.
  StepCost cost;                      // of all steps
  std::int64_t steps = 0;             // forward passes
  std::int64_t distinct_experts = 0;  // added up over steps and layers
  std::int64_t moe_layers = 0;
  std::vector<double> seconds;  // of a run, by round
  std::int64_t runs = 0;        // of all rounds together
  Profile profile;              // of those

  /// Distinct experts of a step and layer on average; 0 without experts.
  double experts_per_layer() const;
  double bytes_per_token() const { return static_cast<double>(cost.bytes()) / static_cast<double>(what.all_tokens()); }
  double operations_per_token() const { return static_cast<double>(cost.operations()) / static_cast<double>(what.all_tokens()); }
  Spread tokens_per_second() const;
  Spread bytes_per_second() const;
  Spread operations_per_second() const;
  /// Of what the machine could do in the same round.
  Spread share_of_bandwidth(const std::vector<MachineLimits>& limits) const;
  Spread share_of_peak(const std::vector<MachineLimits>& limits) const;

 private:
  Spread per_second(double amount) const;
};

struct BenchResult {
  std::vector<MachineLimits> limits;  // by round
  std::vector<BenchRow> rows;         // prompts, then decoding by depth and batch; those measured at least once
  bool complete = true;
};

/// `progress` gets (tokens computed, tokens in all) between steps, those that only fill a depth too; false ends the measurement, and what
/// was measured until then is the result. Throws Error that names the option where a length, depth or batch is beyond the context or
/// the memory of the machine.
BenchResult run_bench(Model& model, const BenchOptions& options,
                      const std::function<bool(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace calandra
