// Conversion: every byte against another implementation (tools/reference/make_convert.py), sizes against published figures.

#include "checkpoint/convert.h"

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/shards.h"
#include "checkpoint/summary.h"
#include "checkpoint/synthetic.h"
#include "checkpoint/target_folder.h"
#include "checkpoint/weight_errors.h"
#include "support/golden.h"
#include "support/json.h"
#include "support/released.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

namespace calandra {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path bundled() { return source_path("models/austen-5m"); }

ConversionOptions to(ConversionTarget target, std::optional<HeadFormat> head = {}, int num_threads = 2) {
  return {target, head, kDefaultShardBytes, num_threads};
}

/// In shards of 300 kB.
ConversionOptions cut_small(ConversionOptions options) {
  options.shard_bytes = 300'000;
  return options;
}

void convert(const fs::path& source, const ConversionOptions& options, const fs::path& target) {
  Conversion(source, options).write(target);
}

ordered_json config_of(const fs::path& folder) { return read_json(folder / "config.json"); }

ConversionTarget target_named(const std::string& name) {
  for (const auto target : {ConversionTarget::Fp8, ConversionTarget::Fp4, ConversionTarget::Fp4All})
    if (name_of(target) == name) return target;
  throw std::runtime_error(name);
}

std::optional<HeadFormat> head_named(const ordered_json& name) {
  static const std::map<std::string, HeadFormat> kHeads = {
      {"bf16", HeadFormat::Bf16}, {"fp8", HeadFormat::Fp8}, {"fp4", HeadFormat::Fp4}};
  return name.is_null() ? std::nullopt : std::optional(kHeads.at(name.get<std::string>()));
}

// ------------------------------------------------------------------ bytes

/// The CRC-32 of zlib and PNG, to go on with.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

std::string layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size(), name.find('.', kPrefix.size()) - kPrefix.size()) : "-";
}

bool is_scale_of_changed(const std::string& name, const std::set<std::string>& changed) {
  constexpr std::string_view kEnd = "_scale_inv";
  return name.ends_with(kEnd) && changed.contains(name.substr(0, name.size() - kEnd.size()));
}

/// Names of `after` that `before` has not in the same type, shape and bytes; scales go with their weight.
std::set<std::string> changed_tensors(const Checkpoint& before, const Checkpoint& after) {
  std::set<std::string> changed;
  for (const auto& [name, tensor] : after.tensors()) {
    const auto old = before.tensors().find(name);
    const bool same = old != before.tensors().end() && old->second.view.type == tensor.view.type &&
                      old->second.view.shape == tensor.view.shape && std::ranges::equal(old->second.view.data, tensor.view.data);
    if (!same || is_scale_of_changed(name, changed)) changed.insert(name);
  }
  return changed;
}

std::map<std::string, std::uint32_t> checksums(const Checkpoint& checkpoint, const std::set<std::string>& names) {
  std::map<std::string, std::uint32_t> sums;
  for (const std::string& name : names) {
    const TensorView& view = checkpoint.tensors().at(name).view;
    const std::string head = name + std::string(name_of(view.type)) + to_string(view.shape);
    std::uint32_t& sum = sums[layer_of(name)];
    sum = crc32(view.data, crc32(std::as_bytes(std::span(head)), sum));
  }
  return sums;
}

TEST(Convert, BytesAreThoseOfTheReference) {
  const ordered_json cases = read_json(golden_path("convert.json"));
  ASSERT_GT(cases.size(), 20u);
  for (const ordered_json& one : cases) {
    const TemporaryFolder folder;
    SCOPED_TRACE(dump_json(one["source"]) + " " + dump_json(one["via"]) + " " + dump_json(one["to"]) + " " +
                 dump_json(one["head"]));
    fs::path source = source_path(one["source"].get<std::string>());
    if (one["via"].is_string()) {
      convert(source, to(target_named(one["via"])), folder / "via");
      source = folder / "via";
    }
    convert(source, to(target_named(one["to"]), head_named(one["head"])), folder / "out");
    const Checkpoint before = Checkpoint::open(source), after = Checkpoint::open(folder / "out");
    EXPECT_THAT(after.remarks(), IsEmpty());
    EXPECT_THAT(after.config().remarks, IsEmpty());
    const std::set<std::string> changed = changed_tensors(before, after);
    EXPECT_EQ(changed.size(), one["tensors"].get<std::size_t>());
    EXPECT_EQ(checksums(after, changed), (one["crc32"].get<std::map<std::string, std::uint32_t>>()));
    for (const auto& [name, tensor] : before.tensors()) EXPECT_TRUE(after.tensors().contains(name)) << name;
  }
}

