// `calandra serve --cache-dir`: what outlives the program, and the program that is killed.

#include "cli/program.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace calandra {
namespace {

using testing::HasSubstr;

TEST(CacheFolder, KilledAtAnyMomentNothingIsWrongAndNothingIsLeft) {
  const int rounds = 20;
  for (int seed = 1; seed <= (long_tests() ? 10 : 1); ++seed) {
    const Outcome outcome = run_shell(fmt::format("python3 '{}/tests/cli/kill_server.py' \"$CALANDRA\" '{}' {} {}",
                                                  CALANDRA_SOURCE_DIR, kBundledModel, rounds, seed));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json told = outcome.json();
    EXPECT_EQ(told.at("wrong"), 0);
    EXPECT_GT(told.at("finished"), rounds);
    EXPECT_GT(told.at("read"), rounds / 2) << "answers that went on from what a killed server had written";
    EXPECT_TRUE(told.at("left").empty()) << "files that are neither the cache's nor removed: " << told.at("left");
    EXPECT_EQ(told.at("bytes")[0], told.at("bytes")[1]) << "what the server counts, and what the files have";
    EXPECT_EQ(told.at("refused"), 0);
    EXPECT_EQ(told.at("exit"), 0);
    EXPECT_THAT(told.at("said"), HasSubstr(" positions, "));
  }
}

TEST(CacheFolder, OptionsThatDoNotFitAreNamed) {
  const auto error = [](const std::string& options) { return run_shell("\"$CALANDRA\" serve --port 0 " + options).err; };
  EXPECT_THAT(error("--cache-dir /tmp --prefix-cache off"), HasSubstr("--cache-dir: expected --prefix-cache on beside it"));
  EXPECT_THAT(error("--cache-disk 1GB"), HasSubstr("--cache-disk: expected --cache-dir beside it"));
  EXPECT_THAT(error("--cache-dir /dev/null"), HasSubstr("/dev/null: found no folder, expected one, or nothing"));
}

TEST(CacheFolder, BelongsToOneServer) {
  const Outcome outcome = run_beside_server("--cache-dir \"$folder/cache\"", R"SH(
    "$CALANDRA" serve --port 0 --cache-dir "$folder/cache"; echo "exit $?"
  )SH");
  EXPECT_THAT(outcome.out, HasSubstr("exit 1"));
  EXPECT_THAT(outcome.err, HasSubstr("another process keeps its prefix cache there, expected a folder of its own for each"));
}

}  // namespace
}  // namespace calandra
