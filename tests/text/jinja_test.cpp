// Expected values were rendered by python3-jinja2 with Hugging Face's settings (tools/oracles/chat/make_jinja_cases.py).

#include "text/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "support/golden.h"
#include "support/json.h"

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

JinjaOptions with_fixed_clock() {
  JinjaOptions options;
  options.clock = [] {
    std::tm now{};  // Saturday, 7 March 2026, 09:05:02
    now.tm_year = 126, now.tm_mon = 2, now.tm_mday = 7, now.tm_hour = 9, now.tm_min = 5, now.tm_sec = 2, now.tm_wday = 6,
    now.tm_yday = 65;
    return now;
  };
  return options;
}

std::string render(const std::string& source, const Json& context = Json::object(),
                   const JinjaOptions& options = with_fixed_clock()) {
  return JinjaTemplate::parse(source, "test.jinja").render(context, options);
}

/// The message of the error; empty if there is none.
std::string render_error(const std::string& source, const Json& context = Json::object(), const JinjaOptions& options = {}) {
  return error_of([&] { render(source, context, options); });
}

TEST(Jinja, RendersWhatPythonRenders) {
  const Json cases = read_json(CALANDRA_SOURCE_DIR "/tests/data/chat/jinja_cases.json");
  const std::string bundled = read_text_file(CALANDRA_SOURCE_DIR "/models/austen-5m/chat_template.jinja");
  ASSERT_GT(cases.size(), 700u);
  for (const Json& test : cases) {
    SCOPED_TRACE(test["template"].get<std::string>());
    const std::string source = test["template"] == "@bundled" ? bundled : test["template"].get<std::string>();
    if (test.contains("error")) {
      EXPECT_THAT(render_error(source, test["context"]), StartsWith("test.jinja:")) << test["error"];
      continue;
    }
    try {
      EXPECT_EQ(render(source, test["context"]), test["output"]) << test["name"];
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      continue;
    }
    // Python also counts names that are set in one branch only, read or not: it may know more names, never fewer.
    const JinjaTemplate parsed = JinjaTemplate::parse(source, "test.jinja");
    for (const std::string& variable : parsed.variables()) {
      EXPECT_TRUE(std::find(test["variables"].begin(), test["variables"].end(), variable) != test["variables"].end()) << variable;
    }
  }
}

// Expected values were rendered by Python's Jinja2 3.1.6.
TEST(Jinja, TextsFiltersAndTargetsAreThoseOfPython) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({{ 'straße ŉ ﬁx' | upper }} {{ 'ßa ǆ ﬂ'.capitalize() }} {{ 'ǆx ßx'.title() }})", R"(STRASSE ʼN FIX Ssa ǆ ﬂ ǅx Ssx)"},
      {R"({{ 'ΟΔΟΣ ΣΑΣ Σ ΑΣ.Α İ' | lower }} {{ 'ΑΣ'.capitalize() }} {{ 'ΑΣ ΣΑ'.title() }})", R"(οδος σας σ ασ.α i̇ Ας Ας Σα)"},
      {R"({{ '²'.isdigit() }} {{ '½'.isdigit() }} {{ '½'.isnumeric() }} {{ '三Ⅳ'.isnumeric() }} {{ '²'.isdecimal() }} {{ '٣'.isdecimal() }} {{ '²½'.isalnum() }} {{ '3a'.isnumeric() }})",
       R"(True False True True False True True False)"},
      {"a{% if 1 -%}\xC2\xA0"
       "\xE2\x80\x83"
       "\n x{% endif %}b{{ 1 -}}\xE3\x80\x80"
       "c{#- -#}\xC2\x85"
       "d",
       R"(axb1cd)"},
      {R"({{ '0b11' | int(base=2) }} {{ '0x1F' | int(base=16) }} {{ '0o17' | int(0, 8) }} {{ '0b11' | int(base=0) }} {{ '1_000' | int }} {{ '1__0' | int(7) }} {{ '_1' | int(7) }} {{ '0b11' | int(5) }} {{ ' +12 ' | int }} {{ '-0x_f' | int(0, 16) }} {{ '012' | int(9, 0) }} {{ '1_0.5' | float }} {{ '- 3' | int(4) }} {{ '3.9' | int }})",
       R"(3 31 15 3 1000 7 7 5 12 -15 12 10.5 4 3)"},
      {R"({% for i, (a, b) in [(1, (2, 3)), (4, [5, 6])] %}{{ i }}{{ a }}{{ b }};{% endfor %}{% set (x, y), z = [[1, 2], 3] %}{{ x }}{{ y }}{{ z }})",
       R"(123;456;123)"},
      {R"([{{ '%5s' % 'é' }}] [{{ '%-5s|' % 'ab' }}] [{{ '%.2s' % 'abc' }}] [{{ '%05s' % 1 }}] [{{ '%6.1r' % 'ab' }}] [{{ '%3s' % 'abcd' }}])",
       R"([    é] [ab   |] [ab] [    1] [     '] [abcd])"},
      {R"({{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('c', 1, 2) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abca'.find('a', 1) }} {{ 'abca'.rfind('a', 0, -1) }} {{ 'aéaa'.count('a', 1) }} {{ 'abc'.startswith('', 4) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('c', -1) }} {{ 'aéb'.index('b', 1) }})",
       R"(True False True 3 0 2 False 3 2 2)"},
      {R"({% for k, v in [{'a': 'x', 'b': 1}, {'a': 'Y', 'b': 2}, {'a': 'X', 'b': 3}] | groupby('a') %}{{ k }}={{ v | map(attribute='b') | list }};{% endfor %}{% for k, v in [{'a': 1}, {}] | groupby('a', default=0) %}{{ k }}{{ v | length }} {% endfor %})",
       R"(x=[1, 3];Y=[2];01 11 )"},
      {R"({% for s in range(7) | slice(3) %}{{ s }}{% endfor %} {% for s in range(7) | slice(3, 'x') %}{{ s }}{% endfor %})",
       R"([0, 1, 2][3, 4][5, 6] [0, 1, 2][3, 4, 'x'][5, 6, 'x'])"},
      {R"([{{ 'ab' | center(7) }}] [{{ 'ab'.center(5, '*') }}] [{{ 'abc'.center(6, 'é') }}] [{{ 12 | center(5) }}])",
       R"([   ab  ] [**ab*] [éabcéé] [  12 ])"},
      {R"({{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, True) }}|{{ 'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, False, '...', 0) }}|{{ 'fooébarébaz' | truncate(5, end='', leeway=0) }})",
       R"(foo...|foo ba...|foo bar baz qux|foo bar...|fooéb)"},
      {R"({{ 'a b/ü?&=~' | urlencode }} {{ {'a b': 'c/d', 'x': 1} | urlencode }} {{ [('k', 'ü ')] | urlencode }})",
       R"(a%20b/%C3%BC%3F%26%3D~ a+b=c%2Fd&x=1 k=%C3%BC+)"},
      {R"({% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{% macro g(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }} {{ f(1, b=3) }} {{ g(1, 2, x=3) }} {{ g(1) }})",
       R"(12 13 1(2,){'x': 3} 1(){})"},
      {R"({% macro f() %}<{{ caller(1) }}>{% endmacro %}{% call(x) f() %}{{ x }}{% endcall %})", R"(<1>)"},
  };
  for (const auto& [source, expected] : kCases) EXPECT_EQ(render(source), expected) << source;
}

