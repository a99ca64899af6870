#include "engine/bench.h"

#include "base/error.h"
#include "checkpoint/summary.h"
#include "engine/session.h"
#include "memory/sequence_memory.h"
#include "plan/available_memory.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

/// What progress() ends a measurement with.
struct Ended {};

/// Counts the distinct experts of every step and layer.
class ExpertCounter : public Observer {
 public:
  explicit ExpertCounter(const Config& config)
      : experts_(config.experts), last_step_(static_cast<std::size_t>(config.layers * config.experts), -1) {}

  void begin_step() {
    ++step_;
    in_step_ = 0;
  }
  std::int64_t in_step() const { return in_step_; }

  void routed(std::int64_t layer, std::int64_t /*row*/, std::span<const std::int32_t> experts,
              std::span<const float> /*weights*/) override {
    for (const std::int32_t expert : experts) {
      std::int64_t& last = last_step_[static_cast<std::size_t>(layer * experts_ + expert)];
      if (last != step_) ++in_step_;
      last = step_;
    }
  }

 private:
  std::int64_t experts_;
  std::vector<std::int64_t> last_step_;  // that used it, by layer and expert
  std::int64_t step_ = 0;
  std::int64_t in_step_ = 0;
};

/// Pool blocks of a sequence that was resumed from a boundary: its own states, and the copy of a page that is only partly full.
std::int64_t blocks_of_resumed(const MemoryLayout& layout) { return layout.fixed_blocks() + 2; }

class Bench {
 public:
  Bench(Model& model, const BenchOptions& options, const std::function<bool(std::int64_t, std::int64_t)>& progress)
      : model_(model),
        options_(options),
        progress_(progress),
        cases_(cases_of(options)),
        layout_(model.layout()),
        cost_(model.config(), summarize(model.checkpoint()), layout_),
        counter_(model.config()),
        random_(1),
        pool_(layout_, checked_blocks()) {
    for (const BenchCase& c : cases_) {
      if (c.kind == BenchCase::Kind::Decode) largest_batch_ = std::max(largest_batch_, c.batch);
    }
    total_ = tokens_in_all();
    logits_.resize(static_cast<std::size_t>(largest_batch_ * model.config().vocab));
  }

  BenchResult run() {
    BenchResult result;
    for (const BenchCase& c : cases_) {
      BenchRow row;
      row.what = c;
      row.moe_layers = cost_.moe_layers();
      result.rows.push_back(std::move(row));
    }
    try {
      begin("warming up");
      warm_up();
      fill_depths();
      for (int round = 0; round < options_.rounds; ++round) {
        begin(fmt::format("round {} of {}", round + 1, options_.rounds));
        result.limits.push_back(measure_machine(options_.machine));
        for (BenchRow& row : result.rows) measure(row);
      }
    } catch (const Ended&) {
      result.complete = false;
    }
    std::erase_if(result.rows, [](const BenchRow& row) { return row.seconds.empty(); });
    return result;
  }

 private:
  static std::vector<BenchCase> cases_of(const BenchOptions& options) {
    std::vector<BenchCase> cases;
    for (const std::int64_t prompt : options.prompts) cases.push_back({BenchCase::Kind::Prompt, prompt, 0, 1});
    if (options.decode_tokens == 0) return cases;
    for (const std::int64_t depth : options.depths) {
      for (const std::int64_t batch : options.batches)
        cases.push_back({BenchCase::Kind::Decode, options.decode_tokens, depth, batch});
    }
    return cases;
  }

  void begin(const std::string& phase) const {
    if (options_.on_phase) options_.on_phase(phase);
  }

  std::int64_t deepest() const {
    return options_.depths.empty() ? 0 : *std::max_element(options_.depths.begin(), options_.depths.end());
  }

  void check(const BenchCase& c) const {
    const std::int64_t context = model_.config().context;
    if (c.kind == BenchCase::Kind::Prompt && c.tokens > context) {
      fail("a prompt of {} tokens: expected 1 to the model's context of {} (--context N asks for more by name)", c.tokens,
           context);
    }
    if (c.kind == BenchCase::Kind::Decode && c.depth + c.tokens > context) {
      fail(
          "a depth of {} and {} tokens to decode: expected both within the model's context of {} (--context N asks for more by name)",
          c.depth, c.tokens, context);
    }
  }

