#pragma once
// Compiled grammars of one model, kept for the next request with the same text: agents send the same schema with every turn. May
// be used from any thread; a text that is being compiled is waited for, not compiled twice.

#include "text/grammar.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace calandra {

class GrammarCache {
 public:
  /// `end_ids` may come where a text may end; masks have a bit for each of `num_samplable` ids. The tokenizer must outlive this.
  GrammarCache(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int64_t num_samplable);

  enum class Kind : std::uint8_t { JsonObject, JsonSchema, Ebnf };

  /// As the functions of Grammar; `text` of a JSON object is ignored. Throws Error "WHERE: ...".
  std::shared_ptr<const Grammar> find_or_compile(Kind kind, std::string_view text, std::string_view where);

  /// As Grammar::from_calls().
  std::shared_ptr<const Grammar> find_or_compile(const CallRules& rules);

  std::size_t size() const;

 private:
  static constexpr std::size_t kMostGrammars = 64;  // the one that was not asked for the longest goes

  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
  };

  using Vocabulary = std::shared_ptr<const GrammarVocabulary>;

  std::shared_ptr<const Grammar> find_or_make(std::string key,
                                              const std::function<std::shared_ptr<const Grammar>(Vocabulary)>& make);

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> end_ids_;
  std::int64_t num_samplable_;
  mutable std::mutex mutex_;
  Vocabulary vocabulary_;     // made when it is first needed
  std::list<Entry> entries_;  // the last one used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
};

}  // namespace calandra
