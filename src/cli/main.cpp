// The program `calandra`: reads the command line and runs one command. Nothing else here; commands.h says what there is.

#include "checkpoint/generation.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "engine/sampler.h"
#include "verify/script.h"
#include "verify/server_check.h"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace calandra {
namespace {

constexpr const char* kModelHelp = "A folder as published on Hugging Face, or owner/name in the local Hugging Face cache";

/// "yarn:2"
double parse_rope_scaling(const std::string& text) {
  constexpr std::string_view kPrefix = "yarn:";
  double factor = 0;
  const char* const end = text.data() + text.size();
  const bool named = text.starts_with(kPrefix);
  const auto [stop, error] = std::from_chars(text.data() + (named ? kPrefix.size() : 0), end, factor);
  if (!named || error != std::errc() || stop != end)
    throw UsageError(fmt::format("--rope-scaling {}: expected yarn:FACTOR, as in yarn:2", text));
  return factor;
}

/// "4500000000", "4.5GB", "512 MiB": bytes.
std::int64_t parse_size(const std::string& option, const std::string& text) {
  constexpr std::string_view kPrefixes = "KMGT";
  double size = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  std::string unit;
  for (const char c : text.substr(static_cast<std::size_t>(stop - text.data())))
    if (c != ' ') unit += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::size_t prefix = unit.empty() ? std::string_view::npos : kPrefixes.find(unit[0]);
  if (prefix != std::string_view::npos) {
    unit.erase(0, 1);
    const bool binary = unit.starts_with('I');
    if (binary) unit.erase(0, 1);
    size *= std::pow(binary ? 1024 : 1000, prefix + 1);
  }
  const double whole = std::round(size);
  const bool is_whole = std::fabs(size - whole) <= 1e-15 * size;  // 4.1 times a million is not quite 4,100,000
  if (error != std::errc() || !(unit.empty() || unit == "B") || !(size >= 1 && size <= 1e15) || !is_whole)
    throw UsageError(fmt::format("{} {}: expected whole bytes up to 1,000 TB, as in 4500000000, 4.5GB or 512MiB", option, text));
  return static_cast<std::int64_t>(whole);
}

/// What a word that an option takes stands for.
template <class T>
struct Word {
  const char* word;
  T meaning;
};

/// An option that takes one of some words.
template <class T, class Target>
CLI::Option* add_words(CLI::App& command, const std::string& name, Target& target, const std::vector<Word<T>>& words,
                       const std::string& help) {
  std::string all;
  for (const Word<T>& word : words) all += (all.empty() ? "" : "|") + std::string(word.word);
  const auto read = [&target, words, all, name](const std::string& text) {
    for (const Word<T>& word : words) {
      if (text == word.word) {
        target = word.meaning;
        return;
      }
    }
    throw UsageError(fmt::format("{} {}: expected {}", name, text, all));
  };
  return command.add_option_function<std::string>(name, read, help)->type_name(all);
}

template <class T>
struct NumberOf {
  using Type = T;
};
template <class T>
struct NumberOf<std::optional<T>> {
  using Type = T;
};

/// An option that takes a number from `least` to `most`. Nothing is rounded, cut or wrapped.
template <class Target, class Number = typename NumberOf<Target>::Type>
CLI::Option* add_number(CLI::App& command, const std::string& name, Target& target, std::type_identity_t<Number> least,
                        std::type_identity_t<Number> most, const std::string& help, const std::string& expected = {}) {
  const std::string shown = name.substr(name.find("--"));  // of "-n,--max-tokens"
  const auto read = [&target, least, most, shown, expected](const std::string& text) {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || !(number >= least && number <= most)) {
      const char* kind = std::is_integral_v<Number> ? "an integer" : "a number";
      throw UsageError(fmt::format("{} {}: expected {}", shown, text,
                                   expected.empty() ? fmt::format("{} from {} to {}", kind, least, most) : expected));
    }
    target = number;
  };
  return command.add_option_function<std::string>(name, read, help)->type_name("N");
}

constexpr int kMostThreads = 4096;
constexpr std::int64_t kMostBatch = 65536;
constexpr int kMostRounds = 1000;

/// "--temp T [the model's]"
class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() { column_width(38); }

  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0) text += " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    if (option->get_required()) text += " (required)";
    return text;
  }
};

/// The options of a command as docs/ have them, in a table (tools/update_docs.sh).
std::string options_as_markdown(const CLI::App& command) {
  const auto code = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
    return fmt::format("`{}`", text);
  };
  std::string table = "| option | unless given | |\n|---|---|---|\n";
  for (const std::string& group : command.get_groups()) {
    const auto options = command.get_options(
        [&](const CLI::Option* option) { return option->get_group() == group && option != command.get_help_ptr(); });
    if (group != "Options") table += fmt::format("| **{}** | | |\n", group);
    for (const CLI::Option* option : options) {
      const std::string type = option->nonpositional() ? option->get_type_name() : "";
      table += fmt::format("| {} | {} | {} |\n", code(option->get_name() + (type.empty() ? "" : " " + type)),
                           option->get_default_str(), option->get_description());
    }
  }
  return table;
}

/// "1,2,3"; nothing if it is not that.
template <class Number>
std::optional<std::vector<Number>> parse_list(const std::string& text) {
  std::vector<Number> numbers;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    const auto [stopped, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc{} || (stopped != end && *stopped != ',')) return std::nullopt;
    if (stopped == end) return numbers;
    at = stopped;
  }
}

/// "auto", or a number; nothing if it is neither.
std::optional<DraftSetting> parse_drafts(std::string_view text) {
  if (text == "auto") return DraftSetting{.automatic = true, .drafts = kMostDrafts};
  DraftSetting setting{.automatic = false, .drafts = 0};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, setting.drafts);
  const bool is_right = error == std::errc() && stop == end && setting.drafts >= 0 && setting.drafts <= kMostDrafts;
  return is_right ? std::optional(setting) : std::nullopt;
}

