#include "text/grammar_schema.h"

#include "base/error.h"
#include "base/json.h"
#include "base/sort_unique.h"
#include "text/argument_types.h"
#include "text/grammar_constraints.h"
#include "text/grammar_pattern.h"
#include "text/grammar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace calandra::grammar {
namespace {

constexpr std::size_t kMaxSchemaBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxValues = 4'000;  // numbers with limits cost half a millisecond each
constexpr std::size_t kMaxTotalStates = 500'000;
constexpr std::size_t kCallsWork = 2 * Budget::kWork;  // for all tools together

using Schemas = std::vector<const Json*>;

Json parse_schema(std::string_view schema, std::string_view where) {
  if (schema.size() > kMaxSchemaBytes)
    fail("{}: found a schema of {} bytes, expected at most {}", where, schema.size(), kMaxSchemaBytes);
  return parse_json(schema, std::string(where));
}

/// The texts serialisers write for a number: those of C++, JavaScript and Python.
std::vector<std::string> texts_of_number(const Json& number) {
  if (!number.is_number_float()) return {dump_json(number)};
  const double value = number.get<double>();
  const std::string shortest = fmt::format("{}", value);
  std::vector<std::string> texts = {shortest};
  const std::size_t mark = shortest.find('e');
  if (mark != std::string::npos) {
    const std::string mantissa = shortest.substr(0, mark);
    const int exponent = std::stoi(shortest.substr(mark + 1));
    for (const std::string_view form : {"{}e{}", "{}e{:+}", "{}e{:+03}", "{}E{}", "{}E{:+}", "{}E{:+03}"}) {
      texts.push_back(fmt::format(fmt::runtime(form), mantissa, exponent));
    }
    // fmt writes an exponent from 10^16 on and below 10^-4, JavaScript from 10^21 on and below 10^-6.
    const Decimal decimal = decimal_of(shortest);
    const std::string sign = decimal.negative ? "-" : "";
    if (exponent >= 0 && exponent < 21) {
      texts.push_back(sign + decimal.digits +
                      std::string(static_cast<std::size_t>(decimal.exponent) - decimal.digits.size(), '0'));
    } else if (exponent < 0 && exponent >= -6) {
      texts.push_back(sign + "0." + std::string(static_cast<std::size_t>(-decimal.exponent), '0') + decimal.digits);
    }
  }
  if (shortest.find_first_of(".e") == std::string::npos) texts.push_back(shortest + ".0");
  return texts;
}

Automaton automaton_of_texts(const std::vector<std::string>& texts) {
  std::vector<std::u32string> words;
  words.reserve(texts.size());
  for (const std::string& text : texts) words.push_back(code_points(text));
  sort_unique(words);
  return automaton_of_words(words);
}

std::string name_of(const NumberLimits& limits) {
  const auto of = [](const std::optional<NumberLimits::Bound>& bound) {
    if (!bound) return std::string("none");
    return fmt::format("{}{}.{}e{}", bound->exclusive, bound->value.negative, bound->value.digits, bound->value.exponent);
  };
  return fmt::format("number {} {} {} {}", of(limits.lower), of(limits.upper), limits.integer, limits.multiple_of);
}

class SchemaCompiler {
 public:
  explicit SchemaCompiler(Budget& budget) : budget_(budget) {}

  Program compile(const Json& root, std::string_view where) {
    begin(root, where);
    program_.root_value = value_of({&root});
    compile_values();
    remove_dead_ends();
    const ValueSpec& value = program_.values[program_.root_value];
    if (!is_possible(value)) fail("{}: #: no value fits this schema", where_);
    return std::move(program_);
  }

  /// The tools of `rules` must be ascending by name.
  Program compile_calls(const CallRules& rules) {
    program_.several_calls = rules.several;
    add_tool_names(rules);
    std::vector<Json> schemas;  // which the compiled values are known by
    for (const CallRules::Tool& tool : rules.tools) {
      Json schema = tool.parameters ? parse_schema(*tool.parameters, tool.where) : Json();
      schemas.push_back({{"name", tool.name}, {"parameters", std::move(schema)}});
    }
    std::vector<std::uint32_t> values;
    for (std::size_t i = 0; i < schemas.size(); ++i) {
      const Json& schema = schemas[i]["parameters"];
      values.push_back(schema.is_null() ? kNone : arguments_of(schema, rules.tools[i].where));
    }
    remove_dead_ends();
    for (std::size_t i = 0; i < schemas.size(); ++i) {
      where_ = rules.tools[i].where;
      program_.tools.push_back(values[i] == kNone ? ToolSpec{{}, keep_raw({{}, kNone, CallMark::CallEnd})}
                                                  : tool_of(values[i], rules.tools[i].name, Json::array({schemas[i]})));
    }
    return std::move(program_);
  }

