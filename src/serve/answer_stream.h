#pragma once
// From an engine's tokens to what an API says: reasoning, content and tool calls as they come. Whole replies are collected from
// the same pieces that streams send, so both say the same.

#include "engine/logprobs.h"
#include "serve/answer_service.h"
#include "serve/api_error.h"
#include "serve/chat_request.h"
#include "serve/http_responder.h"
#include "text/output_parser.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace calandra {

struct AnswerUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of the prompt
  std::int64_t written_tokens = 0;     // behind these, up to where another request can go on
  std::int64_t marked_tokens = 0;      // the same, up to the last place that the client has marked
  std::int64_t completion_tokens = 0;  // a final stop id included
  std::int64_t reasoning_tokens = 0;   // of these, marks of the reasoning included
  std::int64_t accepted_drafts = 0;    // of these too, those that a step made beyond its first
  std::int64_t rejected_drafts = 0;    // all others that were verified; no tokens of the answer
};

enum class AnswerEnding : std::uint8_t {
  Stop,          // the model's own end
  StopSequence,  // one of GenerationOptions::stop
  Length,
  ToolCalls,  // as Stop, and tools were called
};

struct AnswerEnd {
  AnswerEnding ending = AnswerEnding::Stop;
  std::string stop_sequence;  // of StopSequence
  AnswerUsage usage;
};

/// What became certain at once. Not empty.
struct AnswerGain {
  std::vector<OutputEvent> events;
  std::vector<LogprobEntry> logprobs;  // one a token, if asked for; not of a final stop id
};

/// Hears of all answers to one request, `choice` counting them from 0. Called by one thread at a time, never before
/// submit_answers() has submitted them all; must not block.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  /// All are submitted: a stream may begin.
  virtual void began() {}
  // NOLINTNEXTLINE(performance-unnecessary-value-param): whoever overrides it keeps them
  virtual void prompt_logprobs(int /*choice*/, std::vector<LogprobEntry> /*entries*/) {}
  virtual void gained(int choice, const AnswerGain& gain) = 0;
  virtual void ended(int choice, const AnswerEnd& end) = 0;
  /// The last has ended: every prompt counted once, all answers together. Nothing comes after it.
  virtual void all_ended(const AnswerUsage& usage) = 0;
  /// Instead of all_ended(), and nothing after it: an answer failed, ran out of time or was cut off as the server stopped.
  virtual void failed(const ApiError& error) = 0;
};

/// Submits the answers, their choices counted through all jobs. The sink hears of them until all have ended, or until `gone`:
/// then they are cancelled, and nobody hears. Throws RequestError if they are not taken in; then the sink has heard nothing.
/// `record`, unless null, hears of every answer's end.
void submit_answers(AnswerService& answers, const ServedModel& model, const std::vector<AnswerJob>& jobs,
                    std::shared_ptr<AnswerSink> sink, std::stop_token gone, std::shared_ptr<RequestRecord> record = nullptr);

/// The same for a request: the answers are its client's, end when it has gone, and may take as long as the server gives them.
void answer_request(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder,
                    std::vector<AnswerJob> jobs, std::shared_ptr<AnswerSink> sink);
void answer_request(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder, AnswerJob job,
                    std::shared_ptr<AnswerSink> sink);

/// An answer put together.
struct WholeAnswer {
  ParsedOutput output;
  std::vector<LogprobEntry> logprobs;
  std::vector<LogprobEntry> prompt_logprobs;
  AnswerEnd end;
};

/// Collects answers for a reply in one piece.
class AnswerCollector : public AnswerSink {
 public:
  using Done = std::function<void(const std::vector<WholeAnswer>& answers, const AnswerUsage& usage)>;
  using Failed = std::function<void(const ApiError& error)>;

  AnswerCollector(int count, Done done, Failed failed)
      : answers_(static_cast<std::size_t>(count)), done_(std::move(done)), failed_(std::move(failed)) {}

  void prompt_logprobs(int choice, std::vector<LogprobEntry> entries) override;
  void gained(int choice, const AnswerGain& gain) override;
  void ended(int choice, const AnswerEnd& end) override;
  void all_ended(const AnswerUsage& usage) override { done_(answers_, usage); }
  void failed(const ApiError& error) override { failed_(error); }

 private:
  WholeAnswer& answer(int choice) { return answers_[static_cast<std::size_t>(choice)]; }

  std::vector<WholeAnswer> answers_;
  Done done_;
  Failed failed_;
};

}  // namespace calandra