/// "0,2,auto"
std::vector<DraftSetting> parse_draft_list(const std::string& text) {
  std::vector<DraftSetting> settings;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::optional<DraftSetting> setting = parse_drafts(std::string_view(text).substr(at, comma - at));
    if (!setting)
      throw UsageError(fmt::format("--draft {}: expected integers from 0 to {} or auto, separated by commas", text, kMostDrafts));
    settings.push_back(*setting);
    at = comma + 1;
  }
  return settings;
}

/// "12:-100"
TokenBias parse_bias(const std::string& text) {
  TokenBias bias;
  const char* const end = text.data() + text.size();
  const auto [colon, id_error] = std::from_chars(text.data(), end, bias.token);
  bool is_right = id_error == std::errc() && bias.token >= 0 && colon != end && *colon == ':';
  if (is_right) {
    const auto [stop, error] = std::from_chars(colon + 1, end, bias.bias);
    is_right = error == std::errc() && stop == end && std::abs(bias.bias) <= kMostBias;
  }
  if (!is_right) {
    throw UsageError(fmt::format("--logit-bias {}: expected a token id and a number from -100 to 100, as in 12:-100", text));
  }
  return bias;
}

std::vector<std::int32_t> parse_ids(const std::string& text) {
  if (auto ids = parse_list<std::int32_t>(text)) return *std::move(ids);
  fail("--ids {}: expected token ids separated by commas, such as 1,2,3", text);
}

/// An option that takes some numbers from `least` to `most`. The target is a vector of them, or an optional one.
template <class Target, class Number = typename NumberOf<Target>::Type::value_type>
CLI::Option* add_numbers(CLI::App& command, const std::string& name, Target& target, std::type_identity_t<Number> least,
                         std::type_identity_t<Number> most, const std::string& help) {
  const std::string shown = name.substr(name.find("--"));
  const auto read = [&target, least, most, shown](const std::string& text) {
    const std::optional<std::vector<Number>> numbers = parse_list<Number>(text);
    const auto is_out = [&](Number number) { return !(number >= least && number <= most); };
    if (!numbers || std::any_of(numbers->begin(), numbers->end(), is_out)) {
      const char* kind = std::is_integral_v<Number> ? "integers" : "numbers";
      throw UsageError(fmt::format("{} {}: expected {} from {} to {}, separated by commas", shown, text, kind, least, most));
    }
    target = *numbers;
  };
  return command.add_option_function<std::string>(name, read, help)->type_name("N,...");
}

/// An option that takes a length, or a range of them: "512", "128:4096".
CLI::Option* add_lengths(CLI::App& command, const std::string& name, LengthRange& target, const std::string& help) {
  const auto read = [&target, name](const std::string& text) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, target.least);
    target.most = target.least;
    bool is_right = error == std::errc();
    if (is_right && stop != end) {
      const auto [last, last_error] = std::from_chars(stop + 1, end, target.most);
      is_right = *stop == ':' && last_error == std::errc() && last == end;
    }
    if (!is_right || target.least < 1 || target.most < target.least || target.most > kMaxContext) {
      throw UsageError(
          fmt::format("{} {}: expected a length, or two with a colon between them, from 1 to {}", name, text, kMaxContext));
    }
  };
  return command.add_option_function<std::string>(name, read, help)->type_name("N|A:B");
}

/// The commands, their options, and what they are to be run with.
class CommandLine {
 public:
  CommandLine() {
    app_.set_version_flag("--version", version_text, "Print version, compiler and instruction set");
    app_.set_help_flag("-h,--help", "Print this help");
    app_.formatter(std::make_shared<HelpFormat>());
    app_.require_subcommand(1);
    app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app_.failure_message([](const CLI::App*, const CLI::Error& error) { return std::string(error.what()); });
    app_.footer("calandra COMMAND --help, or calandra help COMMAND, lists the options of a command.");
    add_run();
    add_serve();
    add_inspect();
    add_bench();
    add_verify();
    add_perplexity();
    add_trace();
    add_make_checkpoint();
    add_convert();
    add("version", "Print version, compiler and instruction set", [] {
      write_out(version_text() + "\n");
      return kExitSuccess;
    });
  }

