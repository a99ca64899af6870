#include "engine/draft_bench.h"

#include "base/error.h"
#include "engine/engine.h"
#include "plan/available_memory.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<std::int32_t>;

/// What progress() ends a measurement with.
struct Interrupted {};

/// Drafts what answers that are known go on with, and as often as it should, something else.
class OracleDrafter : public Drafter {
 public:
  /// `known` are prompts with their answers. With `paid` its drafts are made, too, and thrown away.
  OracleDrafter(const std::vector<Tokens>& known, std::int32_t vocab, double acceptance, std::unique_ptr<Drafter> paid)
      : known_(known), vocab_(vocab), is_right_(acceptance), paid_(std::move(paid)) {}

  std::string_view name() const override { return "oracle"; }
  bool runs_mtp() const override { return paid_ != nullptr; }
  std::int64_t look(DraftedAnswer&) override { return kMostDrafts; }

  void draft(std::span<DraftedAnswer* const> answers) override {
    if (paid_) paid_->draft(answers);
    for (DraftedAnswer* answer : answers) {
      std::span<const std::int32_t> next = after(answer->tokens);
      answer->drafts.clear();
      for (bool right = true; std::ssize(answer->drafts) < std::min(answer->wanted, std::ssize(next));) {
        const std::int32_t token = next[answer->drafts.size()];
        right = right && is_right_(random_);
        answer->drafts.push_back(right ? token : (token + 1) % vocab_);
      }
    }
  }

 private:
  std::span<const std::int32_t> after(const Tokens& tokens) const {
    for (const Tokens& known : known_) {
      if (known.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), known.begin()))
        return std::span(known).subspan(tokens.size());
    }
    return {};
  }

  const std::vector<Tokens>& known_;
  std::int32_t vocab_;
  std::bernoulli_distribution is_right_;
  std::mt19937_64 random_{1};
  std::unique_ptr<Drafter> paid_;
};

/// How often drafts must be right for a step of so many to make `tokens`; those that cannot are right as often as the fewest that can.
double acceptance_for(double tokens, const DraftSetting& setting) {
  std::int64_t fewest = 1;
  while (static_cast<double>(fewest + 1) < tokens) ++fewest;
  const std::int64_t drafts = setting.automatic ? fewest : std::max(fewest, setting.drafts);
  double least = 0, most = 1;
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (least + most) / 2;
    (Acceptance(middle).expected_tokens(drafts) < tokens ? least : most) = middle;
  }
  return most;
}

/// What `later` has seen since `earlier`.
DrafterStatistics difference(DrafterStatistics later, const DrafterStatistics& earlier) {
  later.steps -= earlier.steps;
  for (std::size_t place = 0; place < later.drafted.size(); ++place) {
    later.drafted[place] -= earlier.drafted[place];
    later.looked_at[place] -= earlier.looked_at[place];
    later.accepted[place] -= earlier.accepted[place];
  }
  return later;
}

/// What was seen while all sequences of a run decoded.
struct Measured {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double predicted_seconds =
      0;  // that plain decoding was predicted to take for them, by what it took with drafts: seconds times gain
  std::vector<DrafterStatistics> drafters;
};

/// Hears the answers of one run and the steps that made them.
class Run : public StepListener {
 public:
  /// Before anything is submitted.
  void begin(std::int64_t batch) {
    const std::lock_guard lock(mutex_);
    answers_.assign(static_cast<std::size_t>(batch), {});
    begun_ = finished_ = ended_ = tokens_ = 0;
    error_.clear();
    all_decoded_ = false;
    measured_ = {};
  }

  std::shared_ptr<AnswerListener> listener(std::int64_t answer) { return std::make_shared<Listener>(*this, answer); }

  enum class Until : std::uint8_t { OneFinished, AllEnded };
  /// Tokens made so far; `done` once that has come. Returns after a tenth of a second at the latest.
  std::int64_t wait(Until until, bool& done) {
    std::unique_lock lock(mutex_);
    const auto has_come = [&] {
      const std::int64_t all = std::ssize(answers_);
      return until == Until::AllEnded ? ended_ == all : finished_ > 0 || ended_ == all;
    };
    done = news_.wait_for(lock, std::chrono::milliseconds(100), has_come);
    return tokens_;
  }

