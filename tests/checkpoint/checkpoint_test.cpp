// A folder opened as it is: layouts that are accepted, and errors that name file, tensor, found and expected.

#include "checkpoint/checkpoint.h"

#include "support/golden.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

namespace calandra {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A tensor that a test may change before it is written again.
struct Loose {
  TensorHeader header;
  std::vector<std::byte> data;

  template <class T>
  void set(std::size_t index, T value) {
    std::memcpy(data.data() + index * sizeof(T), &value, sizeof(T));
  }
};

using Change = std::function<void(std::vector<Loose>&)>;

void rewrite(const std::filesystem::path& path, const Change& change) {
  std::vector<Loose> tensors;
  {
    const SafetensorsFile file(path);
    for (const auto& [name, view] : file.tensors()) {
      tensors.push_back({{name, view.type, view.shape}, {view.data.begin(), view.data.end()}});
    }
  }
  change(tensors);
  std::vector<TensorHeader> headers;
  for (const Loose& tensor : tensors) headers.push_back(tensor.header);
  SafetensorsWriter writer(path, headers);
  for (const Loose& tensor : tensors) writer.write(tensor.data);
  writer.finish();
}

/// A copy of a golden variant's checkpoint, for the tests to spoil.
class Copy {
 public:
  explicit Copy(const std::string& variant) {
    for (const auto& item : std::filesystem::directory_iterator(golden_path(variant))) {
      const std::string name = item.path().filename().string();
      if (name.starts_with("golden")) continue;
      std::filesystem::copy_file(item.path(), folder_ / name);
      std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    }
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }

  /// Changes one tensor, in whichever file it is.
  void change(const std::string& name, const std::function<void(Loose&)>& action) const {
    const std::filesystem::path file = file_of(name);
    rewrite(file, [&](std::vector<Loose>& tensors) {
      for (Loose& tensor : tensors) {
        if (tensor.header.name == name) action(tensor);
      }
    });
  }

  void remove(const std::string& name) const {
    const std::filesystem::path file = file_of(name);
    rewrite(file, [&](std::vector<Loose>& tensors) {
      std::erase_if(tensors, [&](const Loose& tensor) { return tensor.header.name == name; });
    });
  }

  void change_json(std::string_view file, const std::function<void(Json&)>& action) const {
    Json json = read_json(folder_ / file);
    action(json);
    write_file(folder_ / file, dump_json(json));
  }

  Checkpoint open() const { return Checkpoint::open(folder_.path()); }
  std::string open_error() const {
    return error_of([&] { open(); });
  }

 private:
  std::filesystem::path file_of(const std::string& name) const {
    for (const auto& item : std::filesystem::directory_iterator(folder_.path())) {
      if (item.path().extension() == ".safetensors" && SafetensorsFile(item.path()).tensors().contains(name)) return item.path();
    }
    fail("no file holds {}", name);
  }