TEST(Convert, AConvertedModelConvertsToItself) {
  for (const auto target : {ConversionTarget::Fp8, ConversionTarget::Fp4, ConversionTarget::Fp4All}) {
    const TemporaryFolder folder;
    convert(bundled(), to(target), folder / "once");
    const Conversion again(folder / "once", to(target));
    EXPECT_THAT(again.remarks(), ElementsAre(HasSubstr("a copy")));
    again.write(folder / "twice");
    EXPECT_THAT(changed_tensors(Checkpoint::open(folder / "once"), Checkpoint::open(folder / "twice")), IsEmpty());
    Files once = files_in(folder / "once"), twice = files_in(folder / "twice");
    once.erase("model.safetensors"), twice.erase("model.safetensors");
    EXPECT_EQ(once, twice);
    const WeightErrors errors = compare_weights(folder / "once", folder / "twice", 2);
    EXPECT_THAT(errors.tensors, IsEmpty());
    EXPECT_GT(errors.equal_tensors, 400);
  }
}

TEST(Convert, WhatIsNotAWeightIsCopied) {
  const TemporaryFolder folder;
  fs::copy(bundled(), folder / "source");
  fs::create_directory(folder / "source/figures");
  write_file(folder / "source/other.safetensors", "not of the model");
  fs::rename(folder / "source/README.md", folder / "card");
  fs::create_symlink(folder / "card", folder / "source/README.md");  // as in the Hugging Face cache
  const Conversion conversion(folder / "source", to(ConversionTarget::Fp8));
  EXPECT_THAT(conversion.remarks(), ElementsAre(AllOf(HasSubstr("not copied"), HasSubstr("figures, other.safetensors"))));
  conversion.write(folder / "out");
  const Files files = files_in(folder / "out");
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "README.md"})
    EXPECT_EQ(files.at(name), read_text_file(bundled() / name)) << name;
  EXPECT_FALSE(fs::is_symlink(folder / "out/README.md"));
  ordered_json before = config_of(bundled()), after = config_of(folder / "out");
  EXPECT_TRUE(after.erase("quantization_config") == 1);
  EXPECT_EQ(dump_json(before), dump_json(after));
}

/// A copy of `source` in which element `index` of a tensor is `value`, as stored.
template <class T>
fs::path with_element(const fs::path& source, const fs::path& copy, const std::string& tensor, std::size_t index, T value) {
  fs::create_directories(copy.parent_path());
  fs::copy(source, copy);
  const Shards shards = open_shards(copy);
  const StoredTensor& stored = shards.tensors.at(tensor);
  std::string file = read_text_file(stored.file->path());
  const auto content = parse_safetensors(std::as_bytes(std::span(file)), "file");
  const std::byte* const begin = content.tensors.at(tensor).data.data() + index * sizeof(T);
  std::memcpy(file.data() + (begin - reinterpret_cast<const std::byte*>(file.data())), &value, sizeof(T));
  write_file(stored.file->path(), file);
  return copy;
}

/// A copy of a model in one file, with one more tensor.
fs::path with_tensor(const fs::path& source, const fs::path& copy, const TensorHeader& header) {
  fs::create_directories(copy.parent_path());
  fs::copy(source, copy);
  const SafetensorsFile before(source / "model.safetensors");
  std::vector<TensorHeader> headers = {header};
  for (const auto& [name, view] : before.tensors()) headers.push_back({name, view.type, view.shape});
  fs::remove(copy / "model.safetensors");
  SafetensorsWriter writer(copy / "model.safetensors", headers);
  writer.write(std::vector<std::byte>(static_cast<std::size_t>(num_bytes(header.type, header.shape))));
  for (const auto& [name, view] : before.tensors()) writer.write(view.data);
  writer.finish();
  return copy;
}

