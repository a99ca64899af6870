// config.json: the published values, and every way in which a config can be wrong or ask for what is not implemented.

#include "checkpoint/config.h"

#include "support/golden.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace calandra {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A config that is fine: 3.0-tiny's, for the tests to spoil.
Json tiny() { return read_json(source_path("tests/data/configs/ling-3.0-tiny.json")); }

Config parse(const Json& json, const ConfigOverrides& overrides = {}) {
  return parse_config(dump_json(json), "config.json", overrides);
}

std::string parse_error(const Json& json, const ConfigOverrides& overrides = {}) {
  return error_of([&] { parse(json, overrides); });
}

std::vector<std::int64_t> mla_layers(const Config& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    if (config.is_mla(i)) layers.push_back(i);
  }
  return layers;
}

std::vector<std::int64_t> layers_of_limit(const Config& config, float (Config::*limit)(std::int64_t) const, float value) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < config.layers + 2; ++i) {
    if ((config.*limit)(i) == value) layers.push_back(i);
  }
  return layers;
}

TEST(Config, Ling31FlashHasThePublishedValues) {
  const Config c = published_config("ling-3.1-flash");
  EXPECT_EQ(c.hidden, 4096);
  EXPECT_EQ(c.dense_width, 10240);
  EXPECT_EQ(c.expert_width, 1280);
  EXPECT_EQ(c.shared_width, 1280);
  EXPECT_EQ(c.layers, 72);
  EXPECT_EQ(c.heads, 64);
  EXPECT_EQ(c.kda_width(), 8192);
  EXPECT_EQ(c.num_kda_layers(), 63);
  EXPECT_THAT(mla_layers(c), ElementsAre(7, 15, 23, 31, 39, 47, 55, 63, 71));
  EXPECT_EQ(c.first_moe_layer, 4);
  EXPECT_EQ(c.experts, 512);
  EXPECT_EQ(c.q_rank, 1536);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_EQ(c.context, 262144);
  EXPECT_THAT(layers_of_limit(c, &Config::routed_limit, 10), ElementsAre(65, 66, 67, 68, 69, 70, 71));
  EXPECT_THAT(layers_of_limit(c, &Config::shared_limit, 10), ElementsAre(64, 65, 66, 67, 68, 69, 70, 71));
  EXPECT_FALSE(c.fp8_power_of_two_activations);
  EXPECT_THAT(c.remarks, IsEmpty());
}

TEST(Config, Ling30FlashHasThePublishedValues) {
  const Config c = published_config("ling-3.0-flash");
  EXPECT_EQ(c.hidden, 2560);
  EXPECT_EQ(c.dense_width, 6144);
  EXPECT_EQ(c.expert_width, 768);
  EXPECT_EQ(c.shared_width, 768);
  EXPECT_EQ(c.layers, 42);
  EXPECT_EQ(c.heads, 32);
  EXPECT_EQ(c.kda_width(), 4096);
  EXPECT_THAT(mla_layers(c), ElementsAre(5, 11, 17, 23, 29, 35, 41));
  EXPECT_EQ(c.first_moe_layer, 2);
  EXPECT_EQ(c.experts, 512);
  EXPECT_EQ(c.q_rank, std::nullopt);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_THAT(layers_of_limit(c, &Config::routed_limit, 4), ElementsAre(35, 36, 37, 38, 39, 40, 41));
  EXPECT_THAT(layers_of_limit(c, &Config::shared_limit, 5), ElementsAre(34, 35, 36, 37, 38, 39));
  EXPECT_THAT(layers_of_limit(c, &Config::shared_limit, 7), ElementsAre(40, 41));
  EXPECT_THAT(c.remarks, IsEmpty());
}