  TemporaryFolder folder_;
};

constexpr const char* kIndex = "model.safetensors.index.json";

// ---- tensors

TEST(CheckpointTensors, AWrongShapeIsNamedWithBothShapesAndTheFile) {
  const Copy copy("a_tiny_bf16");
  Shape expected;
  copy.change("model.layers.3.attention.dense.weight", [&](Loose& tensor) {
    expected = tensor.header.shape;
    tensor.header.shape[1] -= 1;
    tensor.data.resize(static_cast<std::size_t>(num_bytes(tensor.header.type, tensor.header.shape)));
  });
  EXPECT_EQ(copy.open_error(),
            fmt::format(
                "model.layers.3.attention.dense.weight: expected [{}, {}] from config.json, found [{}, {}] in model.safetensors",
                expected[0], expected[1], expected[0], expected[1] - 1));
}

TEST(CheckpointTensors, AWrongTypeIsNamed) {
  const Copy copy("a_tiny_bf16");
  copy.change("model.layers.0.attention.b_proj.weight", [](Loose& tensor) { tensor.header.type = ElementType::I16; });
  EXPECT_THAT(copy.open_error(), testing::StartsWith("model.layers.0.attention.b_proj.weight: expected F32, BF16 or F16"));
  EXPECT_THAT(copy.open_error(), testing::EndsWith("found I16 in model.safetensors"));
}

TEST(CheckpointTensors, AMissingTensorIsNamedWithTheFolder) {
  const Copy copy("a_tiny_bf16");
  copy.remove("model.layers.5.mlp.gate.expert_bias");
  EXPECT_THAT(copy.open_error(),
              testing::StartsWith(copy.path().string() + ": model.layers.5.mlp.gate.expert_bias is missing, expected [24]"));
}

TEST(CheckpointTensors, CodesWithoutAScaleAreRefused) {
  const Copy copy("e_tiny_ue8m0");
  copy.remove("model.layers.0.attention.q_proj.weight_scale_inv");
  EXPECT_THAT(copy.open_error(),
              HasSubstr("or a scale model.layers.0.attention.q_proj.weight_scale_inv beside it, found F8_E4M3"));
}

TEST(CheckpointTensors, AScaleByteThatIsNoNumberOrTooLargeIsRefusedWithItsPlace) {
  const std::string fp8_name = "model.layers.0.attention.q_proj.weight_scale_inv";
  for (const int bad : {247, 255}) {  // an e4m3 code times 2^120 may overflow
    const Copy fp8("e_tiny_ue8m0");
    fp8.change(fp8_name, [&](Loose& tensor) { tensor.data[1] = static_cast<std::byte>(bad); });
    EXPECT_THAT(fp8.open_error(),
                HasSubstr(fmt::format("{}: scale 1 is byte {} in model.safetensors, expected 0 to 246", fp8_name, bad)));
  }
  const Copy fp4("d_mix_fp4");
  fp4.change("model.layers.3.mlp.experts.7.up_proj.weight_scale_inv", [](Loose& tensor) { tensor.data[6] = std::byte{255}; });
  EXPECT_THAT(fp4.open_error(), HasSubstr("model.layers.3.mlp.experts.7.up_proj.weight_scale_inv: scale 6 is byte 255"));
}

TEST(CheckpointTensors, AnF32ScaleMustNotBeNegativeAndLeaveCodesFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {kNan, std::numeric_limits<float>::infinity(), -1.0f, 0x1.000002p119f}) {
    const Copy copy("c_flash31_fp8");
    copy.change("model.layers.0.attention.o_proj.weight_scale_inv", [&](Loose& tensor) { tensor.set(1, bad); });
    EXPECT_THAT(copy.open_error(),
                HasSubstr(fmt::format("o_proj.weight_scale_inv: scale 1 is {} in model-00001-of-00003.safetensors", bad)));
  }
  const Copy copy("c_flash31_fp8");
  copy.change("model.layers.0.attention.o_proj.weight_scale_inv", [&](Loose& tensor) { tensor.set(1, 0x1p119f); });
  EXPECT_EQ(copy.open_error(), "");
}

TEST(CheckpointTensors, ATransposedScaleGridIsRefused) {
  const Copy copy("c_flash31_fp8");
  copy.change("model.layers.7.attention.kv_b_proj.weight_scale_inv",
              [](Loose& tensor) { std::swap(tensor.header.shape[0], tensor.header.shape[1]); });
  EXPECT_THAT(copy.open_error(), HasSubstr("kv_b_proj.weight_scale_inv: expected [4, 2] from config.json, found [2, 4]"));
}

TEST(CheckpointTensors, AScaleOfAnotherTypeIsRefused) {
  const Copy copy("c_flash31_fp8");
  copy.change("model.layers.0.attention.o_proj.weight_scale_inv", [](Loose& tensor) {
    tensor.header.type = ElementType::BF16;
    tensor.data.resize(tensor.data.size() / 2);
  });
  EXPECT_THAT(copy.open_error(), HasSubstr("o_proj.weight_scale_inv: expected F32, F8_E8M0 or U8, found BF16"));
}

