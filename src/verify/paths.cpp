#include "base/error.h"
#include "cache/file_store.h"
#include "memory/sequence_memory.h"
#include "verify/path.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace calandra {
namespace {

using Kind = VerifyCase::Kind;

/// Sequences of the longest length that a roomy pool holds: enough for hits beside what runs.
constexpr std::int64_t kRoom = 8;

/// Prompt and answer as one text, in slices of random lengths, without an engine: also the rows that alone were decoded one by one
/// are rows of a prompt here, wherever the cuts fall.
void take_cuts(PathRun& run) {
  constexpr std::int64_t kMostRows = 2048;  // of a slice
  const MemoryLayout layout = run.model().layout();
  const std::int64_t vocab = run.model().config().vocab;
  for (const VerifyCase* one : run.cases()) {
    std::vector<std::int32_t> tokens = one->prompt;
    tokens.insert(tokens.end(), one->ids.begin(), one->ids.end() - 1);
    MemoryPool pool(layout, layout.sequence_blocks(std::ssize(tokens)), FreedMemory::Poisoned);
    const auto memory = SequenceMemory::create(pool);
    if (!memory || !memory->reserve(std::ssize(tokens))) fail("memory pool: too small for {} tokens", tokens.size());
    while (memory->position() < std::ssize(tokens)) {
      const std::int64_t begin = memory->position(), left = std::ssize(tokens) - begin;
      const std::int64_t count = std::min(left, run.draws().length({.least = 1, .most = kMostRows}));
      const Slice slice{memory.get(),
                        std::span(tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count))};
      const ConstRows hidden = run.model().forward().run(std::span(&slice, 1));
      const std::int64_t first = std::max(begin, one->num_prompt() - 1), rows = begin + count - first;
      if (rows > 0) {
        std::vector<float> values(static_cast<std::size_t>(rows * vocab));
        run.model().forward().head(hidden.slice(first - begin, rows), {values.data(), rows, vocab, vocab});
        for (std::int64_t i = 0; i < rows; ++i)
          run.compare(*one, first + i + 1 - one->num_prompt(),
                      std::span(values).subspan(static_cast<std::size_t>(i * vocab),
                                                static_cast<std::size_t>(run.model().num_samplable())));
      }
      run.tick();
    }
    ++run.findings().requests;
    run.findings().prompt_tokens += one->num_prompt();
  }
}

void take_cold(PathRun& run) {
  Engine engine(run.model(), run.engine_options(1, false));
  for (const VerifyCase* one : run.cases()) run.ask(engine, *one);
}

void take_busy(PathRun& run) {
  EngineOptions options = run.engine_options(kRoom, false);
  options.limits = run.random_limits();
  Engine engine(run.model(), options);
  const auto cases = run.shuffled(run.cases());
  run.ask_all(engine, cases, cases.size());
}

/// A pool in which the answers fit until they grow: then the youngest lose their memory.
void take_preemptions(PathRun& run) {
  constexpr int kMostTries = 10;  // on a busy machine an answer may have ended before the next is asked for
  const auto cases = run.cases_of(Kind::Growing);
  const std::int64_t border = run.script().block_border;
  if (cases.empty()) run.findings().not_taken = "no prompt that the context holds fills a block of memory";
  for (const bool cached : {false, true}) {
    EngineOptions options =
        run.engine_options_with_blocks(std::ssize(cases) * run.model().layout().sequence_blocks(border), cached);
    options.limits.prefill_tokens = options.limits.prefill_tokens_beside_decodes = std::ssize(cases) * border + 1;
    options.limits.reserved_new_tokens = 1;
    std::int64_t preemptions = 0;
    for (int i = 0; !cases.empty() && preemptions == 0 && i < kMostTries; ++i) {
      Engine engine(run.model(), options);
      run.ask_all(engine, cases);
      preemptions = engine.statistics().schedule.preemptions;
    }
    if (!cases.empty() && preemptions == 0) run.findings().not_taken = "nothing was preempted";
  }
}

/// The same files, opened again: half of the cases with one thread, or more where that was it, the others with one more than now.
void take_threads(PathRun& run) {
  const int now = run.model().compute().threads().num_threads();
  const auto cases = run.cases();
  for (std::size_t half = 0; half < 2; ++half) {
    ModelOptions options = run.model().options();
    options.threads = half == 0 ? (now == 1 ? 3 : 1) : now + 1;
    Model again(run.model().name(), options);
    Engine engine(again, run.engine_options(1, false));
    for (std::size_t i = half; i < cases.size(); i += 2) run.ask(engine, *cases[i]);
  }
}

void expect_hits(PathRun& run) {
  if (run.findings().cached_tokens == 0) run.findings().not_taken = "nothing was found in the cache";
}

void take_samples(PathRun& run) {
  Engine engine(run.model(), run.engine_options(kRoom, true));
  const auto samples = run.cases_of(Kind::Sample);
  run.ask_all(engine, samples);
  run.ask_all(engine, samples);
  expect_hits(run);
}