  int run(int argc, char** argv) {
    if (argc == 4 && argv[1] == std::string_view("help") && argv[2] == std::string_view("--markdown")) {
      write_out(options_as_markdown(*app_.get_subcommand(argv[3])));
      return kExitSuccess;
    }
    try {
      app_.parse(arguments_of(argc, argv));
    } catch (const CLI::ParseError& error) {
      if (dynamic_cast<const CLI::Success*>(&error) != nullptr) {
        write_out(dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr ? version_text() + "\n" : app_.help());
        return kExitSuccess;
      }
      const bool no_command = app_.get_subcommands().empty() && error.get_name() == "RequiredError";
      const std::string what = !no_command ? error.what()
                               : argc > 1  ? fmt::format("{}: no such {}", argv[1], argv[1][0] == '-' ? "option" : "command")
                                           : "a command is needed";
      throw UsageError(fmt::format("{} ({} --help)", what, name_of_chosen()));
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
    // The innermost one: it was added after the command that it belongs to.
    for (auto chosen = actions_.rbegin(); chosen != actions_.rend(); ++chosen) {
      if (chosen->first->parsed()) return chosen->second();
    }
    return kExitUsage;
  }

 private:
  /// The words after the program's name, the last first as the parser wants them; "help COMMAND" is "COMMAND --help".
  std::vector<std::string> arguments_of(int argc, char** argv) const {
    std::vector<std::string> words(argv + 1, argv + argc);
    if (!words.empty() && words[0] == "help") {
      words.erase(words.begin());
      const auto is_named = [&](const auto& command) { return command.first->get_name() == words[0]; };
      if (!words.empty() && std::none_of(actions_.begin(), actions_.end(), is_named)) {
        throw UsageError(fmt::format("help {}: no such command (calandra --help)", words[0]));
      }
      const bool is_nested = words.size() > 1 && words[0] == "bench" && words[1] == "serve";
      words.insert(words.begin() + (is_nested ? 2 : words.empty() ? 0 : 1), "--help");
    }
    std::reverse(words.begin(), words.end());
    return words;
  }

  CLI::App* add(const std::string& name, const std::string& description, std::function<int()> action) {
    return add_below(app_, name, description, std::move(action));
  }

  CLI::App* add_below(CLI::App& above, const std::string& name, const std::string& description, std::function<int()> action) {
    CLI::App* command = above.add_subcommand(name, description);
    command->footer("");  // not the program's
    actions_.emplace_back(command, std::move(action));
    return command;
  }

  std::string name_of_chosen() const {
    std::string name = "calandra";
    for (auto chosen = app_.get_subcommands(); !chosen.empty(); chosen = chosen.front()->get_subcommands()) {
      name += " " + chosen.front()->get_name();
    }
    return name;
  }

  static void add_overrides(CLI::App& command, ConfigOverrides& overrides) {
    add_number(command, "--context", overrides.context, 1, kMaxContext,
               "Tokens of context: less, or by name more than config.json allows")
        ->type_name("TOKENS")
        ->group("Model");
    command
        .add_option_function<std::string>(
            "--rope-scaling", [&overrides](const std::string& text) { overrides.yarn_factor = parse_rope_scaling(text); },
            "Stretch positions and with them the context: yarn:2 doubles it")
        ->type_name("yarn:FACTOR")
        ->group("Model");
  }

  /// Of commands that make answers.
  static void add_draft_tokens(CLI::App& command, DraftSetting& drafts, const std::string& group) {
    const auto read = [&drafts](const std::string& text) {
      const std::optional<DraftSetting> setting = parse_drafts(text);
      if (!setting)
        throw UsageError(fmt::format("--draft-tokens {}: expected auto or an integer from 0 to {}", text, kMostDrafts));
      drafts = *setting;
    };
    command
        .add_option_function<std::string>(
            "--draft-tokens", read,
            "Tokens that a step guesses and verifies beyond the one it makes, by the model's MTP layer or from "
            "the text: as many as pay, always N, or 0. The answer does not depend on it")
        ->type_name("auto|N")
        ->default_str("auto")
        ->group(group);
  }

  static void add_model_options(CLI::App& command, ModelArguments& model, bool with_fp8) {
    std::vector<Word<Activations>> words = {{"bf16", Activations::Bf16}, {"fp32", Activations::Fp32}};
    if (with_fp8) words.push_back({"fp8", Activations::Fp8});
    add_words(command, "--activations", model.activations, words, "Precision in which activations enter a product")
        ->default_str("bf16")
        ->group("Model");
    const std::vector<Word<CacheType>> caches = {{"bf16", CacheType::BF16}, {"fp8", CacheType::Fp8}};
    add_words(command, "--kv", model.latents, caches, "How latents are cached: fp8 takes half of bf16's memory")
        ->default_str("as the activations")
        ->group("Model");
    add_number(command, "--threads", model.threads, 1, kMostThreads, "Threads to compute with; the answer does not depend on it")
        ->default_str("one a core")
        ->group("Model");
    add_overrides(command, model.overrides);
  }

  /// For commands that ask a server. Says which they are.
  static std::vector<CLI::Option*> add_server_options(CLI::App& command, LoadOptions& server) {
    std::vector<CLI::Option*> added = {
        add_words<LoadApi>(command, "--api", server.api, {{"chat", LoadApi::Chat}, {"completions", LoadApi::Completions}},
                           "What is asked: /chat/completions or /completions")
            ->default_str("chat"),
        command.add_option("--model", server.model, "The model's name there")
            ->type_name("NAME")
            ->default_str("the first it lists"),
        command.add_option("--api-key", server.api_key, "Sent as Authorization: Bearer KEY")->type_name("KEY"),
        command.add_option("--extra", server.extra_fields, "Further fields of every request, a JSON object")->type_name("JSON"),
        add_number(command, "--timeout", server.timeout_seconds, 0.001, 1e6, "Seconds that a request may take")
            ->default_str(fmt::format("{}", server.timeout_seconds))};
    for (CLI::Option* option : added) option->group("Server");
    return added;
  }

  void add_run() {
    RunArguments& a = run_;
    CLI::App& command =
        *add("run", "Complete a text, answer once, or chat in the terminal", [this] { return run_command(run_); });
    command.footer(
        R"(With -p, -f or text on standard input, one text is made and the program ends. It is a plain completion: the model goes on
with the text. With --chat (or --system, --think, --tools) the text is a message, put into the model's chat template, and
on a pipe the answer is printed without the reasoning before it. Otherwise a chat begins; /help there lists its commands.

Ctrl-C stops the answer, not the chat. Reasoning is dimmed on a terminal; NO_COLOR is honoured.
Lines typed in a chat are kept for its arrow keys in ~/.local/state/calandra/history (or below XDG_STATE_HOME);
CALANDRA_HISTORY names another file, or none if it is empty.
Environment: HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME say where the Hugging Face cache is; CALANDRA_ISA=scalar|avx2|avx512|avx512bf16
chooses the instruction set; NO_COLOR.
Exit codes: 0; 1 for an error; 2 for a command line that is not understood; 130 if Ctrl-C stopped the one text.)");
    a.model.model = CALANDRA_BUNDLED_MODEL;
    command.add_option("MODEL", a.model.model, kModelHelp)->default_str("the bundled model");

    const auto* prompt = command.add_option("-p,--prompt", a.prompt, "The text")->type_name("TEXT")->group("Input");
    command.add_option("-f,--file", a.prompt_file, "Read the text from a file; - is standard input")
        ->type_name("FILE")
        ->excludes(const_cast<CLI::Option*>(prompt))
        ->group("Input");
    command.add_flag("--chat", a.chat, "The text is a message of a chat")->group("Input");
    command.add_option("--system", a.system, "System text of the chat")->type_name("TEXT")->group("Input");
    add_words<bool>(command, "--think", a.think, {{"on", true}, {"off", false}}, "Reasoning before the answer")
        ->default_str("the model's way")
        ->group("Input");
    command.add_option("--tools", a.tools_file, "JSON array of tools that the model may call")->type_name("FILE")->group("Input");

    const auto add_sampling = [&command]<class T>(const char* name, std::optional<T>& value, T most, const char* help) {
      return add_number(command, name, value, 0, most, help)->default_str("the model's")->group("Sampling");
    };
    add_sampling("--temp", a.temperature, kMostTemperature, "Temperature; 0 takes the likeliest token");
    add_sampling("--top-k", a.top_k, std::numeric_limits<int>::max(), "Only the K likeliest tokens; 0: all");
    add_number(command, "--top-p", a.top_p, std::numeric_limits<double>::denorm_min(), 1.0,
               "Only the likeliest tokens that make up P, above 0 and up to 1", "a number above 0 and up to 1")
        ->default_str("the model's")
        ->group("Sampling");
    add_sampling("--min-p", a.min_p, 1.0, "Only tokens at least P times as likely as the likeliest, 0 to 1");
    add_number(command, "--repeat-penalty", a.repetition_penalty, kLeastRepetitionPenalty, kMostRepetitionPenalty,
               "Divides positive and multiplies negative logits of tokens that the text has, prompt included; 1: off")
        ->default_str("1")
        ->group("Sampling");
    const auto add_penalty = [&command](const char* name, double& value, const char* help) {
      add_number(command, name, value, -kMostPenalty, kMostPenalty, help)->default_str("0")->group("Sampling");
    };
    add_penalty("--frequency-penalty", a.frequency_penalty, "Taken from a token's logit for each time it was made, -2 to 2");
    add_penalty("--presence-penalty", a.presence_penalty, "Taken from a token's logit if it was made at all, -2 to 2");
    command
        .add_option_function<std::vector<std::string>>(
            "--logit-bias",
            [&a](const std::vector<std::string>& texts) {
              for (const std::string& text : texts) {
                const TokenBias bias = parse_bias(text);
                a.logit_bias[bias.token] = bias.bias;
              }
            },
            "Added to the logit of token ID, -100 to 100; -100 bans it; may be given several times")
        ->type_name("ID:B")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false)
        ->group("Sampling");
    add_sampling("--seed", a.seed, std::numeric_limits<std::uint64_t>::max(), "Same seed, same text")->default_str("random");

    add_number(command, "-n,--max-tokens", a.max_tokens, 0, kMaxContext, "Tokens to make at most; 0: what the context holds")
        ->type_name("TOKENS")
        ->default_str(fmt::format("{} for a completion, 0 in a chat", kCompletionTokens))
        ->group("Ending");
    add_number(command, "--min-tokens", a.min_tokens, 0, kMaxContext, "Tokens to make before the answer may end by itself")
        ->type_name("TOKENS")
        ->default_str("0")
        ->group("Ending");
    command.add_option("--stop", a.stop, "End before this text; may be given several times")
        ->type_name("TEXT")
        ->allow_extra_args(false)
        ->group("Ending");
    command.add_flag("--ignore-eos", a.ignore_eos, "Do not end where the model ends")->group("Ending");

    command.add_flag("--raw", a.raw, "In a chat: print what the model writes, marks of reasoning and tool calls included")
        ->group("Output");
    command
        .add_flag("--json", a.json,
                  "One JSON object: text, reasoning, tool calls, token ids, finish reason, usage, timings, settings")
        ->group("Output");
    command.add_flag("-v,--verbose", a.verbose, "Settings and speeds on standard error, also without a terminal")
        ->group("Output");
    add_draft_tokens(command, a.drafts, "Model");
    add_model_options(command, a.model, false);
  }

