#pragma once
// Compiled grammars of one model, kept for the next request with the same text: agents send the same schema with every turn. May
// be used from any thread. Different texts are compiled side by side; one that is being compiled is waited for, not compiled twice.

#include "text/grammar.h"

#include <condition_variable>
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
  /// Of the grammars that are kept: hundreds of schemas of agents, or a dozen of the largest with all their masks.
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;

  /// `end_ids` may come where a text may end; masks have a bit for each of `num_samplable` ids. The tokenizer must outlive this.
  GrammarCache(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int64_t num_samplable,
               std::size_t most_bytes = kMostBytes);

  enum class Kind : std::uint8_t { JsonObject, JsonSchema, Ebnf };

  /// As the functions of Grammar; `text` of a JSON object is ignored. Throws Error "WHERE: ...".
  std::shared_ptr<const Grammar> find_or_compile(Kind kind, std::string_view text, std::string_view where);

  /// As Grammar::from_calls().
  std::shared_ptr<const Grammar> find_or_compile(const CallRules& rules);

  std::size_t size() const;
  /// What they take now: it grows while they are used, until the next request for one. Who uses a grammar that has gone keeps it.
  std::size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;  // null: it is being compiled

    std::size_t bytes() const { return sizeof(Entry) + key.capacity() + (grammar ? grammar->bytes() : 0); }
  };
  using Entries = std::list<Entry>;
  using Vocabulary = std::shared_ptr<const GrammarVocabulary>;

  std::shared_ptr<const Grammar> find_or_make(std::string key,
                                              const std::function<std::shared_ptr<const Grammar>(Vocabulary)>& make);
  Vocabulary vocabulary();
  std::size_t held_bytes() const;
  void forget_oldest();

  const Tokenizer& tokenizer_;
  const std::vector<std::int32_t> end_ids_;
  const std::int64_t num_samplable_;
  const std::size_t most_bytes_;
  std::mutex vocabulary_mutex_;
  Vocabulary vocabulary_;  // made when it is first needed
  mutable std::mutex mutex_;
  std::condition_variable compiled_;  // some entry, or it has gone
  Entries entries_;                   // the last one used first
  std::unordered_map<std::string_view, Entries::iterator> by_key_;
};

}  // namespace calandra
