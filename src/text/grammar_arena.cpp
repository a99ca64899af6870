#include "text/grammar_machine.h"

namespace calandra::grammar {

Arena::Arena() : set_ends_{0, 0}, seen_(1), keys_{{kNoText, 0}}, texts_{{0, 0, 0, 0}, {0, 0, 0, 1}} {}

void Arena::rewind(const Mark& mark) {
  threads_.resize(mark.threads);
  set_ends_.resize(mark.sets);
  seen_.resize(mark.seen);
  keys_.resize(mark.keys);
  texts_.resize(mark.texts);
}

SetId Arena::add_set(std::span<const Thread> threads) {
  threads_.insert(threads_.end(), threads.begin(), threads.end());
  set_ends_.push_back(threads_.size());
  return static_cast<SetId>(set_ends_.size() - 1);
}

std::uint32_t Arena::add_seen(Seen seen) {
  seen_.push_back(std::move(seen));
  return static_cast<std::uint32_t>(seen_.size() - 1);
}

std::uint32_t Arena::add_key(std::uint32_t text, std::uint32_t next) {
  keys_.push_back({text, next});
  return static_cast<std::uint32_t>(keys_.size() - 1);
}

std::uint32_t Arena::add_text(std::uint32_t before, char32_t c) {
  const Text& text = texts_[before];
  texts_.push_back({before, text.size + 1, c, (text.hash ^ c) * 0x9E3779B97F4A7C15u + (text.hash >> 29)});
  return static_cast<std::uint32_t>(texts_.size() - 1);
}

bool Arena::same_text(std::uint32_t a, std::uint32_t b) const {
  if (texts_[a].size != texts_[b].size || texts_[a].hash != texts_[b].hash) return false;
  for (; a != b && texts_[a].size > 0; a = texts_[a].before, b = texts_[b].before) {
    if (texts_[a].last != texts_[b].last) return false;
  }
  return true;
}

std::u32string Arena::text(std::uint32_t id) const {
  std::u32string result(texts_[id].size, 0);
  for (std::size_t i = result.size(); i > 0; id = texts_[id].before) result[--i] = texts_[id].last;
  return result;
}

}  // namespace calandra::grammar