  void add_serve() {
    ServeArguments& a = serve_;
    CLI::App& command = *add("serve", "Answer over HTTP: OpenAI's and Anthropic's APIs, many requests at once",
                             [this] { return serve_command(serve_); });
    command.footer(
        R"(A browser finds a chat at /. docs/serving.md says more, docs/api.md what every field of a request does. Without --api-key
everyone who reaches the port may ask.
SIGTERM or Ctrl-C lets what has begun be answered, for --drain seconds, and tells the rest; a second one ends the program at once.
Exit codes: 0 after such an end; else as for run.)");
    a.model.model = CALANDRA_BUNDLED_MODEL;
    command.add_option("MODEL", a.model.model, kModelHelp)->default_str("the bundled model");
    const auto add_texts = [&command](const char* name, std::vector<std::string>& texts, const char* type, const char* help) {
      return command.add_option(name, texts, help)
          ->type_name(type)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->allow_extra_args(false);
    };
    add_texts("--alias", a.aliases, "NAME", "Another name that requests may call the model by; may be given several times")
        ->group("Model");

    command.add_option("--host", a.host, "Address to listen on; 0.0.0.0 or :: for all of the machine's")
        ->type_name("ADDRESS")
        ->default_str(a.host)
        ->group("HTTP");
    add_number(command, "--port", a.port, 0, 65535, "Port to listen on; 0: any free one")
        ->default_str(std::to_string(a.port))
        ->group("HTTP");
    add_texts("--api-key", a.api_keys, "KEY", "Who has this key may ask; may be given several times; CALANDRA_API_KEY is one too")
        ->group("HTTP");
    add_texts("--cors-origin", a.cors_origins, "ORIGIN",
              "Pages of this origin may read the answers in a browser; * for all; may be given several times")
        ->group("HTTP");
    add_size(command, "--max-body", a.max_body_bytes, "Bytes of a request at most; larger ones are refused with 413")
        ->default_str("32MiB")
        ->group("HTTP");
    add_size(command, "--max-bodies", a.max_bodies_bytes,
             "Bytes of all requests that are being read; what does not fit beside them is refused with 503 and Retry-After")
        ->default_str("256MiB, at least --max-body")
        ->group("HTTP");
    add_number(command, "--max-connections", a.max_connections, 1, 1'000'000, "Connections at a time; more are refused with 503")
        ->default_str(std::to_string(a.max_connections))
        ->group("HTTP");
    add_number(command, "--drain", a.drain_seconds, 0, 86'400,
               "Seconds that answers under way have when the server is told to end")
        ->default_str(fmt::format("{}", a.drain_seconds))
        ->group("HTTP");

    const auto add_limit = [&command](const char* name, std::int64_t& value, std::int64_t least, const char* help) {
      add_number(command, name, value, least, kMaxContext, help)->default_str(std::to_string(value))->group("Scheduling");
    };
    add_limit("--max-running", a.limits.max_running, 1,
              "Answers that are made at a time: more make more tokens a second in all and fewer for each");
    add_limit("--max-waiting", a.limits.max_waiting, 1,
              "Answers that wait for their turn; more are refused with 503 and Retry-After");
    add_limit("--prefill-tokens", a.limits.prefill_tokens, 1, "Tokens of prompts in a step that has nothing else to do");
    add_limit("--prefill-beside-decodes", a.limits.prefill_tokens_beside_decodes, 1,
              "Tokens of prompts in a step beside answers: fewer keep their pace, more bring prompts forward");
    add_limit("--reserve", a.limits.reserved_new_tokens, 1,
              "Tokens of an answer that memory is set aside for before it begins: fewer let more answers begin and preempt more");
    add_number(command, "--time-limit", a.time_limit_seconds, 0.001, 1e6,
               "Seconds that a request may take, waiting included; then it ends with 504, or with an error in its stream")
        ->default_str("none")
        ->group("Scheduling");
    add_draft_tokens(command, a.drafts, "Scheduling");
    add_size(command, "--pool", a.pool_bytes, "Memory for the states and caches of all answers, as in 8GiB")
        ->default_str("half of what is free")
        ->group("Scheduling");
    add_words<bool>(command, "--prefix-cache", a.prefix_cache, {{"on", true}, {"off", false}},
                    "Keep what prompts and answers have computed, in memory that nobody needs, for requests that begin alike")
        ->default_str("on")
        ->group("Scheduling");
    command
        .add_option("--cache-dir", a.cache_folder,
                    "Keep it in this folder, too: it outlives the program, and what memory has no room for. One server a folder; "
                    "it holds what prompts can be told from")
        ->type_name("FOLDER")
        ->default_str("none")
        ->group("Scheduling");
    add_size(command, "--cache-disk", a.cache_disk_bytes, "What may lie there; the longest unused goes first")
        ->default_str("half of what is free")
        ->group("Scheduling");
    add_number(command, "--verify-rate", a.verify_rate, 0, 1,
               "Share of what was found that is computed once more when nobody asks anything, and compared: from 0 to 1")
        ->type_name("SHARE")
        ->default_str("0")
        ->group("Scheduling");
    add_words<bool>(command, "--cache-isolation", a.isolates_keys, {{"key", true}, {"none", false}},
                    "Who finds what others' requests have computed: nobody with another key, or everyone")
        ->default_str("key")
        ->group("Scheduling");
    command
        .add_option(
            "--log-requests", a.request_log,
            "Append a line of JSON for each request to this file, which may be moved away at any time; - is standard error")
        ->type_name("FILE")
        ->default_str("none")
        ->group("Log");
    command.add_flag("--log-prompts", a.log_prompts, "With what was asked, and errors in full")->group("Log");
    add_model_options(command, a.model, false);
  }