TEST(Config, Ling30TinyHasThePublishedValues) {
  const Config c = published_config("ling-3.0-tiny");
  EXPECT_EQ(c.vocab, 157184);
  EXPECT_EQ(c.hidden, 1536);
  EXPECT_EQ(c.dense_width, 4608);
  EXPECT_EQ(c.expert_width, 512);
  EXPECT_EQ(c.layers, 24);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.conv_taps, 4);
  EXPECT_TRUE(c.bounded_gate);
  EXPECT_EQ(c.gate_lower_bound, -5.0f);
  EXPECT_FALSE(c.low_rank_gates);
  EXPECT_THAT(mla_layers(c), ElementsAre(3, 7, 11, 15, 19, 23));
  EXPECT_EQ(c.first_moe_layer, 1);
  EXPECT_EQ(c.experts, 128);
  EXPECT_EQ(c.top_k, 8);
  EXPECT_EQ(c.num_groups, 8);
  EXPECT_EQ(c.kept_groups, 4);
  EXPECT_EQ(c.routed_scaling, 2.5f);
  EXPECT_EQ(c.q_rank, 256);
  EXPECT_EQ(c.kv_rank, 512);
  EXPECT_EQ(c.nope_dim, 128);
  EXPECT_EQ(c.rope_dim, 64);
  EXPECT_EQ(c.value_dim, 128);
  EXPECT_EQ(c.latent_row(), 576);
  EXPECT_EQ(c.attention_gate, AttentionGate::HeadWise);
  EXPECT_EQ(c.rope_theta, 6e6);
  EXPECT_FALSE(c.yarn);
  EXPECT_FLOAT_EQ(c.attention_scale(), 0.07216878364870323f);
  EXPECT_EQ(c.mtp_layers, 0);
  EXPECT_EQ(c.context, 131072);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.bos_id, 156891);
  EXPECT_THAT(c.eos_ids, ElementsAre(156895));
  EXPECT_EQ(c.pad_id, 156892);
  EXPECT_EQ(layers_of_limit(c, &Config::routed_limit, 0).size(), 26u);
  EXPECT_THAT(c.remarks, IsEmpty());
}

TEST(Config, GoldenVariantsAreReadAsWritten) {
  for (const std::string& variant : golden_variants()) {
    SCOPED_TRACE(variant);
    const Json json = read_json(golden_path(variant) / "config.json");
    const Json golden = read_json(golden_path(variant) / "golden.json");
    const Config c = parse(json);
    const std::pair<const char*, std::int64_t> integers[] = {{"vocab_size", c.vocab},
                                                             {"hidden_size", c.hidden},
                                                             {"num_hidden_layers", c.layers},
                                                             {"num_nextn_predict_layers", c.mtp_layers},
                                                             {"num_attention_heads", c.heads},
                                                             {"head_dim", c.head_dim},
                                                             {"short_conv_kernel_size", c.conv_taps},
                                                             {"kv_lora_rank", c.kv_rank},
                                                             {"qk_nope_head_dim", c.nope_dim},
                                                             {"qk_rope_head_dim", c.rope_dim},
                                                             {"v_head_dim", c.value_dim},
                                                             {"intermediate_size", c.dense_width},
                                                             {"num_experts", c.experts},
                                                             {"moe_intermediate_size", c.expert_width},
                                                             {"first_k_dense_replace", c.first_moe_layer},
                                                             {"num_experts_per_tok", c.top_k},
                                                             {"n_group", c.num_groups},
                                                             {"topk_group", c.kept_groups},
                                                             {"max_position_embeddings", c.context},
                                                             {"bos_token_id", *c.bos_id},
                                                             {"eos_token_id", c.eos_ids.at(0)},
                                                             {"pad_token_id", *c.pad_id}};
    for (const auto& [key, value] : integers) EXPECT_EQ(value, json.at(key).get<std::int64_t>()) << key;
    EXPECT_EQ(c.shared_width,
              json.at("moe_shared_expert_intermediate_size").get<int>() * json.at("num_shared_experts").get<int>());
    EXPECT_EQ(c.bounded_gate, json.at("kda_safe_gate").get<bool>());
    EXPECT_EQ(c.low_rank_gates, !json.at("no_kda_lora").get<bool>());
    EXPECT_EQ(c.q_rank.has_value(), !json.at("q_lora_rank").is_null());
    EXPECT_EQ(c.rope_theta, json.at("rope_theta").get<double>());
    EXPECT_EQ(c.yarn.has_value(), !json.at("rope_scaling").is_null());
    EXPECT_EQ(c.attention_gate == AttentionGate::ElementWise, json.at("gated_attention_proj_granularity_type") == "element_wise");
    EXPECT_EQ(c.fp8_power_of_two_activations, variant == "d_mix_fp4" || variant == "e_tiny_ue8m0");
    EXPECT_EQ(mla_layers(c), golden.at("mla_layers").get<std::vector<std::int64_t>>());
    std::vector<std::int64_t> moe;
    for (std::int64_t i = 0; i < c.layers; ++i) {
      if (c.is_moe(i)) moe.push_back(i);
      const Json& limits = json.at("expert_swiglu_limit_list");
      const auto index = static_cast<std::size_t>(i);
      EXPECT_EQ(c.routed_limit(i), limits.is_null() || limits.at(index).is_null() ? 0.0f : limits.at(index).get<float>());
    }
    EXPECT_EQ(moe, golden.at("moe_layers").get<std::vector<std::int64_t>>());
    EXPECT_THAT(c.remarks, IsEmpty());
  }
}

