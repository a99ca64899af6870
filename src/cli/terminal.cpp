#include "cli/terminal.h"

#include "base/error.h"
#include "text/unicode.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace calandra {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 400ms;  // before a bar appears
constexpr auto kRedraw = 100ms;
constexpr int kBarWidth = 30;
constexpr char kReset[] = "\x1b[0m";

// What the signal handler touches. The pipe wakes a wait for input, whichever thread the signal came to.
volatile std::sig_atomic_t interrupt_pending = 0;
volatile std::sig_atomic_t second_ends_program = 0;
volatile std::sig_atomic_t style_in_use = 0;
constexpr std::array kAskedSignals = {SIGINT, SIGTERM, SIGHUP};  // the first alone where endings are as ever
std::array<struct sigaction, kAskedSignals.size()> before_watch;
volatile std::sig_atomic_t changes_terminal = 0;
termios found_terminal;  // as it was before
int wake_pipe[2] = {-1, -1};

void give_terminal_back() {
  if (style_in_use != 0) [[maybe_unused]]
    const auto written = ::write(STDOUT_FILENO, kReset, sizeof(kReset) - 1);
  // From the background the terminal is not ours to set: asking would stop the process.
  if (changes_terminal != 0 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp()) ::tcsetattr(STDIN_FILENO, TCSANOW, &found_terminal);
}

extern "C" void on_end(int signal) {
  give_terminal_back();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

extern "C" void on_interrupt(int signal) {
  const int saved_errno = errno;
  if (interrupt_pending != 0 && second_ends_program != 0) on_end(signal);
  interrupt_pending = 1;
  [[maybe_unused]] const auto written = ::write(wake_pipe[1], "", 1);
  errno = saved_errno;
}

extern "C" void on_bus_error(int) {
  constexpr std::string_view kMessage =
      "calandra: a file that is in use was cut off or cannot be read any more (SIGBUS): the program ends\n";
  give_terminal_back();
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(1);
}

/// Leaves a signal alone that is ignored, as SIGHUP under nohup. Returns the old meaning.
struct sigaction handle(int signal, void (*handler)(int)) {
  struct sigaction before {};
  ::sigaction(signal, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return before;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
  return before;
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool terminal_understands_escapes() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::strcmp(terminal, "dumb") != 0;
}

/// Three digits and a unit.
std::string scaled(double value, double step, std::initializer_list<const char*> units) {
  const auto* unit = units.begin();
  while (value >= step && unit + 1 != units.end()) {
    value /= step;
    ++unit;
  }
  if (unit == units.begin()) return fmt::format("{:.0f}{}", value, *unit);
  return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, *unit);
}

}  // namespace

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("standard output: {}", std::strerror(errno));
  }
}

void write_note(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

Style Style::of_stdout() {
  if (!stdout_is_terminal() || is_set("NO_COLOR") || !terminal_understands_escapes()) return {};
  style_in_use = 1;
  return {"\x1b[2m", "\x1b[1m", kReset};
}

std::string for_terminal(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view unit = text.substr(0, first_utf8_unit(text).size);
    const auto byte = static_cast<unsigned char>(unit[0]);
    const bool c1 = unit.size() == 2 && byte == 0xC2 && static_cast<unsigned char>(unit[1]) < 0xA0;
    if (unit == "\n" || unit == "\t" || (byte >= 0x20 && byte != 0x7F && !c1)) {
      out += unit;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(unit.back()));
    }
    text.remove_prefix(unit.size());
  }
  return out;
}

std::string one_line(std::string_view text) {
  std::string out = for_terminal(text);
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

std::string message_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : one_line(error.what());
}

std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string short_count(std::int64_t number) { return scaled(static_cast<double>(number), 1000, {"", " K", " M", " B", " T"}); }

std::string short_bytes(std::int64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      enabled_(stderr_is_terminal() && terminal_understands_escapes()),
      next_(Clock::now() + kPatience) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (!enabled_ || total <= 0 || Clock::now() < next_) return;
  next_ = Clock::now() + kRedraw;
  shown_ = true;
  const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int filled = static_cast<int>(part * kBarWidth);
  write_note(fmt::format("\r\x1b[K{} [{}{}] {:3.0f} %", label_, std::string(static_cast<std::size_t>(filled), '#'),
                         std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), 100 * part));
}

void ProgressBar::begin_phase(const std::string& phase) const {
  if (!enabled_) write_note(fmt::format("{}: {}\n", label_, phase));
}

void ProgressBar::clear() {
  if (shown_) write_note("\r\x1b[K");
  shown_ = false;
}

void prepare_process() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // Or the next file that is opened takes the place of the stream. Writing to this one fails, as it should.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
  std::signal(SIGPIPE, SIG_DFL);  // `calandra ... | head -1` ends quietly, even if the parent ignores the signal
  std::signal(SIGXFSZ, SIG_IGN);  // a file at the size limit is an error of write(), not the end of the program
  handle(SIGTERM, on_end);
  handle(SIGHUP, on_end);
  handle(SIGBUS, on_bus_error);
}

void remember_terminal() { changes_terminal = ::tcgetattr(STDIN_FILENO, &found_terminal) == 0 ? 1 : 0; }

InterruptWatch::InterruptWatch(Second second, Ending ending) : num_signals_(ending == Ending::Asked ? kAskedSignals.size() : 1) {
  if (wake_pipe[0] < 0 && ::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) fail("pipe: {}", std::strerror(errno));
  clear();
  second_ends_program = second == Second::EndsProgram ? 1 : 0;
  for (std::size_t i = 0; i < num_signals_; ++i) before_watch[i] = handle(kAskedSignals[i], on_interrupt);
}

InterruptWatch::~InterruptWatch() {
  for (std::size_t i = 0; i < num_signals_; ++i) ::sigaction(kAskedSignals[i], &before_watch[i], nullptr);
}

bool InterruptWatch::pending() { return interrupt_pending != 0; }

void InterruptWatch::clear() {
  char byte = 0;
  while (::read(wake_pipe[0], &byte, 1) == 1) continue;
  interrupt_pending = 0;
}

bool InterruptWatch::wait_for_input() {
  std::array<pollfd, 2> waited = {{{STDIN_FILENO, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}}};
  while (::poll(waited.data(), waited.size(), -1) < 0 && errno == EINTR) continue;
  return waited[1].revents == 0;
}

void InterruptWatch::wait() {
  pollfd waited = {wake_pipe[0], POLLIN, 0};
  while (::poll(&waited, 1, -1) < 0 && errno == EINTR) continue;
}

}  // namespace calandra