 private:
  void begin(const Json& root, std::string_view where) {
    where_ = where;
    reader_.emplace(root, where, budget_);
    num_values_before_ = program_.values.size();
  }

  /// Compiling one value asks for others.
  void compile_values() {
    for (std::size_t i = 0; i < to_compile_.size(); ++i) {
      const auto [value, schemas] = to_compile_[i];
      compile_value(value, schemas);
    }
    to_compile_.clear();
  }

  // --- calls

  void add_tool_names(const CallRules& rules) {
    std::vector<std::u32string> words;
    for (const CallRules::Tool& tool : rules.tools) {
      if (!can_be_written(tool.name)) fail("{}: '{}' cannot be written as the name of a call", tool.where, printable(tool.name));
      std::u32string word;
      for (const char byte : tool.name) word += static_cast<unsigned char>(byte);
      if (!words.empty() && words.back() == word) fail("{}: there are two tools '{}'", tool.where, printable(tool.name));
      words.push_back(std::move(word));
    }
    program_.tool_names = automaton_of_words(words);
  }

  /// What a schema says of a whole call: undeclared arguments are only those that it speaks of.
  std::uint32_t arguments_of(const Json& schema, std::string_view where) {
    begin(schema, where);
    const std::uint32_t value = add_value();
    is_arguments_ = true;
    compile_value(value, {&schema});
    is_arguments_ = false;
    compile_values();
    return value;
  }

  ToolSpec tool_of(std::uint32_t value, const std::string& name, const Json& tool) {
    ToolSpec spec{program_.values[value].objects};
    if (spec.objects.empty()) fail("{}: #: no object fits this schema", where_);
    const ToolTypes types(tool);
    for (const std::uint32_t object : spec.objects) {
      // Forms add to the program's tables, but not to its objects.
      for (ObjectSpec::Property& property : program_.objects[object].properties) {
        if (property.value == kNone) continue;
        if (!can_be_written(property.name))
          fail("{}: #/properties: '{}' cannot be written as the name of an argument", where_, printable(property.name));
        property.forms = forms_of(program_.values[property.value], types.types_of(name, property.name));
      }
      ObjectSpec& of = program_.objects[object];
      if (of.additional != kNone) of.additional_forms = forms_of(program_.values[of.additional], {});
    }
    return spec;
  }

  /// How a value may be written so that its reader (argument_types.h), who knows these types of it, reads what fits.
  ArgumentForms forms_of(const ValueSpec& value, const JsonTypes& types) {
    ArgumentForms forms;
    if (types.string) {
      forms.bare = types.integer || types.number || types.boolean || types.null;
      forms.objects = types.object;
      forms.arrays = types.array;
    } else if (types.any_but_string()) {
      return forms;  // strings with their quotes
    }
    for (const std::uint32_t string : value.strings) {
      if (const std::uint32_t raw = raw_of(program_.strings[string], types.only_string()); raw != kNone)
        forms.raws.push_back(raw);
    }
    return forms;
  }

  /// The string as it is; kNone if it has no such form. Text that begins with a quote is read as JSON, and where other types are possible so is
  /// what looks like one of these.
  std::uint32_t raw_of(const StringSpec& string, bool is_only_string) {
    const bool is_any = string.automaton == kNone && string.min == 0 && string.max == kNoLimit;
    if (is_any && is_only_string) return keep_raw({{}, kNone, CallMark::ValueEnd});
    std::uint32_t& guard = is_only_string ? quote_guard_ : json_guard_;
    if (guard == kNone) guard = keep_automaton(is_only_string ? guard_of_text() : guard_of_untyped_text());
    if (string.automaton == kNone) {
      // The guard must not stand in the way of the end.
      if (!is_only_string && string.max < kLeastUntypedText) return kNone;
      return keep_raw({string, guard, CallMark::ValueEnd});
    }
    Automaton all = intersection(program_.automata[string.automaton], program_.automata[guard], where_, budget_);
    all = intersection(all, automaton_without(text_of(CallMark::ValueEnd)), where_, budget_);
    if (all.is_empty()) return kNone;
    return keep_raw({{keep_automaton(std::move(all)), 0, kNoLimit}, kNone, CallMark::ValueEnd});
  }

