// The commands for those who look inside: inspect, perplexity, trace, make-checkpoint.

#include "cli/program.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// 572,120,680,768 parameters and 573,753,281,152 bytes are the published figures of Ling-3.1-flash in FP8.
TEST(Inspect, HeadersOfTheLargestModelGiveItsPublishedSize) {
  const TemporaryFolder folder;
  const std::string model = folder / "flash";
  const Outcome made = run_program({"make-checkpoint", "--like", "ling-3.1-flash", "--format", "fp8", "--headers-only", model});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("572,120,680,768 parameters"), HasSubstr("573,753,281,152 tensor bytes")));

  const Outcome text = run_program({"inspect", model});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("572,120,680,768"), HasSubstr("573,753,281,152"), HasSubstr("9 x (7 KDA, 1 MLA)")));
  const Json json = run_program({"inspect", model, "--json"}).json();
  EXPECT_EQ(json["parameters"], 572'120'680'768);
  EXPECT_EQ(json["bytes"], 573'753'281'152);
  EXPECT_EQ(json["memory"]["cache_bytes_per_token"], 10'368);
  EXPECT_EQ(json["memory"]["fp8_cache_bytes_per_token"], 9 * (576 + 4));
  EXPECT_EQ(json["memory"]["fp8_mtp_cache_bytes_per_token"], 576 + 4);
  EXPECT_THAT(text.out, AllOf(HasSubstr(" 10,368 bytes a token, 1,152 more with the MTP layer\n"),
                              HasSubstr("with --kv fp8 5,220 bytes a token, 580 more with the MTP layer\n")));
  EXPECT_EQ(json["memory"]["state_bytes_per_sequence"], std::int64_t{252} << 20);
  EXPECT_THAT(json["missing"], IsEmpty());
}

TEST(Inspect, EveryModelOfTheTestsIsReadAsTextAndJson) {
  Arguments models = {kBundledModel};
  for (const std::string& variant : golden_variants()) models.push_back(golden_path(variant));
  for (const std::string& model : models) {
    const Outcome text = run_program({"inspect", model});
    EXPECT_EQ(text.code, 0) << model << text.err;
    EXPECT_THAT(text.out, HasSubstr("BailingMoeV3ForCausalLM"));
    const Json json = run_program({"inspect", model, "--json"}).json();
    const Json config = read_json(std::filesystem::path(model) / "config.json");
    EXPECT_EQ(json["config"]["hidden"], config["hidden_size"]) << model;
    EXPECT_EQ(json["config"]["layer_kinds"].size(), config["num_hidden_layers"].get<std::size_t>()) << model;
    std::int64_t sum = 0;
    for (const auto& [name, component] : json["components"].items()) sum += component["bytes"].get<std::int64_t>();
    EXPECT_EQ(json["bytes"], sum) << model;
  }
}

TEST(Inspect, ModelThatCannotRunIsStillShownWithTheReason) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_path("a_tiny_bf16"), folder / "model", std::filesystem::copy_options::recursive);
  std::string weights = read_text_file(folder / "model/model.safetensors");
  const std::size_t at = weights.find("\"model.norm.weight\"");
  ASSERT_NE(at, std::string::npos);
  weights.replace(at, 19, "\"model.gnome.weigh\"");
  write_file(folder / "model/model.safetensors", weights);
  const Json json = run_program({"inspect", folder / "model", "--json"}).json();
  EXPECT_EQ(json["missing"], Json::array({"model.norm.weight"}));
  EXPECT_EQ(json["surplus"], Json::array({"model.gnome.weigh"}));
  EXPECT_THAT(json["remarks"].at(0).get<std::string>(), AllOf(HasSubstr("cannot run"), HasSubstr("model.norm.weight")));
}

// The model card: 3.27 nats a token on held-out prose in windows of 512. Prose it was trained on must be no worse.
TEST(Perplexity, ProseOfTheTrainingDataIsPredictedAsWellAsTheModelCardSays) {
  const TemporaryFolder folder;
  write_file(
      folder / "text",
      "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.\n\n"
      "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed "
      "in the minds of the surrounding families, that he is considered the rightful property of some one or other of their daughters.\n");
  const Json json = run_program({"perplexity", kBundledModel, folder / "text", "--json"}).json();
  EXPECT_GT(json["nats_per_token"], 0.5);
  EXPECT_LT(json["nats_per_token"], 3.6);
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["nats_per_token"].get<double>()), 1e-6);
  EXPECT_EQ(json["predicted_tokens"].get<int>() + 1, json["tokens"].get<int>());

  const Outcome text = run_program({"perplexity", kBundledModel, folder / "text", "--window", "16"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("in windows of 16"));
}

/// The command line for a golden variant's prompt.
Arguments trace_of(const std::string& variant, const std::string& dump) {
  const GoldenTensors golden = GoldenTensors::load(golden_path(variant) / "golden.safetensors");
  std::string ids;
  for (const std::int64_t id : golden.ints("input_ids")) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  return {"trace", golden_path(variant), "--ids", ids,      "--greedy", "24", "--split",
          "70",    "--activations",      "fp32",  "--dump", dump};
}

TEST(Trace, DumpHasEveryTensorOfTheGoldenDataUnderItsName) {
  const TemporaryFolder folder;
  for (const char* variant : {"b_flash_bf16", "f_odd_f32"}) {
    const std::string dump = folder / "dump.safetensors";
    const Outcome outcome = run_program(trace_of(variant, dump));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const GoldenTensors golden = GoldenTensors::load(golden_path(variant) / "golden.safetensors");
    const GoldenTensors traced = GoldenTensors::load(dump);
    for (const auto& [name, tensor] : golden.file().tensors()) {
      ASSERT_TRUE(traced.contains(name)) << variant << ": " << name;
      EXPECT_EQ(traced.shape(name), tensor.shape) << variant << ": " << name;
    }
    EXPECT_EQ(traced.ints("greedy_ids"), golden.ints("greedy_ids"));
    expect_close(traced.floats("logits"), golden.floats("logits"), 1e-5, "logits");
  }
}

TEST(Trace, PromptMayBeText) {
  const TemporaryFolder folder;
  const Outcome outcome = run_program({"trace", kBundledModel, "-p", "Elizabeth was", "--dump", folder / "dump"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json run = run_program({"run", "-p", "Elizabeth was", "-n", "1", "--json"}).json();
  EXPECT_EQ(Json(GoldenTensors::load(folder / "dump").ints("input_ids")), run["prompt_ids"]);
}

TEST(MakeCheckpoint, SliceCanBeRunAtOnce) {
  const TemporaryFolder folder;
  const std::string model = folder / "slice";
  const Outcome made = run_program({"make-checkpoint", "--like", "ling-3.0-tiny", "--format", "fp4", "--layers", "4", "--experts",
                                    "16", "--vocab", "1024", model});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome outcome = run_program({"run", model, "-p", "Elizabeth was", "-n", "4", "--ignore-eos", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["ids"].size(), 4U);
}

}  // namespace
}  // namespace calandra