TEST(Config, TheBundledModelIsAccepted) {
  const Config c = parse(read_json(source_path("models/austen-5m/config.json")));
  EXPECT_EQ(c.layers, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_EQ(c.routed_limit(6), 10.0f);
  EXPECT_THAT(c.remarks, IsEmpty());
}

TEST(Config, ArchitecturesDecidesAndModelTypeDoesNot) {
  Json other = tiny();
  other["architectures"] = {"BailingMoeV2_5ForCausalLM"};
  EXPECT_THAT(parse_error(other),
              HasSubstr("architectures: found [\"BailingMoeV2_5ForCausalLM\"], expected [\"BailingMoeV3ForCausalLM\"]"));
  Json none = tiny();
  none.erase("architectures");
  EXPECT_THAT(parse_error(none), HasSubstr("config.json: architectures is missing"));
  Json renamed = tiny();
  renamed["model_type"] = "bailing_moe_v3";
  EXPECT_THAT(parse(renamed).remarks, ElementsAre(HasSubstr("model_type is bailing_moe_v3")));
}

TEST(Config, NamesTheMissingKey) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "intermediate_size",
                          "moe_intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "layer_group_size",
                          "first_k_dense_replace",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "v_head_dim",
                          "rope_theta",
                          "gated_attention_proj_granularity_type",
                          "kda_safe_gate",
                          "kda_lower_bound",
                          "num_experts",
                          "num_experts_per_tok",
                          "num_shared_experts",
                          "n_group",
                          "topk_group",
                          "routed_scaling_factor",
                          "rms_norm_eps",
                          "max_position_embeddings"}) {
    Json json = tiny();
    json.erase(key);
    EXPECT_EQ(parse_error(json), fmt::format("config.json: {} is missing", key));
  }
  Json gates = tiny();
  gates.erase("no_kda_lora");
  gates.erase("use_kda_lora");
  EXPECT_EQ(parse_error(gates), "config.json: no_kda_lora is missing");
}