TEST(CheckpointTensors, AScaleBesideAPlainWeightIsRefused) {
  const Copy copy("c_flash31_fp8");
  copy.change("model.layers.0.attention.q_proj.weight", [](Loose& tensor) {
    tensor.header.type = ElementType::BF16;
    tensor.data.resize(tensor.data.size() * 2);
  });
  EXPECT_THAT(copy.open_error(),
              HasSubstr("q_proj.weight: expected F8_E4M3 beside model.layers.0.attention.q_proj.weight_scale_inv, found BF16"));
}

TEST(CheckpointTensors, AValueThatIsNoNumberIsRefused) {
  const Copy copy("a_tiny_bf16");
  copy.change("model.layers.0.attention.A_log", [](Loose& tensor) { tensor.set(0, std::numeric_limits<float>::infinity()); });
  EXPECT_THAT(copy.open_error(), HasSubstr("model.layers.0.attention.A_log: element 0 is inf in model.safetensors"));
}

/// The format under which a matrix of layer 1's first expert is read after `change`.
WeightFormat expert_format(const Copy& copy) {
  return std::get<MoeWeights>(copy.open().weights().layers[1].mlp).experts[0].gate.format;
}

TEST(CheckpointTensors, PackedWeightsAreReadUnderEveryTag) {
  const std::string weight = "model.layers.1.mlp.experts.0.gate_proj.weight";
  for (const ElementType type : {ElementType::U8, ElementType::I8, ElementType::F8_E4M3, ElementType::F8_E5M2}) {
    const Copy copy("d_mix_fp4");
    copy.change(weight, [&](Loose& tensor) { tensor.header.type = type; });
    EXPECT_EQ(expert_format(copy), WeightFormat::Mxfp4) << name_of(type);
  }
  const Copy copy("d_mix_fp4");
  copy.change(weight, [](Loose& tensor) {
    tensor.header.type = ElementType::F4;
    tensor.header.shape[1] *= 2;
  });
  copy.change(weight + "_scale_inv", [](Loose& tensor) {
    tensor.header.type = ElementType::U8;
    tensor.header.name = "model.layers.1.mlp.experts.0.gate_proj.weight_scale";
  });
  copy.change_json(kIndex, [&](Json& json) {
    json["weight_map"]["model.layers.1.mlp.experts.0.gate_proj.weight_scale"] = json["weight_map"][weight + "_scale_inv"];
    json["weight_map"].erase(weight + "_scale_inv");
  });
  EXPECT_EQ(expert_format(copy), WeightFormat::Mxfp4);
}

TEST(CheckpointTensors, PackedWeightsOfAnotherWidthAreRefused) {
  const Copy copy("d_mix_fp4");
  copy.change("model.layers.1.mlp.experts.0.gate_proj.weight_scale_inv", [](Loose& tensor) {
    tensor.header.shape[1] *= 2;
    tensor.data.resize(tensor.data.size() * 2);
  });
  EXPECT_THAT(copy.open_error(), HasSubstr("gate_proj.weight_scale_inv: expected [32, 4] from config.json, found [32, 8]"));
}

TEST(CheckpointTensors, BlockScalesMayBeBytesUnderAnUnsignedTag) {
  const Copy copy("e_tiny_ue8m0");
  copy.change("model.layers.0.attention.q_proj.weight_scale_inv", [](Loose& tensor) { tensor.header.type = ElementType::U8; });
  EXPECT_EQ(std::get<KdaWeights>(copy.open().weights().layers[0].mixer).q.format, WeightFormat::Fp8E8m0);
}

