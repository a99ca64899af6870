#include "serve/server.h"

#include "base/host.h"
#include "cache/file_store.h"
#include "cli/commands.h"
#include "cli/file_limit.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "serve/body_budget.h"
#include "serve/cors.h"
#include "serve/engine_answers.h"
#include "serve/grammar_cache.h"
#include "serve/json_body.h"
#include "serve/metrics.h"
#include "serve/request_log.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

namespace calandra {
namespace {

ServedModel served_model(const Model& model, const Engine& engine, GrammarCache& grammars, const ServeArguments& arguments) {
  const GenerationDefaults& suggested = model.checkpoint().generation();
  ServedModel served;
  served.names = {short_name(model.name())};
  for (const std::string& alias : arguments.aliases) {
    if (std::find(served.names.begin(), served.names.end(), alias) == served.names.end()) served.names.push_back(alias);
  }
  served.created = unix_seconds();
  served.tokenizer = &model.tokenizer();
  served.defaults.sampling.temperature = suggested.temperature;
  served.defaults.sampling.top_k = suggested.top_k;
  served.defaults.sampling.top_p = suggested.top_p;
  served.defaults.sampling.min_p = suggested.min_p;
  served.defaults.stop_ids = stop_ids_of(model);
  served.num_samplable = model.num_samplable();
  served.context = engine.context();
  served.most_answers = arguments.limits.max_waiting;
  served.grammars = &grammars;
  try {
    served.chat_template = &model.chat_template();
  } catch (const Error& error) {
    write_note(fmt::format("note: no chats, only completions: {}\n", one_line(error.what())));
  }
  return served;
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

ServerOptions server_options(const ServeArguments& arguments) {
  ServerOptions options;
  options.http.host = arguments.host;
  options.http.port = arguments.port;
  options.http.limits.body_bytes = static_cast<std::uint64_t>(arguments.max_body_bytes);
  options.http.limits.bodies = std::make_shared<BodyBudget>(
      static_cast<std::uint64_t>(arguments.max_bodies_bytes.value_or(std::max(kMostBodiesBytes, arguments.max_body_bytes))));
  options.http.max_connections = static_cast<int>(arguments.max_connections);
  options.http.cors_origins = arguments.cors_origins;
  options.api_keys = arguments.api_keys;
  options.isolates_keys = arguments.isolates_keys;
  // From the environment, since anyone on the machine can read a command line.
  if (const char* key = std::getenv("CALANDRA_API_KEY"); key != nullptr && *key != '\0') options.api_keys.emplace_back(key);
  if (arguments.time_limit_seconds) options.time_limit = nanoseconds_of(*arguments.time_limit_seconds);
  if (arguments.request_log) {
    options.request_log = std::make_shared<RequestLog>(RequestLogOptions{*arguments.request_log, arguments.log_prompts});
  }
  options.version = version_text();
  return options;
}

/// Tells systemd, if it started us and asked for it (sd_notify(3)).
void notify_manager(std::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  const std::size_t length = std::strlen(path);
  sockaddr_un address{};
  if (length >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  [[maybe_unused]] const auto sent =
      ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  ::close(socket);
}

/// "pool 3.21 GiB: room for 12 sequences of the full context"
std::string pool_text(const Engine& engine) {
  const EngineStatistics now = engine.statistics();
  const MemoryLayout layout = engine.model().layout();
  const std::int64_t blocks = now.schedule.blocks_total;
  const std::string pool = fmt::format("pool {}", short_bytes(blocks * now.block_bytes));
  const std::int64_t sequences = blocks / layout.sequence_blocks(engine.context());
  if (sequences > 0) {
    return fmt::format("{}: room for {} sequence{} of the full context", pool, with_commas(sequences), sequences == 1 ? "" : "s");
  }
  std::int64_t fits = 1, too_long = engine.context();  // the engine has made sure of the one
  while (too_long - fits > 1) {
    const std::int64_t middle = (fits + too_long) / 2;
    (layout.sequence_blocks(middle) <= blocks ? fits : too_long) = middle;
  }
  return fmt::format("{}: room for one sequence of {} tokens, less than the full context", pool, with_commas(fits));
}

bool is_this_machine(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

/// What would leave a server that starts and that nobody can use as was meant.
void check_arguments(const ServeArguments& arguments) {
  if (arguments.log_prompts && !arguments.request_log) throw UsageError("--log-prompts: expected --log-requests beside it");
  if (arguments.cache_folder && !arguments.prefix_cache) throw UsageError("--cache-dir: expected --prefix-cache on beside it");
  if (arguments.verify_rate > 0 && !arguments.prefix_cache)
    throw UsageError("--verify-rate: expected --prefix-cache on beside it");
  if (arguments.cache_disk_bytes > 0 && !arguments.cache_folder) throw UsageError("--cache-disk: expected --cache-dir beside it");
  if (arguments.max_bodies_bytes && *arguments.max_bodies_bytes < arguments.max_body_bytes) {
    throw UsageError(fmt::format("--max-bodies {}: expected at least --max-body, which is {} bytes", *arguments.max_bodies_bytes,
                                 arguments.max_body_bytes));
  }
  for (const std::string& key : arguments.api_keys) {
    if (key.empty()) throw UsageError("--api-key: found an empty text, expected a key");
  }
  for (const std::string& origin : arguments.cors_origins) {
    if (origin != "*" && !is_origin(origin)) {
      throw UsageError(fmt::format("--cors-origin {}: expected an origin without a path, as in https://chat.example.org, or *",
                                   printable(origin)));
    }
  }
}

/// Half of what is free in the folder, beside what is there already.
std::int64_t default_cache_bytes(const std::filesystem::path& folder, ObjectStore& store) {
  std::int64_t bytes = static_cast<std::int64_t>(std::filesystem::space(folder).available);
  for (const ListedObject& object : store.list()) bytes += object.bytes;
  return bytes / 2;
}

PrefixStoreOptions prefix_options(const ServeArguments& arguments) {
  PrefixStoreOptions options;
  options.keeps = arguments.prefix_cache;
  options.verify_rate = arguments.verify_rate;
  options.note = [](std::string_view what) { write_note(fmt::format("prefix cache: {}\n", one_line(what))); };
  if (!arguments.cache_folder) return options;
  options.objects = std::make_shared<FileStore>(*arguments.cache_folder);
  options.object_bytes = arguments.cache_disk_bytes > 0 ? arguments.cache_disk_bytes
                                                        : default_cache_bytes(*arguments.cache_folder, *options.objects);
  return options;
}

}  // namespace

int serve_command(const ServeArguments& arguments) {
  check_arguments(arguments);
  raise_file_limit();
  const std::unique_ptr<Model> model = open_model(arguments.model, arguments.drafts.drafts > 0);
  EngineOptions engine_options;
  engine_options.limits = arguments.limits;
  engine_options.pool_bytes = arguments.pool_bytes;
  engine_options.prefixes = prefix_options(arguments);
  engine_options.speculation.setting = arguments.drafts;
  const auto metrics = std::make_shared<Metrics>(CALANDRA_VERSION);
  Engine engine(*model, engine_options, metrics);
  if (arguments.cache_folder) {
    const TierStatistics there = engine.statistics().tier;
    write_note(fmt::format("prefix cache in {}: {} positions, {} of {}\n", *arguments.cache_folder, there.boundaries,
                           short_bytes(there.bytes), short_bytes(engine_options.prefixes.object_bytes)));
  }
  EngineAnswers service(engine);
  GrammarCache grammars(model->tokenizer(), stop_ids_of(*model), model->num_samplable());
  MeasuredAnswers answers(service, metrics);
  ServerOptions options = server_options(arguments);
  options.metrics = [&, bodies = options.http.limits.bodies] {
    return metrics_page(*metrics, engine.statistics(), bodies->used());
  };
  options.replied = [metrics](std::string_view path, int status) { metrics->replied(path, status); };

  const InterruptWatch watch(InterruptWatch::Second::EndsProgram, InterruptWatch::Ending::Asked);
  Server server(options, served_model(*model, engine, grammars, arguments), answers,
                [](std::string_view line) { write_note(fmt::format("{}\n", one_line(line))); });
  if (options.api_keys.empty() && !is_this_machine(arguments.host)) {
    write_note(fmt::format("note: everyone who reaches {} may ask: --api-key asks for a key\n", arguments.host));
  }
  write_note(fmt::format("{} on http://{}:{}, context {}\n", short_name(model->name()), bracketed(arguments.host), server.port(),
                         with_commas(engine.context())));
  write_note(pool_text(engine) + "\n");
  notify_manager("READY=1");

  InterruptWatch::wait();
  notify_manager("STOPPING=1");
  write_note(fmt::format("stopping: what has begun has {:g} s\n", arguments.drain_seconds));
  server.end(std::chrono::duration_cast<std::chrono::milliseconds>(nanoseconds_of(arguments.drain_seconds)));
  return kExitSuccess;
}

}  // namespace calandra
