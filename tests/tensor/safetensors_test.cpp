// Reader and writer of the safetensors container: good files, every kind of broken file, failing disks.

#include "tensor/safetensors.h"

#include "support/golden.h"
#include "tensor/element.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

namespace calandra {
namespace {

using testing::HasSubstr;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

/// A file of this header and `data_bytes` bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, 'x'));
}

std::string parse_error(const std::string& file) {
  return error_of([&] { parse_safetensors(std::as_bytes(std::span(file)), "a.safetensors"); });
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape, const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::vector<std::byte> counting_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(folder)) names.push_back(item.path().filename().string());
  return names;
}

TEST(SafetensorsReader, ReadsWhatAnotherWriterWrote) {
  const SafetensorsFile file(golden_path("c_flash31_fp8/golden.safetensors"));
  const TensorView& ids = file.tensors().at("input_ids");
  EXPECT_EQ(ids.type, ElementType::I64);
  EXPECT_EQ(ids.shape, Shape{150});
  const TensorView& hidden = file.tensors().at("hidden.0");
  EXPECT_EQ(hidden.type, ElementType::F32);
  EXPECT_EQ(hidden.shape, (Shape{150, 136}));
  EXPECT_EQ(hidden.data.size(), 150u * 136u * 4u);
}

TEST(SafetensorsReader, ReadsAFileWrittenByHand) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)" + entry("b", "U8", "[2]", "[4,6]") + "," +
                             entry("a", "F32", "[]", "[0,4]") + "," + entry("empty", "BF16", "[0,7]", "[4,4]") + "," +
                             entry("packed", "F4", "[2,2]", "[6,8]") + "}   ";
  const std::string file = file_of(header, 8);
  const SafetensorsContent content = parse_safetensors(std::as_bytes(std::span(file)), "a");
  EXPECT_EQ(content.metadata.at("format"), "pt");
  ASSERT_EQ(content.tensors.size(), 4u);
  EXPECT_EQ(content.tensors.at("b").data.size(), 2u);
  EXPECT_EQ(content.tensors.at("a").shape, Shape{});
  EXPECT_TRUE(content.tensors.at("empty").data.empty());
  EXPECT_EQ(content.tensors.at("packed").data.size(), 2u);
  EXPECT_EQ(content.tensors.begin()->first, "a");
}

