#pragma once
// Runs the program `calandra` as a person or a script does: with pipes, or at a terminal of its own.

#include "support/golden.h"
#include "support/json.h"

#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

inline const std::string kBundledModel = CALANDRA_SOURCE_DIR "/models/austen-5m";

using Arguments = std::vector<std::string>;

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;

  Json json() const { return json_of(out); }
};

/// Runs the program to its end, with pipes. A run of more than a minute fails the test and is killed.
Outcome run_program(const Arguments& arguments, std::string_view input = "");

/// A shell line in which $CALANDRA is the program.
Outcome run_shell(const std::string& line);

/// Runs a bash script beside `calandra serve OPTIONS` on the bundled model, which is killed at its end. The script has the
/// program as $CALANDRA, the server's port and process as $port and $server, what it says as the file $said, a folder for what it
/// writes as $folder, and the words as $1, $2 and so on. `environment` is for all of it: "NAME=VALUE ".
Outcome run_beside_server(const std::string& options, const std::string& script, const Arguments& words = {},
                          const std::string& environment = {});

inline constexpr std::string_view kControlC = "\x03";
inline constexpr std::string_view kControlD = "\x04";

/// The program at a pseudo-terminal: what is typed goes in, what the screen gets comes out.
class TerminalRun {
 public:
  explicit TerminalRun(const Arguments& arguments, const std::map<std::string, std::string>& environment = {});
  ~TerminalRun();
  TerminalRun(const TerminalRun&) = delete;
  TerminalRun& operator=(const TerminalRun&) = delete;

  /// Waits until the line editor listens, but for Ctrl-C, which is meant for whatever runs.
  void type(std::string_view text);
  /// Everything up to and with `text`, from where the last call ended. Fails the test if it does not come within a minute.
  std::string expect(std::string_view text);
  /// Waits for the end of the program: its exit code.
  int wait();
  /// What came and was not yet expected.
  const std::string& rest() const { return seen_; }

 private:
  void wait_for_prompt();
  bool read_more(std::chrono::steady_clock::time_point deadline);

  pid_t child_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

}  // namespace calandra
