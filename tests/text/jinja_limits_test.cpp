// What a template must not do to the machine: each of these ends in an Error, and soon. Without limits most would take
// minutes, or all of the memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "support/json.h"
#include "text/jinja.h"
#include "text/jinja_value.h"

namespace calandra {
namespace {

using testing::HasSubstr;

std::string limit_error(const std::string& source, const Json& context = Json::object(), const JinjaOptions& options = {}) {
  try {
    return "no error, but " + JinjaTemplate::parse(source, "t").render(context, options).substr(0, 80);
  } catch (const Error& error) {
    return error.what();
  }
}

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// A list of which a small part is shared so often that it prints as 2^40 lists.
const std::string kTree =
    "{% set ns = namespace(l=[], m=[]) %}"
    "{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}";
const std::string kTuples = "{% set ns = namespace(l=()) %}{% for i in range(40) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}";

void expect_stopped(const std::string& source, const JinjaOptions& options) {
  const std::clock_t start = std::clock();
  const long before = peak_kilobytes();
  EXPECT_THAT(limit_error(source, Json::object(), options),
              testing::AnyOf(HasSubstr("too much work"), HasSubstr("unhashable"), HasSubstr("exactly one")))
      << source;
  // Some seconds and 0.4 GB at most here; the bounds leave room for sanitizers and other load.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0) << source;
  EXPECT_LT(peak_kilobytes() - before, 1'000'000) << source;
}

class JinjaLimits : public testing::TestWithParam<std::string> {};

TEST_P(JinjaLimits, EndsInAnErrorSoonAndInLittleMemory) {
  JinjaOptions options;
  options.max_work /= 16;  // to be quick here; the limits are proportional
  expect_stopped(GetParam(), options);
}

TEST(Jinja, TemplatesAreStoppedByTheLimitsInUse) {
  for (const std::string& source :
       {kTree + "{{ ns.l }}", kTuples + "{{ {ns.l: 1} }}", std::string("{{ ('a'*1000000).join(['b']*100000) }}"),
        std::string("{{ ('%99999d'*100000) % ((1,)*100000) }}"), std::string("{{ ([('a'*1000000)]*100000) | string }}")}) {
    expect_stopped(source, {});
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, JinjaLimits,
    testing::Values(
        kTree + "{{ ns.l }}", kTree + "{{ ns.l == ns.m }}", kTree + "{{ ns.l | tojson }}",
        kTree + "{{ ns.l | tojson(indent=2) }}", kTree + "{{ ns.l | string | length }}", kTree + "{{ ns.l < ns.m }}",
        kTree + "{{ ns.l in [ns.m] }}", kTree + "{{ [ns.l, ns.m] | sort }}", kTree + "{{ '%s' % [ns.l] }}",
        kTree + "{{ ns.l ~ '' }}", kTree + "{{ '{}'.format(ns.l) }}", kTree + "{{ {'a': ns.l} }}",
        kTree + "{{ [ns.l].index(ns.m) }}", kTuples + "{{ {ns.l: 1} }}", kTuples + "{{ ns.l in {1: 2} }}{{ [ns.l] | unique }}",
        kTuples + "{{ dict([(ns.l, 1)]) }}", "{{ ('a'*1000000).join(['b']*100000) }}", "{{ (['b']*100000) | join('a'*1000000) }}",
        "{{ ('%99999d'*100000) % ((1,)*100000) }}", "{{ ('%99999s'*100000) % ((1,)*100000) }}",
        "{{ ([('a'*1000000)]*100000) | string }}", "{{ ([('a'*1000000)]*100000) | tojson | length }}",
        "{{ ([('a'*1000000)]*100000) | join | length }}", "{{ 'x'.center(2305843009213693953, 'aaaaaaaa') }}",
        "{{ 'x'.center(9223372036854775807) }}", "{{ 'x'.ljust(9223372036854775807, 'é') }}", "{{ 'x'.rjust(99999999) }}",
        "{{ [1] * 10**15 }}", "{{ 'a' * 99999999 }}", "{{ [1] | tojson(indent='a' * 60000000) | length }}{{ [[1]] * 9999999 }}",
        "{% set s = 'a' * 30000000 %}{{ (s ~ 'b') in (s ~ 'a') }}", "{% set s = 'a' * 9999999 %}{{ s.rfind('b' ~ s[:5000000]) }}",
        "{% set s = 'a' * 9999999 %}{{ s.replace('b' ~ s[:5000000], '') }}", "{% set s = ',' * 60000000 %}{{ s.split(',') }}",
        "{% set s = 'a' * 60000000 %}{{ s | list }}", "{% set s = '\n' * 60000000 %}{{ s.splitlines() }}",
        "{% for i in range(100000) %}{{ [1] | batch(99999, 0) | length }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s[-1] }}{% endfor %}",
        "{% set l = range(100000) | list %}{% for i in l %}{{ -1 in l }}{% endfor %}"));

TEST(Jinja, ManyKeysTakeLinearTime) {
  Json keys = Json::array();
  for (int i = 0; i < 50'000; ++i) keys.push_back("key " + std::to_string(i));
  const auto render = [&](const char* source) { return JinjaTemplate::parse(source, "t").render({{"keys", keys}}); };
  const std::clock_t start = std::clock();
  EXPECT_EQ(render("{% set d = dict(keys | batch(2)) %}{{ d | length }} {{ d['key 2'] }} {{ keys | unique | list | length }}"),
            "25000 key 3 50000");
  std::string display = "{% set d = {", names;
  for (int i = 0; i < 10'000; ++i) {
    display += "'k" + std::to_string(i) + "': " + std::to_string(i) + ", ";
    names += "{% set name_" + std::to_string(i) + " = " + std::to_string(i) + " %}";
  }
  EXPECT_EQ(render((display + "} %}{{ d['k9999'] }} {{ d.k17 }} {{ d | length }} {{ 'k10000' in d }}").c_str()),
            "9999 17 10000 False");
  EXPECT_EQ(render((names + "{{ name_9999 }}{{ name_3 }}").c_str()), "99993");
  // Some 0.2 s here; with a search for every key it is tens of seconds.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0);
}

TEST(Jinja, KeysThatAreEqualAreOneKeyHoweverManyThereAre) {
  for (const int size : {0, 40}) {  // with and without the index
    std::string source = "{% set d = {";
    for (int i = 0; i < size; ++i) source += "'" + std::to_string(i) + "': 0, ";
    source += "1: 'a', 1.0: 'b', True: 'c', (1, 'x'): 'd', (1.0, 'x'): 'e', none: 'f'} %}";
    EXPECT_EQ(JinjaTemplate::parse(source + "{{ d | length - " + std::to_string(size) +
                                       " }}{{ d[1] }}{{ d[(True, 'x')] }}"
                                       "{{ d[none] }}{{ [] in [d] }}{{ d[[]] is defined }}",
                                   "t")
                  .render(Json::object()),
              "3cefFalseFalse");
    EXPECT_THAT(limit_error("{{ {[]: 1} }}"), HasSubstr("unhashable type: 'list'"));
  }
}

TEST(Jinja, ContextThatIsNestedTooDeepIsRefused) {
  Json deep = Json::array();
  for (int i = 0; i < 100'000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  Json context = Json::object();
  context["x"] = std::move(deep);
  EXPECT_THAT(limit_error("{{ 1 }}", context), HasSubstr("t: the context: nested deeper than 500"));
  EXPECT_THROW(jinja::Value::from_json(context), Error);
}

TEST(Jinja, IntegersBeyond64BitsKeepTheirDigits) {
  const auto render = [](const char* source, const char* context) {
    return JinjaTemplate::parse(source, "t").render(json_of(context));
  };
  EXPECT_EQ(render("{{ x }} {{ x | tojson }} {{ x is integer }} {{ x == 18446744073709551615 }} {{ x > 9223372036854775807 }} "
                   "{{ -5 < x }} {{ {x: 1}[18446744073709551615] }} {{ x is float }} {{ x | int }}",
                   R"({"x": 18446744073709551615})"),
            "18446744073709551615 18446744073709551615 True True True True 1 False 18446744073709551615");
  EXPECT_EQ(render("{{ -12345678901234567890123 }} {{ [-x, x | abs] }} {{ '12345678901234567890123' | int }}",
                   R"({"x": 12345678901234567890})"),
            "-12345678901234567890123 [-12345678901234567890, 12345678901234567890] 12345678901234567890123");
  EXPECT_THAT(limit_error("{{ 18446744073709551615 + 1 }}"), HasSubstr("integer overflow"));
}

}  // namespace
}  // namespace calandra
