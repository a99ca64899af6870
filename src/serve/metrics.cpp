#include "serve/metrics.h"

#include "engine/drafter.h"
#include "engine/speculation.h"
#include "schedule/acceptance.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace calandra {
namespace {

/// 1, 2.5 and 5 times every power of ten from `first` to `last`.
std::vector<double> decades(double first, double last) {
  std::vector<double> bounds;
  double power = first;
  while (power < last * 1.5) {
    for (const double step : {1.0, 2.5, 5.0}) {
      // By way of its text: 0.001 * 10 is not quite 0.01, and bounds are labels.
      const double bound = std::stod(fmt::format("{:.3g}", power * step));
      if (bound <= last) bounds.push_back(bound);
    }
    power *= 10;
  }
  return bounds;
}

std::vector<double> powers_of_two(std::int64_t last) {
  std::vector<double> bounds;
  for (std::int64_t bound = 1; bound <= last; bound *= 2) bounds.push_back(static_cast<double>(bound));
  return bounds;
}

constexpr std::array<std::string_view, 5> kOutcomeNames = {"stop", "length", "cancelled", "timed_out", "failed"};
constexpr std::array<std::string_view, 3> kStepKindNames = {"prefill", "decode", "mixed"};

std::string label(std::string_view name, std::string_view value) { return fmt::format("{}=\"{}\"", name, value); }

/// Of one that is not at work, zeros: names are there from the start.
DrafterStatistics statistics_of(std::string_view name, const std::vector<DrafterStatistics>& drafters) {
  for (const DrafterStatistics& drafter : drafters) {
    if (drafter.name == name) return drafter;
  }
  DrafterStatistics none;
  none.name = name;
  return none;
}

/// Writes families one after another; samples belong to the last one begun. Labels are ours and need no escapes.
class Page {
 public:
  template <class Value>
  void counter(std::string_view name, std::string_view help, Value value) {
    begin(name, "counter", help);
    sample("", "", value);
  }
  template <class Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    begin(name, "gauge", help);
    sample("", "", value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    begin(name, "histogram", help);
    buckets("", histogram);
  }

  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = fmt::format("calandra_{}", name);
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name_, type, help);
  }
  template <class Value>
  void sample(std::string_view suffix, std::string_view labels, Value value) {
    text_ += labels.empty() ? fmt::format("{}{} {}\n", name_, suffix, value)
                            : fmt::format("{}{}{{{}}} {}\n", name_, suffix, labels, value);
  }
  void buckets(const std::string& labels, const Histogram& histogram) {
    const std::string before = labels.empty() ? "" : labels + ",";
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
      count += histogram.counts()[i];
      const std::string bound = i < histogram.bounds().size() ? fmt::format("{}", histogram.bounds()[i]) : "+Inf";
      sample("_bucket", before + label("le", bound), count);
    }
    sample("_sum", labels, histogram.sum());
    sample("_count", labels, count);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

void write_drafts(Page& page, const EngineStatistics& now) {
  const std::array drafters = {statistics_of(kMtpDrafter, now.drafters), statistics_of(kLookupDrafter, now.drafters)};
  const auto by_drafter = [&](std::string_view name, std::string_view help, const auto& count_of) {
    page.begin(name, "counter", help);
    for (const DrafterStatistics& drafter : drafters) page.sample("", label("drafter", drafter.name), count_of(drafter));
  };
  const auto by_place = [&](std::string_view name, std::string_view help, auto counts) {
    page.begin(name, "counter", help);
    for (const DrafterStatistics& drafter : drafters) {
      for (std::size_t i = 0; i < kMostDrafts; ++i) {
        const std::string labels = fmt::format("{},{}", label("drafter", drafter.name), label("place", std::to_string(i + 1)));
        page.sample("", labels, (drafter.*counts)[i]);
      }
    }
  };
  by_drafter("draft_steps_total", "Steps with drafts, of one answer each.", [](const auto& drafter) { return drafter.steps; });
  by_drafter("draft_tokens_total", "Tokens drafted.", [](const auto& drafter) { return drafter.num_drafted(); });
  by_drafter("draft_tokens_accepted_total", "Of these, those that became tokens of an answer.",
             [](const auto& drafter) { return drafter.num_accepted(); });
  by_place("draft_place_looked_at_total",
           "Tokens drafted in this place of a step, if all before were accepted and the answer had not ended.",
           &DrafterStatistics::looked_at);
  by_place("draft_place_accepted_total", "Of these, those that were accepted.", &DrafterStatistics::accepted);
  page.gauge("draft_predicted_gain",
             "Tokens a second that the drafts chosen last are expected to bring, over those of a server without drafts.",
             now.predicted_gain);
}

class MeasuredListener final : public AnswerListener {
 public:
  MeasuredListener(std::shared_ptr<Metrics> metrics, std::shared_ptr<AnswerListener> listener)
      : metrics_(std::move(metrics)), listener_(std::move(listener)) {}

