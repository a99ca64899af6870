#pragma once
// What the program knows of the terminal and of signals: whether there is a terminal, how to be seen on it, and Ctrl-C.

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace calandra {

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

/// Writes to standard output at once. Throws Error if that fails, for example on a full disk.
void write_out(std::string_view text);
/// Writes a message for the person, to standard error.
void write_note(std::string_view text);

/// Escape sequences for standard output, empty where they would not be understood or are not wanted (no terminal, NO_COLOR, TERM=dumb).
struct Style {
  std::string_view dim, bold, reset;
  static Style of_stdout();
};

/// A model's text made safe to show: control characters except newline and tab become visible, so that no text can drive the
/// terminal. `text` is whole characters of UTF-8.
std::string for_terminal(std::string_view text);

/// "572,120,680,768"
std::string with_commas(std::int64_t number);
/// A number of things in three digits: "572 B", "5.77 M"
std::string short_count(std::int64_t number);
/// "534 GiB", "11.1 MiB"
std::string short_bytes(std::int64_t bytes);

/// One line on standard error that fills while something long runs and vanishes at its end; not for what takes less than a moment. Where
/// standard error is no terminal there is a line for each phase instead, if the work has such.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done, std::int64_t total);
  void begin_phase(const std::string& phase) const;
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool enabled_;
  bool shown_ = false;
  Clock::time_point next_;  // when to draw again
};

/// The same in one line, for messages.
std::string one_line(std::string_view text);

/// To be called once, first: missing standard streams are replaced, writing to a pipe nobody reads ends the program and writing
/// past a limit is an error, SIGTERM and SIGHUP give the terminal back as it was found, and a mapped file that was cut off while in
/// use (SIGBUS) ends the program with a message.
void prepare_process();

/// To be called before the terminal's settings are changed: how it is given back.
void remember_terminal();

/// What went wrong, for a message of one line.
std::string message_of(const std::exception& error);

/// Ctrl-C as a question to ask, instead of the end of the program. One at a time; the old meaning comes back with the destructor.
class InterruptWatch {
 public:
  /// What a second Ctrl-C does while nobody has asked about the first.
  enum class Second : std::uint8_t { Ignored, EndsProgram };
  /// Whether SIGTERM and SIGHUP ask the same question.
  enum class Ending : std::uint8_t { AsEver, Asked };

  explicit InterruptWatch(Second second, Ending ending = Ending::AsEver);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  /// Whether Ctrl-C came since the last clear().
  static bool pending();
  static void clear();

  /// Returns true when standard input has something to read, false when Ctrl-C comes first.
  static bool wait_for_input();
  /// Returns when Ctrl-C has come.
  static void wait();

 private:
  std::size_t num_signals_;
};

}  // namespace calandra