  std::uint32_t keep_raw(RawSpec raw) {
    program_.raws.push_back(raw);
    return static_cast<std::uint32_t>(program_.raws.size() - 1);
  }

  // --- values

  /// The value that fits all of `schemas`.
  std::uint32_t value_of(Schemas schemas) {
    std::erase_if(schemas, [](const Json* schema) { return *schema == true || (schema->is_object() && schema->empty()); });
    sort_unique(schemas);
    budget_.spend(10 + schemas.size(), where_);
    const auto [place, is_new] = values_.emplace(schemas, static_cast<std::uint32_t>(program_.values.size()));
    if (is_new) {
      add_value();
      to_compile_.emplace_back(place->second, std::move(schemas));
    }
    return place->second;
  }

  std::uint32_t add_value() {
    if (program_.values.size() - num_values_before_ >= kMaxValues)
      fail("{}: needs more than {} different values", where_, kMaxValues);
    program_.values.emplace_back();
    return static_cast<std::uint32_t>(program_.values.size() - 1);
  }

  struct BareParts {
    std::map<std::string, Automaton> parts;  // by a name that stands for the language
    std::vector<std::string> words;
  };

  void compile_value(std::uint32_t value, const Schemas& schemas) {
    ValueSpec spec;
    BareParts bare;
    for (const Alternative& alternative : reader_->alternatives(schemas)) {
      if (alternative.literals) {
        add_literals(alternative, spec, bare);
        continue;
      }
      if ((alternative.types & kNull) != 0) bare.words.emplace_back("null");
      if ((alternative.types & kBoolean) != 0) bare.words.insert(bare.words.end(), {"true", "false"});
      if ((alternative.types & kNumber) != 0) bare.parts.emplace(name_of(alternative.number), number(alternative.number));
      if ((alternative.types & kString) != 0) add_string(alternative, spec);
      if ((alternative.types & kObject) != 0) spec.objects.push_back(add_object(alternative));
      if ((alternative.types & kArray) != 0) spec.arrays.push_back(add_array(alternative));
    }
    spec.bare = add_bare(std::move(bare));
    program_.values[value] = std::move(spec);
  }

  // --- automata

  std::uint32_t keep_automaton(Automaton automaton) {
    total_states_ += automaton.num_states();
    if (total_states_ > kMaxTotalStates) fail("{}: its patterns, numbers and names together are too large", where_);
    program_.automata.push_back(std::move(automaton));
    return static_cast<std::uint32_t>(program_.automata.size() - 1);
  }

  const Automaton& number(const NumberLimits& limits) {
    const auto [place, is_new] = numbers_.try_emplace(name_of(limits));
    if (is_new) place->second = automaton_of_numbers(limits, where_, budget_);
    return place->second;
  }

  /// The union of all of them; kNone if there is nothing in it.
  std::uint32_t add_bare(BareParts bare) {
    if (!bare.words.empty()) {
      std::ranges::sort(bare.words);
      bare.parts.emplace(fmt::format("words {}", fmt::join(bare.words, " ")), automaton_of_texts(bare.words));
    }
    std::string name;
    for (const auto& [part, automaton] : bare.parts) name += part + "|";
    const auto [place, is_new] = bare_.try_emplace(name, kNone);
    if (is_new) {
      Automaton all;
      for (const auto& [part, automaton] : bare.parts) all = union_of(all, automaton, where_, budget_);
      if (!all.is_empty()) place->second = keep_automaton(std::move(all));
    }
    return place->second;
  }

  Automaton automaton_of_pattern(const Alternative::Pattern& pattern) {
    const auto [place, is_new] = patterns_.try_emplace((pattern.is_format ? "format " : "pattern ") + pattern.text);
    if (!is_new) return place->second;
    if (!pattern.is_format)
      return place->second = automaton_of(pattern_expression(pattern.text, pattern.where, budget_), pattern.where, budget_);
    const std::optional<Expression> format = format_expression(pattern.text, budget_);
    if (!format) fail("{}: found '{}', expected one of {}", pattern.where, printable(pattern.text), known_formats());
    return place->second = automaton_of(*format, pattern.where, budget_);
  }

