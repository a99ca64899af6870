#include "serve/grammar_cache.h"

#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

namespace calandra {

GrammarCache::GrammarCache(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int64_t num_samplable)
    : tokenizer_(tokenizer), end_ids_(end_ids.begin(), end_ids.end()), num_samplable_(num_samplable) {}

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
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().grammar;
  }
  if (!vocabulary_)
    vocabulary_ = std::make_shared<GrammarVocabulary>(tokenizer_, end_ids_, static_cast<std::int32_t>(num_samplable_));
  entries_.push_front({std::move(key), make(vocabulary_)});
  by_key_.emplace(entries_.front().key, entries_.begin());
  if (entries_.size() > kMostGrammars) {
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return entries_.front().grammar;
}

std::size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace calandra
