// What a load test is made of: event streams at every cut, percentiles against published ones, arrivals and lengths against their
// distributions, traces, URLs, ticks.

#include "loadtest/curve_svg.h"
#include "loadtest/draws.h"
#include "loadtest/event_reader.h"
#include "loadtest/percentiles.h"
#include "loadtest/prompts.h"
#include "loadtest/streamed_answer.h"
#include "loadtest/trace_file.h"
#include "loadtest/url.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::Pointwise;
using testing::StartsWith;

// ---------------------------------------------------------------- event streams

using Events = std::vector<std::pair<std::string, std::string>>;

Events events_of(const std::vector<std::string_view>& pieces) {
  EventReader reader;
  Events events;
  for (const std::string_view piece : pieces) {
    reader.append(piece);
    for (ServerEvent event; reader.next(event);) events.emplace_back(event.name, event.data);
  }
  return events;
}

struct StreamCase {
  std::string text;
  Events events;
};

/// The examples of the HTML standard (9.2.6), then ends of lines of every kind and what servers do beside.
std::vector<StreamCase> stream_cases() {
  return {{"data: YHOO\ndata: +2\ndata: 10\n\n", {{"", "YHOO\n+2\n10"}}},
          {": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
           {{"", "first event"}, {"", "second event"}, {"", " third event"}}},
          {"data\n\ndata\ndata\n\ndata:", {{"", ""}, {"", "\n"}}},
          {"data:test\n\ndata: test\n\n", {{"", "test"}, {"", "test"}}},
          {"event: add\r\ndata: 1\r\n\r\nevent: remove\rdata: 2\r\rdata: 3\n\n", {{"add", "1"}, {"remove", "2"}, {"", "3"}}},
          {"\xEF\xBB\xBF"
           "data: {\"a\": 1}\r\n\r\n: ping\r\n\r\nretry: 10\n\nevent: lost\n\ndata: [DONE]\r\n\r\n",
           {{"", "{\"a\": 1}"}, {"", "[DONE]"}}},
          {"data: \xC3\xA9\xE2\x82\xAC\n\ndata: not ended\n", {{"", "\xC3\xA9\xE2\x82\xAC"}}}};
}

TEST(EventReader, EventsAreThoseOfTheStandardWhereverTheBytesAreCut) {
  for (const auto& [text, events] : stream_cases()) {
    const std::string_view all = text;
    EXPECT_EQ(events_of({all}), events) << text;
    for (std::size_t a = 0; a <= all.size(); ++a) {
      for (std::size_t b = a; b <= all.size(); ++b) {
        ASSERT_EQ(events_of({all.substr(0, a), all.substr(a, b - a), all.substr(b)}), events) << text << " at " << a << ", " << b;
      }
    }
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < all.size(); ++i) bytes.push_back(all.substr(i, 1));
    EXPECT_EQ(events_of(bytes), events) << text;
  }
}

TEST(EventReader, AnEventWithoutEndIsRefusedNotKept) {
  EventReader reader;
  const std::string piece(std::size_t{1} << 20, 'x');
  reader.append("data: ");
  const auto flood = [&] {
    ServerEvent event;
    for (int i = 0; i < 100; ++i) {
      reader.append(piece);
      EXPECT_FALSE(reader.next(event));
    }
  };
  EXPECT_THAT(error_of(flood), HasSubstr("an event of more than"));
}

StreamedAnswer answer_of(const std::vector<std::string>& data) {
  StreamedAnswer answer;
  LoadClock::time_point now{};
  for (const std::string& one : data) answer.take({.name = {}, .data = one}, now += std::chrono::seconds(1));
  return answer;
}

std::vector<int> chunk_seconds(const StreamedAnswer& answer) {
  std::vector<int> seconds;
  for (const auto& time : answer.chunks()) seconds.push_back(static_cast<int>(time.time_since_epoch() / std::chrono::seconds(1)));
  return seconds;
}

TEST(StreamedAnswer, ChunksWithAPieceOfTheAnswerCountWhateverItIsCalled) {
  const StreamedAnswer answer = answer_of({
      R"({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": null})",
      R"({"choices": [{"delta": {"reasoning_content": "Hm"}}]})",
      R"({"choices": [{"delta": {"reasoning": "m"}}]})",
      R"({"choices": [{"delta": {"content": "Yes"}, "finish_reason": null}]})",
      R"({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]})",
      R"({"choices": [{"delta": {"content": null, "tool_calls": []}}]})",
      R"({"choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]})",
      R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}})",
      "[DONE]",
  });
  EXPECT_THAT(chunk_seconds(answer), ElementsAre(2, 3, 4, 5, 7));
  EXPECT_EQ(answer.text(), "Yes!");
  ASSERT_TRUE(answer.usage());
  EXPECT_EQ(answer.usage()->prompt_tokens, 7);
  EXPECT_EQ(answer.usage()->output_tokens, 9);
  EXPECT_EQ(answer.usage()->cached_tokens, 4);
  EXPECT_TRUE(answer.is_done());
}