  void add_string(const Alternative& alternative, ValueSpec& spec) {
    const Counts length = alternative.characters;
    std::string name = fmt::format("{} {}", length.min, length.max);
    for (const auto& pattern : alternative.patterns)
      name += fmt::format(" {} {}:{}", pattern.is_format, pattern.text.size(), pattern.text);
    const auto [place, is_new] = strings_.try_emplace(name, kNone);
    if (is_new) {
      StringSpec string = {kNone, length.min, length.max};
      if (!alternative.patterns.empty()) {
        Automaton all = automaton_of_pattern(alternative.patterns[0]);
        for (std::size_t i = 1; i < alternative.patterns.size(); ++i) {
          all = intersection(all, automaton_of_pattern(alternative.patterns[i]), alternative.patterns[i].where, budget_);
        }
        if (length.is_limited()) {
          const std::string& where = alternative.patterns[0].where;
          all = intersection(all, automaton_of_length(length.min, length.max, where, budget_), where, budget_);
        }
        string = {keep_automaton(std::move(all)), 0, kNoLimit};
      }
      place->second = keep_string(string);
    }
    spec.strings.push_back(place->second);
  }

  std::uint32_t keep_string(const StringSpec& string) {
    program_.strings.push_back(string);
    return static_cast<std::uint32_t>(program_.strings.size() - 1);
  }

  // --- enum and const

  void add_literals(const Alternative& alternative, ValueSpec& spec, BareParts& bare) {
    std::vector<std::string> strings;
    for (const Json* const literal : *alternative.literals) {
      if ((alternative.types & type_of(*literal)) != 0) add_literal(alternative, *literal, spec, bare, strings);
    }
    if (!strings.empty()) spec.strings.push_back(keep_string({keep_automaton(automaton_of_texts(strings))}));
  }

  void add_literal(const Alternative& alternative, const Json& literal, ValueSpec& spec, BareParts& bare,
                   std::vector<std::string>& strings) {
    budget_.spend(10, where_);
    switch (type_of(literal)) {
      case kNull:
      case kBoolean: bare.words.push_back(dump_json(literal)); return;
      case kNumber: {
        const std::vector<std::string> texts = texts_of_number(literal);
        if (alternative.number.admits(decimal_of(texts[0]))) bare.words.insert(bare.words.end(), texts.begin(), texts.end());
        return;
      }
      case kString: {
        const auto& text = literal.get_ref<const std::string&>();
        budget_.spend(text.size(), where_);
        const std::size_t length = code_points(text).size();
        const auto fits = [&](const Alternative::Pattern& pattern) { return automaton_of_pattern(pattern).matches(text); };
        if (length >= alternative.characters.min && length <= alternative.characters.max &&
            std::ranges::all_of(alternative.patterns, fits)) {
          strings.push_back(text);
        }
        return;
      }
      default: break;
    }
    if (!alternative.objects.empty() || !alternative.arrays.empty() || !alternative.required.empty() ||
        alternative.properties.is_limited() || alternative.items.is_limited()) {
      fail("{}: an enum or const of objects or arrays beside keywords about their members is not supported", where_);
    }
    const std::uint32_t value = literal_value(literal);
    const ValueSpec& of = program_.values[value];
    spec.objects.insert(spec.objects.end(), of.objects.begin(), of.objects.end());
    spec.arrays.insert(spec.arrays.end(), of.arrays.begin(), of.arrays.end());
  }

  /// A value that is this and no other; properties in any order. The depth of JSON is limited where it is parsed.
  std::uint32_t literal_value(const Json& literal) {
    const std::uint32_t value = add_value();
    ValueSpec spec;
    if (literal.is_object()) {
      ObjectSpec object;
      for (const auto& [name, member] : literal.items()) object.properties.push_back({name, literal_value(member), true});
      spec.objects.push_back(keep_object(std::move(object)));
    } else if (literal.is_array()) {
      ArraySpec array;
      for (const Json& item : literal) array.first.push_back(literal_value(item));
      array.min = array.max = static_cast<std::uint32_t>(literal.size());
      program_.arrays.push_back(std::move(array));
      spec.arrays.push_back(static_cast<std::uint32_t>(program_.arrays.size() - 1));
    } else {
      Alternative any;
      any.literals = {&literal};
      BareParts bare;
      add_literals(any, spec, bare);
      spec.bare = add_bare(std::move(bare));
    }
    program_.values[value] = std::move(spec);
    return value;
  }

  // --- members

