// What is written about the program beside it: the table of options in docs/serving.md, the unit for systemd.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace calandra {
namespace {

using testing::HasSubstr;

std::string text_of_file(const std::string& name) {
  std::ifstream in(CALANDRA_SOURCE_DIR "/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Docs, TheOptionsOfServeAreThoseOfTheProgram) {
  const Outcome said = run_program({"help", "--markdown", "serve"});
  EXPECT_EQ(said.code, 0);
  const std::string docs = text_of_file("docs/serving.md");
  const std::size_t begin = docs.find("| option |"), end = docs.find("\n<!-- End of what is written. -->");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(docs.substr(begin, end - begin), said.out) << "tools/update_docs.sh writes it";
  // The table has what the help has.
  const std::string help = run_program({"serve", "--help"}).out;
  const std::regex option("--[a-z-]+");
  std::set<std::string> named;
  for (std::sregex_iterator found(help.begin(), help.end(), option), none; found != none; ++found) named.insert(found->str());
  named.erase("--help");
  EXPECT_GT(named.size(), 15u);
  for (const std::string& name : named) EXPECT_THAT(said.out, HasSubstr("`" + name)) << help;
}

TEST(Docs, TheUnitIsOneThatSystemdUnderstands) {
  const std::string unit = text_of_file("packaging/calandra.service");
  ASSERT_THAT(unit, HasSubstr("\nType=notify\n"));
  std::istringstream lines(unit);
  const std::regex line_form("(#.*|\\[(Unit|Service|Install)\\]|[A-Z][A-Za-z]+=.*|)");
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(std::regex_match(line, line_form)) << line;
  std::smatch command;
  ASSERT_TRUE(std::regex_search(unit, command, std::regex("\nExecStart=\\S*/calandra (\\w+) /srv/")));
  EXPECT_EQ(run_program({"help", command[1]}).code, 0);
  if (run_shell("command -v systemd-analyze > /dev/null").code != 0) GTEST_SKIP() << "systemd-analyze is not installed";
  const std::string file = testing::TempDir() + "calandra-test.service";
  std::ofstream(file) << std::regex_replace(unit, std::regex("\nExecStart=.*"), "\nExecStart=/bin/true");
  const Outcome verified = run_shell("systemd-analyze verify " + file + " 2>&1");
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_EQ(verified.out, "");
  std::remove(file.c_str());
}

}  // namespace
}  // namespace calandra
