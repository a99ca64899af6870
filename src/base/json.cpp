#include "base/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace calandra {
namespace {

/// How deep the brackets of a text go, and how many keys its largest object has. Right up to the first place where it is no JSON: the
/// parser stops there.
struct Extent {
  int depth = 0;
  int keys = 0;  // of one object
};
Extent extent_of(std::string_view text) {
  Extent most;
  int depth = 0;
  bool in_string = false;
  std::vector<int> keys(1);  // of the objects that are open
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ':') {
      most.keys = std::max(most.keys, ++keys.back());
    } else if (c == '[' || c == '{') {
      most.depth = std::max(most.depth, ++depth);
      if (depth > kMaxJsonNesting) return most;
      keys.push_back(0);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
      keys.pop_back();
    }
  }
  return most;
}

bool is_within_limits(const Extent& extent) { return extent.depth <= kMaxJsonNesting && extent.keys <= kMaxJsonKeys; }

[[noreturn]] void refuse_nesting(const std::string& where) {
  fail("{}: nested deeper than {}, expected JSON that is less deep", where, kMaxJsonNesting);
}

/// The text in full, or Error with the place where it is no JSON. `watch` may throw Error, too.
Json parse_watched(std::string_view text, const std::string& where, const Json::parser_callback_t& watch) {
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    fail("{}: not JSON: {}", where, printable(json_complaint(error.what())));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  const Extent extent = extent_of(text);
  if (extent.depth > kMaxJsonNesting) refuse_nesting(where);
  if (extent.keys > kMaxJsonKeys) fail("{}: an object of {} keys, expected at most {}", where, extent.keys, kMaxJsonKeys);
  return parse_watched(text, where, nullptr);
}

Json parse_json_with_unique_keys(std::string_view text, const std::string& where, int most_keys) {
  int num_keys = 0;
  std::vector<std::set<std::string>> open_objects;  // the keys so far of each
  return parse_watched(text, where, [&](int, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (++num_keys > most_keys) fail("{}: found more than {} keys", where, most_keys);
      if (!open_objects.back().insert(key).second) fail("{}: {}: found twice, expected once", where, printable(key));
    }
    return true;
  });
}

std::optional<Json> try_parse_json(std::string_view text) {
  if (!is_within_limits(extent_of(text))) return std::nullopt;
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

std::optional<Json> try_parse_json_outline(std::string_view text) {
  if (!is_json(text)) return std::nullopt;
  return Json::parse(text, [](int depth, Json::parse_event_t, Json&) { return depth == 0; });
}

bool is_json(std::string_view text) { return is_within_limits(extent_of(text)) && Json::accept(text); }

void check_nesting(const Json& json, const std::string& where) {
  std::vector<const Json*> level, next;
  if (json.is_structured()) level.push_back(&json);
  for (int depth = 1; !level.empty(); ++depth) {
    if (depth > kMaxJsonNesting) refuse_nesting(where);
    for (const auto* outer : level) {
      for (const auto& inner : *outer) {
        if (inner.is_structured()) next.push_back(&inner);
      }
    }
    level = std::exchange(next, {});
  }
}

std::string dump_json(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

std::string_view trim_json_space(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace calandra