  std::uint32_t add_object(const Alternative& alternative) {
    // What one schema says of the members.
    struct Part {
      std::map<std::string_view, const Json*> by_name;
      const Json* rest;
    };
    std::vector<Part> parts;
    std::set<std::string_view> names(alternative.required.begin(), alternative.required.end());
    Schemas additional;
    for (const Json* const schema : alternative.objects) {
      parts.push_back({reader_->members(*schema, "properties"), reader_->find(*schema, "additionalProperties")});
      for (const auto& [name, property] : parts.back().by_name) names.insert(name);
      if (parts.back().rest != nullptr) additional.push_back(parts.back().rest);
    }
    ObjectSpec object;
    object.min = alternative.properties.min;
    object.max = alternative.properties.max;
    object.additional = is_arguments_ && additional.empty() ? nothing() : value_of(additional);
    for (const std::string_view view : names) {
      Schemas schemas;
      for (const Part& part : parts) {
        const auto found = part.by_name.find(view);
        const Json* const of_name = found == part.by_name.end() ? part.rest : found->second;
        if (of_name != nullptr) schemas.push_back(of_name);
      }
      budget_.spend(10 + view.size() + 5 * parts.size(), where_);
      std::string name(view);
      const bool required = alternative.required.contains(name);
      object.properties.push_back({std::move(name), value_of(std::move(schemas)), required});
    }
    return keep_object(std::move(object));
  }

  std::uint32_t keep_object(ObjectSpec object) {
    std::ranges::sort(object.properties, {}, &ObjectSpec::Property::name);
    std::vector<std::u32string> names;
    for (const auto& property : object.properties) names.push_back(code_points(property.name));
    object.names = automaton_of_words(names, &object.below);
    total_states_ += object.names.num_states();
    if (total_states_ > kMaxTotalStates) fail("{}: its patterns, numbers and names together are too large", where_);
    program_.objects.push_back(std::move(object));
    return static_cast<std::uint32_t>(program_.objects.size() - 1);
  }

  std::uint32_t add_array(const Alternative& alternative) {
    // The keywords for the first items and for the rest, in the new and in the old form.
    struct Part {
      const Json* schema;
      const char* first;
      std::size_t num_first;
      const Json* rest;
    };
    std::vector<Part> parts;
    std::size_t num_first = 0;
    for (const Json* const schema : alternative.arrays) {
      const auto items = schema->find("items");
      const bool old_form = items != schema->end() && items->is_array();
      const char* const first = old_form ? "items" : "prefixItems";
      const auto list = schema->find(first);
      parts.push_back({schema, first, list == schema->end() ? 0 : list->size(),
                       reader_->find(*schema, old_form ? "additionalItems" : "items")});
      num_first = std::max(num_first, parts.back().num_first);
    }
    ArraySpec array;
    array.min = alternative.items.min;
    array.max = alternative.items.max;
    Schemas rest;
    for (const Part& part : parts) {
      if (part.rest != nullptr) rest.push_back(part.rest);
    }
    for (std::size_t i = 0; i < num_first; ++i) {
      Schemas schemas;
      for (const Part& part : parts) {
        const Json* const schema = i < part.num_first ? reader_->element(*part.schema, part.first, i) : part.rest;
        if (schema != nullptr) schemas.push_back(schema);
      }
      array.first.push_back(value_of(std::move(schemas)));
    }
    array.items = value_of(std::move(rest));
    program_.arrays.push_back(std::move(array));
    return static_cast<std::uint32_t>(program_.arrays.size() - 1);
  }

  // --- dead ends

  static bool is_possible(const ValueSpec& value) {
    return value.bare != kNone || !value.strings.empty() || !value.objects.empty() || !value.arrays.empty();
  }

  bool is_possible_string(const StringSpec& string) const {
    return string.automaton == kNone ? string.min <= string.max : !program_.automata[string.automaton].is_empty();
  }

  /// Whether some text fits, given the values that are known to be possible.
  static bool is_possible_object(const ObjectSpec& object, const std::vector<bool>& possible) {
    std::size_t num_required = 0, num_possible = 0;
    for (const auto& property : object.properties) {
      const bool can_be = possible[property.value];
      if (property.required && !can_be) return false;
      num_required += property.required ? 1 : 0;
      num_possible += can_be ? 1 : 0;
    }
    if (num_required > object.max || object.min > object.max) return false;
    return object.min <= num_possible || possible[object.additional];
  }