TEST(CheckpointTensors, ASingleScaleMayHaveAnyNumberOfExtents) {
  const std::string scale = "model.layers.1.mlp.shared_experts.gate_proj.weight_scale_inv";
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    const Copy copy("d_mix_fp4");
    copy.change(scale, [&](Loose& tensor) {
      ASSERT_EQ(tensor.data.size(), 4u);
      tensor.header.shape = shape;
    });
    EXPECT_EQ(copy.open_error(), "") << to_string(shape);
  }
  const Copy copy("c_flash31_fp8");
  copy.change("model.layers.0.attention.q_proj.weight_scale_inv", [](Loose& tensor) {
    tensor.header.shape = {1};
    tensor.data.resize(4);
  });
  EXPECT_THAT(copy.open_error(), HasSubstr("q_proj.weight_scale_inv: expected [2, 2] from config.json, found [1]"));
}

TEST(CheckpointTensors, SurplusTensorsAreRemarkedAndKnownUselessOnesAreNot) {
  const Copy copy("a_tiny_bf16");
  rewrite(copy / "model.safetensors", [](std::vector<Loose>& tensors) {
    for (const char* name : {"extra.weight", "model.layers.0.attention.rotary_emb.inv_freq",
                             "model.layers.8.shared_head.head.weight", "model.mtp.x"}) {
      tensors.push_back({{name, ElementType::U8, {1}}, std::vector<std::byte>(1)});
    }
  });
  EXPECT_THAT(copy.open().remarks(), ElementsAre("1 surplus tensors, ignored: extra.weight"));
}

TEST(CheckpointTensors, AnMtpLayerMayBeAbsentAsAWholeButNotInParts) {
  const Copy copy("b_flash_bf16");
  const std::string prefix = layer_prefix(copy.open().config().layers);
  copy.remove(prefix + "hnorm.weight");
  EXPECT_THAT(copy.open_error(), HasSubstr(prefix + "hnorm.weight is missing"));
  rewrite(copy / "model.safetensors", [&](std::vector<Loose>& tensors) {
    std::erase_if(tensors, [&](const Loose& tensor) { return tensor.header.name.starts_with(prefix); });
  });
  const Checkpoint without = copy.open();
  EXPECT_FALSE(without.weights().mtp);
  EXPECT_THAT(without.remarks(), ElementsAre(HasSubstr("announces an MTP layer")));
}

TEST(CheckpointTensors, ATiedHeadIsTheEmbedding) {
  const Copy copy("a_tiny_bf16");
  copy.change_json("config.json", [](Json& json) { json["tie_word_embeddings"] = true; });
  copy.remove("lm_head.weight");
  const Checkpoint tied = copy.open();
  EXPECT_EQ(tied.weights().head.data, tied.weights().embedding.data);
  EXPECT_THAT(tied.remarks(), IsEmpty());
}

TEST(CheckpointTensors, ProgressGrowsToTheSumOfAllTensors) {
  std::int64_t last = 0;
  std::int64_t end = 0;
  const Checkpoint checkpoint = Checkpoint::open(golden_path("c_flash31_fp8"), {}, [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    end = total;
  });
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) bytes += std::ssize(tensor.view.data);
  EXPECT_EQ(end, bytes);
  EXPECT_EQ(last, bytes);
}

// ---- files

TEST(CheckpointFiles, AMissingShardIsNamed) {
  const Copy copy("c_flash31_fp8");
  std::filesystem::remove(copy / "model-00002-of-00003.safetensors");
  EXPECT_THAT(copy.open_error(), HasSubstr("model-00002-of-00003.safetensors: cannot open: No such file"));
}

TEST(CheckpointFiles, ATruncatedShardIsNamed) {
  const Copy copy("c_flash31_fp8");
  const std::filesystem::path shard = copy / "model-00002-of-00003.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  EXPECT_THAT(copy.open_error(), testing::StartsWith(shard.string()));
  EXPECT_THAT(copy.open_error(), HasSubstr("reach beyond the file"));
}

