#include "engine/stop_strings.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

/// How much of the beginning of `stop` a text ends with that ended with `begun` bytes of it, not all, before `next` came.
std::uint32_t step(const StopString& stop, std::uint32_t begun, char next) {
  while (begun > 0 && stop.text[begun] != next) begun = stop.begun_anew[begun - 1];
  return stop.text[begun] == next ? begun + 1 : 0;
}

}  // namespace

StopList::StopList(const std::vector<std::string>& texts) {
  std::vector<StopString> stops;
  for (const std::string& text : texts) {
    if (text.empty()) fail("stop string: found an empty one, expected at least one character");
    StopString& stop = stops.emplace_back(StopString{text, {0}});
    for (std::size_t i = 1; i < text.size(); ++i) stop.begun_anew.push_back(step(stop, stop.begun_anew.back(), text[i]));
  }
  if (!stops.empty()) stops_ = std::make_shared<const std::vector<StopString>>(std::move(stops));
}

std::vector<std::string> StopList::texts() const {
  std::vector<std::string> texts;
  for (const StopString& stop : stops()) texts.push_back(stop.text);
  return texts;
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return {};
  const std::span<const StopString> stops = list_.stops();
  pending_ += text;
  for (std::size_t end = pending_.size() - text.size() + 1; end <= pending_.size(); ++end) {
    // The first to be complete ends the answer; of those that end at the same place, the longest.
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      begun_[i] = step(stops[i], begun_[i], pending_[end - 1]);
      if (begun_[i] == stops[i].text.size()) longest = std::max(longest, stops[i].text.size());
    }
    if (longest == 0) continue;
    found_ = true;
    std::string certain = pending_.substr(0, end - longest);
    pending_.clear();
    return certain;
  }
  const std::size_t waiting = begun_.empty() ? 0 : *std::max_element(begun_.begin(), begun_.end());
  std::string certain = pending_.substr(0, pending_.size() - waiting);
  pending_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() { return std::exchange(pending_, {}); }

}  // namespace calandra