  static bool is_possible_array(const ArraySpec& array, const std::vector<bool>& possible) {
    if (array.min > array.max) return false;
    for (std::uint32_t i = 0; i < array.min; ++i) {
      if (!possible[array.value_at(i)]) return false;
      if (i >= array.first.size()) break;
    }
    return true;
  }

  void remove_dead_ends() {
    for (ObjectSpec& object : program_.objects) {
      if (object.additional == kNone) object.additional = nothing();
    }
    for (ArraySpec& array : program_.arrays) {
      if (array.items == kNone) array.items = nothing();
    }
    // What is possible grows until nothing is added. Members mostly have higher numbers, so a round goes from the end.
    std::vector<bool> possible(program_.values.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      budget_.spend(program_.values.size() + program_.objects.size() + total_states_ / 8, where_);
      for (std::size_t i = program_.values.size(); i-- > 0;) {
        if (possible[i]) continue;
        const ValueSpec& value = program_.values[i];
        const auto any = [&](const auto& specs, const auto& numbers, const auto& fits) {
          return std::ranges::any_of(numbers, [&](std::uint32_t number) { return fits(specs[number]); });
        };
        if (value.bare != kNone ||
            any(program_.strings, value.strings, [&](const auto& spec) { return is_possible_string(spec); }) ||
            any(program_.objects, value.objects, [&](const auto& spec) { return is_possible_object(spec, possible); }) ||
            any(program_.arrays, value.arrays, [&](const auto& spec) { return is_possible_array(spec, possible); })) {
          possible[i] = changed = true;
        }
      }
    }
    for (ValueSpec& value : program_.values) {
      std::erase_if(value.strings, [&](std::uint32_t i) { return !is_possible_string(program_.strings[i]); });
      std::erase_if(value.objects, [&](std::uint32_t i) { return !is_possible_object(program_.objects[i], possible); });
      std::erase_if(value.arrays, [&](std::uint32_t i) { return !is_possible_array(program_.arrays[i], possible); });
    }
    const auto or_none = [&](std::uint32_t value) { return possible[value] ? value : kNone; };
    for (ObjectSpec& object : program_.objects) {
      object.additional = or_none(object.additional);
      for (auto& property : object.properties) {
        property.value = or_none(property.value);
        if (property.value != kNone) ++(property.required ? object.num_required : object.num_optional);
      }
    }
    for (ArraySpec& array : program_.arrays) {
      array.items = or_none(array.items);
      const auto dead = std::ranges::find_if(array.first, [&](std::uint32_t value) { return !possible[value]; });
      if (dead == array.first.end()) continue;
      array.first.erase(dead, array.first.end());
      array.items = kNone;
    }
  }

  /// A value that nothing fits.
  std::uint32_t nothing() {
    if (nothing_ == kNone) nothing_ = add_value();
    return nothing_;
  }

  std::string_view where_;
  Budget& budget_;
  std::optional<SchemaReader> reader_;
  Program program_;
  std::size_t num_values_before_ = 0;  // of other schemas
  bool is_arguments_ = false;          // what is being compiled is all arguments of a call
  std::uint32_t quote_guard_ = kNone, json_guard_ = kNone;
  std::size_t total_states_ = 0;
  std::uint32_t nothing_ = kNone;
  std::map<Schemas, std::uint32_t> values_;
  std::vector<std::pair<std::uint32_t, Schemas>> to_compile_;
  std::map<std::string, Automaton> numbers_, patterns_;
  std::map<std::string, std::uint32_t> bare_, strings_;
};

}  // namespace

Program program_of_schema(std::string_view schema, std::string_view where) {
  Budget budget;
  const Json root = parse_schema(schema, where);
  return SchemaCompiler(budget).compile(root, where);
}

Program program_of_calls(const CallRules& rules) {
  CallRules possible = rules;
  Budget trials(kCallsWork), budget(kCallsWork);
  for (CallRules::Tool& tool : possible.tools) {
    if (!tool.parameters || tool.must_fit) continue;
    try {
      SchemaCompiler(trials).compile_calls({{{tool.name, tool.parameters, true, tool.where}}, true});
    } catch (const Error&) {
      tool.parameters.reset();
    }
  }
  std::ranges::stable_sort(possible.tools, {}, &CallRules::Tool::name);
  return SchemaCompiler(budget).compile_calls(possible);
}

}  // namespace calandra::grammar