TEST(CheckpointFiles, AShardOutsideTheFolderIsRefused) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""}) {
    const Copy copy("c_flash31_fp8");
    copy.change_json(kIndex, [&](Json& json) { json["weight_map"]["lm_head.weight"] = name; });
    EXPECT_THAT(
        copy.open_error(),
        HasSubstr(fmt::format("lm_head.weight: found file \"{}\", expected the name of a file in the same folder", name)));
  }
}

TEST(CheckpointFiles, ATensorThatIsNotWhereTheIndexSaysIsNamed) {
  const Copy copy("c_flash31_fp8");
  copy.change_json(kIndex, [](Json& json) { json["weight_map"]["lm_head.weight"] = "model-00001-of-00003.safetensors"; });
  EXPECT_THAT(copy.open_error(),
              HasSubstr("lm_head.weight should be in model-00001-of-00003.safetensors, found it in model-00003"));
  copy.change_json(kIndex, [](Json& json) {
    json["weight_map"]["lm_head.weight"] = "model-00003-of-00003.safetensors";
    json["weight_map"]["ghost.weight"] = "model-00001-of-00003.safetensors";
  });
  EXPECT_THAT(copy.open_error(), HasSubstr("ghost.weight should be in model-00001-of-00003.safetensors, which lacks it"));
}

TEST(CheckpointFiles, ATensorInTwoShardsIsRefused) {
  const Copy copy("c_flash31_fp8");
  rewrite(copy / "model-00001-of-00003.safetensors", [](std::vector<Loose>& tensors) {
    tensors.push_back({{"lm_head.weight", ElementType::U8, {1}}, std::vector<std::byte>(1)});
  });
  EXPECT_THAT(copy.open_error(),
              HasSubstr("model-00003-of-00003.safetensors: lm_head.weight is also in model-00001-of-00003.safetensors"));
}

TEST(CheckpointFiles, AnIllFormedIndexIsRefused) {
  const Copy copy("c_flash31_fp8");
  for (const auto& [text, message] :
       {std::pair("{", "no JSON object"), std::pair("[]", "no JSON object"), std::pair("{}", "weight_map is missing"),
        std::pair(R"({"weight_map":{"a":1}})", "a: expected the name of a file"),
        std::pair(R"({"weight_map":{"a":"f","a":"f"}})", "a appears twice"), std::pair("", "no JSON object")}) {
    write_file(copy / kIndex, text);
    EXPECT_THAT(copy.open_error(), HasSubstr((copy / kIndex).string()));
    EXPECT_THAT(copy.open_error(), HasSubstr(message));
  }
}

TEST(CheckpointFiles, TheIndexWinsOverASingleFile) {
  const Copy copy("c_flash31_fp8");
  write_file(copy / "model.safetensors", "not looked at");
  EXPECT_EQ(copy.open_error(), "");
}

TEST(CheckpointFiles, AnIndexWithAnotherSumIsRemarked) {
  const Copy copy("c_flash31_fp8");
  copy.change_json(kIndex, [](Json& json) { json["metadata"]["total_size"] = 7; });
  EXPECT_THAT(copy.open().remarks(), ElementsAre(HasSubstr("states 7 tensor bytes, the files hold ")));
}

TEST(CheckpointFiles, MissingFilesAreNamed) {
  const Copy copy("a_tiny_bf16");
  std::filesystem::remove(copy / "model.safetensors");
  EXPECT_EQ(copy.open_error(), copy.path().string() + ": found neither model.safetensors nor model.safetensors.index.json");
  std::filesystem::remove(copy / "config.json");
  EXPECT_THAT(copy.open_error(), HasSubstr("config.json: cannot open: No such file"));
  EXPECT_THAT(error_of([] { Checkpoint::open("/nowhere"); }), HasSubstr("/nowhere/config.json: cannot open"));
}