TEST(Config, RefusesByNameWhatIsNotImplementedOrImpossible) {
  const struct {
    const char* key;
    Json value;
    const char* expected;
  } cases[] = {
      {"vocab_size", 0, "found 0, expected an integer from 1"},
      {"vocab_size", "157184", "found \"157184\", expected an integer"},
      {"hidden_size", 1536.5, "found 1536.5"},
      {"hidden_size", -1536, "found -1536"},
      {"num_hidden_layers", 1000000000, "found 1000000000"},
      {"num_experts", 1000000000000, "found 1000000000000"},
      {"num_experts", 18446744073709551615u, "found 18446744073709551615"},
      {"head_dim", 0, "found 0"},
      {"head_dim", 100, "expected a multiple of 16"},
      {"head_dim", 1024, "found 1024"},
      {"num_attention_heads", Json::array({16}), "found [16]"},
      {"num_key_value_heads", 8, "found 8, expected 16"},
      {"num_kv_heads_for_linear_attn", 4, "found 4, expected 0 or 16"},
      {"hidden_act", "gelu", "found \"gelu\", expected \"silu\""},
      {"layer_group_size", 0, "found 0"},
      {"layer_group_size", {1, 1, 1, 0}, "found [1,1,1,0], expected an integer, or one value for each of the 24 layers"},
      {"layer_group_size", "4", "found \"4\""},
      {"first_k_dense_replace", 25, "found 25, expected an integer from 0 to 24"},
      {"q_lora_rank", 0, "found 0"},
      {"kv_lora_rank", 1000000, "found 1000000"},
      {"qk_rope_head_dim", 63, "expected an even number"},
      {"qk_head_dim", 191, "found 191, expected 192"},
      {"rotary_dim", 32, "found 32, expected 64"},
      {"rope_theta", 0, "found 0"},
      {"rope_theta", "6e6", "found \"6e6\""},
      {"rope_interleave", false, "found false, expected true"},
      {"rope_parameters", {{"rope_type", "yarn"}}, "found an object"},
      {"use_mla_nope", true, "found true, expected false"},
      {"gated_attention_proj_granularity_type", "per_token", "\"head_wise\", \"element_wise\" or null"},
      {"full_attention_type", "gqa", "expected \"mla\""},
      {"short_conv_kernel_size", 3, "found 3, expected 4"},
      {"use_kda_lora", true, "the opposite of no_kda_lora"},
      {"kda_safe_gate", 1, "found 1, expected true or false"},
      {"kda_lower_bound", 0, "found 0, expected a number below 0"},
      {"kda_lower_bound", 5.0, "found 5.0, expected a number below 0"},
      {"num_experts_per_tok", 65, "found 65, expected an integer from 1 to 64"},
      {"num_experts_per_tok", 0, "found 0"},
      {"n_group", 7, "a divisor of the 128 experts"},
      {"n_group", 128, "at least 2 a group"},
      {"n_group", 0, "found 0"},
      {"topk_group", 9, "found 9, expected an integer from 1 to 8"},
      {"norm_topk_prob", false, "expected true"},
      {"routed_scaling_factor", -1, "found -1"},
      {"score_function", "softmax", "found \"softmax\", expected \"sigmoid\""},
      {"scoring_func", "softmax", "expected \"sigmoid\""},
      {"topk_method", "greedy", "expected \"noaux_tc\""},
      {"moe_router_enable_expert_bias", false, "expected true"},
      {"router_dtype", "bf16", "expected \"fp32\""},
      {"router_type", "multi", "found \"multi\""},
      {"multi_gate", true, "expected false"},
      {"scale_router_input", true, "expected false"},
      {"expert_swiglu_limit_list", 10, "a list of numbers"},
      {"expert_swiglu_limit_list", {0, "10"}, "a list of numbers"},
      {"share_expert_swiglu_limit_list", {-1}, "a list of numbers from 0"},
      {"rms_norm_eps", 0, "found 0"},
      {"tie_word_embeddings", "no", "true or false"},
      {"use_bias", true, "expected false"},
      {"use_qkv_bias", true, "expected false"},
      {"use_rmsnorm", false, "expected true"},
      {"use_nGPT", true, "expected false"},
      {"value_norm", true, "expected false"},
      {"up_proj_norm", true, "expected false"},
      {"max_position_embeddings", 0, "found 0"},
      {"num_nextn_predict_layers", 2, "found 2, expected an integer from 0 to 1"},
      {"mtp_use_kda", true, "expected false"},
      {"eos_token_id", 157184, "found 157184"},
      {"eos_token_id", {156895, "x"}, "found [156895,\"x\"]"},
      {"bos_token_id", -1, "found -1"},
      {"text_config", Json::object(), "found an object"},
      {"quantization_config", "fp8", "quantization_config: found \"fp8\", expected an object"},
      {"rope_scaling", 2, "rope_scaling: found 2, expected an object"},
  };
  for (const auto& test : cases) {
    Json json = tiny();
    json[test.key] = test.value;
    const std::string error = parse_error(json);
    EXPECT_THAT(error, HasSubstr(std::string("config.json: ") + test.key)) << error;
    EXPECT_THAT(error, HasSubstr(test.expected)) << test.key;
  }
}

TEST(Config, TextThatIsNoObjectIsRefusedInOneLine) {
  for (const std::string& text : {std::string(), std::string("{"), std::string("[1]"), std::string("nul"),
                                  std::string("{\"a\":\n\n\x01}"), std::string("{\"a\":1e999}"), std::string("\"\xFF\""),
                                  std::string(1 << 20, '['), "{\"a\":\"" + std::string(1 << 20, 'x')}) {
    const std::string error = error_of([&] { parse_config(text, "folder/config.json"); });
    EXPECT_THAT(error, testing::StartsWith("folder/config.json: "));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_LT(error.size(), 400u);
  }
}

