#include "serve/request_log.h"

#include "base/error.h"
#include "base/json.h"
#include "serve/dates.h"
#include "serve/json_body.h"
#include "serve/metrics.h"
#include "text/unicode.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <utility>

namespace calandra {
namespace {

/// Of lines that wait: minutes of a busy server. With prompts in it one line can be larger, and is written if it is the only one.
constexpr std::size_t kMostWaitingBytes = std::size_t{16} << 20;

int open_log(const std::string& file) {
  return file == "-" ? STDERR_FILENO : ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

/// The bytes of `text` that were written: all of them, unless the disk is full.
std::size_t write_all(int file, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

/// Microseconds are enough, and as many digits.
Json seconds_or_null(std::optional<double> seconds) { return seconds ? Json(std::round(*seconds * 1e6) / 1e6) : Json(); }

/// A text of JSON in ASCII: other characters drive terminals (U+009B), and end a line for some readers (U+0085, U+2028).
std::string ascii_of(const std::string& json) {
  std::string out;
  for (std::string_view rest = json; !rest.empty();) {
    const std::string_view unit = rest.substr(0, first_utf8_unit(rest).size);
    rest.remove_prefix(unit.size());
    const char32_t code = unit.size() == 1 ? static_cast<unsigned char>(unit[0]) : decode_utf8(unit);
    if (code < 0x7F) {
      out += unit;
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else {
      const auto high = static_cast<std::uint32_t>(code - 0x10000);
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (high >> 10), 0xDC00 + (high & 0x3FF));
    }
  }
  return out;
}

/// Which field was refused, but not what was found there.
std::string without_values(const ApiError& error) {
  if (error.status >= 500) return error.message;
  const std::string& what = error.code.empty() ? "refused" : error.code;
  return error.field.empty() ? what : fmt::format("{}: {}", error.field, what);
}

}  // namespace

RequestLog::RequestLog(RequestLogOptions options) : options_(std::move(options)), file_(open_log(options_.file)) {
  if (file_ < 0) fail("--log-requests {}: {}", options_.file, std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

RequestLog::~RequestLog() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  came_.notify_all();
  thread_.join();
  if (file_ > STDERR_FILENO) ::close(file_);
}

void RequestLog::write(std::string line) {
  line += '\n';
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty() && waiting_bytes_ + line.size() > kMostWaitingBytes) {
      ++num_dropped_;
      return;
    }
    const std::size_t bytes = line.size();
    waiting_.push_back(std::move(line));
    waiting_bytes_ += bytes;
  }
  came_.notify_one();
}

void RequestLog::drop() {
  const std::lock_guard lock(mutex_);
  ++num_dropped_;
}

/// Takes no memory, but for what says that lines are missing: where there is none the log still goes on.
void RequestLog::run() {
  // Whoever read standard error may have gone: that ends no server.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<std::string> lines;
    lines.swap(waiting_);
    waiting_bytes_ = 0;
    std::uint64_t num_dropped = std::exchange(num_dropped_, 0);
    lock.unlock();
    reopen_if_moved();
    for (const std::string& line : lines) num_dropped += put(line) ? 0 : 1;
    if (num_dropped > 0 && tell_of_dropped(num_dropped)) num_dropped = 0;
    lines = {};
    lock.lock();
    num_dropped_ += num_dropped;
  }
}

/// False if it is lost: a full disk loses lines, and no request. One of which a part was written is ended before the next.
bool RequestLog::put(std::string_view line) {
  if (is_torn_) is_torn_ = write_all(file_, "\n") == 0;
  const std::size_t count = is_torn_ ? 0 : write_all(file_, line);
  if (count > 0) is_torn_ = count < line.size();
  return count == line.size();
}

bool RequestLog::tell_of_dropped(std::uint64_t count) {
  try {
    return put(dump_json({{"time", utc_text(std::chrono::system_clock::now())}, {"dropped_lines", count}}) + "\n");
  } catch (const std::exception&) {
    return false;  // no memory: the next line that is written says it
  }
}

/// logrotate and its like give the file another name and wait for nobody. Looking is cheaper than a signal, which has to be sent.
void RequestLog::reopen_if_moved() {
  if (file_ <= STDERR_FILENO) return;
  struct stat named {
  }, open{};
  const bool is_there = ::stat(options_.file.c_str(), &named) == 0;
  if (is_there && ::fstat(file_, &open) == 0 && named.st_ino == open.st_ino && named.st_dev == open.st_dev) return;
  const int fresh = open_log(options_.file);
  if (fresh < 0) return;  // better the old one than none
  ::close(file_);
  file_ = fresh;
  is_torn_ = false;
}

RequestRecord::RequestRecord(std::shared_ptr<RequestLog> log, const HttpRequest& request, std::string key)
    : log_(std::move(log)),
      id_(request.id),
      client_(request.peer),
      key_(std::move(key)),
      method_(request.method),
      path_(request.path) {}

RequestRecord::~RequestRecord() {
  try {
    log_->write(line());
  } catch (const std::exception&) {
    log_->drop();  // out of memory
  }
}

std::string RequestRecord::line() const {
  Json json = {{"time", utc_text(time_)},
               {"id", id_},
               {"client", client_},
               {"key", text_or_null(key_)},
               {"method", text_or_null(method_)},
               {"path", text_or_null(path_)},
               {"status", status_ > 0 ? Json(status_) : Json()},
               {"stream", is_stream_},
               {"model", text_or_null(model_)},
               {"answers", num_answers_},
               {"finish", text_or_null(finish_)},
               {"prompt_tokens", prompt_tokens_},
               {"cached_tokens", cached_tokens_},
               {"generated_tokens", made_tokens_},
               {"reasoning_tokens", reasoning_tokens_},
               {"accepted_drafts", accepted_drafts_},
               {"rejected_drafts", rejected_drafts_},
               {"preemptions", preemptions_},
               {"queue_seconds", seconds_or_null(queue_seconds_)},
               {"first_token_seconds", seconds_or_null(first_token_seconds_)},
               {"total_seconds", seconds_or_null(total_seconds_.value_or(since_arrival()))},
               {"error", is_cut_ ? Json("the connection ended before the reply") : text_or_null(error_)}};
  if (log_->options().with_prompts) json["body"] = body_;
  return ascii_of(dump_json(json));
}

void RequestRecord::replied(int status, bool is_stream) {
  const std::lock_guard lock(mutex_);
  status_ = status;
  is_stream_ = is_stream;
  if (status >= 400 && error_.empty()) error_ = reason_phrase(status);
}

void RequestRecord::failed(std::string_view message) {
  const std::lock_guard lock(mutex_);
  if (error_.empty() && !is_cut_) error_ = message;
}

void RequestRecord::reply_ended(bool is_whole) {
  const std::lock_guard lock(mutex_);
  total_seconds_ = since_arrival();
  is_cut_ = !is_whole && error_.empty();
}

void RequestRecord::came_with(const std::string& body) {
  if (!log_->options().with_prompts) return;
  const std::lock_guard lock(mutex_);
  body_ = body;
}

void RequestRecord::asked(std::string_view model, std::int64_t num_answers) {
  const std::lock_guard lock(mutex_);
  model_ = model;
  num_answers_ = num_answers;
}

void RequestRecord::failed(const ApiError& error) {
  failed(log_->options().with_prompts ? error.message : without_values(error));
}

void RequestRecord::answered(const AnswerSummary& summary, AnswerOutcome outcome, std::int64_t reasoning_tokens) {
  const std::lock_guard lock(mutex_);
  const std::string_view finish = name_of(outcome);
  if (finish_.find(finish) == std::string::npos) finish_.append(finish_.empty() ? "" : ",").append(finish);
  prompt_tokens_ += summary.prompt_tokens;
  cached_tokens_ += summary.cached_tokens;
  made_tokens_ += summary.made_tokens;
  reasoning_tokens_ += reasoning_tokens;
  accepted_drafts_ += summary.accepted_drafts;
  rejected_drafts_ += summary.rejected_drafts;
  preemptions_ += summary.preemptions;
  queue_seconds_ = std::max(queue_seconds_.value_or(0), summary.queue_seconds);
  if (summary.made_tokens > 0) {
    first_token_seconds_ = std::min(first_token_seconds_.value_or(summary.first_token_seconds), summary.first_token_seconds);
  }
}

std::string key_mark(std::string_view key) {
  if (key.empty()) return {};
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a: the same in every run, and 32 bits of it are no way back to a good key
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return fmt::format("{:08x}", static_cast<std::uint32_t>(hash ^ (hash >> 32)));
}

}  // namespace calandra