  void add_inspect() {
    CLI::App& command = *add("inspect", "Show what a checkpoint is: architecture, sizes, costs, everything odd",
                             [this] { return inspect_command(inspect_); });
    command.footer(
        "Reads config.json, the headers of the tensor files and the small vectors, not the matrices: works on files of any size at once.");
    inspect_.model = CALANDRA_BUNDLED_MODEL;
    command.add_option("MODEL", inspect_.model, kModelHelp)->default_str("the bundled model");
    command.add_flag("--json", inspect_.json, "The same as one JSON object");
    add_overrides(command, inspect_.overrides);
  }

  void add_bench() {
    BenchArguments& a = bench_;
    CLI::App& command = *add("bench", "Measure speed, beside what this machine's memory and arithmetic can do",
                             [this] { return bench_command(bench_); });
    command.footer(
        R"(In rounds: each measures the machine and then every row, for half a second at least. A figure is the median of the rounds; the
least and the largest stand beside it. Bytes are those a token must move: weights as stored, once for all rows of a step, experts
that the rows chose once, state read and written, latents read. Operations count a multiply-add as two. Tokens are random.
With --draft answers to pieces of a text are made as a server makes them, in turn with each of some numbers of drafts. Beside what they gain
over none, on the model without its MTP layer, stands what was predicted. Prompts have 64 tokens then, unless --depth says.
On a shared machine figures differ from run to run without --exclusive, which needs root. bench/results.md explains the columns.
Exit codes as for run; after Ctrl-C what has been measured is printed, and the code is 130.)");
    a.model.model = CALANDRA_BUNDLED_MODEL;
    command.add_option("MODEL", a.model.model, kModelHelp)->default_str("the bundled model");
    add_numbers(command, "-p,--prompt", a.prompts, 0, kMaxContext, "Lengths of prompts; 0: none")
        ->default_str(fmt::format("{}", fmt::join(kBenchPrompts, ",")))
        ->group("What is measured");
    add_number(command, "-n,--decode", a.decode_tokens, 0, kMaxContext, "Tokens that every sequence decodes; 0: none")
        ->default_str(std::to_string(a.decode_tokens))
        ->group("What is measured");
    add_numbers(command, "--depth", a.depths, 0, kMaxContext, "Tokens of context before the first decoded one")
        ->default_str(fmt::format("{}", fmt::join(kBenchDepths, ",")))
        ->group("What is measured");
    add_numbers(command, "--batch", a.batches, 1, kMostBatch, "Sequences that are decoded together")
        ->default_str(fmt::format("{}", fmt::join(kBenchBatches, ",")))
        ->group("What is measured");
    add_number(command, "--rounds", a.rounds, 1, kMostRounds, "How often everything is measured")
        ->default_str(fmt::format("{}; {} with --exclusive", kBenchRounds, kExclusiveBenchRounds))
        ->group("What is measured");
    command.add_flag("--exclusive", a.exclusive, "In a session of its own at the highest priority, as far as the system permits")
        ->group("What is measured");
    add_bench_drafts(command);
    command.add_flag("--json", a.json, "One JSON object")->group("Output");
    command.add_flag("--csv", a.csv, "A line for every row, after a line of names")->group("Output");
    add_model_options(command, a.model, false);
    add_bench_serve(command);
  }