  /// Blocks for the sequence that fills the depths, a boundary at each, and the sequences of the largest case beside them.
  std::int64_t checked_blocks() const {
    std::int64_t largest = 0;
    const BenchCase* widest = nullptr;
    for (const BenchCase& c : cases_) {
      check(c);
      const std::int64_t blocks = c.batch * (layout_.sequence_blocks(c.depth + c.tokens) + 2);
      if (blocks > largest) widest = &c;
      largest = std::max(largest, blocks);
    }
    const auto boundaries = static_cast<std::int64_t>(options_.depths.size());
    const std::int64_t blocks =
        largest + layout_.sequence_blocks(std::max(deepest(), kPrefillTokens)) + boundaries * blocks_of_resumed(layout_);
    const std::int64_t bytes = blocks * layout_.block_bytes, available = available_memory_bytes();
    if (widest != nullptr && bytes > available) {
      const std::string what = widest->kind == BenchCase::Kind::Prompt
                                   ? fmt::format("a prompt of {} tokens", widest->tokens)
                                   : fmt::format("depth {}, batch {}", widest->depth, widest->batch);
      fail("{}: needs {} bytes for states and cache, found {} bytes of memory available", what, bytes, available);
    }
    return blocks;
  }

  std::int64_t tokens_in_all() const {
    std::int64_t measured = 0;
    for (const BenchCase& c : cases_) measured += c.all_tokens();
    const bool decodes = options_.decode_tokens > 0;
    return measured * options_.rounds + warm_up_tokens() + (decodes ? deepest() : 0);
  }

  std::int64_t warm_up_tokens() const { return std::min(kPrefillTokens, model_.config().context); }