TEST(Convert, ATensorOfAnyNameIsCopiedAndInTheIndex) {
  const TemporaryFolder folder;
  for (const std::string name : {"a \"quoted\" \\ name", "one\nline"}) {
    const fs::path copy = folder / std::to_string(name.size());
    convert(with_tensor(bundled(), copy / "source", {name, ElementType::F32, {2, 3}}), cut_small(to(ConversionTarget::Fp8)),
            copy / "out");
    const Checkpoint after = Checkpoint::open(copy / "out");
    EXPECT_EQ(after.tensors().count(name), 1u) << name;
    EXPECT_EQ(read_json(copy / "out/model.safetensors.index.json")["weight_map"].count(name), 1u);
  }
}

TEST(Convert, WhatAKilledProcessLeftInTheModelIsNotCopied) {
  const TemporaryFolder folder;
  fs::copy(bundled(), folder / "source");
  write_file(folder / "source/tokenizer.json.77.1.partial", "half a file");
  const Conversion conversion(folder / "source", to(ConversionTarget::Fp8));
  EXPECT_THAT(conversion.remarks(), ElementsAre(HasSubstr("not copied from the model's folder: tokenizer.json.77.1.partial")));
  conversion.write(folder / "out");
  EXPECT_TRUE(conversion.is_finished(folder / "out"));
}

// Weights in another format, for example. Holes take no space.
TEST(Convert, OtherFilesMayBeLargerThanAnyText) {
  const TemporaryFolder folder;
  fs::copy(bundled(), folder / "source");
  convert(folder / "source", to(ConversionTarget::Fp8), folder / "out");
  for (const char* place : {"source/model.gguf", "out/model.gguf"}) {
    write_file(folder / place, "");
    fs::resize_file(folder / place, (std::uintmax_t{1} << 30) + 1);
  }
  EXPECT_TRUE(Conversion(folder / "source", to(ConversionTarget::Fp8)).is_finished(folder / "out"));
}

