#pragma once
// Lines typed by a person, with editing and a history that outlives the program.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace calandra {

class LineReader {
 public:
  enum class Result : std::uint8_t { Line, Interrupted, End };

  /// Standard input is a terminal and an InterruptWatch is in place. A history that cannot be read or written is done without.
  explicit LineReader(std::filesystem::path history_file);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Reads one line, without its end. Interrupted: Ctrl-C, and what was typed is dropped. End: Ctrl-D on an empty line.
  Result read(const std::string& prompt, std::string& line);

  /// A text of several lines is one entry.
  void remember(const std::string& text);

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;
  std::filesystem::path history_file_;
};

/// $CALANDRA_HISTORY, else $XDG_STATE_HOME/calandra/history or that below ~/.local/state; empty if there is to be none.
std::filesystem::path default_history_file();

}  // namespace calandra
