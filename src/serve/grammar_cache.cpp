#include "serve/grammar_cache.h"

#include "text/tokenizer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace calandra {

GrammarCache::GrammarCache(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int64_t num_samplable,
                           std::size_t most_bytes)
    : tokenizer_(tokenizer), end_ids_(end_ids.begin(), end_ids.end()), num_samplable_(num_samplable), most_bytes_(most_bytes) {}

std::shared_ptr<const Grammar> GrammarCache::find_or_compile(Kind kind, std::string_view text, std::string_view where) {
  std::string key(1, static_cast<char>('0' + static_cast<int>(kind)));
  if (kind != Kind::JsonObject) key += text;
  return find_or_make(std::move(key), [&](Vocabulary vocabulary) -> std::shared_ptr<const Grammar> {
    switch (kind) {
      case Kind::JsonObject: return Grammar::any_json_object(std::move(vocabulary));
      case Kind::JsonSchema: return Grammar::from_json_schema(text, where, std::move(vocabulary));
      case Kind::Ebnf: return Grammar::from_ebnf(text, where, std::move(vocabulary));
    }
    return nullptr;
  });
}

std::shared_ptr<const Grammar> GrammarCache::find_or_compile(const CallRules& rules) {
  std::string key = rules.several ? "calls" : "call";
  for (const CallRules::Tool& tool : rules.tools) {
    const std::string_view parameters = tool.parameters ? std::string_view(*tool.parameters) : "";
    key += fmt::format(" {} {}:{}{}", tool.must_fit, tool.name.size(), tool.name, parameters);
  }
  return find_or_make(std::move(key), [&](Vocabulary vocabulary) { return Grammar::from_calls(rules, std::move(vocabulary)); });
}

std::shared_ptr<const Grammar> GrammarCache::find_or_make(std::string key,
                                                          const std::function<std::shared_ptr<const Grammar>(Vocabulary)>& make) {
  std::unique_lock lock(mutex_);
  for (auto found = by_key_.find(key); found != by_key_.end(); found = by_key_.find(key)) {
    if (found->second->grammar) {
      entries_.splice(entries_.begin(), entries_, found->second);
      forget_oldest();
      return entries_.front().grammar;
    }
    // If it fails whoever waited tries it, since errors say for whom.
    compiled_.wait(lock);
  }
  entries_.push_front({std::move(key), nullptr});
  const auto entry = entries_.begin();
  const auto forget = [&] {
    by_key_.erase(entry->key);
    entries_.erase(entry);
    compiled_.notify_all();
  };
  try {
    by_key_.emplace(entry->key, entry);
    lock.unlock();
    std::shared_ptr<const Grammar> made = make(vocabulary());
    lock.lock();
    entry->grammar = made;
    entries_.splice(entries_.begin(), entries_, entry);
    forget_oldest();
    compiled_.notify_all();
    return made;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    forget();
    throw;
  }
}

GrammarCache::Vocabulary GrammarCache::vocabulary() {
  const std::lock_guard lock(vocabulary_mutex_);
  if (!vocabulary_)
    vocabulary_ = std::make_shared<GrammarVocabulary>(tokenizer_, end_ids_, static_cast<std::int32_t>(num_samplable_));
  return vocabulary_;
}

/// Of those that nobody is compiling, all but the first go, until the rest fits.
void GrammarCache::forget_oldest() {
  std::size_t bytes = held_bytes();
  for (auto entry = std::prev(entries_.end()); bytes > most_bytes_ && entry != entries_.begin();) {
    const auto gone = entry--;
    if (!gone->grammar) continue;
    bytes -= gone->bytes();
    by_key_.erase(gone->key);
    entries_.erase(gone);
  }
}

std::size_t GrammarCache::held_bytes() const {
  std::size_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.bytes();
  return bytes;
}

std::size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes();
}

}  // namespace calandra