TEST(Config, ADeeplyNestedValueIsNamedNotPrinted) {
  std::string text = dump_json(tiny());
  text.insert(text.size() - 1, ",\"odd\":" + std::string(200000, '[') + std::string(200000, ']'));
  EXPECT_THAT(parse_config(text, "config.json").remarks, ElementsAre("odd is a list of 1 values: an unknown key, ignored"));
}

TEST(Config, AListOfEndsThatWouldTakeLongIsRefused) {
  Json config = read_json(source_path("models/austen-5m/config.json"));
  config["eos_token_id"] = std::vector<int>(4097, 1);
  EXPECT_THAT(error_of([&] { parse_config(dump_json(config), "config.json"); }),
              HasSubstr("eos_token_id: found a list of 4097 values, expected at most 4096 of them"));
}

TEST(Config, UnknownKeysAreRemarkedUnlessNull) {
  Json json = tiny();
  json["sliding_window"] = 4096;
  json["image_token_id"] = nullptr;
  EXPECT_THAT(parse(json).remarks, ElementsAre("sliding_window is 4096: an unknown key, ignored"));
}

TEST(Config, LayersMayBeListedOneByOne) {
  Json json = tiny();
  json["num_hidden_layers"] = 5;
  json["layer_group_size"] = {1, 0, 1, 1, 2};
  EXPECT_THAT(mla_layers(parse(json)), ElementsAre(1, 4));
}

TEST(Config, ATrailingIncompleteGroupIsMla) {
  Json json = tiny();
  json["num_hidden_layers"] = 10;
  EXPECT_THAT(mla_layers(parse(json)), ElementsAre(3, 7, 8, 9));
}

TEST(Config, LimitListsOfAnotherLengthMeanNoLimitBeyondTheirEnd) {
  Json json = tiny();
  json["expert_swiglu_limit_list"] = {nullptr, 2.5};
  const Config config = parse(json);
  EXPECT_EQ(config.routed_limit(0), 0.0f);
  EXPECT_EQ(config.routed_limit(1), 2.5f);
  EXPECT_EQ(config.routed_limit(23), 0.0f);
  EXPECT_THAT(config.remarks, ElementsAre("expert_swiglu_limit_list has 2 values for 24 layers"));
}

TEST(Config, TheMtpLayerIsMlaAndMoeWithoutALimit) {
  Json json = tiny();
  json["num_nextn_predict_layers"] = 1;
  json["expert_swiglu_limit_list"] = std::vector<int>(30, 7);
  const Config config = parse(json);
  EXPECT_TRUE(config.is_mla(24));
  EXPECT_TRUE(config.is_moe(24));
  EXPECT_EQ(config.routed_limit(23), 7.0f);
  EXPECT_EQ(config.routed_limit(24), 0.0f);
}

TEST(Config, OptionalKeysHaveTheFamilysMeaning) {
  Json json = tiny();
  for (const char* key :
       {"moe_shared_expert_intermediate_size", "num_nextn_predict_layers", "rope_scaling", "qk_head_dim", "rotary_dim",
        "tie_word_embeddings", "num_key_value_heads", "bos_token_id", "eos_token_id", "use_kda_lora"}) {
    json.erase(key);
  }
  json["num_shared_experts"] = 2;
  json["no_kda_lora"] = false;
  json["eos_token_id"] = {5, 7};
  const Config config = parse(json);
  EXPECT_EQ(config.shared_width, 1024);
  EXPECT_EQ(config.mtp_layers, 0);
  EXPECT_TRUE(config.low_rank_gates);
  EXPECT_EQ(config.bos_id, std::nullopt);
  EXPECT_THAT(config.eos_ids, ElementsAre(5, 7));
}