/// As clients would ask: each turn finds the one before, forks and edits find what they share.
void take_conversations(PathRun& run) {
  Engine engine(run.model(), run.engine_options(kRoom, true));
  for (const VerifyCase* one : run.cases()) run.ask(engine, *one);
  expect_hits(run);
}

void take_warm(PathRun& run) {
  Engine engine(run.model(), run.engine_options(kRoom, true));
  for (const VerifyCase* one : run.shuffled(run.cases())) {
    run.ask(engine, *one);
    run.ask(engine, *one);
  }
  expect_hits(run);
}

/// A pool that holds two: whatever is kept goes for others, and is computed again.
void take_evictions(PathRun& run) {
  Engine engine(run.model(), run.engine_options(2, true));
  const auto cases = run.shuffled(run.cases());
  for (const VerifyCase* one : cases) run.ask(engine, *one);
  for (int i = 0; i < 3; ++i) run.ask_other(engine, run.script().longest - 1);
  if (engine.statistics().cache.evicted == 0) run.findings().not_taken = "nothing was evicted";
  for (const VerifyCase* one : cases) run.ask(engine, *one);
}

/// A folder that goes with it.
class PassingFolder {
 public:
  PassingFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "calandra-verify-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail("{}: cannot be made: {}", name, std::strerror(errno));
    path_ = name;
  }
  PassingFolder(const PassingFolder&) = delete;
  PassingFolder& operator=(const PassingFolder&) = delete;
  ~PassingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

EngineOptions with_folder(EngineOptions options, const PassingFolder& folder) {
  options.prefixes.objects = std::make_shared<FileStore>(folder.path());
  options.prefixes.object_bytes = static_cast<std::int64_t>(std::filesystem::space(folder.path()).available) / 2;
  return options;
}

void expect_read(PathRun& run, const Engine& engine) {
  constexpr std::int64_t kShort = 66;  // less is not worth a file
  const auto is_short = [](const VerifyCase* one) { return one->num_prompt() < kShort; };
  if (std::ranges::all_of(run.cases(), is_short)) return;
  if (engine.statistics().tier.read == 0) run.findings().not_taken = "nothing was read from the folder";
}

/// The same pool, but what goes is in a folder, and read back.
void take_from_folder(PathRun& run) {
  const PassingFolder folder;
  Engine engine(run.model(), with_folder(run.engine_options(2, true), folder));
  const auto cases = run.shuffled(run.cases());
  for (int time = 0; time < 2; ++time) {
    for (const VerifyCase* one : cases) run.ask(engine, *one);
    run.ask_other(engine, run.script().longest - 1);
  }
  expect_read(run, engine);
}

/// An engine goes on from what another one, which is no more, has written.
void take_restarts(PathRun& run) {
  const PassingFolder folder;
  const auto options = [&] { return with_folder(run.engine_options(kRoom, true), folder); };
  {
    Engine first(run.model(), options());
    for (const VerifyCase* one : run.cases()) run.ask(first, *one);
  }
  Engine second(run.model(), options());
  run.ask_all(second, run.shuffled(run.cases()));
  expect_read(run, second);
}

/// Knows the answers, and how to be wrong: right as often as chance wants, then not.
class KnowingDrafter : public Drafter {
 public:
  KnowingDrafter(const VerifyScript& script, std::int64_t num_tokens, Draws draws)
      : script_(script), num_tokens_(num_tokens), draws_(std::move(draws)) {}

  std::string_view name() const override { return "known"; }
  std::int64_t look(DraftedAnswer& answer) override { return case_of(answer.tokens) != nullptr ? kMostDrafts : 0; }
  void draft(std::span<DraftedAnswer* const> answers) override {
    for (DraftedAnswer* answer : answers) {
      const VerifyCase& known = *case_of(answer->tokens);
      const auto right = static_cast<std::int64_t>(draws_.below(static_cast<std::size_t>(answer->wanted) + 1));
      for (std::int64_t at = std::ssize(answer->tokens) - known.num_prompt();
           at < std::ssize(known.ids) && std::ssize(answer->drafts) < answer->wanted; ++at) {
        const std::int32_t id = known.ids[static_cast<std::size_t>(at)];
        const bool is_right = std::ssize(answer->drafts) < right;
        answer->drafts.push_back(is_right ? id : static_cast<std::int32_t>((id + 1) % num_tokens_));
      }
    }
  }

 private:
  const VerifyCase* case_of(std::span<const std::int32_t> tokens) const {
    const auto is_of = [&](const VerifyCase& one) {
      const auto made = std::ssize(tokens) - one.num_prompt();
      return made > 0 && made < std::ssize(one.ids) && std::ranges::equal(one.prompt, tokens.first(one.prompt.size())) &&
             std::ranges::equal(tokens.subspan(one.prompt.size()), std::span(one.ids).first(static_cast<std::size_t>(made)));
    };
    const auto found = std::ranges::find_if(script_.cases, is_of);
    return found == script_.cases.end() ? nullptr : &*found;
  }

