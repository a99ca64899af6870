#include "verify/path.h"

#include "base/error.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace calandra {
namespace {

/// How often tick() is called while nothing comes.
constexpr std::chrono::milliseconds kPatience(50);

class HeardAnswer : public AnswerListener {
 public:
  void gained(std::int32_t /*id*/, const AnswerStep& /*step*/) override {}
  void ended(const AnswerSummary& summary, std::string_view /*rest*/) override {
    const std::lock_guard lock(mutex_);
    summary_ = summary;
    ended_ = true;
    now_ended_.notify_all();
  }
  void wait(const PathRun& run) {
    std::unique_lock lock(mutex_);
    while (!now_ended_.wait_for(lock, kPatience, [&] { return ended_; })) {
      lock.unlock();
      run.tick();
      lock.lock();
    }
  }
  const AnswerSummary& summary() const { return summary_; }

 private:
  std::mutex mutex_;
  std::condition_variable now_ended_;
  bool ended_ = false;
  AnswerSummary summary_;
};

/// An answer beside what it is alone.
class CheckedAnswer final : public HeardAnswer, public LogitListener {
 public:
  explicit CheckedAnswer(const VerifyCase& alone) : alone_(alone) {}

  void drawn_from(std::int64_t position, std::span<const float> logits) override {
    // What follows another token is another text.
    const std::int64_t i = position - alone_.num_prompt();
    if (!parted_ && i >= 0 && i < std::ssize(alone_.ids)) rows_.compare(alone_, i, logits);
  }
  void gained(std::int32_t id, const AnswerStep& /*step*/) override {
    parted_ = parted_ || num_made_ >= std::ssize(alone_.ids) || alone_.ids[static_cast<std::size_t>(num_made_)] != id;
    ++num_made_;
  }

  /// After the end.
  void tell(PathFindings& findings) const {
    ++findings.requests;
    findings.prompt_tokens += summary().prompt_tokens;
    findings.cached_tokens += summary().cached_tokens;
    findings.rows.add(rows_);
    if (parted_) ++findings.other_tokens;
    if (parted_ || num_made_ == std::ssize(alone_.ids) || findings.failure) return;
    findings.failure = fmt::format("{}: {} tokens, expected {}{}{}", alone_.name, num_made_, alone_.ids.size(),
                                   summary().error.empty() ? "" : ": ", summary().error);
  }

 private:
  const VerifyCase& alone_;
  RowTally rows_;
  std::int64_t num_made_ = 0;
  bool parted_ = false;
};

void submit(Engine& engine, AnswerRequest request, std::shared_ptr<AnswerListener> listener) {
  const AnswerSubmission submission = engine.submit(std::move(request), std::move(listener));
  std::visit(
      [](const auto& said) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(said)>, RequestId>) fail("{}", said.message());
      },
      submission);
}

AnswerRequest request_of(const VerifyCase& one) {
  AnswerRequest request;
  request.prompt = one.prompt;
  request.options.sampling = one.sampling;
  request.options.max_tokens = std::ssize(one.ids);
  request.sample = one.sample;
  return request;
}

}  // namespace

PathRun::PathRun(Model& model, const VerifyScript& script, Draws draws, std::function<void()> tick)
    : model_(model), script_(script), draws_(std::move(draws)), tick_(std::move(tick)) {}

PathRun::Cases PathRun::cases() const {
  Cases all;
  for (const VerifyCase& one : script_.cases) all.push_back(&one);
  return all;
}

PathRun::Cases PathRun::cases_of(VerifyCase::Kind kind) const {
  Cases some = cases();
  std::erase_if(some, [&](const VerifyCase* one) { return one->kind != kind; });
  return some;
}

PathRun::Cases PathRun::shuffled(Cases cases) {
  for (std::size_t i = cases.size(); i > 1; --i) std::swap(cases[i - 1], cases[draws_.below(i)]);
  return cases;
}

EngineOptions PathRun::engine_options(std::int64_t num_longest, bool prefix_cache) const {
  return engine_options_with_blocks(num_longest * model_.layout().sequence_blocks(script_.longest), prefix_cache);
}

EngineOptions PathRun::engine_options_with_blocks(std::int64_t blocks, bool prefix_cache) const {
  EngineOptions options;
  options.context = script_.longest;
  options.pool_bytes = blocks * model_.layout().block_bytes;
  options.freed = FreedMemory::Poisoned;
  options.prefixes.keeps = prefix_cache;
  return options;
}

ScheduleLimits PathRun::random_limits() {
  ScheduleLimits limits;
  // Few enough rows for many cuts, many enough for the longest prompt to end.
  const std::int64_t least = std::max<std::int64_t>(1, script_.longest / 256);
  limits.prefill_tokens = draws_.length({.least = least, .most = std::max<std::int64_t>(least, 512)});
  limits.prefill_tokens_beside_decodes = draws_.length({.least = least, .most = std::max<std::int64_t>(least, 128)});
  limits.reserved_new_tokens = draws_.length({.least = 1, .most = 64});
  return limits;
}

AnswerRequest PathRun::other_request(std::int64_t prompt_tokens) {
  AnswerRequest request;
  request.prompt = random_tokens(model_, draws_, prompt_tokens);
  request.options.sampling.seed = draws_.below(std::size_t{1} << 32);
  request.options.max_tokens =
      std::min<std::int64_t>(script_.longest - prompt_tokens, 1 + static_cast<std::int64_t>(draws_.below(16)));
  return request;
}

void PathRun::ask_all(Engine& engine, const Cases& cases, std::size_t neighbours) {
  std::vector<std::shared_ptr<CheckedAnswer>> answers;
  std::vector<std::shared_ptr<HeardAnswer>> others;
  const auto add_other = [&] {
    others.push_back(std::make_shared<HeardAnswer>());
    submit(engine, other_request(draws_.length({.least = 1, .most = script_.longest - 1})), others.back());
  };
  for (const VerifyCase* one : cases) {
    if (others.size() < neighbours) add_other();
    answers.push_back(std::make_shared<CheckedAnswer>(*one));
    AnswerRequest request = request_of(*one);
    request.logits = answers.back();
    submit(engine, std::move(request), answers.back());
  }
  while (others.size() < neighbours) add_other();
  for (const auto& answer : answers) {
    answer->wait(*this);
    answer->tell(findings_);
    tick();
  }
  for (const auto& other : others) other->wait(*this);
}

void PathRun::ask_other(Engine& engine, std::int64_t prompt_tokens) {
  const auto answer = std::make_shared<HeardAnswer>();
  submit(engine, other_request(prompt_tokens), answer);
  answer->wait(*this);
}

}  // namespace calandra
