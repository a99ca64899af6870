#include "base/new_file.h"
#include "base/mapped_file.h"
#include "support/golden.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

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
  EXPECT_EQ(files_in(folder.path()).size(), 1U);
}

TEST(NewFile, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  { NewFile(folder / "a").write(std::as_bytes(std::span(std::string_view("lost")))); }
  EXPECT_TRUE(files_in(folder.path()).empty());
}

TEST(NewFile, WhatAKilledProcessLeavesTellsWhatItWasToBecome) {
  const TemporaryFolder folder;
  std::string left;
  {
    NewFile file(folder / "model.safetensors");
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) left = entry.path().filename().string();
  }
  EXPECT_EQ(name_begun(left), "model.safetensors") << left;
  EXPECT_EQ(name_begun("a.1.2.partial"), "a");
  EXPECT_EQ(name_begun("a.b.31.4.partial"), "a.b");
  for (const char* other : {"a", "a.partial", "a.1.partial", "a.1.2", "a.1.x.partial", "a.x.2.partial", "a..2.partial",
                            "a.1..partial", "a1.2.partial", ".1.2.partial", "1.2.partial", ""})
    EXPECT_EQ(name_begun(other), std::nullopt) << other;
}

TEST(NewFile, MayBeNamedWithoutAFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_text_file("a", "here");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_text_file(folder / "a"), "here");
}

TEST(NewFile, KeepsWhoMayReadWhatItReplaces) {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  write_file(folder / "a", "mine");
  std::filesystem::permissions(folder / "a", perms::owner_read | perms::owner_write);
  write_text_file(folder / "a", "still mine");
  EXPECT_EQ(std::filesystem::status(folder / "a").permissions(), perms::owner_read | perms::owner_write);
}

TEST(WriteTextFile, NamesThePathThatCannotBe) {
  const TemporaryFolder folder;
  const std::string error = error_of([&] { write_text_file(folder / "missing/a", "text"); });
  EXPECT_TRUE(error.starts_with((folder / "missing/a").string())) << error;
  EXPECT_TRUE(error.ends_with("cannot create: No such file or directory")) << error;
}

}  // namespace
}  // namespace calandra
