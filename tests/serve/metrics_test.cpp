// The page of /metrics, read as Prometheus reads it.

#include "serve/metrics.h"
#include "serve/scripted_answers.h"
#include "serve/whole_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

namespace calandra::metrics_test {
namespace {

using testing::StartsWith;

class Heard final : public AnswerListener {
 public:
  void gained(std::int32_t id, const AnswerStep& step) override {
    ids.push_back(id);
    text += step.text;
  }
  void ended(const AnswerSummary& summary, std::string_view rest) override {
    made_tokens = summary.made_tokens;
    text += rest;
  }
  std::vector<std::int32_t> ids;
  std::string text;
  std::int64_t made_tokens = -1;
};

/// A server that has seen everything once.
EngineStatistics busy(Metrics& metrics) {
  EngineStatistics now;
  now.schedule.running = 3;
  now.schedule.waiting = 2;
  now.schedule.preempted = 1;
  now.schedule.preemptions = 4;
  now.schedule.recomputed_tokens = 77;
  now.schedule.set_aside = 2;
  now.schedule.blocks_used = 10;
  now.schedule.blocks_total = 16;
  now.block_bytes = 1 << 20;
  now.cache = {.boundaries = 3, .stored = 9, .evicted = 6, .hits = 2, .misses = 5, .blocks = 4};
  now.verifications = {.same = 11, .different = 12, .gone = 13};
  now.tier.boundaries = 7;
  now.tier.bytes = 700;
  now.tier.waiting = 1;
  now.tier.written = 8;
  now.tier.written_bytes = 800;
  now.tier.read = 3;
  now.tier.read_bytes = 300;
  now.tier.evicted = 1;
  now.tier.lost = 2;
  now.tier.refused = 4;
  now.tier.write_errors = 5;
  now.tier.read_errors = 6;
  now.pool = {.states = 5, .latents = 2, .mtp_latents = 1, .nothing = 8};
  now.draw_seconds = 0.25;
  now.predicted_gain = 1.5;
  now.drafters.resize(2);
  now.drafters[0].name = "lookup";
  now.drafters[0].steps = 20;
  now.drafters[1].name = "mtp";
  now.drafters[1].steps = 40;
  for (int place = 0; place < 8; ++place) {
    const auto at = static_cast<std::size_t>(place);
    for (DrafterStatistics& drafter : now.drafters) {
      drafter.drafted[at] = drafter.steps - place;
      drafter.looked_at[at] = drafter.steps - 2 * place;
      drafter.accepted[at] = drafter.steps - 2 * place - 1;
    }
  }
  for (const auto& [prefill, decode, seconds] :
       std::vector<std::tuple<int, int, double>>{{512, 0, 2.0}, {0, 3, 0.02}, {100, 3, 0.5}, {0, 0, 1.0}}) {
    now.schedule.prefill_rows = prefill;
    now.schedule.decode_rows = decode;
    now.step_seconds = seconds;
    metrics.step(now);
  }
  metrics.gained(-1);
  metrics.gained(0.03);
  metrics.refused();
  metrics.replied("/v1/models/*", 404);
  for (int i = 0; i < 2; ++i) metrics.replied("", 400);
  for (const AnswerOutcome outcome :
       {AnswerOutcome::Stop, AnswerOutcome::Length, AnswerOutcome::Cancelled, AnswerOutcome::TimedOut, AnswerOutcome::Failed}) {
    AnswerSummary summary;
    summary.outcome = outcome;
    summary.prompt_tokens = 100;
    summary.cached_tokens = outcome == AnswerOutcome::Failed ? 0 : 50;
    summary.lost_tokens = 3;
    summary.queue_seconds = 0.5;
    summary.total_seconds = 3;
    if (outcome != AnswerOutcome::Failed) {
      summary.made_tokens = 2;
      summary.first_token_seconds = 0.7;
    }
    metrics.ended(summary);
  }
  return now;
}

TEST(Metrics, AFreshServerSaysZeroOfEveryName) {
  Metrics fresh("1.2.3"), used("1.2.3");
  const EngineStatistics now = busy(used);
  const auto before = read_metrics(fresh.text({})), after = read_metrics(used.text(now, 7));
  // A line for each path and status that there could be would be hundreds: they come with the first such reply.
  const auto is_of_replies = [](const auto& sample) { return sample.first.starts_with("calandra_http_requests_total{"); };
  EXPECT_EQ(std::count_if(before.begin(), before.end(), is_of_replies), 0);
  ASSERT_EQ(before.size(), after.size() - 2);
  for (const auto& [key, value] : before) {
    EXPECT_TRUE(after.contains(key)) << key;
    const bool is_one = key == "calandra_build_info{version=\"1.2.3\"}" || key == "calandra_draft_predicted_gain";
    EXPECT_EQ(value, is_one ? 1 : 0) << key;
  }
}

TEST(Metrics, EveryNameIsFilled) {
  Metrics metrics("1.2.3");
  const EngineStatistics now = busy(metrics);
  for (const auto& [key, value] : read_metrics(metrics.text(now, 7))) {
    if (key.find("_bucket{") == std::string::npos) {
      EXPECT_GT(value, 0) << key;
    }
  }
}

TEST(Metrics, ValuesAreThoseToldOf) {
  Metrics metrics("1.2.3");
  const EngineStatistics now = busy(metrics);
  const std::map<std::string, double> expected = {
      {"calandra_requests_total{outcome=\"stop\"}", 1},
      {"calandra_requests_total{outcome=\"timed_out\"}", 1},
      {"calandra_requests_total{outcome=\"refused\"}", 1},
      {"calandra_http_requests_total{path=\"/v1/models/*\",status=\"404\"}", 1},
      {"calandra_http_requests_total{path=\"other\",status=\"400\"}", 2},
      {"calandra_requests_running", 3},
      {"calandra_requests_waiting", 2},
      {"calandra_requests_preempted", 1},
      {"calandra_request_body_bytes", 7},
      {"calandra_preemptions_total", 4},
      {"calandra_prompt_tokens_total", 500},
      {"calandra_cached_tokens_total", 200},
      {"calandra_prefix_cache_hit_tokens_count", 4},  // the failed one has found nothing
      {"calandra_prefix_cache_hit_tokens_sum", 200},
      {"calandra_prefix_cache_hit_tokens_bucket{le=\"32\"}", 0},
      {"calandra_prefix_cache_hit_tokens_bucket{le=\"64\"}", 4},
      {"calandra_prefix_cache_lost_tokens_total", 15},
      {"calandra_prefix_cache_bytes", 4 << 20},
      {"calandra_prefix_cache_evicted_total", 6},
      {"calandra_prefix_cache_waits_total", 2},
      {"calandra_generated_tokens_total", 2},
      {"calandra_time_to_first_token_seconds_count", 4},  // the failed one had none
      {"calandra_time_to_first_token_seconds_bucket{le=\"0.5\"}", 0},
      {"calandra_time_to_first_token_seconds_bucket{le=\"1\"}", 4},
      {"calandra_inter_token_latency_seconds_count", 1},  // the first token comes after none
      {"calandra_inter_token_latency_seconds_bucket{le=\"0.025\"}", 0},
      {"calandra_inter_token_latency_seconds_bucket{le=\"0.05\"}", 1},
      {"calandra_queue_time_seconds_sum", 2.5},
      {"calandra_request_duration_seconds_sum", 15},
      {"calandra_computed_tokens_total{kind=\"prefill\"}", 612},
      {"calandra_computed_tokens_total{kind=\"decode\"}", 6},
      {"calandra_recomputed_tokens_total", 77},
      {"calandra_batch_rows_count", 3},  // a step without rows is none
      {"calandra_batch_rows_bucket{le=\"2\"}", 0},
      {"calandra_batch_rows_bucket{le=\"4\"}", 1},
      {"calandra_batch_rows_bucket{le=\"512\"}", 3},
      {"calandra_step_duration_seconds_sum{kind=\"prefill\"}", 2},
      {"calandra_step_duration_seconds_sum{kind=\"decode\"}", 0.02},
      {"calandra_step_duration_seconds_sum{kind=\"mixed\"}", 0.5},
      {"calandra_draw_seconds_total", 0.75},
      {"calandra_draft_steps_total{drafter=\"mtp\"}", 40},
      {"calandra_draft_steps_total{drafter=\"lookup\"}", 20},
      {"calandra_draft_tokens_total{drafter=\"mtp\"}", 8 * 40 - 28},
      {"calandra_draft_tokens_accepted_total{drafter=\"mtp\"}", 8 * 39 - 56},
      {"calandra_draft_tokens_accepted_total{drafter=\"lookup\"}", 8 * 19 - 56},
      {"calandra_draft_place_looked_at_total{drafter=\"mtp\",place=\"1\"}", 40},
      {"calandra_draft_place_looked_at_total{drafter=\"lookup\",place=\"8\"}", 6},
      {"calandra_draft_place_accepted_total{drafter=\"mtp\",place=\"1\"}", 39},
      {"calandra_draft_place_accepted_total{drafter=\"mtp\",place=\"8\"}", 25},
      {"calandra_draft_predicted_gain", 1.5},
      {"calandra_prefix_cache_verifications_total{result=\"same\"}", 11},
      {"calandra_prefix_cache_verifications_total{result=\"different\"}", 12},
      {"calandra_prefix_cache_verifications_total{result=\"gone\"}", 13},
      {"calandra_prefix_tier_bytes", 700},
      {"calandra_prefix_tier_lost_total", 2},
      {"calandra_prefix_tier_read_bytes_total", 300},
      {"calandra_prefix_tier_write_errors_total", 5},
      {"calandra_prefix_tier_read_errors_total", 6},
      {"calandra_pool_blocks{state=\"used\"}", 10},
      {"calandra_pool_blocks{state=\"free\"}", 6},
      {"calandra_pool_held_blocks{kind=\"states\"}", 5},
      {"calandra_pool_held_blocks{kind=\"latents\"}", 2},
      {"calandra_pool_held_blocks{kind=\"mtp_latents\"}", 1},
      {"calandra_pool_held_blocks{kind=\"nothing\"}", 8},
      {"calandra_pool_block_bytes", 1 << 20},
  };
  const auto samples = read_metrics(metrics.text(now, 7));
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(samples.contains(key)) << key;
    EXPECT_DOUBLE_EQ(samples.at(key), value) << key;
  }
}

TEST(Metrics, BucketsCountWhatIsAtMostTheirBound) {
  std::mt19937_64 random(7);
  Metrics metrics("1");
  std::vector<double> seconds;
  for (int i = 0; i < 500; ++i) {
    // Some on a bound: le is "less or equal".
    seconds.push_back(i % 5 == 0 ? 0.025 : std::exp(std::uniform_real_distribution<double>(-12, 4)(random)));
    metrics.gained(seconds.back());
  }
  const auto samples = read_metrics(metrics.text({}));
  int buckets = 0;
  for (const auto& [key, value] : samples) {
    static const std::string begin = "calandra_inter_token_latency_seconds_bucket{le=\"";
    if (!key.starts_with(begin)) continue;
    const double bound = std::strtod(key.c_str() + begin.size(), nullptr);
    const auto expected = std::count_if(seconds.begin(), seconds.end(), [&](double s) { return s <= bound; });
    EXPECT_EQ(value, static_cast<double>(expected)) << key;
    ++buckets;
  }
  EXPECT_GT(buckets, 10);
  EXPECT_EQ(samples.at("calandra_inter_token_latency_seconds_bucket{le=\"+Inf\"}"), 500);
}

TEST(Metrics, WhoAsksMeasuredAnswersHearsWhatTheBareOnesSay) {
  ScriptedAnswers bare;
  bare.script = {.pieces = {"a", "b", "c"}, .cached_tokens = 1};
  const auto metrics = std::make_shared<Metrics>("1");
  MeasuredAnswers answers(bare, metrics);
  AnswerRequest request;
  request.prompt = {5, 6, 7};
  const auto heard = std::make_shared<Heard>(), heard_bare = std::make_shared<Heard>();
  EXPECT_EQ(std::get<RequestId>(answers.submit(request, heard)), RequestId{1});
  bare.submit(request, heard_bare);
  EXPECT_EQ(heard->ids, heard_bare->ids);
  EXPECT_EQ(heard->text, "abc");
  EXPECT_EQ(heard->made_tokens, 4);

  bare.script.refusal = [] { return EngineStopped{}; };
  EXPECT_TRUE(std::holds_alternative<EngineStopped>(answers.submit(request, heard)));
  const HttpResponse page = metrics_page(*metrics, {});
  EXPECT_THAT(page.headers.find("Content-Type").value_or(""), StartsWith("text/plain; version=0.0.4"));
  const auto samples = read_metrics(page.body);
  EXPECT_EQ(samples.at("calandra_generated_tokens_total"), 4);
  EXPECT_EQ(samples.at("calandra_inter_token_latency_seconds_count"), 3);
  EXPECT_EQ(samples.at("calandra_prompt_tokens_total"), 3);
  EXPECT_EQ(samples.at("calandra_cached_tokens_total"), 1);
  EXPECT_EQ(samples.at("calandra_requests_total{outcome=\"stop\"}"), 1);
  EXPECT_EQ(samples.at("calandra_requests_total{outcome=\"refused\"}"), 1);
}

TEST(Metrics, PromtoolFindsNothing) {
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "promtool (Debian: prometheus) is not installed";
  Metrics metrics("1.2.3");
  const std::string file = testing::TempDir() + "calandra_metrics.txt";
  std::ofstream(file) << metrics.text(busy(metrics));
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
  std::remove(file.c_str());
}

}  // namespace
}  // namespace calandra::metrics_test