/// What `action` throws when an ordinary user runs it: root may read everything.
std::string error_as_nobody(const std::function<void()>& action) {
  constexpr uid_t kNobody = 65534;
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) fail("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dropped = ::geteuid() != 0 || (::setgid(kNobody) == 0 && ::setuid(kNobody) == 0);
    const std::string error = dropped ? error_of(action) : "cannot become nobody";
    const bool told = ::write(pipe_ends[1], error.data(), error.size()) == static_cast<ssize_t>(error.size());
    ::_exit(told ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::string error;
  char piece[512];
  for (ssize_t count = 0; (count = ::read(pipe_ends[0], piece, sizeof piece)) > 0;) {
    error.append(piece, static_cast<std::size_t>(count));
  }
  ::close(pipe_ends[0]);
  ::waitpid(child, nullptr, 0);
  return error;
}

TEST(CheckpointFiles, WhatMayNotBeReadIsNamed) {
  namespace fs = std::filesystem;
  const Copy copy("a_tiny_bf16");
  fs::permissions(copy.path(), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  const auto error = [&] { return error_as_nobody([&] { copy.open(); }); };
  fs::permissions(copy / "config.json", fs::perms::owner_read | fs::perms::others_read);
  fs::permissions(copy / "model.safetensors", fs::perms::none);
  EXPECT_THAT(error(), HasSubstr("model.safetensors: cannot open: Permission denied"));
  fs::permissions(copy.path(), fs::perms::none);
  EXPECT_THAT(error(), HasSubstr("config.json: cannot open: Permission denied"));
  fs::permissions(copy.path(), fs::perms::owner_all);
}

// ---- generation_config.json

GenerationDefaults generation(const std::string& text) {
  Config config;
  config.vocab = 100;
  config.eos_ids = {7};
  return parse_generation(text, "generation_config.json", config);
}

TEST(Generation, TheBundledModelsDefaultsAreRead) {
  const GenerationDefaults defaults = Checkpoint::open(source_path("models/austen-5m")).generation();
  EXPECT_EQ(defaults.temperature, 0.7);
  EXPECT_EQ(defaults.top_p, 0.95);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.min_p, 0.0);
  EXPECT_THAT(defaults.eos_ids, ElementsAre(2033, 2032));
}

TEST(Generation, WithoutAFileTheConfigDecides) {
  const GenerationDefaults defaults = Checkpoint::open(golden_path("a_tiny_bf16")).generation();
  EXPECT_EQ(defaults.temperature, 1.0);
  EXPECT_EQ(defaults.top_p, 1.0);
  EXPECT_EQ(defaults.top_k, 0);
  EXPECT_THAT(defaults.eos_ids, ElementsAre(250));
}

TEST(Generation, EndsOfBothFilesCountAndGreedyMeansTemperatureZero) {
  EXPECT_THAT(generation(R"({"eos_token_id": [9, 7, 8]})").eos_ids, ElementsAre(7, 9, 8));
  EXPECT_THAT(generation(R"({"eos_token_id": 9})").eos_ids, ElementsAre(7, 9));
  EXPECT_EQ(generation(R"({"do_sample": false, "temperature": 0.6})").temperature, 0.0);
  EXPECT_EQ(generation(R"({"top_k": -1, "min_p": 0.05})").top_k, 0);
  EXPECT_EQ(generation(R"({"top_k": null, "min_p": 0.05})").min_p, 0.05);
}

TEST(Generation, IllFormedValuesAreRefusedByName) {
  for (const auto& [text, message] :
       {std::pair("", "not JSON"), std::pair("[]", "found [], expected a JSON object"),
        std::pair(R"({"temperature": -1})", "temperature: found -1"),
        std::pair(R"({"top_k": 1, "top_p": 1, "top_k": 1})", "top_k: found twice, expected once"),
        std::pair(R"({"x": {"y": {"a": 1}, "a": 1, "y": 1}})", "y: found twice, expected once"),
        std::pair(R"({"top_p": 2})", "top_p: found 2"), std::pair(R"({"top_k": 1.5})", "top_k: found 1.5"),
        std::pair(R"({"do_sample": "no"})", "do_sample: found \"no\""),
        std::pair(R"({"eos_token_id": [100]})", "eos_token_id: found [100]")}) {
    const std::string error = error_of([&, json = text] { generation(json); });
    EXPECT_THAT(error, HasSubstr("generation_config.json: "));
    EXPECT_THAT(error, HasSubstr(message));
  }
}

// ---- where checkpoints are found

/// Sets an environment variable for a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    if (!before_) ::unsetenv(name_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// A cache as the Hugging Face tools lay it out, with one snapshot.
std::filesystem::path make_cache(const std::filesystem::path& hub, const std::string& revision) {
  const std::filesystem::path model = hub / "models--inclusionAI--Ling-3.0-tiny";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots" / "1f2e3d");
  write_file(model / "refs" / "main", revision);
  return model / "snapshots" / "1f2e3d";
}

constexpr const char* kName = "inclusionAI/Ling-3.0-tiny";

TEST(Locate, ANameIsFoundInEveryCacheTheToolsUse) {
  const TemporaryFolder folder;
  const Environment hub("HF_HUB_CACHE", "");
  const Environment home("HF_HOME", "");
  const Environment xdg("XDG_CACHE_HOME", "");
  const Environment user("HOME", folder.path().string());
  const auto snapshot = make_cache(folder / ".cache/huggingface/hub", "1f2e3d\n");
  EXPECT_EQ(locate_checkpoint(kName), snapshot);
  const auto better = make_cache(folder / "home/hub", "1f2e3d");
  const Environment home_set("HF_HOME", (folder / "home").string());
  EXPECT_EQ(locate_checkpoint(kName), better);
  const auto best = make_cache(folder / "cache", "1f2e3d");
  const Environment hub_set("HF_HUB_CACHE", (folder / "cache").string());
  EXPECT_EQ(locate_checkpoint(kName), best);
}

TEST(Locate, AFolderComesFirst) {
  const std::filesystem::path folder = golden_path("a_tiny_bf16");
  EXPECT_EQ(locate_checkpoint(folder.string()), folder);
}

TEST(Locate, AFailureListsWhereItLooked) {
  const TemporaryFolder folder;
  const Environment hub("HF_HUB_CACHE", (folder / "cache").string());
  const Environment user("HOME", (folder / "home").string());
  const std::string error = error_of([] { locate_checkpoint(kName); });
  EXPECT_THAT(error, HasSubstr("inclusionAI/Ling-3.0-tiny: no such folder"));
  EXPECT_THAT(error, HasSubstr((folder / "cache/models--inclusionAI--Ling-3.0-tiny/refs/main").string()));
  EXPECT_THAT(error, HasSubstr((folder / "home/.cache/huggingface/hub/models--inclusionAI--Ling-3.0-tiny").string()));
  make_cache(folder / "cache", "missing");
  EXPECT_THAT(error_of([] { locate_checkpoint(kName); }), HasSubstr("snapshots/missing"));
}

TEST(Locate, NoNameLeadsOutOfTheCache) {
  const TemporaryFolder folder;
  const Environment hub("HF_HUB_CACHE", (folder / "cache").string());
  make_cache(folder / "cache", "../../../../etc");
  EXPECT_THAT(error_of([] { locate_checkpoint(kName); }), HasSubstr("refs/main: expected the name of a snapshot"));
  EXPECT_THAT(error_of([] { locate_checkpoint(""); }), HasSubstr("empty name"));
  for (const char* name : {"../x", "a/b/c", "./a", "a/..", "a/", "Ling"}) {
    EXPECT_THAT(error_of([&] { locate_checkpoint(name); }), HasSubstr("no such folder")) << name;
  }
}

}  // namespace
}  // namespace calandra
