#include "cache/token_chain.h"

#include <bit>

namespace calandra {
namespace {

static_assert(std::endian::native == std::endian::little, "names are those of little-endian tokens");

std::span<const std::byte> bytes_of(std::span<const std::int32_t> tokens, std::int64_t begin, std::int64_t end) {
  return std::as_bytes(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
}

}  // namespace

void TokenChain::extend(std::span<const std::int32_t> tokens) {
  for (std::int64_t begin = num_runs() * kRunTokens; begin + kRunTokens <= std::ssize(tokens); begin += kRunTokens)
    runs_.push_back(Sha256().update(runs_.back().bytes).update(bytes_of(tokens, begin, begin + kRunTokens)).digest());
}

std::vector<Digest> names_of_ends(const Digest& run, std::span<const std::int32_t> tail, std::span<const std::int64_t> lengths) {
  constexpr std::byte kEnd{1};  // one byte more than whole tokens: never the input of a run's name
  std::vector<Digest> names;
  Sha256 so_far;
  so_far.update(run.bytes);
  std::int64_t taken = 0;
  for (const std::int64_t length : lengths) {
    so_far.update(bytes_of(tail, taken, length));
    taken = length;
    Sha256 end = so_far;
    names.push_back(end.update(std::span(&kEnd, 1)).digest());
  }
  return names;
}

}  // namespace calandra
