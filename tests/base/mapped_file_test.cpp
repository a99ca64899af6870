#include "base/mapped_file.h"
#include "support/golden.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

TEST(MappedFile, HoldsTheBytesOfTheFile) {
  const TemporaryFolder folder;
  write_file(folder / "a", "hello");
  const MappedFile file(folder / "a");
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()), "hello");
  write_file(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoReadableFileAndNamesIt) {
  const TemporaryFolder folder;
  const auto missing = (folder / "missing").string();
  EXPECT_EQ(error_of([&] { MappedFile{missing}; }), missing + ": cannot open: No such file or directory");
  EXPECT_EQ(error_of([&] { MappedFile{folder.path()}; }), folder.path().string() + ": found a folder, expected a file");
}

TEST(IsThere, ALinkToNothingIsAnErrorAndNotAbsence) {
  const TemporaryFolder folder;
  write_file(folder / "a", "");
  std::filesystem::create_symlink("a", folder / "good");
  std::filesystem::create_symlink("b", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(is_there(folder / "a"));
  EXPECT_TRUE(is_there(folder / "good"));
  EXPECT_FALSE(is_there(folder / "b"));
  EXPECT_EQ(error_of([&] { is_there(folder / "dangling"); }), (folder / "dangling").string() + ": a link to b: nothing is there");
  EXPECT_EQ(error_of([&] { is_there(folder / "loop"); }),
            (folder / "loop").string() + ": a link to loop: Too many levels of symbolic links");
}

TEST(ReadTextFile, RefusesMoreThanTheLimit) {
  const TemporaryFolder folder;
  write_file(folder / "a", "hello");
  EXPECT_EQ(read_text_file(folder / "a"), "hello");
  EXPECT_EQ(error_of([&] { read_text_file(folder / "a", 4); }), (folder / "a").string() + ": 5 bytes, expected at most 4");
}

}  // namespace
}  // namespace calandra
