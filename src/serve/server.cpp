#include "serve/server.h"

#include "serve/anthropic_messages.h"
#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/cache_pages.h"
#include "serve/json_body.h"
#include "serve/model_endpoints.h"
#include "serve/openai_chat.h"
#include "serve/openai_completions.h"
#include "serve/openai_responses.h"
#include "serve/web_page.h"
#include "serve/work_queue.h"

#include <malloc.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <utility>

namespace calandra {
namespace {

constexpr int kWorkThreads = 2;
/// For telling whoever is still answered at the end that it is the end.
constexpr std::chrono::seconds kFarewell{2};
/// Parsed JSON takes up to fifty times the bytes of its text, in pieces that glibc keeps for itself; those of a body of this size
/// are given back.
constexpr std::size_t kLargeBodyBytes = std::size_t{1} << 20;
constexpr const char* kJsonType = "application/json";

/// Whoever watches a server need not know its keys; the web page asks its user for one.
bool is_open(std::string_view path) { return path == "/health" || path == "/ready" || path == "/version" || is_web_page(path); }

/// What is asked for every few seconds and says nothing of who uses the server: no matter for the log.
bool is_watching(const HttpRequest& request) {
  return (request.method == "GET" || request.method == "HEAD") &&
         (is_open(request.path) || request.path == "/metrics" || request.path == "/cache");
}

}  // namespace

struct Server::Parts {
  Parts(ServerOptions given, ServedModel served, AnswerService& answers)
      : options(std::move(given)),
        model(std::move(served)),
        context{model, answers, options.time_limit, options.api_keys, options.isolates_keys} {
    add_pages();
    add_apis();
  }

  using Api = void (*)(const ApiContext&, const HttpRequest&, const HttpResponder&);
  using Answering = std::function<void(const HttpRequest&, HttpResponder&)>;
  using Tool = HttpResponse (*)(const ServedModel&, const HttpRequest&);

  void add_get(const char* path, std::function<HttpResponse(const HttpRequest&)> page) {
    router.add({"GET", path, "", [page = std::move(page)](const HttpRequest& request, HttpResponder responder) {
                  responder.reply(page(request));
                }});
  }

  /// Whatever is thrown becomes an error in the shape of the path's API.
  static void answer_or_refuse(const Answering& answer, const HttpRequest& request, HttpResponder& responder) {
    if (responder.gone().stop_requested()) return;
    if (request.record) request.record->came_with(request.body);
    try {
      answer(request, responder);
    } catch (const std::exception& thrown) {
      const ApiError error = api_error_of(thrown);
      if (request.record) request.record->failed(error);
      responder.reply(error_response(error, request.path));
    }
  }

  void add_post(const char* path, Answering answer) {
    router.add({"POST", path, kJsonType, [this, answer = std::move(answer)](HttpRequest request, HttpResponder responder) {
                  work.push([answer, request = std::move(request), responder = std::move(responder)]() mutable {
                    answer_or_refuse(answer, request, responder);
                    if (std::exchange(request.body, {}).size() >= kLargeBodyBytes) ::malloc_trim(0);
                  });
                }});
  }

  void add_api(const char* path, Api api) {
    add_post(path, [this, api](const HttpRequest& request, HttpResponder& responder) { api(context, request, responder); });
  }

  void add_tool(const char* path, Tool tool) {
    add_post(path, [this, tool](const HttpRequest& request, HttpResponder& responder) {
      responder.reply(tool(context.model, request));
    });
  }

  void add_pages() {
    for (const std::string& path : web_page_paths()) add_get(path.c_str(), web_page);
    add_get("/health", [](const HttpRequest&) { return json_response(200, {{"status", "ok"}}); });
    add_get("/ready", [this](const HttpRequest&) {
      return is_taking ? json_response(200, {{"status", "ready"}}) : json_response(503, {{"status", "stopping"}});
    });
    add_get("/version", [this](const HttpRequest&) { return json_response(200, {{"version", options.version}}); });
    if (options.metrics) add_get("/metrics", [this](const HttpRequest&) { return options.metrics(); });
    add_get("/v1/models", [this](const HttpRequest&) { return list_models(model); });
    add_get("/v1/models/*", [this](const HttpRequest& request) {
      return show_model(model, std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
    });
  }

  void add_apis() {
    add_api("/v1/chat/completions", openai_chat);
    add_api("/v1/completions", openai_completions);
    add_api("/v1/responses", openai_responses);
    add_api("/v1/messages", anthropic_messages);
    add_api("/v1/messages/count_tokens", anthropic_count_tokens);
    router.add({"GET", "/cache", "",
                [this](const HttpRequest& request, const HttpResponder& responder) { show_cache(context, request, responder); }});
    add_api("/cache/flush", flush_cache);
    add_tool("/tokenize", tokenize);
    add_tool("/detokenize", detokenize_tokens);
    add_tool("/apply-template", apply_template);
  }

  std::optional<HttpResponse> check(const HttpRequest& request) const {
    if (!is_open(request.path) && !authorised(request, options.api_keys)) {
      return error_response({.status = 401,
                             .message = "expected an API key, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"",
                             .code = "invalid_api_key"},
                            request.path);
    }
    return router.refusal(request);
  }

  void replied(std::string_view path, int status) const {
    if (options.replied) options.replied(router.route_of(path), status);
  }

  std::shared_ptr<RequestRecord> record(const HttpRequest& request) const {
    if (!options.request_log || is_watching(request)) return nullptr;
    const auto key = key_of(request, options.api_keys);
    return std::make_shared<RequestRecord>(options.request_log, request, key ? key_mark(options.api_keys[*key]) : std::string());
  }

  const ServerOptions options;
  const ServedModel model;
  const ApiContext context;
  std::atomic<bool> is_taking = true;
  Router router{format_api_error};
  WorkQueue work{kWorkThreads};  // before `http`, which fills it, and after all that its work uses
  std::optional<HttpServer> http;
};

Server::Server(ServerOptions options, ServedModel model, AnswerService& answers, std::function<void(std::string_view line)> log)
    : parts_(std::make_unique<Parts>(std::move(options), std::move(model), answers)) {
  Parts& parts = *parts_;
  parts.http.emplace(
      parts.options.http,
      HttpService{.handle = [&parts](HttpRequest request,
                                     HttpResponder responder) { parts.router.handle(std::move(request), std::move(responder)); },
                  .check = [&parts](const HttpRequest& request) { return parts.check(request); },
                  .error = format_api_error,
                  .record = [&parts](const HttpRequest& request) { return parts.record(request); },
                  .replied = [&parts](std::string_view path, int status) { parts.replied(path, status); },
                  .log = std::move(log)});
}

Server::~Server() = default;

int Server::port() const { return parts_->http->port(); }
int Server::num_connections() const { return parts_->http->num_connections(); }

void Server::end(std::chrono::milliseconds grace) {
  AnswerService& answers = parts_->context.answers;
  HttpServer& http = *parts_->http;
  parts_->is_taking = false;
  answers.drain();
  http.stop(grace + kFarewell);
  if (!http.wait_for(grace)) answers.cancel_all();
  http.wait();
}

}  // namespace calandra
