#pragma once
// Constrained decoding: which tokens may come next so that a text is JSON, or fits a JSON Schema or a grammar.
//
// A Grammar is compiled once, never changes and is shared by all requests that use it. A GrammarState is one position in one
// text. docs/grammar.md says what schemas and grammar texts may contain and which texts they stand for.
//
// Exact: a token is allowed if and only if some allowed text begins with what was accepted followed by the token's bytes, so
// there is always a way to an end. Tokens may end inside of a character and go over any number of the grammar's parts.

#include "text/grammar_vocabulary.h"
#include "text/token_mask.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

namespace grammar {
struct Program;
struct Position;
class MaskCache;
}  // namespace grammar

/// What an answer's calls may be.
struct CallRules {
  struct Tool {
    std::string name;
    std::optional<std::string> parameters;  // a JSON Schema that the arguments fit; none: they are the model's own
    bool must_fit = true;                   // false: a schema that is not supported leaves them to the model
    std::string where;                      // what errors call the schema
  };
  std::vector<Tool> tools;  // at least one
  bool several = true;      // one call or more; false: one
};

class Grammar {
 public:
  // Each throws Error "WHERE: ..." for what is malformed, not supported or too large; a JSON Schema's error names the JSON
  // pointer and the keyword, a grammar text's the line and column. None takes more than some seconds, whatever the text.

  static std::shared_ptr<const Grammar> from_json_schema(std::string_view schema, std::string_view where,
                                                         std::shared_ptr<const GrammarVocabulary> vocabulary);
  /// Any JSON object.
  static std::shared_ptr<const Grammar> any_json_object(std::shared_ptr<const GrammarVocabulary> vocabulary);
  static std::shared_ptr<const Grammar> from_ebnf(std::string_view text, std::string_view where,
                                                  std::shared_ptr<const GrammarVocabulary> vocabulary);
  /// Calls of tools in the model's own format, from the first "<tool_call>" on. Marks are written as the tokens that stand for them, or, where
  /// the vocabulary has none, as text. A schema's errors have its tool's WHERE.
  static std::shared_ptr<const Grammar> from_calls(const CallRules& rules, std::shared_ptr<const GrammarVocabulary> vocabulary);

  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

  /// The memory that it takes, about, without the vocabulary. It grows with the masks that are asked for, by up to 16 MiB.
  std::size_t bytes() const;

 private:
  friend class GrammarState;
  Grammar(std::unique_ptr<const grammar::Program> program, std::shared_ptr<const GrammarVocabulary> vocabulary);

  std::unique_ptr<const grammar::Program> program_;
  std::size_t program_bytes_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::unique_ptr<grammar::MaskCache> masks_;  // filled as they are asked for
};

/// Copies are cheap (some hundred bytes) and independent: to go back, keep one. A state and its copies share memory that
/// grows with the accepted text, so only one thread at a time may use any of them.
class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);
  ~GrammarState();
  GrammarState(const GrammarState& other);
  GrammarState& operator=(const GrammarState& other);
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  /// Exactly the tokens that accept() would take. After an end token: none.
  /// Throws Error if the grammar is so ambiguous that this would take more than about a second.
  void allowed(TokenMask& mask) const;

  /// Goes on by a token; false, and nothing changes, if it is not allowed.
  bool accept(std::int32_t id);

  /// The same for text that no token need stand for.
  bool accept_text(std::string_view bytes);

  /// The same for a mark of a call, whatever token stands for it.
  bool accept_mark(std::string_view mark);

  /// Whether the text may end here.
  bool can_end() const;
  /// Whether an end token has been accepted.
  bool has_ended() const { return has_ended_; }

 private:
  bool accept_bytes(std::string_view bytes, bool only_marks);

  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<grammar::Position> position_;
  bool has_ended_ = false;
};

}  // namespace calandra
