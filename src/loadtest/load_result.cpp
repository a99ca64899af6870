#include "loadtest/load_result.h"

#include <iterator>
#include <utility>

namespace calandra {

std::int64_t LevelFigures::failed() const {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < by_failure.size(); ++i) count += by_failure[i];
  return count;
}

LevelFigures figures_of(const LevelResult& result) {
  LevelFigures figures;
  std::vector<double> first, first_from_send, pace, gaps, whole, late;
  std::int64_t cached = 0, cached_of = 0, chunks = 0;
  double under_way = 0;
  for (const RequestResult& record : result.records) {
    ++figures.by_failure[static_cast<std::size_t>(record.failure)];
    under_way += record.ended - record.sent;
    late.push_back(record.sent - record.scheduled);
    if (record.failure != Failure::None) continue;
    ++figures.ok;
    figures.prompt_tokens += record.prompt_tokens;
    figures.output_tokens += record.output_tokens;
    figures.estimated += record.is_counted ? 0 : 1;
    if (record.cached_tokens) {
      cached += *record.cached_tokens;
      cached_of += record.prompt_tokens;
    }
    first.push_back(record.first_token - record.scheduled);
    first_from_send.push_back(record.first_token - record.sent);
    if (record.output_tokens > 1) {
      pace.push_back((record.last_token - record.first_token) / static_cast<double>(record.output_tokens - 1));
    }
    gaps.insert(gaps.end(), record.gaps.begin(), record.gaps.end());
    chunks += std::ssize(record.gaps) + 1;
    whole.push_back(record.ended - record.scheduled);
  }
  if (result.seconds > 0) {
    figures.requests_per_second = static_cast<double>(figures.ok) / result.seconds;
    figures.output_tokens_per_second = static_cast<double>(figures.output_tokens) / result.seconds;
    figures.total_tokens_per_second = static_cast<double>(figures.prompt_tokens + figures.output_tokens) / result.seconds;
    figures.in_flight = under_way / result.seconds;
  }
  if (cached_of > 0) figures.cached_share = static_cast<double>(cached) / static_cast<double>(cached_of);
  if (chunks > 0) figures.tokens_per_chunk = static_cast<double>(figures.output_tokens) / static_cast<double>(chunks);
  figures.first_token = percentiles_of(std::move(first));
  figures.first_token_from_send = percentiles_of(std::move(first_from_send));
  figures.token_pace = percentiles_of(std::move(pace));
  figures.gap = percentiles_of(std::move(gaps));
  figures.end_to_end = percentiles_of(std::move(whole));
  figures.lateness = percentiles_of(std::move(late));
  return figures;
}

}  // namespace calandra
