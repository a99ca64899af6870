#pragma once
// The bundled model behind sockets, as `calandra serve` has it: engine, metrics, log of requests.

#include "engine/engine.h"
#include "serve/body_budget.h"
#include "serve/client.h"
#include "serve/engine_answers.h"
#include "serve/grammar_cache.h"
#include "serve/metrics.h"
#include "serve/server.h"

#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace calandra {

/// The samples of a page: "name{labels}" to value. Fails where a line has neither form of the text format.
std::map<std::string, double> read_metrics(const std::string& page);

/// Of this process.
int num_open_files();
std::size_t resident_bytes();

struct WholeServerOptions {
  EngineOptions engine = {.limits = {}, .context = 2048, .pool_bytes = std::int64_t{256} << 20, .freed = FreedMemory::Poisoned};
  ServerOptions server = {};
  std::shared_ptr<Metrics> metrics = std::make_shared<Metrics>("1.2.3");
  std::uint64_t body_bytes = std::uint64_t{256} << 20;  // of all requests
  std::int64_t drafts = 0;                              // in every step where there is room for them
};

class WholeServer {
 public:
  explicit WholeServer(WholeServerOptions options = {});

  /// Without its MTP layer, unless there are drafts.
  static Model& model(std::int64_t drafts = 0);

  Client connect() const { return Client(server.port()); }
  static std::string request(const std::string& path, const nlohmann::ordered_json& body, std::string_view fields = {});
  Answer post(const std::string& path, const nlohmann::ordered_json& body, std::string_view fields = {}) const {
    return connect().ask(request(path, body, fields));
  }
  std::map<std::string, double> metrics() const;
  const BodyBudget& bodies() const { return *bodies_; }
  /// Nobody is connected, nothing waits or runs, and all memory is free. Waits for it.
  bool becomes_idle() const;

  Engine engine;

 private:
  std::shared_ptr<BodyBudget> bodies_;
  EngineAnswers bare_;
  GrammarCache grammars_;
  MeasuredAnswers answers_;

 public:
  Server server;
};

}  // namespace calandra
