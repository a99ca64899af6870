#include "base/new_file.h"
#include "base/mapped_file.h"
#include "support/golden.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

std::ptrdiff_t files_in(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST(NewFile, AppearsOnlyWithCommitAndReplacesWhatWasThere) {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  {
    NewFile file(folder / "a");
    file.write(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(read_text_file(folder / "a"), "old");
    file.extend_to(5);
    file.commit();
  }
  EXPECT_EQ(read_text_file(folder / "a"), std::string("new\0\0", 5));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(NewFile, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  { NewFile(folder / "a").write(std::as_bytes(std::span(std::string_view("lost")))); }
  EXPECT_EQ(files_in(folder.path()), 0);
}

TEST(WriteTextFile, NamesThePathThatCannotBe) {
  const TemporaryFolder folder;
  const std::string error = error_of([&] { write_text_file(folder / "missing/a", "text"); });
  EXPECT_TRUE(error.starts_with((folder / "missing/a").string())) << error;
  EXPECT_TRUE(error.ends_with("cannot create: No such file or directory")) << error;
}

}  // namespace
}  // namespace calandra
