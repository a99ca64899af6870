#include "loadtest/load_run.h"

#include "loadtest/http_client.h"
#include "loadtest/introduction.h"
#include "loadtest/stream_listener.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

// What random numbers are for.
enum Purpose : std::uint64_t { kArrivals, kDialogue, kPrefix };

/// So many requests in a row, beside those that all users have under way, find no server: it is gone.
constexpr std::int64_t kMostUnreachable = 20;

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

double seconds_between(LoadClock::time_point from, LoadClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

LoadClock::time_point after(LoadClock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<LoadClock::duration>(std::chrono::duration<double>(seconds));
}

/// A conversation: one request, or several of which each has all that was said before.
struct Dialogue {
  explicit Dialogue(const Draws& the_draws) : draws(the_draws) {}

  Draws draws;
  std::vector<ChatMessage> messages;
  std::int64_t turn = 0;
  std::optional<TraceEntry> lengths;  // of a trace; else drawn
};

class LevelRun {
 public:
  /// `number` tells the words of this level from those of others, which the server may remember.
  LevelRun(HttpClient& client, const LoadTarget& target, const LoadLevel& level, std::uint64_t number)
      : client_(client),
        target_(target),
        options_(target.options),
        number_(number),
        arrivals_(options_.seed, {kArrivals, number}),
        prefix_(prefix_of(target)) {
    result_.level = level;
    num_wanted_ = options_.requests ? *options_.requests : options_.duration_seconds ? kAll : default_requests(level);
    if (level.kind == LoadLevel::Kind::Trace)
      num_wanted_ = std::min(options_.requests.value_or(kAll), std::ssize(options_.trace));
  }

  LevelResult run(const std::function<bool(double)>& progress) {
    start_ = LoadClock::now();
    if (result_.level.is_open()) {
      plan_arrival();
    } else {
      const auto users = static_cast<std::int64_t>(result_.level.amount);
      for (std::int64_t i = 0; i < std::min(users, num_wanted_); ++i) begin_as_user();
    }
    result_.is_complete = client_.run([&] { return progress(part_done()); });
    result_.num_unfinished = num_begun_ - std::ssize(result_.records);
    result_.seconds = seconds_between(start_, result_.is_complete ? last_end_ : LoadClock::now());
    if (gone_) result_.is_complete = false;
    return std::move(result_);
  }

  const std::optional<std::string>& gone() const { return gone_; }

 private:
  static std::string prefix_of(const LoadTarget& target) {
    if (target.options.shared_prefix_tokens == 0) return {};
    Draws draws(target.options.seed, {kPrefix});
    return random_words(draws, target.scale.words_of_message(target.options.shared_prefix_tokens));
  }

  double part_done() const {
    const double by_number = static_cast<double>(std::ssize(result_.records)) / static_cast<double>(num_wanted_);
    const double by_time =
        options_.duration_seconds ? seconds_between(start_, LoadClock::now()) / *options_.duration_seconds : 0.0;
    return std::min(1.0, std::max(by_number, by_time));
  }

  bool is_over(LoadClock::time_point time) const {
    return gone_ || num_begun_ >= num_wanted_ ||
           (options_.duration_seconds && seconds_between(start_, time) >= *options_.duration_seconds);
  }

  std::shared_ptr<Dialogue> new_dialogue() {
    auto dialogue =
        std::make_shared<Dialogue>(Draws(options_.seed, {kDialogue, number_, static_cast<std::uint64_t>(num_dialogues_++)}));
    if (!prefix_.empty()) dialogue->messages.push_back({.role = "system", .content = prefix_});
    return dialogue;
  }

  void begin_as_user() {
    if (is_over(LoadClock::now())) return;
    ask(new_dialogue(), LoadClock::now(), [this] { begin_as_user(); });
  }

  /// The next one of the open loop. Its time is set by those before it, never by when they were sent or answered.
  void plan_arrival() {
    std::optional<TraceEntry> entry;
    if (result_.level.kind == LoadLevel::Kind::Trace) {
      if (num_dialogues_ >= std::ssize(options_.trace)) return;
      entry = options_.trace[static_cast<std::size_t>(num_dialogues_)];
      next_arrival_seconds_ = entry->arrival_seconds;
    } else {
      next_arrival_seconds_ += arrivals_.gap(result_.level.amount);
    }
    const auto time = after(start_, next_arrival_seconds_);
    if (is_over(time)) return;
    client_.call_at(time, [this, time, entry] {
      if (is_over(time)) return;
      const auto dialogue = new_dialogue();
      dialogue->lengths = entry;
      ask(dialogue, time, [] {});
      plan_arrival();
    });
  }

  /// Sends the next request of a conversation, and those after it as each is answered; then `then`.
  void ask(const std::shared_ptr<Dialogue>& dialogue, LoadClock::time_point scheduled, std::function<void()> then) {
    ++num_begun_;
    ++dialogue->turn;
    Draws& draws = dialogue->draws;
    const std::int64_t prompt = dialogue->lengths ? dialogue->lengths->prompt_tokens : draws.length(options_.prompt_tokens);
    const std::int64_t output = dialogue->lengths ? dialogue->lengths->output_tokens : draws.length(options_.output_tokens);
    dialogue->messages.push_back({.role = "user", .content = random_words(draws, target_.scale.words_of_message(prompt))});
    const std::string body = request_body(options_, target_.form, dialogue->messages, output, true);
    const auto sent = LoadClock::now();
    client_.send({.target = target_of(options_), .body = body},
                 std::make_shared<StreamListener>([this, dialogue, scheduled, sent, then = std::move(then)](StreamReply& reply) {
                   add_record(*dialogue, scheduled, sent, reply);
                   dialogue->messages.push_back({.role = "assistant", .content = reply.answer.text()});
                   const auto now = LoadClock::now();
                   if (reply.failure == Failure::None && dialogue->turn < options_.turns && !is_over(now)) {
                     ask(dialogue, now, then);
                   } else {
                     then();
                   }
                 }));
  }

  void add_record(const Dialogue& dialogue, LoadClock::time_point scheduled, LoadClock::time_point sent, StreamReply& reply) {
    RequestResult record;
    record.scheduled = seconds_between(start_, scheduled);
    record.sent = seconds_between(start_, sent);
    record.ended = seconds_between(start_, reply.ended);
    record.failure = reply.failure;
    record.message = reply.message;
    const auto& chunks = reply.answer.chunks();
    record.first_token = seconds_between(start_, chunks.empty() ? reply.ended : chunks.front());
    record.last_token = seconds_between(start_, chunks.empty() ? reply.ended : chunks.back());
    for (std::size_t i = 1; i < chunks.size(); ++i) {
      record.gaps.push_back(static_cast<float>(seconds_between(chunks[i - 1], chunks[i])));
    }
    if (const auto& usage = reply.answer.usage()) {
      record.is_counted = true;
      record.prompt_tokens = usage->prompt_tokens;
      record.output_tokens = usage->output_tokens;
      record.cached_tokens = usage->cached_tokens;
    } else {
      record.prompt_tokens = estimated_tokens(dialogue);
      record.output_tokens = std::ssize(chunks);
    }
    watch_server(record);
    last_end_ = std::max(last_end_, reply.ended);
    result_.records.push_back(std::move(record));
  }

  std::int64_t estimated_tokens(const Dialogue& dialogue) const {
    std::int64_t words = 0;
    for (const ChatMessage& message : dialogue.messages) {
      words += 1 + std::count(message.content.begin(), message.content.end(), ' ');
    }
    return std::llround(target_.scale.tokens_beside + target_.scale.tokens_per_word * static_cast<double>(words));
  }

  void watch_server(const RequestResult& record) {
    num_unreachable_ = record.failure == Failure::Connection ? num_unreachable_ + 1 : 0;
    const auto under_way = result_.level.is_open() ? 0 : static_cast<std::int64_t>(result_.level.amount);
    if (num_unreachable_ >= kMostUnreachable + under_way) gone_ = record.message;
  }

  HttpClient& client_;
  const LoadTarget& target_;
  const LoadOptions& options_;
  std::uint64_t number_;
  Draws arrivals_;
  std::string prefix_;
  LevelResult result_;
  LoadClock::time_point start_, last_end_;
  double next_arrival_seconds_ = 0;
  std::int64_t num_wanted_ = 0;
  std::int64_t num_begun_ = 0;
  std::int64_t num_dialogues_ = 0;
  std::int64_t num_unreachable_ = 0;  // in a row
  std::optional<std::string> gone_;
};

/// Requests as the first level has them, all at once.
bool warm_up(HttpClient& client, LoadTarget target, const std::function<bool()>& tick) {
  if (target.options.warmup == 0) return true;
  target.options.requests = target.options.warmup;
  target.options.duration_seconds.reset();
  target.options.turns = 1;
  const LoadLevel level = {.kind = LoadLevel::Kind::Users, .amount = static_cast<double>(target.options.warmup)};
  LevelRun run(client, target, level, std::numeric_limits<std::uint64_t>::max());
  return run.run([&](double) { return tick(); }).is_complete;
}

}  // namespace

