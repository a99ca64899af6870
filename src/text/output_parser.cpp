#include "text/output_parser.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/json.h"
#include "text/argument_types.h"
#include "text/marker_scanner.h"

namespace calandra {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kToolCall = "<tool_call>", kToolCallEnd = "</tool_call>",
                           kNewlineToolCall = "\n<tool_call>", kKey = "<arg_key>", kKeyEnd = "</arg_key>", kValue = "<arg_value>",
                           kValueEnd = "</arg_value>", kRole = "<role>", kRoleEnd = "</role>", kNewline = "\n",
                           kWrittenNewline = "\\n";
constexpr std::string_view kBlanks = " \t\r\n";

/// Protocol that no user should see where it makes no sense.
constexpr std::string_view kStrayMarkers[] = {kToolCallEnd,      kKey, kKeyEnd, kValue, kValueEnd, "<tool_response>",
                                              "</tool_response>"};
constexpr std::string_view kTurnMarkers[] = {"<role>SYSTEM</role>", "<role>HUMAN</role>", "<role>ASSISTANT</role>",
                                             "<role>OBSERVATION</role>"};

constexpr std::string_view kNameMarkers[] = {kNewline, kWrittenNewline, kKey, kToolCallEnd};
constexpr std::string_view kBetweenMarkers[] = {kKey, kToolCallEnd};
constexpr std::string_view kKeyMarkers[] = {kKeyEnd, kToolCallEnd};
constexpr std::string_view kWaitingMarkers[] = {kValue, kKey, kToolCallEnd};
constexpr std::string_view kValueMarkers[] = {kValueEnd};

}  // namespace

OutputFormat OutputFormat::of_template(std::string_view source) {
  const auto has = [&](std::string_view marker) { return source.find(marker) != source.npos; };
  OutputFormat format;
  format.reasoning = has(kThink) || has(kThinkEnd);
  format.tool_calls = has(kToolCall) && has(kKey) && has(kValue);
  format.roles = has(kRole);
  if (has("<|role_end|>")) format.end_markers.emplace_back("<|role_end|>");
  return format;
}

class OutputParser::State {
 public:
  State(const OutputFormat& format, ReasoningStart start, const nlohmann::ordered_json& tools)
      : format_(format), types_(tools), has_calls_(format.tool_calls && !types_.empty()) {
    if (format.reasoning && start == ReasoningStart::Open) begin_reasoning();
    if (format.reasoning && start == ReasoningStart::ModelMayOpen) phase_ = Phase::Start;
    choose_text_markers();
  }

  std::vector<OutputEvent> push(std::string_view text) {
    pending_ += text;
    run(false);
    return std::exchange(events_, {});
  }

  std::vector<OutputEvent> finish() {
    run(true);
    if (phase_ == Phase::Name) emit(OutputEvent::Kind::ToolIncomplete, {}, index_ + 1);
    if (phase_ > Phase::Name && phase_ <= Phase::Value) emit(OutputEvent::Kind::ToolIncomplete, {}, index_);
    return std::exchange(events_, {});
  }

  bool ended() const { return phase_ == Phase::Ended; }
  bool in_reasoning() const { return phase_ == Phase::Reasoning; }

 private:
  enum class Phase { Start, Reasoning, Content, Name, Between, Key, Waiting, Value, AfterCall, Ended };

  void choose_text_markers() {
    std::vector<std::string_view> common;
    for (const std::string& marker : format_.end_markers) {
      if (!marker.empty()) common.push_back(marker);
    }
    if (format_.roles) {
      common.insert(common.end(), std::begin(kTurnMarkers), std::end(kTurnMarkers));
      common.insert(common.end(), {kRole, kRoleEnd});
    }
    after_call_markers_ = common;
    after_call_markers_.push_back(kToolCall);
    if (format_.tool_calls) {
      common.insert(common.end(), std::begin(kStrayMarkers), std::end(kStrayMarkers));
      common.push_back(kToolCall);
    }
    reasoning_markers_ = content_markers_ = common;
    reasoning_markers_.insert(reasoning_markers_.end(), {kThink, kThinkEnd});
    if (has_calls_) content_markers_.push_back(kNewlineToolCall);
  }

  std::span<const std::string_view> markers() const {
    switch (phase_) {
      case Phase::Reasoning: return reasoning_markers_;
      case Phase::Content: return content_markers_;
      case Phase::Name: return kNameMarkers;
      case Phase::Between: return kBetweenMarkers;
      case Phase::Key: return kKeyMarkers;
      case Phase::Waiting: return kWaitingMarkers;
      case Phase::Value: return kValueMarkers;
      case Phase::AfterCall: return after_call_markers_;
      default: return {};
    }
  }

