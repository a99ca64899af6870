#include "cli/line_reader.h"

#include "base/error.h"
#include "cli/terminal.h"

#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>

namespace calandra {
namespace {

constexpr int kHistoryEntries = 1000;
constexpr auto kIllFormed = static_cast<std::size_t>(-1);  // of mbrtowc

/// libedit reads characters through this, so that Ctrl-C ends the wait.
int read_character(EditLine*, wchar_t* character) {
  std::mbstate_t state{};
  bool inside = false;  // a character of several bytes
  for (;;) {
    if (!InterruptWatch::wait_for_input()) {
      errno = EINTR;
      return -1;
    }
    char byte = 0;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count <= 0) return static_cast<int>(count);
    std::size_t used = std::mbrtowc(character, &byte, 1, &state);
    if (used == kIllFormed && inside) {  // what came before was a stray beginning: skipped; this byte may begin anew
      state = {};
      used = std::mbrtowc(character, &byte, 1, &state);
    }
    if (used <= 1) return 1;
    inside = used != kIllFormed;
    if (!inside) state = {};
  }
}

/// The editor thinks in characters of the locale; any UTF-8 locale will do.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* history = nullptr;
  std::string prompt;

  static char* prompt_of(EditLine* line) {
    void* editor = nullptr;
    el_get(line, EL_CLIENTDATA, &editor);
    return static_cast<Editor*>(editor)->prompt.data();
  }
};

LineReader::LineReader(std::filesystem::path history_file)
    : editor_(std::make_unique<Editor>()), history_file_(std::move(history_file)) {
  use_utf8();
  remember_terminal();
  editor_->line = el_init("calandra", stdin, stdout_is_terminal() ? stdout : stderr, stderr);
  editor_->history = history_init();
  if (editor_->line == nullptr || editor_->history == nullptr) fail("cannot set up line editing");
  HistEvent event;
  history(editor_->history, &event, H_SETSIZE, kHistoryEntries);
  history(editor_->history, &event, H_SETUNIQUE, 1);
  if (!history_file_.empty()) history(editor_->history, &event, H_LOAD, history_file_.c_str());
  el_set(editor_->line, EL_CLIENTDATA, editor_.get());
  el_set(editor_->line, EL_PROMPT, &Editor::prompt_of);
  el_set(editor_->line, EL_EDITOR, "emacs");
  el_set(editor_->line, EL_SIGNAL, 0);
  el_set(editor_->line, EL_HIST, history, editor_->history);
  el_set(editor_->line, EL_GETCFN, read_character);
  el_set(editor_->line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineReader::~LineReader() {
  el_end(editor_->line);
  history_end(editor_->history);
}

LineReader::Result LineReader::read(const std::string& prompt, std::string& line) {
  InterruptWatch::clear();
  editor_->prompt = prompt;
  el_set(editor_->line, EL_PREP_TERM, 1);  // before the prompt shows, or the terminal may echo what is typed at once
  int count = 0;
  const char* text = el_gets(editor_->line, &count);
  if (text == nullptr || count <= 0) {
    const bool interrupted = InterruptWatch::pending();
    InterruptWatch::clear();
    return interrupted ? Result::Interrupted : Result::End;
  }
  line.assign(text, static_cast<std::size_t>(count));
  if (line.ends_with('\n')) line.pop_back();
  return Result::Line;
}

void LineReader::remember(const std::string& text) {
  HistEvent event;
  history(editor_->history, &event, H_ENTER, text.c_str());
  if (history_file_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(history_file_.parent_path(), ignored);
  const mode_t mask = ::umask(S_IRWXG | S_IRWXO);  // what a person types is their own business
  // Appended, so that chats at the same time do not lose each other's lines.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(history_file_.c_str(), "a"), &std::fclose);
  ::umask(mask);
  if (!file) return;
  std::fseek(file.get(), 0, SEEK_END);  // libedit begins an empty file with its mark
  constexpr std::size_t kBeforeTheLast = 0;
  history(editor_->history, &event, H_NSAVE_FP, kBeforeTheLast, file.get());
}

std::filesystem::path default_history_file() {
  const auto below = [](const char* variable, const char* path) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value == nullptr || *value == '\0' ? std::filesystem::path() : std::filesystem::path(value) / path;
  };
  if (const char* chosen = std::getenv("CALANDRA_HISTORY"); chosen != nullptr) return chosen;
  const std::filesystem::path state = below("XDG_STATE_HOME", "calandra/history");
  return state.empty() ? below("HOME", ".local/state/calandra/history") : state;
}

}  // namespace calandra