  const VerifyScript& script_;
  const std::int64_t num_tokens_;
  Draws draws_;
};

/// With 1 to 8 drafts in every step, and as many as pay; by turns of somebody who knows what comes, and of those that guess it. Each case three
/// times, among others, the cache on. The files are opened again where there is an MTP layer: no other path runs it.
void take_drafts(PathRun& run) {
  ModelOptions model_options = run.model().options();
  model_options.with_mtp = run.model().config().mtp_layers > 0;
  Model model(run.model().name(), model_options);
  PathRun with_drafts(model, run.script(), run.draws(), [&] { run.tick(); });
  constexpr std::size_t kAutomatic = kMostDrafts + 1;
  std::int64_t accepted = 0, refused = 0, by_mtp = 0;
  for (std::size_t setting = 1; setting <= kAutomatic; ++setting) {
    EngineOptions options = with_drafts.engine_options(kRoom, true);
    options.limits = with_drafts.random_limits();
    SpeculationOptions& speculation = options.speculation;
    speculation.setting = {.automatic = setting == kAutomatic};
    if (setting < kAutomatic) speculation.setting.drafts = static_cast<std::int64_t>(setting);
    if (setting % 2 == 1)
      speculation.drafters = {std::make_shared<KnowingDrafter>(run.script(), model.num_samplable(), with_drafts.draws())};
    if (setting == kAutomatic) speculation.drafters.push_back(lookup_drafter());
    if (setting == kAutomatic && model_options.with_mtp) speculation.drafters.push_back(mtp_drafter(model));
    Engine engine(model, options);
    auto cases = with_drafts.cases();
    for (std::size_t i = cases.size(); i-- > 0;) {
      if ((i + setting) % 3 != 0) cases.erase(cases.begin() + static_cast<std::ptrdiff_t>(i));
    }
    with_drafts.ask_all(engine, with_drafts.shuffled(cases), cases.size() / 2);
    for (const DrafterStatistics& drafter : engine.statistics().drafters) {
      accepted += drafter.num_accepted();
      refused += drafter.num_drafted() - drafter.num_accepted();
      if (drafter.name == "mtp") by_mtp += drafter.num_drafted();
    }
  }
  run.findings() = with_drafts.findings();
  if (accepted == 0 || refused == 0) run.findings().not_taken = fmt::format("{} drafts were right, {} wrong", accepted, refused);
  if (model_options.with_mtp && by_mtp == 0) run.findings().not_taken = "the MTP layer drafted nothing";
}

/// All of it at once: hits, evictions and preemptions between neighbours, in steps of random sizes.
void take_everything(PathRun& run) {
  const MemoryLayout layout = run.model().layout();
  EngineOptions options =
      run.engine_options_with_blocks(2 * layout.sequence_blocks(run.script().longest) + 2 * layout.sequence_blocks(1), true);
  options.limits = run.random_limits();
  options.limits.reserved_new_tokens = 1;
  Engine engine(run.model(), options);
  // In the order of the script, where neighbours have beginnings in common.
  const auto cases = run.cases();
  for (std::size_t next = 0; next < cases.size();) {
    const std::size_t count = std::min(cases.size() - next, 1 + run.draws().below(5));
    const auto first = cases.begin() + static_cast<std::ptrdiff_t>(next);
    const PathRun::Cases together(first, first + static_cast<std::ptrdiff_t>(count));
    for (int time = 0; time < 2; ++time) run.ask_all(engine, run.shuffled(together), run.draws().below(3));
    next += count;
  }
  expect_hits(run);
}

}  // namespace

const std::vector<VerifyPath>& verify_paths() {
  static const std::vector<VerifyPath> paths = {
      {"cut", "prompt and answer as one text, cut at random", take_cuts},
      {"cold", "one after another, nothing cached", take_cold},
      {"threads", "the same with other numbers of threads", take_threads},
      {"busy", "all at once among as many others, in steps of random sizes", take_busy},
      {"preempted", "answers that lose their memory in the middle", take_preemptions},
      {"samples", "several answers to one prompt at once, twice", take_samples},
      {"conversations", "turns, forks and edits that find what they share", take_conversations},
      {"warm", "every prompt twice: the second time from the cache", take_warm},
      {"evicted", "again, after others took the memory of what was cached", take_evictions},
      {"folder", "again, after what was cached went to a folder", take_from_folder},
      {"restarted", "by an engine that goes on from what another has left there", take_restarts},
      {"drafts", "tokens that were guessed and verified, rightly and wrongly", take_drafts},
      {"everything", "hits, evictions and preemptions among others", take_everything},
  };
  return paths;
}

}  // namespace calandra