/// Sums of them would be negative, or anything.
TEST(StreamedAnswer, CountsThatCannotBeAreNone) {
  for (const char* const count : {"9223372036854775807", "-1", "1e300", "\"7\"", "[7]"}) {
    EXPECT_FALSE(usage_of(fmt::format(R"({{"usage": {{"prompt_tokens": {}, "completion_tokens": 1}}}})", count))) << count;
    EXPECT_FALSE(usage_of(fmt::format(R"({{"usage": {{"prompt_tokens": 7, "completion_tokens": {}}}}})", count))) << count;
  }
  EXPECT_EQ(usage_of(R"({"usage": {"prompt_tokens": 7.0, "completion_tokens": null}})")->prompt_tokens, 7);
}

TEST(StreamedAnswer, CompletionsAndServersWithoutUsageOrDone) {
  const StreamedAnswer answer =
      answer_of({R"({"choices": [{"text": "a"}]})", R"({"choices": [{"text": "", "finish_reason": "length"}]})"});
  EXPECT_THAT(chunk_seconds(answer), ElementsAre(1));
  EXPECT_FALSE(answer.usage());
  EXPECT_TRUE(answer.is_done());
  EXPECT_FALSE(answer_of({R"({"choices": [{"text": "a"}]})"}).is_done());
}

TEST(StreamedAnswer, ErrorsInTheStreamAreHeardAndNonsenseIsRefused) {
  EXPECT_EQ(answer_of({R"({"error": {"message": "the engine failed", "type": "server_error"}})"}).error(), "the engine failed");
  EXPECT_EQ(answer_of({R"({"error": "gone"})"}).error(), "gone");
  EXPECT_THAT(error_of([] { answer_of({"<html>"}); }), HasSubstr("found '<html>'"));
  EXPECT_THAT(error_of([] { answer_of({"[1]"}); }), HasSubstr("found '[1]'"));
  EXPECT_EQ(error_message(R"({"detail": "Not Found"})"), "Not Found");
  EXPECT_EQ(error_message("  upstream\ntimed out "), "upstream\\x0atimed out");
}

// ---------------------------------------------------------------- figures

TEST(Percentiles, NearestRankGivesThePublishedExamples) {
  // Wikipedia, "Percentile", the nearest-rank method, examples 1 and 3; numpy.percentile(method="inverted_cdf") gives the same.
  const std::vector<double> five = {15, 20, 35, 40, 50}, eleven = {3, 6, 7, 8, 8, 9, 10, 13, 15, 16, 20};
  for (const auto& [p, value] : std::vector<std::pair<double, double>>{{5, 15}, {30, 20}, {40, 20}, {50, 35}, {100, 50}}) {
    EXPECT_EQ(nearest_rank(five, p), value) << p;
  }
  for (const auto& [p, value] : std::vector<std::pair<double, double>>{{25, 7}, {50, 9}, {75, 15}, {100, 20}}) {
    EXPECT_EQ(nearest_rank(eleven, p), value) << p;
  }
}

TEST(Percentiles, OneInAHundredIsAboveTheNinetyNinth) {
  std::vector<double> figures(100);
  std::iota(figures.begin(), figures.end(), 1.0);
  std::reverse(figures.begin(), figures.end());
  const Percentiles of_hundred = percentiles_of(figures);
  EXPECT_EQ(of_hundred.count, 100u);
  EXPECT_EQ(of_hundred.mean, 50.5);
  EXPECT_EQ(of_hundred.p50, 50);
  EXPECT_EQ(of_hundred.p90, 90);
  EXPECT_EQ(of_hundred.p99, 99);
  EXPECT_EQ(of_hundred.most, 100);
  EXPECT_EQ(percentiles_of({4}).p99, 4);
  EXPECT_EQ(percentiles_of({}).count, 0u);
}

// ---------------------------------------------------------------- what is sent, and when

