#include "serve/whole_server.h"

#include "base/json.h"
#include "engine/generate.h"
#include "serve/test_server.h"
#include "support/golden.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace calandra {
namespace {

ServedModel served_bundled_model(const Engine& engine, GrammarCache& grammars, const EngineOptions& options) {
  const Model& model = engine.model();
  ServedModel served;
  served.names = {"austen-5m"};
  served.tokenizer = &model.tokenizer();
  served.chat_template = &model.chat_template();
  served.defaults.stop_ids = stop_ids_of(model);
  served.num_samplable = model.num_samplable();
  served.context = engine.context();
  served.most_answers = options.limits.max_waiting;
  served.grammars = &grammars;
  return served;
}

EngineOptions with_drafts(EngineOptions options, std::int64_t drafts) {
  options.speculation.setting = {.automatic = false, .drafts = drafts};
  return options;
}

ServerOptions with_metrics(ServerOptions options, const std::shared_ptr<Metrics>& metrics, const Engine& engine,
                           const std::shared_ptr<BodyBudget>& bodies) {
  options.http.port = 0;
  options.http.limits.bodies = bodies;
  options.metrics = [metrics, &engine, bodies] { return metrics_page(*metrics, engine.statistics(), bodies->used()); };
  options.replied = [metrics](std::string_view path, int status) { metrics->replied(path, status); };
  return options;
}

}  // namespace

std::map<std::string, double> read_metrics(const std::string& page) {
  std::map<std::string, double> samples;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP calandra_") || line.starts_with("# TYPE calandra_")) continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_NE(space, std::string::npos) << line;
    const std::string key = line.substr(0, space);
    EXPECT_THAT(key, testing::StartsWith("calandra_"));
    char* end = nullptr;
    const std::string value = line.substr(space + 1);
    const double number = std::strtod(value.c_str(), &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_TRUE(samples.emplace(key, number).second) << "twice: " << key;
  }
  return samples;
}

int num_open_files() {
  int count = 0;
  for (int file = 0; file < 1024; ++file) count += ::fcntl(file, F_GETFD) >= 0;
  return count;
}

std::size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

WholeServer::WholeServer(WholeServerOptions options)
    : engine(model(options.drafts), with_drafts(options.engine, options.drafts), options.metrics),
      bodies_(std::make_shared<BodyBudget>(options.body_bytes)),
      bare_(engine),
      grammars_(model().tokenizer(), stop_ids_of(model()), model().num_samplable()),
      answers_(bare_, options.metrics),
      server(with_metrics(std::move(options.server), options.metrics, engine, bodies_),
             served_bundled_model(engine, grammars_, options.engine), answers_, [](std::string_view) {}) {}

Model& WholeServer::model(std::int64_t drafts) {
  const auto load = [](bool with_mtp) {
    ModelOptions options;
    options.threads = 2;
    options.with_mtp = with_mtp;
    return std::make_unique<Model>(source_path("models/austen-5m").string(), options);
  };
  static const std::unique_ptr<Model> plain = load(false);
  if (drafts == 0) return *plain;
  static const std::unique_ptr<Model> drafting = load(true);
  return *drafting;
}

std::string WholeServer::request(const std::string& path, const Json& body, std::string_view fields) {
  return request_text("POST " + path + " HTTP/1.1", "Content-Type: application/json\r\n" + std::string(fields), dump_json(body));
}

std::map<std::string, double> WholeServer::metrics() const {
  return read_metrics(connect().ask(request_text("GET /metrics HTTP/1.1")).body);
}

bool WholeServer::becomes_idle() const {
  return becomes_true([&] {
    const EngineStatistics now = engine.statistics();
    return server.num_connections() == 0 && engine.idle() && now.schedule.running == 0 && now.schedule.waiting == 0 &&
           now.schedule.blocks_used == 0 && now.pool.nothing == now.schedule.blocks_total;
  });
}

}  // namespace calandra