  /// Takes from the pending text all that is decided.
  void run(bool is_end) {
    std::size_t done = 0;
    while (phase_ != Phase::Ended) {
      std::string_view rest = std::string_view(pending_).substr(done);
      const std::size_t blanks = std::min(rest.find_first_not_of(kBlanks), rest.size());
      if (phase_ == Phase::Start) {
        const std::string_view word = rest.substr(blanks);
        if (!is_end && word.size() < kThink.size() && kThink.starts_with(word)) break;
        if (word.starts_with(kThink)) {
          begin_reasoning();
          done += blanks;
        } else {
          phase_ = Phase::Content;
        }
        continue;
      }
      if (phase_ == Phase::Name && name_.empty()) {
        done += blanks;
        rest.remove_prefix(blanks);
      }
      const MarkerMatch match = find_marker(rest, markers(), is_end);
      take_text(rest.substr(0, match.position));
      done += match.position + match.marker.size();
      if (match.marker.empty()) break;
      take_marker(match.marker);
    }
    pending_.erase(0, phase_ == Phase::Ended ? pending_.size() : done);
  }

  void take_text(std::string_view text) {
    if (text.empty()) return;
    switch (phase_) {
      case Phase::Reasoning: add_reasoning(text); break;
      case Phase::Content: add_content(text); break;
      case Phase::Name: name_ += text; break;
      case Phase::Key: key_ += text; break;
      case Phase::Value: add_value(text); break;
      default: break;  // between the parts of calls only blanks are expected
    }
  }

  void take_marker(std::string_view marker) {
    switch (phase_) {
      case Phase::Reasoning: take_reasoning_marker(marker); break;
      case Phase::Content:
      case Phase::AfterCall: take_text_marker(marker); break;
      case Phase::Name: end_name(marker); break;
      case Phase::Value: end_value(); break;
      default: take_call_marker(marker); break;
    }
  }

  void begin_reasoning() {
    phase_ = Phase::Reasoning;
    skips_newlines_ = true;
  }

  void take_reasoning_marker(std::string_view marker) {
    if (marker == kThinkEnd) {
      phase_ = Phase::Content;
      skips_newlines_ = true;
    } else if (marker == kThink) {
      if (!skips_newlines_ || saw_think_) add_reasoning(marker);
      saw_think_ = true;
    } else if (marker == kToolCall) {
      phase_ = Phase::Content;  // a call ends the reasoning, with or without tools that it could be one of
      skips_newlines_ = true;
      take_text_marker(marker);
    } else {
      take_text_marker(marker);
    }
  }

  void take_text_marker(std::string_view marker) {
    if ((marker == kToolCall || marker == kNewlineToolCall) && has_calls_) {
      phase_ = Phase::Name;
      name_.clear();
    } else if (marker == kRole) {
      ++open_roles_;
      take_text(marker);
    } else if (marker == kRoleEnd) {
      // One that closes what the text itself opened is the text's own.
      if (open_roles_ == 0) return;
      --open_roles_;
      take_text(marker);
    } else if (std::find(std::begin(kTurnMarkers), std::end(kTurnMarkers), marker) != std::end(kTurnMarkers) ||
               std::find(format_.end_markers.begin(), format_.end_markers.end(), marker) != format_.end_markers.end()) {
      phase_ = Phase::Ended;
    }
  }

  // --- calls

  void end_name(std::string_view marker) {
    name_ = std::string(trim_json_space(name_));
    if (name_.empty()) {
      // Nobody can answer a call without a name: it is dropped up to the next one.
      if (marker != kWrittenNewline) phase_ = Phase::AfterCall;
      return;
    }
    ++index_;
    emit(OutputEvent::Kind::ToolBegin, name_, index_);
    keys_.clear();
    phase_ = Phase::Between;
    take_call_marker(marker);
  }

  void take_call_marker(std::string_view marker) {
    if (marker == kKey) {
      key_.clear();
      phase_ = Phase::Key;
    } else if (marker == kKeyEnd) {
      key_ = std::string(trim_json_space(key_));
      phase_ = Phase::Waiting;
    } else if (marker == kValue) {
      begin_value();
    } else if (marker == kToolCallEnd) {
      emit(OutputEvent::Kind::ToolArguments, keys_.empty() ? "{}" : "}", index_);
      emit(OutputEvent::Kind::ToolEnd, {}, index_);
      phase_ = Phase::AfterCall;
    }
  }

  void begin_value() {
    phase_ = Phase::Value;
    value_.clear();
    value_types_ = types_.types_of(name_, key_);
    value_is_streamed_ = value_types_.only_string();
    value_has_begun_ = false;
    // JSON has each key once; the first one is already on its way.
    value_is_dropped_ = keys_.contains(key_);
  }