TEST(SafetensorsReader, RefusesBrokenFilesAndSaysWhy) {
  const std::string good = entry("t", "F32", "[2]", "[0,8]");
  const struct {
    const char* what;
    std::string file;
    const char* message;
  } cases[] = {
      {"empty file", "", "0 bytes, expected at least the 8"},
      {"three bytes", "abc", "3 bytes"},
      {"length beyond the file", with_length(1000, "{}"), "header length 1000 exceeds the file of 10 bytes"},
      {"length that overflows", with_length(~std::uint64_t{0}, "{}"), "header length 18446744073709551615"},
      {"length above the format's limit", with_length(100'000'001, "{}"), "expected at most 100000000"},
      {"no header", with_length(0, ""), "no JSON object"},
      {"no JSON", file_of("{nonsense", 0), "no JSON object"},
      {"a list", file_of("[]", 0), "no JSON object"},
      {"leading space", file_of(" {}", 0), "no JSON object"},
      {"two values", file_of("{}{}", 0), "no JSON object"},
      {"bad UTF-8", file_of("{\"\xFF\":1}", 0), "no JSON object"},
      {"deep nesting", file_of("{\"t\":" + std::string(100000, '['), 0), "no JSON object"},
      {"twice the name", file_of("{" + good + "," + entry("t", "F32", "[2]", "[8,16]") + "}", 16), "t: the name appears twice"},
      {"twice the metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__ appears twice"},
      {"metadata no object", file_of(R"({"__metadata__":[]})", 0), "__metadata__: expected an object of strings"},
      {"metadata no string", file_of(R"({"__metadata__":{"a":1}})", 0), "a is no string"},
      {"unknown type", file_of("{" + entry("t", "F31", "[2]", "[0,8]") + "}", 8), "t: unknown dtype F31"},
      {"no type", file_of(R"({"t":{"shape":[2],"data_offsets":[0,8]}})", 8), "t: dtype is missing"},
      {"no shape", file_of(R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", 8), "t: shape is missing"},
      {"no offsets", file_of(R"({"t":{"dtype":"F32","shape":[2]}})", 8), "t: data_offsets is missing"},
      {"entry no object", file_of(R"({"t":3})", 8), "t: expected an object"},
      {"shape no list", file_of("{" + entry("t", "F32", "2", "[0,8]") + "}", 8), "t: shape is no list"},
      {"negative extent", file_of("{" + entry("t", "F32", "[-2]", "[0,8]") + "}", 8), "t: shape must hold integers"},
      {"fractional extent", file_of("{" + entry("t", "F32", "[2.0]", "[0,8]") + "}", 8), "t: shape must hold integers"},
      {"huge extent", file_of("{" + entry("t", "F32", "[18446744073709551615]", "[0,8]") + "}", 8),
       "t: shape must hold integers"},
      {"shape that overflows", file_of("{" + entry("t", "F32", "[4294967296,4294967296,4]", "[0,8]") + "}", 8),
       "t: F32 elements of shape"},
      {"bytes that overflow", file_of("{" + entry("t", "F64", "[1152921504606846976]", "[0,8]") + "}", 8),
       "t: F64 elements of shape"},
      {"half a byte", file_of("{" + entry("t", "F4", "[3]", "[0,2]") + "}", 2),
       "t: F4 elements of shape [3] are no whole number"},
      {"one offset", file_of("{" + entry("t", "F32", "[2]", "[0]") + "}", 8), "t: data_offsets has 1 values"},
      {"three offsets", file_of("{" + entry("t", "F32", "[2]", "[0,8,9]") + "}", 8), "t: data_offsets has more than 2"},
      {"negative offset", file_of("{" + entry("t", "F32", "[2]", "[-8,0]") + "}", 8), "t: data_offsets must hold integers"},
      {"offsets backwards", file_of("{" + entry("t", "F32", "[2]", "[8,0]") + "}", 8), "t: data_offsets [8, 0] run backwards"},
      {"wrong byte count", file_of("{" + entry("t", "F32", "[2]", "[0,7]") + "}", 7),
       "t: data_offsets [0, 7] hold 7 bytes, expected 8 for F32 [2]"},
      {"truncated data", file_of("{" + good + "}", 5), "t: data_offsets [0, 8] reach beyond the file, which holds 5 bytes"},
      {"offsets far away", file_of("{" + entry("t", "U8", "[1]", "[9223372036854775806,9223372036854775807]") + "}", 1),
       "reach beyond the file"},
      {"overlap", file_of("{" + good + "," + entry("u", "F32", "[2]", "[4,12]") + "}", 12), "u: data_offsets [4, 12] overlap"},
      {"same place", file_of("{" + good + "," + entry("u", "F32", "[2]", "[0,8]") + "}", 8), "overlap"},
      {"hole", file_of("{" + good + "," + entry("u", "F32", "[2]", "[9,17]") + "}", 17),
       "u: data_offsets [9, 17] leave a hole after byte 8"},
      {"hole at the start", file_of("{" + entry("t", "F32", "[2]", "[1,9]") + "}", 9), "leave a hole after byte 0"},
      {"empty tensor in a tensor", file_of("{" + good + "," + entry("u", "F32", "[0]", "[4,4]") + "}", 8),
       "u: data_offsets [4, 4] overlap"},
      {"trailing bytes", file_of("{" + good + "}", 11), "3 bytes after the last tensor"},
  };
  for (const auto& test : cases) {
    const std::string error = parse_error(test.file);
    EXPECT_THAT(error, HasSubstr(test.message)) << test.what;
    EXPECT_THAT(error, HasSubstr("a.safetensors")) << test.what;
  }
}

TEST(SafetensorsReader, MessagesStayOneLineWhateverANameHolds) {
  const std::string error = parse_error(file_of(R"({"a\nb\u0007":{"dtype":"F32"}})", 0));
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_THAT(error, HasSubstr("a\\x0ab\\x07"));
}

TEST(SafetensorsReader, AnyPrefixOfAFileIsRefused) {
  const std::string file = file_of("{" + entry("t", "F32", "[2]", "[0,8]") + "}", 8);
  EXPECT_EQ(parse_error(file), "");
  for (std::size_t length = 0; length < file.size(); ++length) EXPECT_NE(parse_error(file.substr(0, length)), "") << length;
}

TEST(SafetensorsReader, SurvivesAnyChangedByte) {
  const std::string file = file_of("{" + entry("t", "F32", "[2]", "[0,8]") + "," + entry("u", "U8", "[3]", "[8,11]") + "}", 11);
  EXPECT_TRUE(rc::check("a damaged header is read or refused", [&] {
    std::string damaged = file;
    const int changes = *rc::gen::inRange(1, 4);
    for (int i = 0; i < changes; ++i) damaged[*rc::gen::inRange(std::size_t{0}, file.size())] = *rc::gen::arbitrary<char>();
    try {
      for (const auto& [name, view] : parse_safetensors(std::as_bytes(std::span(damaged)), "a").tensors) {
        RC_ASSERT(std::ssize(view.data) == num_bytes(view.type, view.shape));
      }
    } catch (const Error&) {
    }
  }));
}

TEST(SafetensorsReader, NamesTheMissingFile) {
  const TemporaryFolder folder;
  const std::string error = error_of([&] { SafetensorsFile file(folder / "none.safetensors"); });
  EXPECT_THAT(error, HasSubstr("none.safetensors"));
  EXPECT_THAT(error, HasSubstr("No such file"));
}

TEST(Shapes, CountsAndRefusesOverflow) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({3, 0, 5}), 0);
  EXPECT_EQ(num_bytes(ElementType::F4, {3, 32}), 48);
  EXPECT_EQ(to_string(Shape{2048, 1536}), "[2048, 1536]");
  EXPECT_THROW(num_elements({std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  EXPECT_THROW(num_elements({-1}), Error);
  EXPECT_THROW(num_bytes(ElementType::F4, {3}), Error);
}

TEST(SafetensorsWriter, WhatIsWrittenInAnyPiecesIsReadBack) {
  const TemporaryFolder folder;
  EXPECT_TRUE(rc::check("round trip", [&] {
    const ElementType types[] = {ElementType::F32, ElementType::BF16, ElementType::F8_E4M3, ElementType::U8, ElementType::I64};
    std::vector<TensorHeader> headers;
    std::size_t total = 0;
    const int count = *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      TensorHeader header{fmt::format("t{}.\"q\"\\\n\xC3\xA9", i),
                          types[*rc::gen::inRange(0, 5)],
                          {*rc::gen::inRange(0, 5), *rc::gen::inRange(1, 9)}};
      total += static_cast<std::size_t>(num_bytes(header.type, header.shape));
      headers.push_back(std::move(header));
    }
    const std::vector<std::byte> data = counting_bytes(total);
    const std::filesystem::path path = folder / "round.safetensors";
    SafetensorsWriter writer(path, headers, {{"made by", "a \"test\""}});
    for (std::size_t at = 0; at < total;) {
      const std::size_t piece = std::min(total - at, *rc::gen::inRange(std::size_t{1}, std::size_t{40}));
      writer.write(std::span(data).subspan(at, piece));
      at += piece;
    }
    writer.finish();

    const SafetensorsFile file(path);
    RC_ASSERT(file.metadata().at("made by") == "a \"test\"");
    RC_ASSERT(file.tensors().size() == headers.size());
    std::size_t at = 0;
    for (const TensorHeader& header : headers) {
      const TensorView& view = file.tensors().at(header.name);
      RC_ASSERT(view.type == header.type);
      RC_ASSERT(view.shape == header.shape);
      RC_ASSERT(std::equal(view.data.begin(), view.data.end(), data.begin() + static_cast<std::ptrdiff_t>(at)));
      at += view.data.size();
    }
  }));
}

TEST(SafetensorsWriter, DataBeginsAtAMultipleOfEight) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  SafetensorsWriter writer(path, {{"t", ElementType::U8, {1}}});
  writer.write(counting_bytes(1));
  writer.finish();
  EXPECT_EQ(std::filesystem::file_size(path) % 8, 1u);
}

TEST(SafetensorsWriter, NothingAppearsBeforeItIsFinishedNorWithoutIt) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a.safetensors", {{"t", ElementType::F32, {4}}});
    writer.write(counting_bytes(8));
    EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors"));
    EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("8 bytes of data written, the header says 16"));
    EXPECT_THAT(error_of([&] { writer.write(counting_bytes(9)); }), HasSubstr("more data than the header's 16 bytes"));
    SafetensorsWriter moved = std::move(writer);
  }
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(SafetensorsWriter, AnOlderFileStaysUntilTheNewOneIsWhole) {
  const TemporaryFolder folder;
  write_file(folder / "a.safetensors", "old");
  { SafetensorsWriter writer(folder / "a.safetensors", {{"t", ElementType::F32, {4}}}); }
  EXPECT_EQ(read_text_file(folder / "a.safetensors"), "old");
}