  /// After the last has ended. Throws Error if one failed.
  Measured measured() const {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) fail("{}", error_);
    return measured_;
  }
  std::vector<Tokens> answers() const {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

  void step(const EngineStatistics& now) override {
    const std::lock_guard lock(mutex_);
    const Clock::time_point at = Clock::now();
    if (all_decoded_) {
      const double seconds = std::chrono::duration<double>(at - last_step_).count();
      ++measured_.steps;
      measured_.tokens += tokens_ - last_tokens_;
      measured_.seconds += seconds;
      measured_.predicted_seconds += seconds * predicted_gain_;
      measured_.drafters = now.drafters;
      for (std::size_t i = 0; i < now.drafters.size(); ++i) measured_.drafters[i] = difference(now.drafters[i], before_[i]);
    } else {
      before_ = now.drafters;
    }
    // Of the next step.
    all_decoded_ = begun_ == std::ssize(answers_) && finished_ == 0 && ended_ == 0;
    predicted_gain_ = now.predicted_gain;
    last_tokens_ = tokens_;
    last_step_ = at;
  }

 private:
  class Listener : public AnswerListener {
   public:
    Listener(Run& run, std::int64_t answer) : run_(run), answer_(answer) {}
    void gained(std::int32_t id, const AnswerStep& step) override { run_.gained(answer_, id, step.finish.has_value()); }
    void ended(const AnswerSummary& summary, std::string_view) override { run_.ended(summary); }

   private:
    Run& run_;
    std::int64_t answer_;
  };

  void gained(std::int64_t answer, std::int32_t id, bool finishes) {
    const std::lock_guard lock(mutex_);
    Tokens& made = answers_[static_cast<std::size_t>(answer)];
    begun_ += made.empty() ? 1 : 0;
    made.push_back(id);
    ++tokens_;
    if (finishes && finished_++ == 0) news_.notify_all();
  }

  void ended(const AnswerSummary& summary) {
    const std::lock_guard lock(mutex_);
    if (summary.outcome == AnswerOutcome::Failed) error_ = summary.error;
    ++ended_;
    news_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Tokens> answers_;
  std::int64_t begun_ = 0, finished_ = 0, ended_ = 0, tokens_ = 0;
  std::string error_;

  bool all_decoded_ = false;
  double predicted_gain_ = 1;
  std::int64_t last_tokens_ = 0;
  Clock::time_point last_step_;
  std::vector<DrafterStatistics> before_;  // the steps that count
  Measured measured_;
};

class DraftBench {
 public:
  DraftBench(Model& plain, Model& drafting, const DraftBenchOptions& options,
             const std::function<bool(std::int64_t, std::int64_t)>& progress)
      : plain_(plain), drafting_(drafting), options_(options), progress_(progress) {
    settings_.push_back({.automatic = false, .drafts = 0});
    std::ranges::copy_if(options.settings, std::back_inserter(settings_),
                         [](const DraftSetting& setting) { return setting.drafts != 0; });
    check();
    const auto groups = std::ssize(options.depths) * std::ssize(options.temperatures);
    for (const std::int64_t batch : options.batches) total_ += groups * batch * tokens_of_a_run() * (options.rounds + 1);
  }

  DraftBenchResult run() {
    DraftBenchResult result;
    try {
      for (const std::int64_t depth : options_.depths) {
        for (const std::int64_t batch : options_.batches) {
          for (const double temperature : options_.temperatures) Group(*this, {{}, temperature, depth, batch}, result.rows).run();
        }
      }
    } catch (const Interrupted&) {
      result.complete = false;
    }
    std::erase_if(result.rows, [](const DraftBenchRow& row) { return row.rates.empty(); });
    return result;
  }

 private:
  /// The settings for one depth, batch and temperature: an engine each, of which one runs at a time. They learn together how long steps take,
  /// as an engine does that serves a day long, and each how often its own drafts are right.
  class Group {
   public:
    Group(DraftBench& bench, const DraftBenchRow& what, std::vector<DraftBenchRow>& rows)
        : bench_(bench), what_(what), rows_(rows), first_row_(rows.size()) {
      for (const DraftSetting& setting : bench.settings_) {
        DraftBenchRow row = what;
        row.setting = setting;
        rows.push_back(std::move(row));
        sides_.push_back(std::make_unique<Side>());
        sides_.back()->engine = std::make_unique<Engine>(bench.model_of(setting), options_of(setting), sides_.back()->run);
      }
    }

    /// A round that does not count comes first: weights come into memory, buffers grow, and there is something to predict from.
    void run() {
      for (int round = 0; round <= bench_.options_.rounds; ++round) {
        bench_.begin(fmt::format("{}, batch {}, temperature {}: {}", what_.depth, what_.batch, what_.temperature,
                                 round == 0 ? "warming up" : fmt::format("round {} of {}", round, bench_.options_.rounds)));
        measure(round);
      }
    }

   private:
    struct Side {
      std::shared_ptr<Run> run = std::make_shared<Run>();
      std::unique_ptr<Engine> engine;
    };

    EngineOptions options_of(const DraftSetting& setting) const {
      EngineOptions options;
      options.context = bench_.context_of(what_.depth);
      options.pool_bytes = bench_.pool_bytes(what_, setting);
      options.limits.max_running = what_.batch;
      options.limits.max_waiting = what_.batch;
      options.limits.prefill_tokens_beside_decodes = options.limits.prefill_tokens;  // all are to decode soon
      options.limits.reserved_new_tokens = bench_.options_.tokens;
      options.prefixes.keeps = false;
      options.speculation = {setting, {}, time_};
      if (bench_.options_.oracle_tokens && setting.drafts > 0) {
        Model& model = bench_.model_of(setting);
        options.speculation.drafters = {std::make_shared<OracleDrafter>(
            known_, static_cast<std::int32_t>(model.num_samplable()), acceptance_for(*bench_.options_.oracle_tokens, setting),
            model.forward().with_mtp() ? mtp_drafter(model) : nullptr)};
      }
      return options;
    }

    void measure(int round) {
      std::vector<Measured> all(sides_.size());
      std::int64_t runs = 0;
      do {
        bench_.counts_ = runs == 0;
        make_prompts(round, runs++);
        for (std::size_t side = 0; side < sides_.size(); ++side) add(all[side], measure(*sides_[side], side == 0));
      } while (round > 0 && all[0].seconds < bench_.options_.least_seconds);
      for (std::size_t side = 0; round > 0 && side < sides_.size(); ++side)
        note(rows_[first_row_ + side], all[side], all[0], runs);
    }

    static void add(Measured& sum, const Measured& more) {
      sum.steps += more.steps;
      sum.tokens += more.tokens;
      sum.seconds += more.seconds;
      sum.predicted_seconds += more.predicted_seconds;
      add(sum.drafters, more.drafters);
    }

    static void add(std::vector<DrafterStatistics>& sum, const std::vector<DrafterStatistics>& more) {
      if (sum.empty()) sum.resize(more.size());
      for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
    }

    static void note(DraftBenchRow& row, const Measured& measured, const Measured& plain, std::int64_t runs) {
      row.runs += runs;
      row.steps += measured.steps;
      row.tokens += measured.tokens;
      add(row.drafters, measured.drafters);
      const auto rate = [](const Measured& of) { return static_cast<double>(of.tokens) / of.seconds; };
      row.rates.push_back(rate(measured));
      row.gains.push_back(rate(measured) / rate(plain));
      row.predicted.push_back(measured.predicted_seconds / measured.seconds);
    }

    /// One run of plain decoding is whole: the oracle knows all of it. With drafts, what comes after the first answer's end does not count.
    Measured measure(Side& side, bool is_plain) {
      side.run->begin(what_.batch);
      for (std::int64_t i = 0; i < what_.batch; ++i) {
        AnswerRequest wanted;
        wanted.prompt = prompts_[static_cast<std::size_t>(i)];
        wanted.options.sampling.temperature = what_.temperature;
        wanted.options.sampling.seed = static_cast<std::uint64_t>(i);
        wanted.options.max_tokens = bench_.options_.tokens;
        const AnswerSubmission submission = side.engine->submit(std::move(wanted), side.run->listener(i));
        std::visit(
            [](const auto& outcome) {
              if constexpr (requires { outcome.message(); }) fail("{}", outcome.message());
            },
            submission);
      }
      bench_.wait(*side.run, is_plain ? Run::Until::AllEnded : Run::Until::OneFinished);
      side.engine->cancel_all();
      bench_.wait(*side.run, Run::Until::AllEnded);
      bench_.note_run(what_.batch);
      const Measured measured = side.run->measured();
      if (measured.steps == 0)
        fail("{} tokens of {} sequences: expected more, for them to decode together", bench_.options_.tokens, what_.batch);
      if (!is_plain) return measured;
      known_ = side.run->answers();
      for (std::size_t i = 0; i < known_.size(); ++i) known_[i].insert(known_[i].begin(), prompts_[i].begin(), prompts_[i].end());
      return measured;
    }

    void make_prompts(int round, std::int64_t run) {
      const Tokens& text = bench_.options_.text;
      std::mt19937_64 random(static_cast<std::uint64_t>(round) * 1'000'003 + static_cast<std::uint64_t>(run));
      const auto draw = [&](std::int64_t below) { return std::uniform_int_distribution<std::int64_t>(0, below - 1)(random); };
      prompts_.assign(static_cast<std::size_t>(what_.batch), Tokens(static_cast<std::size_t>(what_.depth)));
      for (Tokens& prompt : prompts_) {
        if (text.empty()) {
          for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(draw(bench_.plain_.num_samplable()));
        } else {
          std::copy_n(text.begin() + draw(std::ssize(text) - what_.depth + 1), what_.depth, prompt.begin());
        }
      }
    }

    DraftBench& bench_;
    const DraftBenchRow what_;
    std::vector<DraftBenchRow>& rows_;
    const std::size_t first_row_;
    std::shared_ptr<StepTime> time_ = std::make_shared<StepTime>();
    std::vector<Tokens> prompts_;               // of this run
    std::vector<Tokens> known_;                 // with their answers
    std::vector<std::unique_ptr<Side>> sides_;  // by setting
  };

  Model& model_of(const DraftSetting& setting) const { return setting.drafts > 0 ? drafting_ : plain_; }
  std::int64_t context_of(std::int64_t depth) const { return depth + options_.tokens; }

  std::int64_t pool_bytes(const DraftBenchRow& what, const DraftSetting& setting) const {
    const MemoryLayout layout = model_of(setting).layout();
    return what.batch * layout.sequence_blocks(context_of(what.depth) + kMostDrafts) * layout.block_bytes;
  }

  void check() const {
    if (options_.tokens < 2)
      fail("{} tokens of every answer: expected at least 2, the first of which comes from the prompt", options_.tokens);
    if (options_.oracle_tokens && !(*options_.oracle_tokens >= 1 && *options_.oracle_tokens <= kMostDrafts + 1))
      fail("{} tokens a step: expected 1 to {}", *options_.oracle_tokens, kMostDrafts + 1);
    const std::int64_t context = plain_.config().context;
    for (const std::int64_t depth : options_.depths) {
      if (depth < 1 || context_of(depth) > context) {
        fail(
            "a depth of {} and {} tokens to decode: expected 1 token of depth at least, and both within the model's context of {} (--context N asks "
            "for more by name)",
            depth, options_.tokens, context);
      }
      if (!options_.text.empty() && std::ssize(options_.text) < depth)
        fail("a depth of {}: the text for prompts has {} tokens, expected at least as many", depth, options_.text.size());
      for (const std::int64_t batch : options_.batches) check_memory({{}, 0, depth, batch});
    }
  }

  void check_memory(const DraftBenchRow& what) const {
    std::int64_t bytes = 0;
    for (const DraftSetting& setting : settings_) bytes += pool_bytes(what, setting);
    const std::int64_t available = available_memory_bytes();
    if (bytes <= available) return;
    fail("depth {}, batch {}: needs {} bytes for states and cache with {} settings, found {} bytes of memory available",
         what.depth, what.batch, bytes, settings_.size(), available);
  }

  void begin(const std::string& phase) const {
    if (options_.on_phase) options_.on_phase(phase);
  }

  std::int64_t tokens_of_a_run() const { return options_.tokens * std::ssize(settings_); }

  void wait(Run& run, Run::Until until) const {
    for (bool done = false; !done;) report(run.wait(until, done));
  }

  /// An answer that was not needed to its end is done as well.
  void note_run(std::int64_t batch) {
    if (counts_) done_ += batch * options_.tokens;
    report(0);
  }

  void report(std::int64_t more) const {
    if (progress_ && !progress_(done_ + (counts_ ? more : 0), total_)) throw Interrupted();
  }

  Model& plain_;
  Model& drafting_;
  const DraftBenchOptions& options_;
  const std::function<bool(std::int64_t, std::int64_t)>& progress_;
  std::vector<DraftSetting> settings_;  // none, then the others
  bool counts_ = true;                  // a run that only prolongs a round is no progress
  std::int64_t done_ = 0, total_ = 0;   // tokens
};

}  // namespace

Spread DraftBenchRow::measured_over_predicted() const {
  std::vector<double> shares;
  for (std::size_t i = 0; i < gains.size(); ++i) shares.push_back(gains[i] / predicted[i]);
  return spread_of(std::move(shares));
}

DraftBenchResult run_draft_bench(Model& plain, Model& drafting, const DraftBenchOptions& options,
                                 const std::function<bool(std::int64_t done, std::int64_t total)>& progress) {
  return DraftBench(plain, drafting, options, progress).run();
}

}  // namespace calandra