  /// Random, so that a batch visits as many experts as different texts would.
  std::vector<std::int32_t> draw(std::int64_t count) {
    std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(model_.num_samplable() - 1));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = any(random_);
    return tokens;
  }

  void reserve(SequenceMemory& memory, std::int64_t end) const {
    if (!memory.reserve(end)) fail("memory pool is full at {} tokens", memory.position());
  }

  void advance(std::int64_t tokens) {
    if (counts_) done_ += tokens;
    if (progress_ && !progress_(done_, total_)) throw Ended();
  }

  /// Feeds `tokens` to one sequence in the steps of a prefill and makes the logits of the last, as a session does.
  void prefill(SequenceMemory& memory, std::span<const std::int32_t> tokens, BenchRow* row) {
    const std::int64_t end = memory.position() + std::ssize(tokens);
    ConstRows hidden;
    while (!tokens.empty()) {
      const auto part = tokens.first(static_cast<std::size_t>(std::min<std::int64_t>(kPrefillTokens, std::ssize(tokens))));
      tokens = tokens.subspan(part.size());
      const Slice slice{&memory, part};
      hidden = step(std::span(&slice, 1), memory.position() + std::ssize(part) == end ? 1 : 0, row);
    }
    if (hidden.rows > 0) make_logits(hidden.slice(hidden.rows - 1, 1));
  }

  /// One forward pass. What it costs is added to `row`, if there is one.
  ConstRows step(std::span<const Slice> slices, std::int64_t logit_rows, BenchRow* row) {
    std::int64_t tokens = 0;
    slices_.clear();
    for (const Slice& slice : slices) {
      slices_.push_back({slice.memory->position(), std::ssize(slice.tokens)});
      tokens += slices_.back().tokens;
    }
    counter_.begin_step();
    const ConstRows hidden = model_.forward().run(slices, &counter_);
    if (row != nullptr) {
      row->cost += cost_.cost_of({slices_, logit_rows, counter_.in_step()});
      row->distinct_experts += counter_.in_step();
      ++row->steps;
    }
    advance(tokens);
    return hidden;
  }

  void make_logits(ConstRows hidden) {
    const std::int64_t vocab = model_.config().vocab;
    model_.forward().head(hidden, {logits_.data(), hidden.rows, vocab, vocab});
  }

  /// Weights come into memory with their first use, and buffers grow: not what is to be measured.
  void warm_up() {
    const auto memory = SequenceMemory::create(pool_);
    reserve(*memory, warm_up_tokens());
    prefill(*memory, draw(warm_up_tokens()), nullptr);
  }

  /// One text is computed to the deepest depth; every depth is a boundary on its way.
  void fill_depths() {
    if (options_.decode_tokens == 0) return;
    if (deepest() > 0) begin(fmt::format("{} tokens of depth", deepest()));
    std::vector<std::int64_t> rising = options_.depths;
    std::sort(rising.begin(), rising.end());
    const auto memory = SequenceMemory::create(pool_);
    reserve(*memory, deepest());
    for (const std::int64_t depth : rising) {
      prefill(*memory, draw(depth - memory->position()), nullptr);
      boundaries_.push_back(memory->snapshot());
      if (!boundaries_.back()) fail("memory pool is full at {} tokens", depth);
    }
  }

  const Boundary& boundary_at(std::int64_t depth) const {
    const auto found =
        std::find_if(boundaries_.begin(), boundaries_.end(), [&](const auto& b) { return b->position() == depth; });
    return **found;
  }

  void measure(BenchRow& row) {
    // Costs are the same in every run, and counted once.
    BenchRow* const costs = row.seconds.empty() ? &row : nullptr;
    Profile profile;
    double seconds = 0;
    std::int64_t runs = 0;
    do {
      random_.seed(static_cast<std::uint64_t>(row.what.depth * 1'000 + row.what.batch));  // the same tokens in every run
      BenchRow* const row_of_costs = runs == 0 ? costs : nullptr;
      counts_ = runs++ == 0;
      seconds += row.what.kind == BenchCase::Kind::Prompt ? measure_prompt(row.what, row_of_costs, profile)
                                                          : measure_decoding(row.what, row_of_costs, profile);
    } while (seconds < options_.least_seconds);
    row.seconds.push_back(seconds / static_cast<double>(runs));
    row.runs += runs;
    row.profile += profile;
  }

  double measure_prompt(const BenchCase& what, BenchRow* costs, Profile& profile) {
    const auto memory = SequenceMemory::create(pool_);
    reserve(*memory, what.tokens);
    const std::vector<std::int32_t> tokens = draw(what.tokens);
    const auto start = Clock::now();
    {
      const Profiling profiling(profile);
      prefill(*memory, tokens, costs);
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  double measure_decoding(const BenchCase& what, BenchRow* costs, Profile& profile) {
    const auto batch = static_cast<std::size_t>(what.batch);
    std::vector<std::unique_ptr<SequenceMemory>> memories;
    for (std::size_t i = 0; i < batch; ++i) {
      memories.push_back(SequenceMemory::resume(pool_, boundary_at(what.depth), BoundaryPages::Copied));
      if (!memories.back()) fail("memory pool is full at {} sequences of {} tokens", i, what.depth);
      reserve(*memories.back(), what.depth + what.tokens);
    }
    const std::vector<std::int32_t> tokens = draw(what.all_tokens());
    std::vector<Slice> slices(batch);
    const auto start = Clock::now();
    {
      const Profiling profiling(profile);
      for (std::size_t at = 0; at < tokens.size(); at += batch) {
        for (std::size_t i = 0; i < batch; ++i) slices[i] = {memories[i].get(), std::span(tokens).subspan(at + i, 1)};
        make_logits(step(slices, what.batch, costs));
      }
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Model& model_;
  const BenchOptions& options_;
  const std::function<bool(std::int64_t, std::int64_t)>& progress_;
  std::vector<BenchCase> cases_;
  MemoryLayout layout_;
  CostModel cost_;
  ExpertCounter counter_;
  std::mt19937_64 random_;
  MemoryPool pool_;
  std::int64_t largest_batch_ = 1;
  bool counts_ = true;                                 // a run that only repeats a short one is no progress
  std::int64_t done_ = 0, total_ = 0;                  // tokens
  std::vector<std::unique_ptr<Boundary>> boundaries_;  // by depth
  std::vector<StepSlice> slices_;                      // of the step in work
  std::vector<float> logits_;                          // [batch, vocab]
};

}  // namespace

Spread spread_of(std::vector<double> figures) {
  if (figures.empty()) fail("figures to take the median of: found none, expected at least 1");
  std::sort(figures.begin(), figures.end());
  const std::size_t middle = figures.size() / 2;
  const double median = figures.size() % 2 == 1 ? figures[middle] : (figures[middle - 1] + figures[middle]) / 2;
  return {median, figures.front(), figures.back()};
}

double BenchRow::experts_per_layer() const {
  return moe_layers == 0 || steps == 0 ? 0 : static_cast<double>(distinct_experts) / static_cast<double>(steps * moe_layers);
}

Spread BenchRow::per_second(double amount) const {
  std::vector<double> figures;
  for (const double time : seconds) figures.push_back(amount / time);
  return spread_of(std::move(figures));
}

Spread BenchRow::tokens_per_second() const { return per_second(static_cast<double>(what.all_tokens())); }
Spread BenchRow::bytes_per_second() const { return per_second(static_cast<double>(cost.bytes())); }
Spread BenchRow::operations_per_second() const { return per_second(static_cast<double>(cost.operations())); }

Spread BenchRow::share_of_bandwidth(const std::vector<MachineLimits>& limits) const {
  std::vector<double> shares;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    shares.push_back(static_cast<double>(cost.bytes()) / seconds[i] / limits.at(i).bytes_per_second);
  return spread_of(std::move(shares));
}

Spread BenchRow::share_of_peak(const std::vector<MachineLimits>& limits) const {
  std::vector<double> shares;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    shares.push_back(static_cast<double>(cost.operations()) / seconds[i] / limits.at(i).operations_per_second);
  return spread_of(std::move(shares));
}

BenchResult run_bench(Model& model, const BenchOptions& options,
                      const std::function<bool(std::int64_t done, std::int64_t total)>& progress) {
  return Bench(model, options, progress).run();
}

}  // namespace calandra
