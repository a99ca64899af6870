#include "engine/stop_strings.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

/// Bytes at the end of `text` that begin `stop`, without being all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail("stop string: found an empty one, expected at least one character");
  }
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return {};
  pending_ += text;
  // The first to be complete ends the answer; of those that end at the same place, the longest.
  std::size_t first_end = std::string::npos, begin = std::string::npos;
  std::size_t waiting = 0;
  for (const std::string& stop : stops_) {
    waiting = std::max(waiting, begun(pending_, stop));
    const std::size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
    }
  }
  found_ = begin != std::string::npos;
  std::string certain = pending_.substr(0, found_ ? begin : pending_.size() - waiting);
  pending_.erase(0, found_ ? pending_.size() : certain.size());
  return certain;
}

std::string StopStrings::finish() { return std::exchange(pending_, {}); }

}  // namespace calandra
