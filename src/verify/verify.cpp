#include "verify/verify.h"

#include "engine/session.h"
#include "verify/purpose.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace calandra {
namespace {

/// The listener wants no more.
struct VerifyStopped {};

class Verification {
 public:
  Verification(Model& model, const VerifyOptions& options, VerifyListener& listener, const std::vector<VerifyPath>& paths)
      : model_(model), options_(options), listener_(listener), paths_(paths) {
    report_.width = model.num_samplable();
    for (const VerifyPath& path : paths) {
      report_.paths.emplace_back();
      report_.paths.back().name = path.name;
      report_.paths.back().about = path.about;
    }
  }

  VerifyReport run() {
    try {
      for (int round = 0; round < options_.rounds; ++round) run_round(static_cast<std::uint64_t>(round));
      report_.is_complete = true;
    } catch (const VerifyStopped&) {
    }
    return std::move(report_);
  }

 private:
  void tick(std::string_view what) {
    const std::int64_t total = options_.rounds * (std::ssize(paths_) + 1);
    if (!listener_.doing(what, done_, total)) throw VerifyStopped();
  }

  void run_round(std::uint64_t round) {
    const VerifyScript script = make_script(model_, options_, round, [this] { tick("alone"); });
    report_.requests += std::ssize(script.cases);
    for (const VerifyCase& one : script.cases) report_.rows += std::ssize(one.ids);
    run_control(script, round);
    ++done_;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      tick(paths_[i].name);
      PathRun run(model_, script, Draws(options_.seed, {kPathDraws, round, i}), [&] { tick(paths_[i].name); });
      paths_[i].take(run);
      report_.paths[i].add(run.findings());
      ++done_;
      if (round + 1 == static_cast<std::uint64_t>(options_.rounds)) listener_.finished(report_.paths[i]);
    }
  }

  void run_control(const VerifyScript& script, std::uint64_t round) {
    Draws draws(options_.seed, {kControlDraws, round});
    const auto longest = std::ranges::max_element(script.cases, {}, &VerifyCase::num_prompt);
    const RowTally rows = rows_after_a_turned_bit(model_, *longest, draws, kControlBit);
    ++report_.bits_turned;
    if (rows.different() > 0) ++report_.bits_seen;
    report_.control.add(rows);
  }

  Model& model_;
  const VerifyOptions& options_;
  VerifyListener& listener_;
  const std::vector<VerifyPath>& paths_;
  VerifyReport report_;
  std::int64_t done_ = 0;
};

}  // namespace

bool VerifyReport::holds() const {
  return is_complete && control_holds() && std::ranges::all_of(paths, [](const PathFindings& path) { return path.holds(); });
}

VerifyReport verify(Model& model, const VerifyOptions& options, VerifyListener& listener, const std::vector<VerifyPath>& paths) {
  check(options, model);
  return Verification(model, options, listener, paths).run();
}

RowTally rows_after_a_turned_bit(Model& model, const VerifyCase& alone, Draws& draws, int bit) {
  Session session(model, alone.length());
  session.logits(std::span(alone.prompt).first(alone.prompt.size() - 1));
  SequenceMemory& memory = session.memory();
  const auto layer = static_cast<std::int64_t>(draws.below(static_cast<std::size_t>(memory.layout().kda_layers)));
  const auto head = static_cast<std::int64_t>(draws.below(static_cast<std::size_t>(memory.layout().heads)));
  const std::span<float> state = memory.state(layer, head);
  float& number = *std::ranges::max_element(state, {}, [](float value) { return std::fabs(value); });
  number = std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) ^ (std::uint32_t{1} << bit));
  RowTally rows;
  std::vector<std::int32_t> history = alone.prompt;
  for (std::int64_t i = 0; i < std::ssize(alone.ids); ++i) {
    rows.compare(alone, i, session.logits(history).first(static_cast<std::size_t>(model.num_samplable())));
    history.push_back(alone.ids[static_cast<std::size_t>(i)]);
  }
  return rows;
}

}  // namespace calandra
