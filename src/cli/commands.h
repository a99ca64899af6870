#pragma once
// The commands of the program, each a function from what the command line says to an exit code. main.cpp reads the command line and
// prints errors: a command throws Error, or UsageError if the command line itself is at fault.

#include "base/error.h"
#include "checkpoint/config.h"
#include "checkpoint/convert.h"
#include "checkpoint/synthetic_config.h"
#include "loadtest/load_options.h"
#include "model/compute.h"
#include "schedule/draft_policy.h"
#include "schedule/limits.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace calandra {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // as a shell reports Ctrl-C

/// What the command line asks for cannot be meant: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// How a model is opened.
struct ModelArguments {
  std::string model;  // folder, or owner/name in the Hugging Face cache
  ConfigOverrides overrides;
  Activations activations = Activations::Bf16;
  std::optional<CacheType> latents;  // unset: as exact as the activations
  int threads = 0;                   // 0: one per core
};

struct RunArguments {
  ModelArguments model;

  // One of these, or standard input.
  std::optional<std::string> prompt;
  std::optional<std::filesystem::path> prompt_file;

  bool chat = false;  // the prompt is a message of a chat, not a text to go on with
  std::optional<std::string> system;
  std::optional<bool> think;
  std::optional<std::filesystem::path> tools_file;

  // Unset: as the checkpoint suggests.
  std::optional<double> temperature, top_p, min_p;
  std::optional<int> top_k;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::map<std::int32_t, float> logit_bias;  // the last of those for one token
  std::optional<std::uint64_t> seed;         // unset: a random one
  std::optional<std::int64_t> max_tokens;    // unset: kCompletionTokens for a completion, else what the context holds
  std::int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  DraftSetting drafts;

  bool raw = false;  // print the model's text as it is
  bool json = false;
  bool verbose = false;  // settings and speeds on standard error, also without a terminal

  /// Whether the text comes from a person at a terminal, turn by turn.
  bool is_interactive = false;
  /// Whether the text goes through the chat template.
  bool uses_template() const { return is_interactive || chat || system || think || tools_file; }
};

/// A completion need not end by itself.
inline constexpr std::int64_t kCompletionTokens = 256;

/// Of the requests that a server reads at a time, unless the command line says: many times what a long conversation has.
inline constexpr std::int64_t kMostBodiesBytes = std::int64_t{256} << 20;

struct ServeArguments {
  ModelArguments model;
  std::vector<std::string> aliases;  // further names that requests may call the model by

  std::string host = "127.0.0.1";
  int port = 8080;                        // 0: any free one
  std::vector<std::string> api_keys;      // none: everyone may ask
  std::vector<std::string> cors_origins;  // "*": all
  std::int64_t max_body_bytes = std::int64_t{32} << 20;
  std::optional<std::int64_t> max_bodies_bytes;  // of all requests together; unset: kMostBodiesBytes, or that of one
  std::int64_t max_connections = 10'000;

  ScheduleLimits limits;
  DraftSetting drafts;
  std::int64_t pool_bytes = 0;  // 0: what default_pool_bytes() says
  bool prefix_cache = true;
  std::optional<std::string> cache_folder;   // where prefixes outlive the process
  std::int64_t cache_disk_bytes = 0;         // 0: half of what is free there
  double verify_rate = 0;                    // PrefixStoreOptions::verify_rate
  bool isolates_keys = true;                 // the prefixes of one API key's requests from another's
  std::optional<double> time_limit_seconds;  // of a request, from its submission to its end
  double drain_seconds = 30;                 // for what is under way when the server is told to end

  std::optional<std::string> request_log;  // a file; "-": standard error
  bool log_prompts = false;
};

struct InspectArguments {
  std::string model;
  ConfigOverrides overrides;
  bool json = false;
};

