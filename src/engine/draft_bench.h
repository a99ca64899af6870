#pragma once
// What drafts bring here: the same answers, made by an Engine with each of some settings, side by side. A row is a setting, a temperature, a
// length of the prompts and a number of sequences that are decoded together. Measured is what passes on the clock while all of them decode,
// drafting, verifying and drawing included; predicted is what DraftPolicy said before each of these steps.
//
// What is compared is measured in turn: run after run, each with prompts of its own, every setting once. Prompts, seeds and lengths are the
// same for all settings, and so are the answers.

#include "engine/bench.h"
#include "engine/model.h"
#include "engine/speculation.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace calandra {

struct DraftBenchOptions {
  std::vector<DraftSetting> settings;  // beside no drafts, which are always measured, first
  std::vector<double> temperatures;
  std::vector<std::int64_t> depths;   // tokens of every prompt
  std::vector<std::int64_t> batches;  // sequences that are decoded together
  std::int64_t tokens = 0;            // of every answer
  /// Prompts are pieces of this text, wherever they begin. Empty: random tokens.
  std::vector<std::int32_t> text = {};
  /// In place of the model's drafters one that knows the answers and is right so often that a step is expected to make so many tokens: exactly,
  /// where the setting's drafts can reach it; settings that cannot, and the automatic one, are right as often as the fewest drafts that can. If the
  /// model has an MTP layer it is run all the same, for the time that its drafts take.
  std::optional<double> oracle_tokens = {};
  int rounds = 1;
  double least_seconds = 0.5;  // of plain decoding in a round: what takes less is followed by further runs
  std::function<void(const std::string& phase)> on_phase = {};
};

struct DraftBenchRow {
  DraftSetting setting = {};
  double temperature = 0;
  std::int64_t depth = 0;
  std::int64_t batch = 1;

  // While all sequences of the batch decoded, in all rounds together.
  std::int64_t runs = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::vector<DrafterStatistics> drafters = {};

  // By round.
  std::vector<double> rates = {};      // tokens per second
  std::vector<double> gains = {};      // those over the ones without drafts
  std::vector<double> predicted = {};  // gains that DraftPolicy predicted, on average over time

  /// Of one sequence: what was accepted, and the one that no draft is needed for.
  double tokens_per_step() const { return static_cast<double>(tokens) / static_cast<double>(steps * batch); }
  Spread tokens_per_second() const { return spread_of(rates); }
  Spread gain() const { return spread_of(gains); }
  Spread predicted_gain() const { return spread_of(predicted); }
  /// Of gains, by round: 1 where drafts bring what was predicted.
  Spread measured_over_predicted() const;
};

struct DraftBenchResult {
  std::vector<DraftBenchRow> rows;  // by depth, batch and temperature, then setting; those measured at least once
  bool complete = true;
};

/// `plain` is the model as it runs when nothing is drafted, without its MTP layer; `drafting` is the same model with it, or the same object
/// if there is none. `progress` is as of run_bench(). Throws Error that names the option where something is out of range, or does not fit the context, the
/// memory or the text.
DraftBenchResult run_draft_bench(Model& plain, Model& drafting, const DraftBenchOptions& options,
                                 const std::function<bool(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace calandra