  void prompt_logprobs(std::vector<LogprobEntry> entries) override { listener_->prompt_logprobs(std::move(entries)); }

  void gained(std::int32_t id, const AnswerStep& step) override {
    const Clock::time_point now = Clock::now();
    metrics_->gained(last_ ? std::chrono::duration<double>(now - *last_).count() : -1);
    last_ = now;
    listener_->gained(id, step);
  }

  void ended(const AnswerSummary& summary, std::string_view rest) override {
    metrics_->ended(summary);
    listener_->ended(summary, rest);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<AnswerListener> listener_;
  std::optional<Clock::time_point> last_;
};

}  // namespace

std::string_view name_of(AnswerOutcome outcome) { return kOutcomeNames[static_cast<std::size_t>(outcome)]; }

void Histogram::add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  sum_ += value;
}

Metrics::Metrics(std::string version)
    : version_(std::move(version)),
      queue_(decades(0.001, 1000)),
      first_token_(decades(0.001, 1000)),
      inter_token_(decades(0.0001, 10)),
      duration_(decades(0.001, 10'000)),
      batch_(powers_of_two(1024)),
      hit_tokens_(powers_of_two(1 << 18)),
      step_(kNumStepKinds, Histogram(decades(0.0001, 10))) {}

void Metrics::step(const EngineStatistics& statistics) {
  const std::int64_t prefill = statistics.schedule.prefill_rows, decode = statistics.schedule.decode_rows;
  if (prefill + decode == 0) return;  // it only ended or moved requests
  const std::lock_guard lock(mutex_);
  prefill_rows_ += prefill;
  decode_rows_ += decode;
  draw_seconds_ += statistics.draw_seconds;
  batch_.add(static_cast<double>(prefill + decode));
  step_[decode == 0 ? kPrefill : prefill == 0 ? kDecode : kMixed].add(statistics.step_seconds);
}

void Metrics::gained(double since_last_seconds) {
  const std::lock_guard lock(mutex_);
  ++generated_tokens_;
  if (since_last_seconds >= 0) inter_token_.add(since_last_seconds);
}

void Metrics::ended(const AnswerSummary& summary) {
  const std::lock_guard lock(mutex_);
  ++outcomes_[static_cast<std::size_t>(summary.outcome)];
  prompt_tokens_ += summary.prompt_tokens;
  cached_tokens_ += summary.cached_tokens;
  lost_tokens_ += summary.lost_tokens;
  if (summary.cached_tokens > 0) hit_tokens_.add(static_cast<double>(summary.cached_tokens));
  queue_.add(summary.queue_seconds);
  if (summary.made_tokens > 0) first_token_.add(summary.first_token_seconds);
  duration_.add(summary.total_seconds);
}

void Metrics::refused() {
  const std::lock_guard lock(mutex_);
  ++refused_;
}

void Metrics::replied(std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++replies_[{std::string(path.empty() ? "other" : path), status}];
}

std::string Metrics::text(const EngineStatistics& now, std::uint64_t body_bytes) const {
  const ScheduleStatistics& schedule = now.schedule;
  Page page;
  page.begin("build_info", "gauge", "The version that runs.");
  page.sample("", label("version", version_), 1);

  const std::lock_guard lock(mutex_);
  page.begin("http_requests_total", "counter", "Replies by path and status.");
  for (const auto& [what, count] : replies_)
    page.sample("", fmt::format("{},{}", label("path", what.first), label("status", std::to_string(what.second))), count);
  page.begin("requests_total", "counter", "Requests by how they ended. Each of several choices for one prompt counts.");
  for (std::size_t i = 0; i < kNumOutcomes; ++i) page.sample("", label("outcome", kOutcomeNames[i]), outcomes_[i]);
  page.sample("", label("outcome", "refused"), refused_);
  page.gauge("requests_running", "Requests that have memory.", schedule.running);
  page.gauge("requests_waiting", "Requests that wait for memory, preempted ones too.", schedule.waiting);
  page.gauge("requests_preempted", "Of those that wait, the ones that were running before.", schedule.preempted);
  page.gauge("request_body_bytes", "Bytes of requests that are being read.", body_bytes);
  page.counter("preemptions_total", "Times that a request lost its memory to an older one.", schedule.preemptions);

  page.histogram("queue_time_seconds", "From a request's arrival until it was first admitted, or until its end.", queue_);
  page.histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", first_token_);
  page.histogram("inter_token_latency_seconds", "Between two tokens of an answer.", inter_token_);
  page.histogram("request_duration_seconds", "From a request's arrival to its end.", duration_);

  page.counter("prompt_tokens_total", "Tokens of the prompts of requests that have ended.", prompt_tokens_);
  page.counter("cached_tokens_total", "Of these, tokens that did not have to be computed.", cached_tokens_);
  page.begin("prefix_cache_lookups_total", "counter", "Admissions, by whether something was found to go on from.");
  page.sample("", label("outcome", "hit"), now.cache.hits);
  page.sample("", label("outcome", "miss"), now.cache.misses);
  page.histogram("prefix_cache_hit_tokens", "Tokens found by requests that have found some.", hit_tokens_);
  page.counter("prefix_cache_lost_tokens_total",
               "Tokens behind those found that earlier requests had computed too, without a position to go on from.",
               lost_tokens_);
  page.counter("prefix_cache_waits_total", "Requests that have waited for what another was computing.", schedule.set_aside);
  page.gauge("prefix_cache_boundaries", "Positions in earlier requests that can be gone on from.", now.cache.boundaries);
  page.gauge("prefix_cache_bytes", "What these hold in memory.", now.cache.blocks * now.block_bytes);
  page.counter("prefix_cache_stored_total", "Such positions stored.", now.cache.stored);
  page.counter("prefix_cache_evicted_total", "Of these, those that gave way to something else.", now.cache.evicted);
  page.begin("prefix_cache_verifications_total", "counter", "Positions computed once more, by what was kept of them.");
  page.sample("", label("result", "same"), now.verifications.same);
  page.sample("", label("result", "different"), now.verifications.different);
  page.sample("", label("result", "gone"), now.verifications.gone);
  page.gauge("prefix_tier_boundaries", "Such positions in --cache-dir.", now.tier.boundaries);
  page.gauge("prefix_tier_bytes", "Bytes there.", now.tier.bytes);
  page.gauge("prefix_tier_waiting", "Positions in memory that are to be written there.", now.tier.waiting);
  page.counter("prefix_tier_written_total", "Positions written there.", now.tier.written);
  page.counter("prefix_tier_written_bytes_total", "Bytes written there.", now.tier.written_bytes);
  page.counter("prefix_tier_read_total", "Requests that went on from a position read there.", now.tier.read);
  page.counter("prefix_tier_read_bytes_total", "Bytes read there.", now.tier.read_bytes);
  page.counter("prefix_tier_evicted_total", "Positions that gave way to others there.", now.tier.evicted);
  page.counter("prefix_tier_lost_total", "Positions that memory had no room for before they were written.", now.tier.lost);
  page.counter("prefix_tier_refused_total", "Files that were not whole, or not what they should be, and were removed.",
               now.tier.refused);
  page.counter("prefix_tier_read_errors_total", "Times that reading failed.", now.tier.read_errors);
  page.counter("prefix_tier_write_errors_total", "Times that writing failed.", now.tier.write_errors);
  page.counter("generated_tokens_total", "Tokens made.", generated_tokens_);
  write_drafts(page, now);

  page.begin("computed_tokens_total", "counter", "Rows of all steps.");
  page.sample("", label("kind", "prefill"), prefill_rows_);
  page.sample("", label("kind", "decode"), decode_rows_);
  page.counter("recomputed_tokens_total", "Of these, rows that a preemption had thrown away.", schedule.recomputed_tokens);
  page.histogram("batch_rows", "Rows of a step: one for each stream that decodes, each draft and each token of a prompt.",
                 batch_);
  page.begin("step_duration_seconds", "histogram", "A step: its forward pass and drawing its tokens.");
  for (std::size_t i = 0; i < kNumStepKinds; ++i) page.buckets(label("kind", kStepKindNames[i]), step_[i]);
  page.counter("draw_seconds_total", "Of all steps, time for drawing tokens.", draw_seconds_);

  page.begin("pool_blocks", "gauge", "Blocks of the memory of sequences.");
  page.sample("", label("state", "used"), schedule.blocks_used);
  page.sample("", label("state", "free"), schedule.blocks_total - schedule.blocks_used);
  page.begin("pool_held_blocks", "gauge",
             "The same blocks by what is in them after the last step. What is used and holds nothing is set aside.");
  page.sample("", label("kind", "states"), now.pool.states);
  page.sample("", label("kind", "latents"), now.pool.latents);
  page.sample("", label("kind", "mtp_latents"), now.pool.mtp_latents);
  page.sample("", label("kind", "nothing"), now.pool.nothing);
  page.gauge("pool_block_bytes", "The size of such a block.", now.block_bytes);
  return page.take();
}

HttpResponse metrics_page(const Metrics& metrics, const EngineStatistics& now, std::uint64_t body_bytes) {
  return {.status = 200,
          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}, {"Cache-Control", "no-store"}},
          .body = metrics.text(now, body_bytes)};
}

AnswerSubmission MeasuredAnswers::submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) {
  AnswerSubmission submission =
      answers_.submit(std::move(request), std::make_shared<MeasuredListener>(metrics_, std::move(listener)));
  if (!std::holds_alternative<RequestId>(submission)) metrics_->refused();
  return submission;
}

}  // namespace calandra
