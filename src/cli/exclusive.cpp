#include "cli/exclusive.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace calandra {
namespace {

constexpr int kPriority = -20;
constexpr std::array kHandedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

volatile std::sig_atomic_t child_process = 0;

extern "C" void hand_on(int signal) {
  const int saved_errno = errno;
  ::kill(static_cast<pid_t>(child_process), signal);
  errno = saved_errno;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("waiting for the measuring process: {}", std::strerror(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Empty, or why it could not be written.
std::string write_to(const char* file, const std::string& text) {
  const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return std::strerror(errno);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  std::string why = written ? "" : std::strerror(errno);
  ::close(fd);
  return why;
}

std::string become_undisturbed() {
  std::string refused;
  const auto note = [&](const char* what, const std::string& why) {
    if (!why.empty()) refused += fmt::format("{}{}: {}", refused.empty() ? "" : "; ", what, why);
  };
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a parent that was killed outright hands nothing on
  note("session", ::setsid() < 0 ? std::strerror(errno) : "");
  note("priority -20", ::setpriority(PRIO_PROCESS, 0, kPriority) < 0 ? std::strerror(errno) : "");
  note("/proc/self/autogroup", write_to("/proc/self/autogroup", std::to_string(kPriority)));
  return refused;
}

}  // namespace

std::optional<int> go_on_undisturbed(std::string& refused) {
  // Signals wait until both processes know what to do with them.
  sigset_t handed_on, before;
  sigemptyset(&handed_on);
  for (const int signal : kHandedOn) sigaddset(&handed_on, signal);
  ::sigprocmask(SIG_BLOCK, &handed_on, &before);
  const pid_t child = ::fork();
  if (child < 0) {
    const std::string why = std::strerror(errno);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    fail("--exclusive: no process of its own: {}", why);
  }
  if (child == 0) {
    refused = become_undisturbed();
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return std::nullopt;
  }
  child_process = child;
  for (const int signal : kHandedOn) std::signal(signal, hand_on);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return wait_for(child);
}

}  // namespace calandra