TEST(Draws, GapsOfArrivalsAreExponential) {
  constexpr int kCount = 200'000;
  constexpr double kRate = 4;
  Draws draws(1, {2, 3});
  std::vector<double> gaps(kCount);
  for (double& gap : gaps) gap = draws.gap(kRate);
  const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / kCount;
  double variance = 0;
  for (const double gap : gaps) variance += (gap - mean) * (gap - mean) / kCount;
  // Five standard deviations: of the mean 1/rate/sqrt(n), of the variance sqrt(8/n)/rate^2.
  EXPECT_NEAR(mean, 1 / kRate, 5 / kRate / std::sqrt(kCount));
  EXPECT_NEAR(variance, 1 / kRate / kRate, 5 * std::sqrt(8.0 / kCount) / kRate / kRate);
  // No memory: of the gaps beyond a second, as many go on for another as of all.
  const auto beyond = [&](double seconds) {
    return static_cast<double>(std::count_if(gaps.begin(), gaps.end(), [&](double gap) { return gap > seconds; }));
  };
  EXPECT_NEAR(beyond(1) / kCount, std::exp(-kRate), 5 * std::sqrt(std::exp(-kRate) / kCount));
  EXPECT_NEAR(beyond(0.5) / kCount, std::exp(-kRate / 2), 5 * std::sqrt(std::exp(-kRate / 2) / kCount));
}

TEST(Draws, LengthsAreLogUniformAndEveryOneOfTheRangeComes) {
  Draws draws(1, {});
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(draws.length({.least = 3, .most = 6}));
  EXPECT_THAT(seen, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(draws.length({.least = 128, .most = 128}), 128);
  int below_thousand = 0;
  for (int i = 0; i < 20'000; ++i) below_thousand += draws.length({.least = 100, .most = 10'000}) < 1000 ? 1 : 0;
  EXPECT_NEAR(below_thousand / 20'000.0, 0.5, 5 * std::sqrt(0.25 / 20'000));
}

TEST(Draws, ASeedAndAPurposeGiveTheSameNumbersAndOthersGiveOthers) {
  const auto first = [](std::uint64_t seed, std::initializer_list<std::uint64_t> purpose) { return Draws(seed, purpose).unit(); };
  EXPECT_EQ(first(1, {2, 3}), first(1, {2, 3}));
  const std::set<double> others = {first(1, {2, 3}), first(2, {2, 3}), first(1, {3, 2}),
                                   first(1, {2}),    first(1, {}),     first(1ULL << 32, {})};
  EXPECT_EQ(others.size(), 6u);
}

TEST(Prompts, WordsFollowFromTwoCounts) {
  // A server with 1.5 tokens a word and 20 beside.
  const PromptScale scale = PromptScale::measured(32, 68, 160, 260);
  EXPECT_TRUE(scale.is_measured);
  EXPECT_EQ(scale.words_of_message(320), 200);
  EXPECT_EQ(scale.words_of_message(1), 1);
  Draws draws(1, {});
  const std::string text = random_words(draws, 200);
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 199);
  EXPECT_FALSE(PromptScale::measured(32, 68, 160, 68).is_measured);
}

TEST(Trace, CsvAndJsonLinesSayTheSame) {
  const std::string csv = "# recorded\n arrival, prompt_tokens ,output_tokens\r\n0,512,128\r\n\n0.25, 2048,64\n1e1,1,1";
  const std::string json =
      "{\"arrival\": 0, \"prompt_tokens\": 512, \"output_tokens\": 128}\n"
      "{\"output_tokens\": 64, \"arrival\": 0.25, \"prompt_tokens\": 2048, \"user\": {\"a\": 1}}\n"
      "{\"arrival\": 10.0, \"prompt_tokens\": 1, \"output_tokens\": 1}\n";
  for (const std::string& text : {csv, json}) {
    const std::vector<TraceEntry> entries = parse_trace(text, "t");
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[1].arrival_seconds, 0.25);
    EXPECT_EQ(entries[1].prompt_tokens, 2048);
    EXPECT_EQ(entries[1].output_tokens, 64);
    EXPECT_EQ(entries[2].arrival_seconds, 10);
  }
}

TEST(Trace, ErrorsNameTheLineAndWhatIsWrongThere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "t: found no request"},
      {"arrival,prompt_tokens,output_tokens\n", "t: found no request"},
      {"0,1\n", "t: line 1: found 2 values in '0,1', expected 3"},
      {"0,1,1\n\n# x\n1,2,3,4\n", "t: line 4: found 4 values"},
      {"0,1,1\nsoon,1,1\n", "t: line 2: arrival: found 'soon', expected seconds"},
      {"-1,1,1\n", "t: line 1: arrival: found '-1'"},
      {"nan,1,1\n", "t: line 1: arrival: found 'nan'"},
      {"1,1.5,1\n", "t: line 1: prompt_tokens: found '1.5', expected an integer"},
      {"1,1,0\n", "t: line 1: output_tokens: found '0', expected an integer from 1"},
      {"2,1,1\n1,1,1\n", "t: line 2: arrival: found 1 after 2, expected requests in the order they came"},
      {"{\"arrival\": 1}\n", "t: line 1: prompt_tokens: found no such key"},
      {"{\"arrival\": \"1\", \"prompt_tokens\": 1, \"output_tokens\": 1}\n", "t: line 1: arrival: found '\"1\"'"},
      {"{\"arrival\": 1, \"prompt_tokens\": 2.0, \"output_tokens\": 1}\n", "t: line 1: prompt_tokens: found '2.0'"},
      {"0,1,1\n{\n", "t: line 2: not JSON"},
  };
  for (const auto& [trace, message] : cases) {
    EXPECT_THAT(error_of([&text = trace] { parse_trace(text, "t"); }), StartsWith(message)) << trace;
  }
}