struct BenchArguments {
  ModelArguments model;
  // Unset: the usual ones that the context holds.
  std::optional<std::vector<std::int64_t>> prompts;  // {0}: none
  std::int64_t decode_tokens = 64;                   // 0: no decoding
  std::optional<std::vector<std::int64_t>> depths, batches;
  std::optional<int> rounds;
  // What drafts bring, in place of all that: `depths` are then lengths of prompts.
  std::vector<DraftSetting> drafts;  // none: not asked for
  std::vector<double> draft_temperatures = {0, 0.7};
  std::optional<std::filesystem::path> draft_text;  // unset: one of the program's
  std::optional<double> draft_acceptance;           // DraftBenchOptions::oracle_tokens
  bool exclusive = false;
  bool json = false;
  bool csv = false;
};

/// Of a bench, unless the command line says.
inline constexpr std::array<std::int64_t, 2> kBenchPrompts = {512, 4096};
inline constexpr std::array<std::int64_t, 3> kBenchDepths = {0, 8192, 32768};
inline constexpr std::array<std::int64_t, 4> kBenchBatches = {1, 4, 8, 16};
inline constexpr std::array<std::int64_t, 1> kDraftBenchDepths = {64};
inline constexpr std::array<std::int64_t, 2> kDraftBenchBatches = {1, 4};
inline constexpr int kBenchRounds = 3;
inline constexpr int kExclusiveBenchRounds = 5;

struct BenchServeArguments {
  std::string url;
  LoadOptions load;  // without url, levels and trace
  // At most one of these.
  std::vector<std::int64_t> users;
  std::vector<double> rates;
  std::optional<std::filesystem::path> trace;
  std::optional<std::uint64_t> seed;  // unset: a random one

  std::optional<std::filesystem::path> json, svg;
};

/// Of a bench of a server, unless the command line says.
inline constexpr std::array<std::int64_t, 5> kBenchUsers = {1, 2, 4, 8, 16};

struct VerifyArguments {
  ModelArguments model;            // or
  std::optional<std::string> url;  // of a server
  LoadOptions server;              // API, model, key, further fields, time limit

  // Unset: VerifyOptions' or ServerCheckOptions'.
  std::optional<std::int64_t> prompt_tokens, answer_tokens, evict_tokens;
  std::optional<int> rounds;
  std::optional<std::uint64_t> seed;  // unset: a random one
  std::int64_t concurrency = 8;       // other requests beside those that are compared
  bool json = false;
};

struct PerplexityArguments {
  ModelArguments model;
  std::filesystem::path file;
  std::int64_t window = 0;  // 0: the context
  bool json = false;
};

struct TraceArguments {
  ModelArguments model;
  std::vector<std::int32_t> ids;  // or
  std::optional<std::string> prompt;
  std::int64_t greedy = 0;
  std::vector<std::int64_t> splits;
  std::filesystem::path dump;
};

struct MakeCheckpointArguments {
  SyntheticOptions options;
  std::filesystem::path folder;
};

struct ConvertArguments {
  std::string model;
  ConversionOptions options;
  std::filesystem::path folder;
  std::optional<std::filesystem::path> check;  // a text
  std::int64_t window = 0;                     // of the check; 0: the context
  bool json = false;
};

int run_command(RunArguments arguments);
int serve_command(const ServeArguments& arguments);
int inspect_command(const InspectArguments& arguments);
int bench_command(const BenchArguments& arguments);
int bench_serve_command(const BenchServeArguments& arguments);
int verify_command(const VerifyArguments& arguments);
/// The two forms of it.
int verify_model(const VerifyArguments& arguments);
int verify_server(const VerifyArguments& arguments);
int perplexity_command(const PerplexityArguments& arguments);
int trace_command(const TraceArguments& arguments);
int make_checkpoint_command(const MakeCheckpointArguments& arguments);
int convert_command(const ConvertArguments& arguments);

/// "calandra 0.1.0, g++ 12.2.0, avx2"
std::string version_text();

}  // namespace calandra