TEST(QuantizationConfig, RefusesOtherSchemesByName) {
  const Json good = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const auto error_with = [&](const char* key, const Json& value) {
    Json json = tiny();
    json["quantization_config"] = good;
    json["quantization_config"][key] = value;
    return parse_error(json);
  };
  EXPECT_EQ(error_with("scale_fmt", nullptr), "");
  EXPECT_EQ(error_with("scale_fmt", "ue8m0"), "");
  EXPECT_EQ(error_with("modules_to_not_convert", {"lm_head"}), "");
  EXPECT_THAT(error_with("quant_method", "compressed-tensors"),
              HasSubstr("quantization_config: quant_method: found \"compressed-tensors\", expected \"fp8\""));
  EXPECT_THAT(error_with("weight_block_size", {64, 128}), HasSubstr("weight_block_size: found [64,128], expected [128,128]"));
  EXPECT_THAT(error_with("weight_block_size", nullptr), HasSubstr("weight_block_size is missing"));
  EXPECT_THAT(error_with("fmt", "e5m2"), HasSubstr("fmt: found \"e5m2\""));
  EXPECT_THAT(error_with("activation_scheme", "static"), HasSubstr("activation_scheme: found \"static\""));
  EXPECT_THAT(error_with("scale_fmt", "float"), HasSubstr("scale_fmt: found \"float\""));
  EXPECT_THAT(error_with("routed_experts_quant_method", "nvfp4"),
              HasSubstr("routed_experts_quant_method: found \"nvfp4\", expected \"mxfp4\""));
  EXPECT_THAT(error_with("routed_experts_group_size", 16), HasSubstr("routed_experts_group_size: found 16, expected 32"));
  EXPECT_THAT(error_with("kv_cache_scheme", "fp8"), HasSubstr("kv_cache_scheme: found \"fp8\", a key that is not implemented"));
}

// Numbers of the YaRN cases come from the golden kernel data (an independent float64 implementation).
void expect_rope_of_case(const std::string& name) {
  const Json description = read_json(golden_path("kernels.json")).at(name).at("parameters");
  Json json = tiny();
  json["qk_rope_head_dim"] = description.at("dim");
  json.erase("qk_head_dim");
  json.erase("rotary_dim");
  json["rope_theta"] = description.at("theta");
  if (description.contains("rope_scaling")) json["rope_scaling"] = description.at("rope_scaling");
  const RopeParameters rope = rope_parameters(parse(json));
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const std::vector<float> expected = golden.floats(name + "/inv_freq");
  ASSERT_EQ(rope.inverse_frequencies.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(rope.inverse_frequencies[i] / static_cast<double>(expected[i]), 1.0, 1e-7) << name << " pair " << i;
  }
  EXPECT_NEAR(rope.factor, description.value("cos_sin_factor", 1.0), 1e-14) << name;
}

TEST(Rope, FrequenciesAndFactorAreThoseOfTheReference) {
  for (const char* name : {"spec_rope", "rope_yarn_2x", "rope_yarn_small", "rope_yarn_mscale"}) expect_rope_of_case(name);
}

TEST(Rope, MscaleAllDimAloneScalesTheScores) {
  Json json = tiny();
  json["rope_scaling"] = {{"rope_type", "yarn"},
                          {"factor", 8.0},
                          {"original_max_position_embeddings", 32768},
                          {"mscale", 1.0},
                          {"mscale_all_dim", 0.5}};
  const double mscale = 0.1 * 0.5 * std::log(8.0) + 1;
  EXPECT_FLOAT_EQ(parse(json).attention_scale(), static_cast<float>(mscale * mscale / std::sqrt(192.0)));
  json["rope_scaling"]["mscale_all_dim"] = 0;
  EXPECT_FLOAT_EQ(parse(json).attention_scale(), static_cast<float>(1 / std::sqrt(192.0)));
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(rope_parameters(parse(json)).factor, 1.5);
}

