#include "loadtest/trace_file.h"

#include "base/error.h"
#include "base/json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace calandra {
namespace {

constexpr std::array<std::string_view, 3> kColumns = {"arrival", "prompt_tokens", "output_tokens"};
constexpr double kMostSeconds = 1e7;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

/// Parts at commas, without blanks around them.
std::vector<std::string_view> parts_of(std::string_view line) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t comma = line.find(',');
    parts.push_back(trim_json_space(line.substr(0, comma)));
    if (comma == line.npos) return parts;
    line.remove_prefix(comma + 1);
  }
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

double arrival_of(std::optional<double> seconds, const std::string& where, std::string_view found) {
  if (seconds && *seconds >= 0 && *seconds <= kMostSeconds) return *seconds;
  fail("{}: {}: found '{}', expected seconds from 0 to {:g}", where, kColumns[0], printable(found), kMostSeconds);
}

std::int64_t tokens_of(std::optional<std::int64_t> tokens, const std::string& where, std::string_view name,
                       std::string_view found) {
  if (tokens && *tokens >= 1 && *tokens <= kMostTokens) return *tokens;
  fail("{}: {}: found '{}', expected an integer from 1 to {}", where, name, printable(found), kMostTokens);
}

TraceEntry entry_of(const std::string& where, std::string_view arrival, std::string_view prompt, std::string_view output) {
  return {.arrival_seconds = arrival_of(number_of<double>(arrival), where, arrival),
          .prompt_tokens = tokens_of(number_of<std::int64_t>(prompt), where, kColumns[1], prompt),
          .output_tokens = tokens_of(number_of<std::int64_t>(output), where, kColumns[2], output)};
}

TraceEntry entry_of_csv(std::string_view line, const std::string& where) {
  const std::vector<std::string_view> parts = parts_of(line);
  if (parts.size() != kColumns.size()) {
    fail("{}: found {} values in '{}', expected 3: arrival in seconds, prompt tokens, output tokens", where, parts.size(),
         printable(line));
  }
  return entry_of(where, parts[0], parts[1], parts[2]);
}

TraceEntry entry_of_json(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  const auto text_of = [&](std::string_view key) {
    const auto found = json.find(key);
    if (found == json.end()) fail("{}: {}: found no such key, expected arrival, prompt_tokens and output_tokens", where, key);
    return dump_json(*found);
  };
  const std::string arrival = text_of(kColumns[0]), prompt = text_of(kColumns[1]), output = text_of(kColumns[2]);
  return entry_of(where, arrival, prompt, output);
}

bool is_header(std::string_view line) {
  const std::vector<std::string_view> parts = parts_of(line);
  return std::equal(parts.begin(), parts.end(), kColumns.begin(), kColumns.end());
}

}  // namespace

std::vector<TraceEntry> parse_trace(std::string_view text, const std::string& name) {
  std::vector<TraceEntry> entries;
  bool is_first = true;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim_json_space(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    if (std::exchange(is_first, false) && is_header(line)) continue;
    const std::string where = fmt::format("{}: line {}", name, number);
    const TraceEntry entry = line.starts_with('{') ? entry_of_json(line, where) : entry_of_csv(line, where);
    if (!entries.empty() && entry.arrival_seconds < entries.back().arrival_seconds) {
      fail("{}: arrival: found {:g} after {:g}, expected requests in the order they came", where, entry.arrival_seconds,
           entries.back().arrival_seconds);
    }
    entries.push_back(entry);
  }
  if (entries.empty()) fail("{}: found no request, expected lines such as 0.25,2048,64", name);
  return entries;
}

}  // namespace calandra