TEST(Url, IsReadAsPeopleWriteIt) {
  const auto read = [](std::string_view text) { return parse_server_url(text).text(); };
  EXPECT_EQ(read("http://127.0.0.1:8080"), "http://127.0.0.1:8080/v1");
  EXPECT_EQ(read("localhost:8080/"), "http://localhost:8080/v1");
  EXPECT_EQ(read("http://host"), "http://host/v1");
  EXPECT_EQ(read("http://host:80/openai/v1/"), "http://host/openai/v1");
  EXPECT_EQ(read("http://[::1]:9000/v1"), "http://[::1]:9000/v1");
  EXPECT_EQ(parse_server_url("http://[::1]:9000").host, "::1");
  for (const char* wrong :
       {"", "http://", "ftp://host", "http://host:", "http://host:0", "http://host:65536", "http://host:8x", "http://a b",
        "http://[::1", "http://[::1]x", "http://user@host", "http://host/v1?x=1", "http://host\r\nX: y"}) {
    EXPECT_THAT(error_of([&] { parse_server_url(wrong); }), HasSubstr("expected http://HOST:PORT")) << wrong;
  }
  EXPECT_THAT(error_of([&] { parse_server_url("https://host"); }), HasSubstr("there is no TLS here"));
}

// ---------------------------------------------------------------- the picture

TEST(Ticks, AreRoundAndHoldAllFigures) {
  EXPECT_THAT(linear_ticks(0, 1234, 4), Pointwise(DoubleNear(1e-9), {0.0, 500.0, 1000.0, 1500.0}));
  EXPECT_THAT(linear_ticks(0, 0.8, 4), Pointwise(DoubleNear(1e-9), {0.0, 0.2, 0.4, 0.6, 0.8}));
  EXPECT_THAT(logarithmic_ticks(13, 70), Pointwise(DoubleNear(1e-9), {10.0, 20.0, 50.0, 100.0}));
  EXPECT_THAT(logarithmic_ticks(2, 40'000), Pointwise(DoubleNear(1e-6), {1.0, 10.0, 100.0, 1000.0, 10'000.0, 100'000.0}));
  EXPECT_THAT(logarithmic_ticks(5, 5), Pointwise(DoubleNear(1e-9), {5.0, 10.0}));
}

TEST(Svg, MoreIsHigherAndFurtherRightAndTextIsNoMarkup) {
  Curve curve;
  curve.title = "a<b & c";
  curve.x = {4, 1, 2};
  curve.panels = {{.title = "speed", .is_logarithmic = false, .series = {{.name = "one", .values = {40.0, 10.0, 20.0}}}},
                  {.title = "time", .is_logarithmic = true, .series = {{.name = "two", .values = {400.0, std::nullopt, 20.0}}}}};
  const std::string svg = curve_svg(curve);
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; c"));
  std::vector<std::vector<std::pair<double, double>>> lines;
  for (std::size_t at = 0; (at = svg.find("<polyline points=\"", at)) != std::string::npos; ++at) {
    std::istringstream points(svg.substr(at + 18, svg.find('"', at + 18) - at - 18));
    lines.emplace_back();
    char comma = 0;
    for (double x = 0, y = 0; points >> x >> comma >> y;) lines.back().emplace_back(x, y);
  }
  ASSERT_EQ(lines.size(), 2u);
  ASSERT_EQ(lines[0].size(), 3u);
  ASSERT_EQ(lines[1].size(), 2u) << "what was not measured is no point";
  // Doubling is the same step on the axis of x, and the figures grow with it, upwards on the page.
  const auto [x1, y1] = lines[0][0];
  const auto [x2, y2] = lines[0][1];
  const auto [x4, y4] = lines[0][2];
  EXPECT_NEAR(x2 - x1, x4 - x2, 0.2);
  EXPECT_GT(x2, x1);
  EXPECT_NEAR((y1 - y2) * 2, y2 - y4, 0.3);
  EXPECT_GT(y1, y2);
}

}  // namespace
}  // namespace calandra
