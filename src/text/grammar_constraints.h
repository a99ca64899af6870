#pragma once
// Reads JSON Schemas: every keyword is understood, known to be an annotation, or refused with its JSON pointer.
//
// What a list of schemas says together becomes a list of alternatives, each free of $ref, allOf, anyOf and oneOf on its own
// level. oneOf is read as anyOf.

#include "base/json.h"
#include "text/grammar_number.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace calandra::grammar {

enum JsonType : std::uint8_t { kNull = 1, kBoolean = 2, kNumber = 4, kString = 8, kObject = 16, kArray = 32, kAnyType = 63 };

JsonType type_of(const Json& value);

struct Counts {
  std::uint32_t min = 0, max = kNoLimit;

  bool is_limited() const { return min > 0 || max != kNoLimit; }
};

/// A value fits if it is of one of the types and keeps what is said of that type.
struct Alternative {
  struct Pattern {
    std::string text, where;
    bool is_format = false;
  };

  std::uint8_t types = kAnyType;
  std::optional<std::vector<const Json*>> literals;  // of enum and const
  NumberLimits number;
  Counts characters, properties, items;
  std::vector<Pattern> patterns;
  std::set<std::string> required;
  std::vector<const Json*> objects, arrays;  // schemas with keywords about members
};

class SchemaReader {
 public:
  /// `root` must outlive this.
  SchemaReader(const Json& root, std::string_view where, Budget& budget);

  /// A value fits all `schemas` if it fits one of these. None: no value does.
  std::vector<Alternative> alternatives(std::span<const Json* const> schemas);

  /// The schema under a keyword of `schema`, or nullptr. Keywords must outlive this.
  const Json* find(const Json& schema, std::string_view keyword);
  const Json* element(const Json& schema, std::string_view keyword, std::size_t index);
  /// All schemas under a keyword of `schema`, by name.
  std::map<std::string_view, const Json*> members(const Json& schema, std::string_view keyword);

  /// For errors: "WHERE: #/properties/a".
  std::string place(const Json& schema) const;

 private:
  /// Where a schema stands in its root. Pointers are spelled when an error asks for them: a name may be long, and much may be below it.
  struct Place {
    const Json* parent = nullptr;
    std::string_view keyword;  // without a parent: the whole pointer
    std::string_view name = {};
    std::optional<std::size_t> index = {};
  };

  [[noreturn]] void reject(const Json& schema, std::string_view keyword, std::string_view why) const;
  const Json& register_child(const Json& child, const Place& place);

  void expand(const Json& schema, std::vector<Alternative>& alternatives);
  void expand_choice(const Json& schema, std::string_view keyword, std::vector<Alternative>& alternatives);
  const Json& resolve(const Json& schema);
  Alternative read(const Json& schema);
  void read_types(const Json& schema, Alternative& alternative);
  void read_number(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative);
  void read_string(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative);
  bool read_members(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative);
  std::uint32_t read_count(const Json& schema, std::string_view keyword, const Json& value) const;
  void merge(const Json& schema, Alternative& into, const Alternative& other);

  const Json& root_;
  std::string where_;
  Budget& budget_;
  std::unordered_map<const Json*, Place> places_;
  std::set<std::string> references_;  // the pointers of places without a parent
  std::vector<const Json*> active_;   // being expanded
};

}  // namespace calandra::grammar