std::int64_t default_requests(const LoadLevel& level) {
  constexpr double kLeast = 20, kForAUser = 10, kSeconds = 60;
  return std::llround(std::max(kLeast, level.amount * (level.is_open() ? kSeconds : kForAUser)));
}

LoadResult run_load(const LoadOptions& options, const std::function<bool(double done)>& progress) {
  const auto go_on = [&](double done) { return !progress || progress(done); };
  const auto tick = [&] { return go_on(0); };
  LoadResult result;
  // Last, so that what is under way in it is dropped before what it tells.
  HttpClient client(options.url, request_fields(options, "calandra-bench"), request_timeout(options));
  const std::optional<LoadTarget> target = introduce(client, options, tick);
  result.is_interrupted = !target;
  if (!target) return result;
  result.model = target->options.model;
  result.form = target->form;
  result.scale = target->scale;
  result.is_interrupted = !warm_up(client, *target, tick);
  for (std::size_t i = 0; i < options.levels.size() && !result.is_interrupted && !result.gone; ++i) {
    LevelRun run(client, *target, options.levels[i], i);
    const auto part = [&](double done) {
      return go_on((static_cast<double>(i) + done) / static_cast<double>(options.levels.size()));
    };
    result.levels.push_back(run.run(part));
    result.gone = run.gone();
    result.is_interrupted = !result.levels.back().is_complete && !result.gone;
  }
  return result;
}

}  // namespace calandra