TEST(Rope, ScalingOfAnotherKindIsRefusedByName) {
  const auto error_with = [](const Json& scaling) {
    Json json = tiny();
    json["rope_scaling"] = scaling;
    return parse_error(json);
  };
  EXPECT_EQ(error_with({{"type", "default"}}), "");
  EXPECT_THAT(error_with({{"type", "linear"}, {"factor", 2}}), HasSubstr("rope_scaling: type: found \"linear\""));
  EXPECT_THAT(error_with({{"rope_type", "llama3"}, {"factor", 2}}), HasSubstr("rope_scaling: rope_type: found \"llama3\""));
  EXPECT_THAT(error_with({{"type", "yarn"}, {"rope_type", "linear"}, {"factor", 2}}),
              HasSubstr("rope_type: found \"linear\", expected the same as type"));
  EXPECT_THAT(error_with({{"type", "yarn"}}), HasSubstr("rope_scaling: factor is missing"));
  EXPECT_THAT(error_with({{"type", "yarn"}, {"factor", 0.5}}), HasSubstr("factor: found 0.5"));
  EXPECT_THAT(error_with({{"type", "yarn"}, {"factor", 2}, {"truncate", false}}), HasSubstr("truncate: found false"));
  EXPECT_THAT(error_with({{"type", "yarn"}, {"factor", 2}, {"mrope_section", {8, 12, 12}}}),
              HasSubstr("mrope_section: found [8,12,12], a key that is not"));
  EXPECT_THAT(error_with({{"type", "yarn"}, {"factor", 9999}, {"original_max_position_embeddings", 2000000000}}),
              HasSubstr("expected at most 2147483648"));
}

TEST(Overrides, YarnByNameStretchesTheContext) {
  const Config config = parse(tiny(), {.yarn_factor = 2.0, .context = {}});
  EXPECT_EQ(config.context, 262144);
  ASSERT_TRUE(config.yarn);
  EXPECT_EQ(config.yarn->original_context, 131072);
  EXPECT_NEAR(rope_parameters(config).factor, 1.0693147180559945, 1e-15);
  EXPECT_THAT(config.remarks, ElementsAre(HasSubstr("context 262144 by YaRN factor 2")));
}

TEST(Overrides, AContextBeyondTheConfigTakesANameAndLeavesARemark) {
  const Config longer = parse(tiny(), {.yarn_factor = {}, .context = 200000});
  EXPECT_EQ(longer.context, 200000);
  EXPECT_THAT(longer.remarks, ElementsAre("context 200000 as asked for; positions from 131072 on were never trained"));
  const Config shorter = parse(tiny(), {.yarn_factor = {}, .context = 4096});
  EXPECT_EQ(shorter.context, 4096);
  EXPECT_THAT(shorter.remarks, IsEmpty());
}

TEST(Overrides, NonsenseIsRefused) {
  EXPECT_THAT(parse_error(tiny(), {.yarn_factor = 0.5, .context = {}}), HasSubstr("found YaRN factor 0.5"));
  EXPECT_THAT(parse_error(tiny(), {.yarn_factor = std::nan(""), .context = {}}), HasSubstr("YaRN factor nan"));
  EXPECT_THAT(parse_error(tiny(), {.yarn_factor = {}, .context = 0}), HasSubstr("context: found 0"));
  Json yarn = tiny();
  yarn["rope_scaling"] = {{"type", "yarn"}, {"factor", 2}};
  EXPECT_THAT(parse_error(yarn, {.yarn_factor = 2.0, .context = {}}), HasSubstr("rope_scaling: found YaRN with factor 2"));
}

TEST(Config, AnyValueUnderAnyKeyIsReadOrRefused) {
  const Json good = tiny();
  std::vector<std::string> names;
  for (const auto& [key, value] : good.items()) names.push_back(key);
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    -1,
                                    3,
                                    1e300,
                                    -1e-300,
                                    INT64_MIN,
                                    UINT64_MAX,
                                    "",
                                    "yarn",
                                    Json::array(),
                                    Json::object(),
                                    {1, "x"},
                                    {{"type", "yarn"}}};
  EXPECT_TRUE(rc::check("two keys replaced", [&] {
    Json json = good;
    for (int i = 0; i < 2; ++i) json[*rc::gen::elementOf(names)] = *rc::gen::elementOf(values);
    try {
      const Config config = parse(json);
      RC_ASSERT(std::ssize(config.mla_layers) == config.layers);
      RC_ASSERT(config.layers > 0 && config.heads > 0 && config.hidden > 0);
      RC_ASSERT(config.experts == 0 || config.top_k <= config.experts);
    } catch (const Error&) {
    }
  }));
}

}  // namespace
}  // namespace calandra
