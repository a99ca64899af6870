#include "engine/stop_strings.h"

#include "base/error.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

namespace calandra {
namespace {

/// What one push of each part gives, and whether a stop string was found.
std::pair<std::string, bool> pass_through(const std::vector<std::string>& stops, const std::vector<std::string>& parts) {
  StopStrings filter(stops);
  std::string out;
  for (const std::string& part : parts) out += filter.push(part);
  out += filter.finish();
  return {out, filter.found()};
}

using Answer = std::pair<std::string, bool>;

TEST(StopStrings, TheTextEndsBeforeTheFirstComplete) {
  EXPECT_EQ(pass_through({}, {"all ", "of it"}), Answer("all of it", false));
  EXPECT_EQ(pass_through({"STOP"}, {"go S", "TO", "P on"}), Answer("go ", true));
  EXPECT_EQ(pass_through({"STOP"}, {"go STO", "nE"}), Answer("go STOnE", false));
  EXPECT_EQ(pass_through({"STOP"}, {"go STO"}), Answer("go STO", false));     // the end is no stop
  EXPECT_EQ(pass_through({"abcd", "bc"}, {"xabcd"}), Answer("xa", true));     // "bc" is complete first
  EXPECT_EQ(pass_through({"bc", "abc"}, {"x", "abc"}), Answer("x", true));    // at the same place: the longest
  EXPECT_EQ(pass_through({"aab"}, {"a", "a", "a", "b"}), Answer("a", true));  // a beginning inside a beginning
}

TEST(StopStrings, TextGoesOutAsSoonAsItIsCertain) {
  StopStrings filter({"END", "NDX"});
  EXPECT_EQ(filter.push("one E"), "one ");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("d"), "ENd");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.finish(), "N");
}

TEST(StopStrings, AnEmptyOneIsRefused) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

TEST(StopStrings, NoCutOfTheTextChangesTheAnswer) {
  const auto letters = [](int least, int most) {
    return rc::gen::mapcat(rc::gen::inRange(least, most + 1), [](int size) {
      return rc::gen::container<std::string>(static_cast<std::size_t>(size), rc::gen::elementOf(std::string("ab")));
    });
  };
  EXPECT_TRUE(rc::check("", [&] {
    const auto stops = *rc::gen::container<std::vector<std::string>>(3, letters(1, 4));
    const auto parts = *rc::gen::container<std::vector<std::string>>(letters(0, 4));
    const std::string text = std::accumulate(parts.begin(), parts.end(), std::string());
    // By definition: the shortest prefix that ends with a stop string, without the longest stop string it ends with.
    Answer expected(text, false);
    for (std::size_t end = 1; end <= text.size() && !expected.second; ++end) {
      for (const std::string& stop : stops) {
        const std::string prefix = text.substr(0, end);
        if (!prefix.ends_with(stop)) continue;
        const std::string before = prefix.substr(0, end - stop.size());
        if (!expected.second || before.size() < expected.first.size()) expected = {before, true};
      }
    }
    RC_ASSERT(pass_through(stops, parts) == expected);
  }));
}

}  // namespace
}  // namespace calandra
