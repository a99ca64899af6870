#pragma once
// What an operator watches, in Prometheus' text format 0.0.4 (docs/serving.md lists the names). Distributions are counted here as
// steps and answers come; what the engine counts itself is asked for when a page is read, so that an idle engine shows no old numbers.

#include "engine/engine.h"
#include "serve/answer_service.h"
#include "serve/http_message.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

/// How many values were at most so large, and their sum.
class Histogram {
 public:
  /// The upper bounds of the buckets, ascending; one more takes what is larger.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void add(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  /// One a bucket, not added up.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

/// "stop", "length", "cancelled", "timed_out", "failed"
std::string_view name_of(AnswerOutcome outcome);

/// May be used from any thread; nothing blocks for longer than a page takes to be written.
class Metrics final : public StepListener {
 public:
  /// `version` of the program.
  explicit Metrics(std::string version);

  void step(const EngineStatistics& statistics) override;
  /// A token of an answer; `since_last_seconds` is below 0 for its first.
  void gained(double since_last_seconds);
  void ended(const AnswerSummary& summary);
  /// A request that the engine did not take in.
  void refused();
  /// A reply over HTTP: ServerOptions::replied.
  void replied(std::string_view path, int status);

  /// `body_bytes`: BodyBudget::used().
  std::string text(const EngineStatistics& now, std::uint64_t body_bytes = 0) const;

 private:
  enum StepKind : std::size_t { kPrefill, kDecode, kMixed, kNumStepKinds };
  static constexpr std::size_t kNumOutcomes = static_cast<std::size_t>(AnswerOutcome::Failed) + 1;

  std::string version_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, kNumOutcomes> outcomes_{};
  std::uint64_t refused_ = 0;
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, lost_tokens_ = 0, generated_tokens_ = 0;
  std::map<std::pair<std::string, int>, std::uint64_t> replies_;  // by path and status
  std::int64_t prefill_rows_ = 0, decode_rows_ = 0;
  double draw_seconds_ = 0;
  Histogram queue_, first_token_, inter_token_, duration_, batch_, hit_tokens_;
  std::vector<Histogram> step_;  // one a StepKind
};

/// The page for GET /metrics.
HttpResponse metrics_page(const Metrics& metrics, const EngineStatistics& now, std::uint64_t body_bytes = 0);

/// Answers as `answers` does, and tells `metrics` of it.
class MeasuredAnswers final : public AnswerService {
 public:
  /// `answers` must outlive this.
  MeasuredAnswers(AnswerService& answers, std::shared_ptr<Metrics> metrics) : answers_(answers), metrics_(std::move(metrics)) {}

  AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) override;
  void cancel(RequestId id) override { answers_.cancel(id); }
  void drain() override { answers_.drain(); }
  void cancel_all() override { answers_.cancel_all(); }
  void survey_cache(SpaceFilter shows, std::int64_t most, std::function<void(const PrefixSurvey&)> done) override {
    answers_.survey_cache(std::move(shows), most, std::move(done));
  }
  void flush_cache(SpaceFilter meant, std::function<void(const PrefixFlush&)> done) override {
    answers_.flush_cache(std::move(meant), std::move(done));
  }

 private:
  AnswerService& answers_;
  std::shared_ptr<Metrics> metrics_;
};

}  // namespace calandra