TEST(Jinja, WhatPythonRefusesIsRefused) {
  EXPECT_THAT(render_error("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}"), HasSubstr("not more than 1 argument"));
  EXPECT_THAT(render_error("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, x=2) }}"), HasSubstr("takes no argument 'x'"));
  EXPECT_THAT(render_error("{% macro f() %}1{% endmacro %}{% call f() %}2{% endcall %}"), HasSubstr("'caller'"));
  EXPECT_THAT(render_error("{% macro f() %}{{ varargs }}{% endmacro %}{{ f(x=1) }}"), HasSubstr("takes no argument 'x'"));
  EXPECT_THAT(render_error("{{ 'a'.center(5, 'ab') }}"), HasSubstr("exactly one character"));
  EXPECT_THAT(render_error("{% for a, (b, c) in [(1, (2,))] %}{% endfor %}"), HasSubstr("cannot unpack"));
  EXPECT_THAT(render_error("{{ 'abc' | truncate(2) }}"), HasSubstr("truncate"));
  EXPECT_THAT(render_error("{{ '{²}'.format(1) }}{{ '{３}'.format(1) }}"), HasSubstr("has no argument"));
  EXPECT_THAT(render_error("{% for " + std::string(10'000, '(') + "a" + std::string(10'000, ')') + " in x %}"),
              HasSubstr("nested"));
}

TEST(Jinja, ErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(render_error("a\nb {{ x | nope }}"), "test.jinja:2: unknown filter 'nope'");
  EXPECT_EQ(render_error("{% if x is nope %}{% endif %}"), "test.jinja:1: unknown test 'nope'");
  EXPECT_EQ(render_error("\n\n{% include 'x' %}"), "test.jinja:3: unknown tag 'include'");
  EXPECT_EQ(render_error("a\n{{ x.y }}"), "test.jinja:2: 'x' is undefined");
  EXPECT_EQ(render_error("{{ 1 }}\n{{ raise_exception('roles must alternate') }}"), "test.jinja:2: roles must alternate");
  EXPECT_THAT(render_error("{% for x in y %}"), AllOf(StartsWith("test.jinja:1: "), HasSubstr("endfor")));
  EXPECT_THAT(render_error("{{ [1].append(2) }}"), HasSubstr("must not change data"));
  EXPECT_EQ(render_error("{{ '%-1-5d' % 1 }}"), "test.jinja:1: '%-1-5' is not supported in a format");
  EXPECT_EQ(render_error("{{ '%d' % 1e300 }}"), "test.jinja:1: cannot convert 1e+300 to an integer");
}

TEST(Jinja, VariablesAreTheNamesReadFromTheContext) {
  const auto variables = [](const char* source) { return JinjaTemplate::parse(source, "t").variables(); };
  using Names = std::set<std::string>;
  EXPECT_EQ(variables(read_text_file(CALANDRA_SOURCE_DIR "/models/austen-5m/chat_template.jinja").c_str()),
            (Names{"add_generation_prompt", "enable_thinking", "messages", "thinking", "tools"}));
  EXPECT_EQ(variables("{% set a = b %}{{ a }}{% for m in c %}{{ m }}{{ loop.index }}{% endfor %}{{ m }}"),
            (Names{"b", "c", "m"}));
  EXPECT_EQ(variables("{% if p %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}"), (Names{"p"}));
  EXPECT_EQ(variables("{% if p is defined %}{% set a = 1 %}{% endif %}{{ a }}"), (Names{"a", "p"}));
  EXPECT_EQ(variables("{% macro f(x, y=z) %}{{ x }}{{ y }}{{ w }}{% endmacro %}{{ f(1) }}{{ range(3) }}"), (Names{"w", "z"}));
}

TEST(Jinja, TemplatesThatWouldNeverEndAreStopped) {
  JinjaOptions options;
  options.max_work = 50'000'000;
  options.max_output_bytes = 1'000'000;
  const auto stopped = [&](const std::string& source) { return render_error(source, Json::object(), options); };
  EXPECT_THAT(stopped("{% for i in range(10**9) %}{% endfor %}"), HasSubstr("range too big"));
  EXPECT_THAT(stopped("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("too much work"));
  EXPECT_THAT(stopped("{% for i in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaa' }}{% endfor %}"), HasSubstr("output exceeds"));
  EXPECT_THAT(stopped("{{ 'a' * 10**15 }}"), HasSubstr("too much work"));
  EXPECT_THAT(stopped("{{ [1] * 10**15 }}"), HasSubstr("too much work"));
  EXPECT_THAT(stopped("{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
              HasSubstr("too much work"));
  EXPECT_THAT(stopped("{% set s = 'a' * 10000 %}{{ s.replace('a', s).replace('a', s) | length }}"), HasSubstr("too much work"));
  EXPECT_THAT(stopped("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nested too deep"));
  EXPECT_THAT(stopped("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested"));
}

TEST(Jinja, DeepSourcesAreRefusedWithoutUsingUpTheStack) {
  const auto repeated = [](const std::string& part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  for (const std::string part : {"(", "[", "{1:", "-", "not ", "x[", "f(", "1 if 1 else "}) {
    EXPECT_THAT(render_error("{{ " + repeated(part, 10'000) + " }}"), HasSubstr("test.jinja:1")) << part;
  }
  for (const std::string part : {" + 1", " ~ 1 + 1", ".a", "|trim", " and 1", " is defined"}) {
    EXPECT_THAT(render_error("{{ x" + repeated(part, 10'000) + " }}"), HasSubstr("test.jinja:1")) << part;
  }
  EXPECT_THAT(render_error(repeated("{% if x %}", 10'000)), HasSubstr("nested"));
}

TEST(Jinja, NestedMacrosAndNamespacesLeaveNothingBehind) {  // for the leak checker
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in [1, 2] %}{% macro f() %}{{ i }}{{ ns.f is defined }}{% endmacro %}"
                   "{% set ns.f = f %}{% set ns.self = ns %}{% set ns.loop = loop %}{% endfor %}{{ ns.f() }}"),
            "2True");
}

TEST(Jinja, MacrosSeeNamesThatAreSetLater) {
  EXPECT_EQ(render("{% macro f() %}{{ late }}{% endmacro %}{% set late = 2 %}{{ f() }}"), "2");
}

TEST(Jinja, TojsonIsReadBackAsTheSameData) {
  EXPECT_TRUE(rc::check("tojson is read back as the same data", [] {
    Json data = Json::object();
    for (const auto& [key, value] : *rc::gen::arbitrary<std::map<std::string, std::pair<int, double>>>()) {
      std::string ascii;
      for (const char c : key) ascii += static_cast<char>(c & 0x7f);
      data[ascii] = {value.first, value.second, ascii, nullptr, true, {{"k", Json::array()}}};
    }
    const Json context = {{"data", data}};
    RC_ASSERT(json_of(render("{{ data | tojson }}", context)) == data);
    RC_ASSERT(json_of(render("{{ data | tojson(indent=3) }}", context)) == data);
  }));
}

TEST(Jinja, BytesThatAreNoUtf8AreKept) {
  const Json context = {{"s", "a\x85\xE2\x9C"}};
  EXPECT_EQ(render("{{ s }}", context), "a\x85\xE2\x9C");
  EXPECT_EQ(render("{{ s[::-1] }}{{ s | length }}{{ s.upper() }}", context),
            "\x9C\xE2\x85"
            "a4A\x85\xE2\x9C");
}

}  // namespace
}  // namespace calandra