  void add_value(std::string_view text) {
    if (value_is_dropped_) return;
    // A string is passed on as it comes, unless it may turn out to be quoted.
    if (!value_has_begun_ && text.front() == '"') value_is_streamed_ = false;
    if (!value_is_streamed_) {
      value_has_begun_ = true;
      value_ += text;
      return;
    }
    std::string delta;
    if (!value_has_begun_) delta = begin_argument() + '"';
    value_has_begun_ = true;
    append_json_escaped(delta, text);
    emit(OutputEvent::Kind::ToolArguments, delta, index_);
  }

  void end_value() {
    phase_ = Phase::Between;
    if (value_is_dropped_) return;
    if (value_is_streamed_) {
      emit(OutputEvent::Kind::ToolArguments, value_has_begun_ ? "\"" : begin_argument() + "\"\"", index_);
    } else {
      emit(OutputEvent::Kind::ToolArguments, begin_argument() + typed_value(value_, value_types_), index_);
    }
  }

  /// What comes before a value: `{"key": ` or `, "key": `.
  std::string begin_argument() {
    std::string text = keys_.empty() ? "{\"" : ", \"";
    keys_.insert(key_);
    append_json_escaped(text, key_);
    return text + "\": ";
  }

  // --- text

  /// Newlines around the reasoning are no part of it.
  void add_reasoning(std::string_view text) {
    if (!begin_text(text)) return;
    const std::size_t end = text.find_last_not_of('\n') + 1;
    if (end > 0) {
      std::string delta(held_newlines_, '\n');
      held_newlines_ = 0;
      emit(OutputEvent::Kind::Reasoning, delta.append(text.substr(0, end)));
    }
    held_newlines_ += text.size() - end;
  }

  /// Newlines between the reasoning and the content are no part of it.
  void add_content(std::string_view text) {
    if (begin_text(text)) emit(OutputEvent::Kind::Content, std::string(text));
  }

  /// Takes off the newlines that are to be skipped; false if nothing else is there.
  bool begin_text(std::string_view& text) {
    if (skips_newlines_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return false;
    skips_newlines_ = false;
    return true;
  }

  void emit(OutputEvent::Kind kind, std::string text, int index = -1) {
    if (!events_.empty() && events_.back().kind == kind && events_.back().index == index) {
      events_.back().text += text;
    } else {
      events_.push_back({kind, index, std::move(text)});
    }
  }

  const OutputFormat format_;
  const ToolTypes types_;
  const bool has_calls_;
  std::vector<std::string_view> reasoning_markers_, content_markers_, after_call_markers_;

  Phase phase_ = Phase::Content;
  std::string pending_;  ///< not decided yet: at most a marker's length, besides what is being pushed
  std::vector<OutputEvent> events_;

  bool skips_newlines_ = false;  ///< at the begin of reasoning, and of content after it
  bool saw_think_ = false;
  std::size_t held_newlines_ = 0;
  std::size_t open_roles_ = 0;

  int index_ = -1;  ///< of the last call whose name was told
  std::string name_, key_, value_;
  std::set<std::string> keys_;  ///< of the arguments that were told
  JsonTypes value_types_;
  bool value_is_streamed_ = false, value_has_begun_ = false, value_is_dropped_ = false;
};

OutputParser::OutputParser(const OutputFormat& format, ReasoningStart start, const nlohmann::ordered_json& tools)
    : state_(std::make_unique<State>(format, start, tools)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

std::vector<OutputEvent> OutputParser::push(std::string_view text) { return state_->push(text); }
std::vector<OutputEvent> OutputParser::finish() { return state_->finish(); }
bool OutputParser::ended() const { return state_->ended(); }
bool OutputParser::in_reasoning() const { return state_->in_reasoning(); }

void ParsedOutput::add(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::Reasoning: reasoning += event.text; break;
      case OutputEvent::Kind::Content: content += event.text; break;
      case OutputEvent::Kind::ToolBegin: tool_calls.push_back({event.text, {}}); break;
      case OutputEvent::Kind::ToolArguments: tool_calls.back().arguments += event.text; break;
      case OutputEvent::Kind::ToolEnd: break;
      case OutputEvent::Kind::ToolIncomplete:
        tool_calls.resize(static_cast<std::size_t>(event.index));
        has_incomplete_call = true;
        break;
    }
  }
}

ParsedOutput parse_output(std::string_view text, const OutputFormat& format, ReasoningStart start,
                          const nlohmann::ordered_json& tools) {
  OutputParser parser(format, start, tools);
  ParsedOutput output;
  output.add(parser.push(text));
  output.add(parser.finish());
  return output;
}

}  // namespace calandra