TEST(SafetensorsWriter, SkippedDataIsSparseAndZero) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "sparse.safetensors";
  const std::int64_t elements = std::int64_t{1} << 34;  // 64 GB if it were written
  SafetensorsWriter writer(path, {{"small", ElementType::U8, {16}}, {"huge", ElementType::F32, {elements}}});
  writer.write(counting_bytes(16));
  writer.skip_rest();
  writer.finish();
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
  const SafetensorsFile file(path);
  const TensorView& huge = file.tensors().at("huge");
  EXPECT_EQ(std::ssize(huge.data), elements * 4);
  EXPECT_EQ(huge.data.back(), std::byte{0});
  EXPECT_EQ(file.tensors().at("small").data[3], counting_bytes(16)[3]);
}

TEST(SafetensorsWriter, RefusesTwoTensorsOfOneName) {
  const TemporaryFolder folder;
  const std::vector<TensorHeader> twice = {{"t", ElementType::U8, {1}}, {"u", ElementType::U8, {1}}, {"t", ElementType::U8, {1}}};
  EXPECT_THAT(error_of([&] { SafetensorsWriter writer(folder / "a", twice); }), HasSubstr("t would be written twice"));
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(SafetensorsWriter, NamesTheFolderThatIsNotThere) {
  EXPECT_THAT(error_of([] { SafetensorsWriter writer("/nowhere/a.safetensors", {}); }), HasSubstr("/nowhere/a.safetensors"));
}

/// Runs `action` in a child process whose files cannot grow beyond `limit` bytes. Returns its exit status.
template <class Action>
int in_child_with_file_limit(rlim_t limit, Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // a full disk shall be an error, not a signal
    const struct rlimit value { limit, limit };
    ::setrlimit(RLIMIT_FSIZE, &value);
    ::_exit(action());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorThatLeavesNothingBehind) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  const auto write_all = [&](bool sparse) {
    return in_child_with_file_limit(50'000, [&] {
      const std::string error = error_of([&] {
        SafetensorsWriter writer(path, {{"t", ElementType::F32, {100'000}}});
        if (sparse) writer.skip_rest();
        if (!sparse) writer.write(counting_bytes(400'000));
        writer.finish();
      });
      return error.find(path.string()) != std::string::npos && error.find("File too large") != std::string::npos ? 17 : 1;
    });
  };
  EXPECT_EQ(write_all(false), 17);
  EXPECT_EQ(write_all(true), 17);
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

}  // namespace
}  // namespace calandra