TEST(Convert, ANumberThatIsNoneIsNamed) {
  const TemporaryFolder folder;
  with_element<std::uint16_t>(golden_path("a_tiny_bf16"), folder / "source", "model.layers.0.attention.o_proj.weight", 3, 0x7F80);
  EXPECT_EQ(error_of([&] { convert(folder / "source", to(ConversionTarget::Fp4), folder / "out"); }),
            "model.layers.0.attention.o_proj.weight: element [0, 3] is inf in model.safetensors, expected a finite number");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// 448 times the largest scale, 2^119, is less than the largest float32; bf16 ends there, but half a step earlier.
TEST(Convert, ANumberThatTheNewFormatCannotHoldIsNamed) {
  const TemporaryFolder folder;
  const fs::path golden = golden_path("f_odd_f32");
  const std::string name = "model.layers.0.attention.q_proj.weight";
  const auto error = [&](const fs::path& source, const ConversionOptions& options) {
    return error_of([&] { convert(source, options, folder / "out"); });
  };
  EXPECT_THAT(error(with_element(golden, folder / "above", name, 41, 3e38f), to(ConversionTarget::Fp8)),
              AllOf(HasSubstr(name + ": element [1, 1] is 3e+38 in model.safetensors, expected at most 2.977"),
                    HasSubstr("which is what the new format holds")));
  EXPECT_THAT(
      error(with_element(golden, folder / "head", "lm_head.weight", 0, -3.4e38f), to(ConversionTarget::Fp8, HeadFormat::Bf16)),
      HasSubstr("lm_head.weight: element [0, 0] is -3.4e+38 in model.safetensors, expected at most 3.389"));
  for (const float most : {0x1.Cp127f, -0x1.Cp127f}) {
    const fs::path target = folder / (most > 0 ? "largest" : "least");
    convert(with_element(golden, target / "source", name, 41, most), to(ConversionTarget::Fp8), target / "out");
    EXPECT_EQ(Checkpoint::open(target / "out").tensors().count(name + "_scale_inv"), 1u);
  }
}

// Copied or decoded: a model that Checkpoint::open() refuses is not converted into another one that it refuses, or worse.
TEST(Convert, AScaleThatIsNoneIsNamed) {
  const TemporaryFolder folder;
  const auto error = [&](const fs::path& source, ConversionTarget target) {
    EXPECT_NE(error_of([&] { Checkpoint::open(source); }), "");
    return error_of([&] { convert(source, to(target), folder / "out"); });
  };
  const std::string fp8 = "model.layers.0.attention.o_proj.weight_scale_inv";  // 256 columns wide: may be MXFP4
  const std::string mxfp4 = "model.layers.1.mlp.experts.0.up_proj.weight_scale_inv";
  const fs::path nan = with_element(golden_path("c_flash31_fp8"), folder / "nan", fp8, 0, std::nanf(""));
  EXPECT_THAT(error(nan, ConversionTarget::Fp8), HasSubstr(fp8 + ": scale 0 is nan"));
  const fs::path negative = with_element(golden_path("c_flash31_fp8"), folder / "negative", fp8, 0, -1.0f);
  EXPECT_THAT(error(negative, ConversionTarget::Fp8), HasSubstr(fp8 + ": scale 0 is -1"));
  EXPECT_THAT(error(negative, ConversionTarget::Fp4All), HasSubstr(fp8 + ": scale 0 is -1"));
  const fs::path byte = with_element<std::uint8_t>(golden_path("d_mix_fp4"), folder / "byte", mxfp4, 2, 255);
  EXPECT_THAT(error(byte, ConversionTarget::Fp4), HasSubstr(mxfp4 + ": scale 2 is byte 255"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// ------------------------------------------------------------------ sizes and config

fs::path headers_only(const TemporaryFolder& folder, LingModel model, SyntheticFormat format) {
  SyntheticOptions options = whole(model, format);
  options.headers_only = true;
  make_checkpoint(options, folder / "source");
  return folder / "source";
}

// docs/model.md 10.5: 534.35 GiB become 291.64 GiB, experts of the MTP layer included.
TEST(Convert, Flash31ShrinksToThePublishedSize) {
  const TemporaryFolder folder;
  const Conversion conversion(headers_only(folder, LingModel::Flash31, SyntheticFormat::Fp8), to(ConversionTarget::Fp4));
  EXPECT_EQ(conversion.source_bytes(), 573'753'281'152);
  EXPECT_EQ(conversion.tensor_bytes(), 313'151'343'232);
  EXPECT_EQ(conversion.parameters(), 572'120'680'768);
  EXPECT_THAT(conversion.remarks(), IsEmpty());
}

// FP8 of 3.1-flash is the published size; the others are sums over shapes by the rule of tools/reference/make_convert.py.
TEST(Convert, SizesOfAllModelsAreThoseOfTheTable) {
  using enum ConversionTarget;
  const std::map<LingModel, std::map<ConversionTarget, std::int64_t>> sizes = {
      {LingModel::Flash31, {{Fp8, 573'753'281'152}, {Fp4, 313'151'343'232}, {Fp4All, 305'186'235'904}}},
      {LingModel::Flash30, {{Fp8, 128'394'841'584}, {Fp4, 70'325'931'504}, {Fp4All, 68'424'851'072}}},
      {LingModel::Tiny30, {{Fp8, 8'383'826'656}, {Fp4, 5'126'302'432}, {Fp4All, 4'556'389'504}}}};
  for (const auto& [model, by_target] : sizes) {
    if (model == LingModel::Flash31 && !long_tests()) continue;  // 110,000 tensors, three times
    const TemporaryFolder folder;
    const fs::path source = headers_only(folder, model, SyntheticFormat::Bf16);
    for (const auto& [target, bytes] : by_target)
      EXPECT_EQ(Conversion(source, to(target)).tensor_bytes(), bytes) << name_of(model) << " " << name_of(target);
  }
}

// 0.65 GB: the weights, and the recurrent state read and written.
TEST(Convert, TheSmallestFormOfTinyReads650MegabytesAToken) {
  const TemporaryFolder folder;
  const Conversion conversion(headers_only(folder, LingModel::Tiny30, SyntheticFormat::Bf16), to(ConversionTarget::Fp4All));
  const ModelSummary summary = summarize(conversion.config(), conversion.headers());
  EXPECT_THAT(summary.missing, IsEmpty());
  EXPECT_NEAR(static_cast<double>(summary.bytes_per_token + 2 * 18'874'368), 0.65e9, 0.005e9);
}

/// Whole segments at the end of the path, and any part of it.
bool matches_as_segments(const std::string& module, const std::string& entry) {
  return module == entry || module.ends_with("." + entry);
}
bool matches_as_part(const std::string& module, const std::string& entry) { return module.find(entry) != std::string::npos; }

/// Modules with a scale beside them, and without.
std::pair<std::set<std::string>, std::set<std::string>> modules_of(const Checkpoint& checkpoint) {
  std::set<std::string> converted, kept;
  for (const TensorSpec& spec : list_tensors(checkpoint.config())) {
    if (spec.shape.size() != 2 || !checkpoint.tensors().contains(spec.name)) continue;
    const std::string module = spec.name.substr(0, spec.name.size() - std::string_view(".weight").size());
    (checkpoint.tensors().contains(spec.name + "_scale_inv") ? converted : kept).insert(module);
  }
  return {converted, kept};
}

TEST(Convert, ModulesToNotConvertNamesExactlyThemHoweverItIsRead) {
  for (const auto target : {ConversionTarget::Fp8, ConversionTarget::Fp4, ConversionTarget::Fp4All}) {
    const TemporaryFolder folder;
    convert(bundled(), to(target), folder / "out");
    const std::vector<std::string> entries = config_of(folder / "out")["quantization_config"]["modules_to_not_convert"];
    const auto [converted, kept] = modules_of(Checkpoint::open(folder / "out"));
    EXPECT_GT(kept.size(), 10u);
    for (const auto& matches : {matches_as_segments, matches_as_part}) {
      const auto is_matched = [&](const std::string& module) {
        return std::ranges::any_of(entries, [&](const std::string& entry) { return matches(module, entry); });
      };
      for (const std::string& module : converted) EXPECT_FALSE(is_matched(module)) << module;
      for (const std::string& module : kept) EXPECT_TRUE(is_matched(module)) << module;
    }
  }
}

TEST(Convert, QuantizationConfigIsThatOfTheRelease) {
  const std::map<ConversionTarget, const char*> releases = {{ConversionTarget::Fp8, "c_flash31_fp8"},
                                                            {ConversionTarget::Fp4, "d_mix_fp4"}};
  for (const auto& [target, release] : releases) {
    const TemporaryFolder folder;
    convert(bundled(), to(target), folder / "out");
    ordered_json ours = config_of(folder / "out")["quantization_config"];
    ordered_json published = config_of(golden_path(release))["quantization_config"];
    ours.erase("modules_to_not_convert"), published.erase("modules_to_not_convert");
    EXPECT_EQ(ours, published);
  }
}

// The F32 scales of Ling-3.1-flash are no powers of two, so nothing may claim that they are.
TEST(Convert, CopiedFp8KeepsItsKindOfScale) {
  const TemporaryFolder folder;
  convert(golden_path("c_flash31_fp8"), to(ConversionTarget::Fp4), folder / "f32");
  EXPECT_FALSE(config_of(folder / "f32")["quantization_config"].contains("scale_fmt"));
  convert(golden_path("e_tiny_ue8m0"), to(ConversionTarget::Fp8, HeadFormat::Fp8), folder / "e8m0");
  EXPECT_EQ(config_of(folder / "e8m0")["quantization_config"]["scale_fmt"], "ue8m0");
  EXPECT_EQ(Checkpoint::open(folder / "e8m0").tensors().at("lm_head.weight_scale_inv").view.type, ElementType::F8_E8M0);
}

TEST(Convert, WhatIsNotDoneAsAskedIsSaid) {
  const TemporaryFolder folder;
  EXPECT_THAT(Conversion(golden_path("d_mix_fp4"), to(ConversionTarget::Fp8)).remarks(),
              Contains(AllOf(HasSubstr("stored coarser than asked for"), HasSubstr("experts"))));
  EXPECT_THAT(Conversion(golden_path("f_odd_f32"), to(ConversionTarget::Fp4)).remarks(),
              Contains(AllOf(HasSubstr("no multiple of 32 columns"), HasSubstr("block FP8"))));
  fs::copy(golden_path("a_tiny_bf16"), folder / "tied");
  ordered_json config = config_of(folder / "tied");
  config["tie_word_embeddings"] = true;
  write_file(folder / "tied/config.json", dump_json(config));
  EXPECT_THAT(Conversion(folder / "tied", to(ConversionTarget::Fp4All)).remarks(),
              Contains(HasSubstr("the head is the embedding")));
  EXPECT_THAT(error_of([&] { Conversion(folder / "tied", to(ConversionTarget::Fp8, HeadFormat::Fp8)); }),
              AllOf(HasSubstr("--head"), HasSubstr("tie_word_embeddings")));
}

// ------------------------------------------------------------------ interruption and threads

struct Stop {};

/// Stops once that many shards are finished and a bit more is written.
void convert_until(const Conversion& conversion, const fs::path& target, std::size_t shards) {
  EXPECT_THROW(conversion.write(target,
                                [&](const ConversionProgress& progress) {
                                  if (progress.finished_shards >= shards) throw Stop();
                                }),
               Stop);
}

TEST(Convert, StoppedAnywhereItEndsInTheSameFilesForAnyThreads) {
  const TemporaryFolder folder;
  const ConversionOptions options = cut_small(to(ConversionTarget::Fp4, HeadFormat::Fp8, 1));
  convert(bundled(), options, folder / "whole");
  const Files whole = files_in(folder / "whole");
  ASSERT_GT(whole.size(), 15u);
  EXPECT_THAT(Checkpoint::open(folder / "whole").remarks(), IsEmpty());

  ConversionOptions threaded = options;
  threaded.num_threads = 3;
  const Conversion conversion(bundled(), threaded);
  for (std::size_t shards = 0; shards < conversion.num_shards(); shards += 3) {
    convert_until(conversion, folder / "cut", shards);
    EXPECT_EQ(fs::exists(folder / "cut"), shards > 0);  // nothing finished, nothing left
    EXPECT_FALSE(fs::exists(folder / "cut/config.json"));
    EXPECT_FALSE(conversion.is_finished(folder / "cut"));
  }
  conversion.write(folder / "cut");
  EXPECT_TRUE(conversion.is_finished(folder / "cut"));
  EXPECT_EQ(files_in(folder / "cut"), whole);
}

TEST(Convert, FinishedShardsAreNotMadeAgain) {
  const TemporaryFolder folder;
  const Conversion conversion(bundled(), cut_small(to(ConversionTarget::Fp8)));
  convert_until(conversion, folder / "out", 3);
  std::map<std::string, ino_t> inodes;
  for (const auto& entry : fs::directory_iterator(folder / "out")) {
    struct stat status = {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    inodes[entry.path().string()] = status.st_ino;
  }
  EXPECT_EQ(inodes.size(), 3u);
  ConversionProgress first;
  conversion.write(folder / "out", [&](const ConversionProgress& progress) {
    if (first.total_bytes == 0) first = progress;
    EXPECT_GE(progress.finished_shards, 3u);
  });
  EXPECT_GT(first.done_bytes, first.total_bytes / 8);
  for (const auto& [path, inode] : inodes) {
    struct stat status = {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_ino, inode) << path;
  }
}

TEST(Convert, WhatAKilledProcessLeftIsTakenAway) {
  const TemporaryFolder folder;
  const Conversion conversion(bundled(), to(ConversionTarget::Fp8));
  fs::create_directory(folder / "out");
  write_file(folder / "out/model.safetensors.12345.3.partial", "half a file");
  write_file(folder / "out/config.json.7.12.partial", "{");
  conversion.write(folder / "out");
  EXPECT_THAT(files_in(folder / "out"), ::testing::SizeIs(files_in(bundled()).size()));
}

// ------------------------------------------------------------------ refusals

TEST(Convert, FoldersThatHoldAnythingElseAreRefusedByName) {
  const TemporaryFolder folder;
  const Conversion conversion(bundled(), cut_small(to(ConversionTarget::Fp8)));
  const auto refusal = [&](const fs::path& target) { return error_of([&] { conversion.write(target); }); };
  write_file(folder / "notes.txt", "mine");
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr(folder.path().string() + ": found notes.txt"), HasSubstr("new or empty folder")));
  EXPECT_THAT(refusal(folder / "notes.txt"), HasSubstr("found a file"));
  EXPECT_EQ(files_in(folder.path()).size(), 1u);
  EXPECT_THAT(refusal(""), HasSubstr("found an empty name, expected the folder to write"));
  fs::create_symlink("nowhere", folder / "link");
  EXPECT_THAT(refusal(folder / "link"), HasSubstr("link: a link to nowhere: nothing is there"));

  fs::create_directory(folder / "card");
  write_file(folder / "card/README.md", "another card");
  EXPECT_THAT(refusal(folder / "card"), AllOf(HasSubstr("found README.md"), HasSubstr("of another model or conversion")));
  fs::create_directory(folder / "partial");
  write_file(folder / "partial/photo.jpg.12.1.partial", "a download");
  EXPECT_THAT(refusal(folder / "partial"), HasSubstr("photo.jpg.12.1.partial"));
  EXPECT_EQ(read_text_file(folder / "partial/photo.jpg.12.1.partial"), "a download");
}

TEST(Convert, AFolderThatIsBeingWrittenIsLeftAlone) {
  const TemporaryFolder folder;
  const Conversion conversion(bundled(), to(ConversionTarget::Fp8));
  {
    const FolderLock other(folder.path());
    EXPECT_THAT(error_of([&] { conversion.write(folder.path()); }), HasSubstr("another process is writing to it"));
  }
  conversion.write(folder.path());
}

TEST(Convert, TheModelItselfIsNoTarget) {
  const TemporaryFolder folder;
  fs::copy(bundled(), folder / "model");
  const Files before = files_in(folder / "model");
  EXPECT_THAT(error_of([&] { convert(folder / "model", to(ConversionTarget::Fp8), folder / "model"); }),
              HasSubstr("model: found the model itself, expected another folder"));
  EXPECT_EQ(files_in(folder / "model"), before);
}

TEST(Convert, OtherOptionsOrAnotherSourceDoNotGoOn) {
  const TemporaryFolder folder;
  fs::copy(bundled(), folder / "source");
  const ConversionOptions options = cut_small(to(ConversionTarget::Fp8));
  convert_until(Conversion(folder / "source", options), folder / "out", 2);
  const auto refusal = [&](const ConversionOptions& other) {
    return error_of([&] { convert(folder / "source", other, folder / "out"); });
  };
  EXPECT_THAT(refusal(cut_small(to(ConversionTarget::Fp4))), HasSubstr("found model-0000"));
  EXPECT_THAT(refusal(cut_small(to(ConversionTarget::Fp8, HeadFormat::Fp8))), HasSubstr("found model-0000"));

  // Retrained: the same headers and sizes, other numbers.
  std::string file = read_text_file(folder / "source/model.safetensors");
  for (std::size_t i = file.size() / 2; i < file.size(); i += 2) file[i] = static_cast<char>(file[i] ^ 1);
  write_file(folder / "source/model.safetensors", file);
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("found model-0000"), HasSubstr("of another model or conversion")));
}

TEST(Convert, AFullDiskIsToldInOneLine) {
  const TemporaryFolder folder;
  const auto convert_with_small_files = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { convert(bundled(), to(ConversionTarget::Fp8), folder / "out"); });
    std::fputs(error.c_str(), stderr);
    std::exit(error.empty() ? 0 : 1);
  };
  EXPECT_EXIT(convert_with_small_files(), ::testing::ExitedWithCode(1), "model.safetensors: cannot write: File too large");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// ------------------------------------------------------------------ error of weights

// Rounding to nearest of evenly spread numbers: e4m3 has steps of 1/8 to 1/16 of a number, rms 1/sqrt(12) of a step; of e2m1 the
// steps are 1/2 to 1/4.
TEST(WeightErrors, AreWhatTheFormatsAllow) {
  const TemporaryFolder folder;
  convert(bundled(), to(ConversionTarget::Fp4), folder / "out");
  const WeightErrors errors = compare_weights(bundled(), folder / "out", 2);
  EXPECT_EQ(errors.tensors.size(), 463u);  // half of the reference's 926: each has a scale
  std::set<WeightFormat> seen;
  for (const WeightErrorClass& sum : errors.classes) {
    seen.insert(sum.after);
    const bool is_fp4 = sum.after == WeightFormat::Mxfp4;
    EXPECT_NEAR(sum.relative_rms(), is_fp4 ? 0.115 : 0.0265, is_fp4 ? 0.01 : 0.001) << name_of(sum.component);
  }
  EXPECT_EQ(seen, (std::set{WeightFormat::Fp8, WeightFormat::Mxfp4}));
  EXPECT_THAT(error_of([&] { compare_weights(bundled(), golden_path("a_tiny_bf16"), 1); }), HasSubstr("another network"));
}

}  // namespace
}  // namespace calandra