  void add_bench_drafts(CLI::App& command) {
    BenchArguments& a = bench_;
    CLI::Option* const drafts = command
                                    .add_option_function<std::string>(
                                        "--draft", [&a](const std::string& text) { a.drafts = parse_draft_list(text); },
                                        "Drafts a step, as with --draft-tokens: measures what they bring, and nothing else")
                                    ->type_name("auto|N,...")
                                    ->group("Drafts");
    add_numbers(command, "--draft-temp", a.draft_temperatures, 0, kMostTemperature, "Temperatures of the answers")
        ->default_str(fmt::format("{}", fmt::join(a.draft_temperatures, ",")))
        ->needs(drafts)
        ->group("Drafts");
    command.add_option("--draft-text", a.draft_text, "Text of which pieces are the prompts; - is standard input")
        ->type_name("FILE")
        ->default_str("some prose")
        ->needs(drafts)
        ->group("Drafts");
    add_number(command, "--draft-acceptance", a.draft_acceptance, 1, static_cast<double>(kMostDrafts + 1),
               "Tokens a step that drafts are made up to give, from the known answer: for random weights. The MTP layer runs "
               "all the same")
        ->type_name("TOKENS")
        ->needs(drafts)
        ->group("Drafts");
  }

  void add_bench_serve(CLI::App& bench) {
    BenchServeArguments& a = bench_serve_;
    LoadOptions& load = a.load;
    CLI::App& command = *add_below(bench, "serve", "Put a server under load: any that has OpenAI's API, over HTTP",
                                   [this] { return bench_serve_command(bench_serve_); });
    command.footer(
        R"(A level is a number of users, each of whom sends the next request when the last one is answered (--concurrency), or Poisson arrivals
that wait for nobody's answer (--rate), or a recording (--trace). Times count from when a request was due, also if it was sent late.
Prompts are random words; lengths A:B are log-uniform. The seed is new each time: a server may remember the prompts of an older one.
A trace has lines ARRIVAL,PROMPT_TOKENS,OUTPUT_TOKENS, or objects {"arrival", "prompt_tokens", "output_tokens"}; arrivals in seconds.
docs/serving.md explains the figures. CALANDRA_API_KEY is a key, too, which a list of processes does not show.
Exit codes: 0, also if requests failed; 1 if none went well or the server is gone; 130 after Ctrl-C. What was measured is printed.)");
    command.add_option("URL", a.url, "Where the API is, as in http://127.0.0.1:8080; without a path it is /v1")->required();
    add_server_options(command, load);

    auto* const users = add_numbers(command, "--concurrency", a.users, 1, kMostBatch, "Numbers of users, a level each")
                            ->default_str(fmt::format("{}", fmt::join(kBenchUsers, ",")))
                            ->group("Load");
    auto* const rates = add_numbers(command, "--rate", a.rates, 1e-4, 1e5, "Arrivals a second, a level each")->group("Load");
    auto* const trace =
        command.add_option("--trace", a.trace, "Arrivals and lengths from a file")->type_name("FILE")->group("Load");
    users->excludes(rates)->excludes(trace);
    rates->excludes(trace);
    add_number(command, "--requests", load.requests, 1, 100'000'000, "Requests of a level")
        ->default_str("10 a user, or a minute of arrivals; 20 at least")
        ->group("Load");
    add_number(command, "--duration", load.duration_seconds, 0.001, 1e6, "Seconds of a level in which requests are sent")
        ->default_str("until all are")
        ->group("Load");
    add_number(command, "--turns", load.turns, 1, 10'000, "Requests of a conversation, each with all that was said before it")
        ->default_str(std::to_string(load.turns))
        ->group("Load");
    add_number(command, "--warmup", load.warmup, 0, 10'000, "Requests sent at once before the first level, not counted")
        ->default_str(std::to_string(load.warmup))
        ->group("Load");

    add_lengths(command, "--prompt-tokens", load.prompt_tokens, "Tokens of prompts")
        ->default_str(std::to_string(load.prompt_tokens.least))
        ->group("Lengths");
    add_lengths(command, "--output-tokens", load.output_tokens, "Tokens of answers")
        ->default_str(std::to_string(load.output_tokens.least))
        ->group("Lengths");
    add_number(command, "--shared-prefix", load.shared_prefix_tokens, 0, kMaxContext,
               "Tokens before each prompt that are the same in all, as a system message")
        ->default_str(std::to_string(load.shared_prefix_tokens))
        ->group("Lengths");
    add_number(command, "--seed", a.seed, 0, std::numeric_limits<std::uint64_t>::max(), "Of words, lengths and arrivals")
        ->default_str("random")
        ->group("Lengths");

    command.add_option("--json", a.json, "All figures as one JSON object; - is standard output, in place of the table")
        ->type_name("FILE")
        ->group("Output");
    command.add_option("--svg", a.svg, "The curve over the levels as a picture")->type_name("FILE")->group("Output");
  }

  void add_verify() {
    VerifyArguments& a = verify_;
    CLI::App& command = *add("verify", "Prove it: the same answers, bit for bit, whatever the cache and the batch did",
                             [this] { return verify_command(verify_); });
    command.footer(
        R"(Random requests (conversations, forks, edits, several answers to one prompt) are answered alone and then along every path: cut at
random, with other numbers of threads, among others, preempted, from the cache, after evictions. All logits are compared, bit for bit. A
control turns one bit of a state on purpose: the test counts only if that is seen.
With --url it asks any server that has OpenAI's API, at temperature 0, and compares each answer with the first one to the same request:
again, as a turn of a conversation, among others, and after other prompts have taken the place of what it kept.
docs/verify.md says more. CALANDRA_API_KEY is a key, too.
Exit codes: 0 all the same; 1 something differs; 2 a server that could not be tested, such as one without log probabilities, or a command
line that is not understood; 130 after Ctrl-C.)");
    a.model.model = CALANDRA_BUNDLED_MODEL;
    auto* const model = command.add_option("MODEL", a.model.model, kModelHelp)->default_str("the bundled model");
    auto* const url = command.add_option("--url", a.url, "Ask a server, as in http://127.0.0.1:8080; without a path it is /v1")
                          ->type_name("URL")
                          ->excludes(model);

    const auto by_form = [](auto alone, auto server) { return fmt::format("{}; {} with --url", alone, server); };
    const VerifyOptions of_model;
    const ServerCheckOptions of_server;
    add_number(command, "--prompt-tokens", a.prompt_tokens, kLeastVerifyPrompt, kMaxContext, "Tokens of the longest prompt")
        ->default_str(by_form(of_model.prompt_tokens, of_server.prompt_tokens))
        ->group("What is asked");
    add_number(command, "--answer-tokens", a.answer_tokens, kLeastVerifyAnswer, kMaxContext, "Tokens of every answer")
        ->default_str(by_form(of_model.answer_tokens, of_server.answer_tokens))
        ->group("What is asked");
    add_number(command, "--rounds", a.rounds, 1, kMostRounds, "How often, each time with other requests")
        ->default_str(by_form(of_model.rounds, of_server.rounds))
        ->group("What is asked");
    add_number(command, "--seed", a.seed, 0, std::numeric_limits<std::uint64_t>::max(), "Of all that is random")
        ->default_str("random")
        ->group("What is asked");
    command.add_flag("--json", a.json, "One JSON object")->group("Output");

    std::vector<CLI::Option*> of_servers = add_server_options(command, a.server);
    of_servers.push_back(
        add_number(command, "--concurrency", a.concurrency, 1, kMostBatch, "Other requests at a time beside those compared")
            ->default_str(std::to_string(a.concurrency)));
    of_servers.push_back(add_number(command, "--evict-tokens", a.evict_tokens, 1, 1'000'000'000'000,
                                    "Tokens of other prompts that are to take the place of what is kept")
                             ->default_str(fmt::format("{} prompts", kEvictPrompts)));
    for (CLI::Option* option : of_servers) option->group("Server (with --url)")->needs(url);
    add_model_options(command, a.model, false);
    for (CLI::Option* option : command.get_options()) {
      if (option->get_group() == "Model") option->excludes(url);
    }
  }

  void add_perplexity() {
    CLI::App& command =
        *add("perplexity", "Measure how well a model predicts a text", [this] { return perplexity_command(perplexity_); });
    command.add_option("MODEL", perplexity_.model.model, kModelHelp)->required();
    command.add_option("FILE", perplexity_.file, "The text; - is standard input")->required();
    add_number(command, "--window", perplexity_.window, 2, kMaxContext, "Tokens seen at a time; windows do not overlap")
        ->type_name("TOKENS")
        ->default_str("the context");
    command.add_flag("--json", perplexity_.json, "One JSON object");
    add_model_options(command, perplexity_.model, false);
  }

  void add_trace() {
    CLI::App& command = *add("trace", "Dump every intermediate value of a run, for people who port or debug",
                             [this] { return trace_command(trace_); });
    command.footer("docs/trace.md says what the tensors of the dump are called and what they hold.");
    command.add_option("MODEL", trace_.model.model, kModelHelp)->required();
    const auto take_ids = [this](const std::string& text) { trace_.ids = parse_ids(text); };
    auto* const ids = command.add_option_function<std::string>("--ids", take_ids, "Token ids of the prompt")->type_name("1,2,3");
    auto* const prompt = command.add_option("-p,--prompt", trace_.prompt, "The prompt as text, without a template")
                             ->type_name("TEXT")
                             ->excludes(ids);
    add_number(command, "--greedy", trace_.greedy, 0, kMaxContext, "Tokens to go on with, each the likeliest")
        ->default_str(std::to_string(trace_.greedy));
    command.add_option("--split", trace_.splits, "Positions to cut the prompt at; states are dumped there too")
        ->type_name("70,...")
        ->delimiter(',');
    command.add_option("--dump", trace_.dump, "Where the tensors go")->type_name("FILE.safetensors")->required();
    add_model_options(command, trace_.model, true);
    command.callback([ids, prompt] {
      if (ids->empty() && prompt->empty()) throw CLI::RequiredError("--ids or --prompt");
    });
  }

  void add_make_checkpoint() {
    SyntheticOptions& o = make_.options;
    CLI::App& command = *add("make-checkpoint", "Write a checkpoint with random weights and the shapes of a released model",
                             [this] { return make_checkpoint_command(make_); });
    command.footer(
        "The same options give the same files. A slice has fewer layers, experts or tokens than the model; widths stay.\n"
        "Exit codes as for run; 130 if it was told to end, and then nothing is left of it.");
    command
        .add_option_function<std::string>(
            "--like", [&o](const std::string& name) { o.model = ling_model_of(name); }, "The released model")
        ->type_name("ling-3.0-tiny|ling-3.0-flash|ling-3.1-flash")
        ->required();
    command
        .add_option_function<std::string>(
            "--format", [&o](const std::string& name) { o.format = synthetic_format_of(name); }, "How weights are stored")
        ->type_name("bf16|fp8|fp8-ue8m0|fp4")
        ->default_str("bf16");
    const auto add_dimension = [&command](const char* name, std::optional<std::int64_t>& value, const char* help) {
      add_number(command, name, value, 1, kMaxContext, help)->default_str("the model's");
    };
    add_dimension("--layers", o.layers, "Layers, in whole groups");
    add_dimension("--experts", o.experts, "Routed experts of a layer, a multiple of 8, at least 16");
    add_dimension("--vocab", o.vocab, "Tokens of the vocabulary");
    add_number(command, "--seed", o.seed, 0, std::numeric_limits<std::uint64_t>::max(), "Of the random weights")
        ->default_str(std::to_string(o.seed));
    add_shard_size(command, o.shard_bytes);
    add_number(command, "--threads", o.num_threads, 1, kMostThreads, "Threads to compute with")->default_str("one a core");
    command.add_flag("--headers-only", o.headers_only, "Sparse files that take no space: all weights are zero");
    command.add_option("DIR", make_.folder, "The folder to write: a new or an empty one")->required();
  }

  void add_convert() {
    ConversionOptions& o = convert_.options;
    CLI::App& command = *add("convert", "Convert a model into fewer bits: block FP8, MXFP4 experts, or MXFP4 throughout",
                             [this] { return convert_command(convert_); });
    command.footer(
        R"(fp8 and fp4 are the formats of the published releases; fp4-all is the smallest, and only Calandra is known to read it. Weights
that are stored so already, or coarser, are copied byte for byte; embedding, norms, router and other small tensors stay as they are.
Stopped, however it was, the same command goes on with the file it was at; the result is the same to the byte.
--check prints the error of the weights, and KL divergence and perplexity before and after on a text; on a finished DIR it only checks.
Exit codes as for run; 130 if it was told to end.)");
    command.add_option("MODEL", convert_.model, kModelHelp)->required();
    command.add_option("DIR", convert_.folder, "The folder to write: new, empty, or begun by the same command")->required();
    using Target = ConversionTarget;
    add_words<Target>(command, "--to", o.target, {{"fp8", Target::Fp8}, {"fp4", Target::Fp4}, {"fp4-all", Target::Fp4All}},
                      "What the weights become")
        ->required();
    add_words<HeadFormat>(command, "--head", o.head,
                          {{"bf16", HeadFormat::Bf16}, {"fp8", HeadFormat::Fp8}, {"fp4", HeadFormat::Fp4}},
                          "What the head becomes")
        ->default_str("as stored; fp4 for fp4-all");
    command.add_option("--check", convert_.check, "A text to compare the two models on; - is standard input")->type_name("FILE");
    add_number(command, "--window", convert_.window, 2, kMaxContext, "Tokens of it seen at a time; windows do not overlap")
        ->type_name("TOKENS")
        ->default_str("the context");
    add_shard_size(command, o.shard_bytes);
    add_number(command, "--threads", o.num_threads, 1, kMostThreads, "Threads to compute with")->default_str("one a core");
    command.add_flag("--json", convert_.json, "One JSON object; with --check the error of every tensor");
  }

  template <class Target>
  static CLI::Option* add_size(CLI::App& command, const std::string& name, Target& bytes, const std::string& help) {
    const auto take_size = [&bytes, name](const std::string& text) { bytes = parse_size(name, text); };
    return command.add_option_function<std::string>(name, take_size, help)->type_name("SIZE");
  }

  static void add_shard_size(CLI::App& command, std::int64_t& shard_bytes) {
    add_size(command, "--shard-size", shard_bytes,
             "Bytes of tensors in a file at most, but one tensor at least; as in 4.5GB or 512MiB")
        ->default_str("4.5GB");
  }

  CLI::App app_{"Calandra runs language models of the Ling 3.x family from their published files.", "calandra"};
  std::vector<std::pair<CLI::App*, std::function<int()>>> actions_;
  RunArguments run_;
  ServeArguments serve_;
  InspectArguments inspect_;
  BenchArguments bench_;
  BenchServeArguments bench_serve_;
  VerifyArguments verify_;
  PerplexityArguments perplexity_;
  TraceArguments trace_;
  MakeCheckpointArguments make_;
  ConvertArguments convert_;
};

int report(std::string_view message, int code) {
  write_note(fmt::format("calandra: {}\n", one_line(message)));
  return code;
}

int run_program(int argc, char** argv) {
  try {
    return CommandLine().run(argc, argv);
  } catch (const UsageError& error) {
    return report(error.what(), kExitUsage);
  } catch (const std::exception& error) {
    return report(message_of(error), kExitError);
  }
}

}  // namespace
}  // namespace calandra

int main(int argc, char** argv) {
  calandra::prepare_process();
  return calandra::run_program(argc, argv);
}
