// Drives a fuzz target where libFuzzer does not exist: replays a corpus, then mutates it at random until the time is up. The
// sequence of mutations is fixed. An input that crashes the target or hangs is left in a file, as libFuzzer does.
//
//   fuzz_NAME [-max_total_time=SECONDS] [-runs=N] [-artifact_prefix=PREFIX] FILE_OR_FOLDER...

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kLargestInput = 1 << 16;
constexpr unsigned kHangSeconds = 20;  // with room for sanitizers on a busy machine

// What the signal handler writes: plain data, set before each run.
const std::uint8_t* current_data = nullptr;
std::size_t current_size = 0;
std::string crash_file = "crash-input";

void write_message(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void save_current_input() {
  const int file = ::open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || ::write(file, current_data, current_size) < 0) return;
  ::close(file);
  write_message("input that failed: ");
  write_message(crash_file);
  write_message("\n");
}

void on_signal(int number) {
  write_message(number == SIGALRM ? "an input took too long\n" : "an input crashed the target\n");
  save_current_input();
  std::signal(number, SIG_DFL);
  ::raise(number);
}

void run_one(const Input& input) {
  current_data = input.data();
  current_size = input.size();
  ::alarm(kHangSeconds);
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

Input read_input(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(1);
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Files of the arguments, in name order.
std::vector<Input> read_corpus(const std::vector<std::string>& arguments) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& argument : arguments) {
    if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) paths.push_back(entry.path());
    } else {
      paths.emplace_back(argument);
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus;
  corpus.reserve(paths.size());
  for (const auto& path : paths) corpus.push_back(read_input(path));
  if (corpus.empty()) corpus.emplace_back();
  return corpus;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Input>& corpus) : corpus_(corpus) {}

  /// A corpus input with one to eight changes.
  Input next() {
    Input input = any_input();
    for (std::size_t changes = 1 + below(8); changes > 0; --changes) change(input);
    if (input.size() > kLargestInput) input.resize(kLargestInput);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(random_() % limit); }
  const Input& any_input() { return corpus_[below(corpus_.size())]; }

  void change(Input& input) {
    switch (below(7)) {
      case 0: flip_bit(input); break;
      case 1: set_byte(input); break;
      case 2: insert(input, random_bytes()); break;
      case 3: insert(input, word()); break;
      case 4: insert(input, piece_of(input)); break;
      case 5: insert(input, piece_of(any_input())); break;
      default: erase(input); break;
    }
  }

  void flip_bit(Input& input) {
    if (!input.empty()) input[below(input.size())] ^= static_cast<std::uint8_t>(1u << below(8));
  }

  void set_byte(Input& input) {
    if (!input.empty()) input[below(input.size())] = static_cast<std::uint8_t>(below(256));
  }

  Input random_bytes() {
    Input bytes(1 + below(8));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(below(256));
    return bytes;
  }

  /// Pieces that parsers stumble on: numbers at limits, brackets, escapes, broken UTF-8.
  Input word() {
    static constexpr std::string_view words[] = {"0",
                                                 "-1",
                                                 "1e999",
                                                 "9223372036854775807",
                                                 "18446744073709551616",
                                                 "0.1",
                                                 "null",
                                                 "true",
                                                 "[",
                                                 "]",
                                                 "{",
                                                 "}",
                                                 "{{",
                                                 "}}",
                                                 "{%",
                                                 "%}",
                                                 "\"",
                                                 "\\u0000",
                                                 "\\ud800",
                                                 "\\",
                                                 ",",
                                                 ":",
                                                 "<",
                                                 ">",
                                                 "</",
                                                 "\n",
                                                 "\xff",
                                                 "\xc3",
                                                 "\xed\xa0\x80",
                                                 "\xf4\x90\x80\x80"};
    const std::string_view chosen = words[below(std::size(words))];
    return {chosen.begin(), chosen.end()};
  }

  Input piece_of(const Input& input) {
    const std::size_t begin = below(input.size());
    const std::size_t length = below(std::min<std::size_t>(input.size() - begin, 64) + 1);
    const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(length)};
  }

  void insert(Input& input, const Input& bytes) {
    const auto at = static_cast<std::ptrdiff_t>(below(input.size() + 1));
    input.insert(input.begin() + at, bytes.begin(), bytes.end());
  }

  void erase(Input& input) {
    const std::size_t begin = below(input.size());
    const std::size_t length = below(std::min<std::size_t>(input.size() - begin, 64) + 1);
    const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin);
    input.erase(first, first + static_cast<std::ptrdiff_t>(length));
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t most_runs = UINT64_MAX;
  std::string prefix;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(std::min(argument.find('='), argument.size() - 1) + 1);
    if (argument.starts_with("-max_total_time=")) {
      seconds = std::stod(value);
    } else if (argument.starts_with("-runs=")) {
      most_runs = std::stoull(value);
    } else if (argument.starts_with("-artifact_prefix=")) {
      prefix = value;
    } else if (argument.starts_with("-")) {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    } else {
      paths.push_back(argument);
    }
  }
  crash_file = prefix + crash_file;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) std::signal(number, on_signal);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const std::vector<Input> corpus = read_corpus(paths);
  std::uint64_t runs = 0;
  for (const Input& input : corpus) {
    run_one(input);
    ++runs;
  }
  Mutator mutator(corpus);
  for (; runs < most_runs && elapsed() < seconds; ++runs) run_one(mutator.next());
  ::alarm(0);
  std::printf("%zu corpus inputs, %llu runs in %.1f s\n", corpus.size(), static_cast<unsigned long long>(runs), elapsed());
  return 0;
}
