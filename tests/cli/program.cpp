#include "cli/program.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

[[noreturn]] void become(const Arguments& arguments) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  ::_exit(127);
}

int exit_code_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Milliseconds until then, for poll().
int time_left(Clock::time_point deadline) {
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count()));
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
};

/// Reads both until they end; false if that takes too long.
bool collect(int out, int err, Outcome& outcome) {
  const auto deadline = Clock::now() + kPatience;
  std::array<pollfd, 2> watched = {{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  std::array<std::string*, 2> texts = {&outcome.out, &outcome.err};
  std::array<char, 1 << 16> buffer;
  while (watched[0].fd >= 0 || watched[1].fd >= 0) {
    if (::poll(watched.data(), watched.size(), time_left(deadline)) <= 0) return false;
    for (std::size_t i = 0; i < watched.size(); ++i) {
      if (watched[i].fd < 0 || watched[i].revents == 0) continue;
      const ssize_t count = ::read(watched[i].fd, buffer.data(), buffer.size());
      if (count > 0) {
        texts[i]->append(buffer.data(), static_cast<std::size_t>(count));
      } else {
        watched[i].fd = -1;
      }
    }
  }
  return true;
}

Outcome run_words(const Arguments& words, std::string_view input) {
  Pipe in, out, err;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in.read_end, STDIN_FILENO);
    ::dup2(out.write_end, STDOUT_FILENO);
    ::dup2(err.write_end, STDERR_FILENO);
    become(words);
  }
  ::close(in.read_end);
  ::close(out.write_end);
  ::close(err.write_end);
  // Inputs of these tests fit the pipe.
  EXPECT_EQ(::write(in.write_end, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  ::close(in.write_end);
  Outcome outcome;
  if (!collect(out.read_end, err.read_end, outcome)) {
    ADD_FAILURE() << "the program does not end";
    ::kill(child, SIGKILL);
  }
  ::close(out.read_end);
  ::close(err.read_end);
  outcome.code = exit_code_of(child);
  return outcome;
}

}  // namespace

Outcome run_program(const Arguments& arguments, std::string_view input) {
  Arguments words = {CALANDRA_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_words(words, input);
}

Outcome run_shell(const std::string& line) {
  ::setenv("CALANDRA", CALANDRA_BINARY, 1);
  return run_words({"/bin/sh", "-c", line}, "");
}

Outcome run_beside_server(const std::string& options, const std::string& script, const Arguments& words,
                          const std::string& environment) {
  const auto quoted = [](const std::string& word) {
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  };
  const std::string whole = R"SH(
    folder=$(mktemp -d) said=$folder/said
    "$CALANDRA" serve --port 0 )SH" +
                            options + R"SH( 2>"$said" & server=$!
    trap 'kill -KILL "$server" 2>/dev/null; rm -r "$folder"' EXIT
    for _ in $(seq 500); do port=$(sed -n 's/.* on http:\/\/127.0.0.1:\([0-9]*\),.*/\1/p' "$said"); [ -n "$port" ] && break; sleep 0.1; done
  )SH" + script;
  std::string line = "export CALANDRA; " + environment + "LC_ALL=C bash -c " + quoted(whole) + " bash";
  for (const std::string& word : words) line += " " + quoted(word);
  return run_shell(line);
}

TerminalRun::TerminalRun(const Arguments& arguments, const std::map<std::string, std::string>& environment) {
  Arguments words = {CALANDRA_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const winsize size = {.ws_row = 50, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (child_ == 0) {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("CALANDRA_HISTORY");  // a developer's own
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    become(words);
  }
}

TerminalRun::~TerminalRun() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    exit_code_of(child_);
  }
  ::close(terminal_);
}

void TerminalRun::wait_for_prompt() {
  // The line editor takes single keys; before it does, the terminal itself would echo and collect a line.
  const auto deadline = Clock::now() + kPatience;
  termios mode{};
  while (::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & ICANON) != 0 && Clock::now() < deadline) ::usleep(1000);
}

void TerminalRun::type(std::string_view text) {
  if (text != kControlC) wait_for_prompt();
  EXPECT_EQ(::write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

bool TerminalRun::read_more(Clock::time_point deadline) {
  pollfd watched = {terminal_, POLLIN, 0};
  if (::poll(&watched, 1, time_left(deadline)) <= 0) return false;
  char buffer[4096];
  const ssize_t count = ::read(terminal_, buffer, sizeof(buffer));
  if (count <= 0) return false;
  seen_.append(buffer, static_cast<std::size_t>(count));
  return true;
}

std::string TerminalRun::expect(std::string_view text) {
  const auto deadline = Clock::now() + kPatience;
  std::size_t at = 0;
  while ((at = seen_.find(text)) == std::string::npos) {
    if (!read_more(deadline)) {
      ADD_FAILURE() << "expected \"" << text << "\" on the terminal, which has: " << seen_;
      return {};
    }
  }
  std::string before = seen_.substr(0, at + text.size());
  seen_.erase(0, at + text.size());
  return before;
}

int TerminalRun::wait() {
  while (read_more(Clock::now() + kPatience)) continue;
  const int code = exit_code_of(child_);
  child_ = -1;
  return code;
}

}  // namespace calandra
