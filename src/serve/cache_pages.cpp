#include "serve/cache_pages.h"

#include "base/json.h"
#include "serve/chat_request.h"
#include "serve/json_body.h"
#include "serve/request_fields.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace calandra {
namespace {

const char* name_of(BoundaryKind kind) {
  switch (kind) {
    case BoundaryKind::Spaced: return "spaced";
    case BoundaryKind::Message: return "message";
    case BoundaryKind::Fork: return "fork";
    case BoundaryKind::Asked: return "asked";
    case BoundaryKind::End: return "end";
  }
  return "";
}

SpaceFilter spaces_of(const ApiContext& context, const HttpRequest& request) {
  return [owner = cache_owner_of(context, request)](const std::string& space) { return space.starts_with(owner); };
}

/// Of --cache-dir.
Json share_json(const TierShare& share) { return {{"boundaries", share.boundaries}, {"bytes", share.bytes}}; }

Json survey_json(const PrefixSurvey& survey) {
  Json spaces = Json::array();
  for (const auto& boundaries : survey.memory.spaces) {
    Json list = Json::array();
    for (std::size_t i = 0; i < boundaries.size(); ++i) {
      const CacheSurvey::Boundary& boundary = boundaries[i];
      list.push_back({{"id", i},
                      {"parent", boundary.parent < 0 ? Json() : Json(boundary.parent)},
                      {"position", boundary.position},
                      {"kind", name_of(boundary.kind)},
                      {"hits", boundary.hits},
                      {"blocks", boundary.blocks},
                      {"bytes", boundary.blocks * survey.memory.block_bytes},
                      {"pinned", boundary.is_pinned},
                      {"idle_seconds", boundary.idle_seconds}});
    }
    spaces.push_back({{"space", spaces.size()}, {"boundaries", std::move(list)}});
  }
  return {{"spaces", std::move(spaces)}, {"left_off", survey.memory.left_off}, {"folder", share_json(survey.tier)}};
}

}  // namespace

void show_cache(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  context.answers.survey_cache(spaces_of(context, request), kMostBoundariesShown, [responder](const PrefixSurvey& survey) {
    HttpResponse page = json_response(200, survey_json(survey));
    page.headers.add("Cache-Control", "no-store");
    HttpResponder(responder).reply(page);
  });
}

void flush_cache(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  const Json body = parse_body(request);
  RequestFields(body).finish();
  context.answers.flush_cache(spaces_of(context, request), [responder](const PrefixFlush& flush) {
    HttpResponder(responder).reply(json_response(200, {{"boundaries", flush.memory.boundaries},
                                                       {"bytes", flush.memory.bytes},
                                                       {"pinned", flush.memory.pinned},
                                                       {"folder", share_json(flush.tier)}}));
  });
}

}  // namespace calandra
