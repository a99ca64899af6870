#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/summary.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "memory/layout.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace calandra {
namespace {

constexpr int kLabelWidth = 15;

/// What the files say; the model need not be one that can run.
struct Inspected {
  std::filesystem::path folder;
  Config config;
  GenerationDefaults generation;
  ModelSummary summary;
  MemoryLayout layout, fp8_layout;  // with latents in BF16 and in FP8
  std::optional<std::int64_t> tokenizer_tokens;
  std::string template_name;  // a file, or built-in
};

/// With a checkpoint that cannot be opened: what its headers tell, and why it cannot.
void summarize_headers(const std::string& reason, const ConfigOverrides& overrides, Inspected& result) {
  result.config = read_config(result.folder, overrides);
  result.generation = read_generation(result.folder, result.config);
  const Shards shards = open_shards(result.folder);
  std::vector<TensorHeader> headers;
  for (const auto& [name, tensor] : shards.tensors) headers.push_back({name, tensor.view.type, tensor.view.shape});
  result.summary = summarize(result.config, headers);
  result.summary.remarks.insert(result.summary.remarks.begin(), "cannot run: " + reason);
}

void look_at_weights(const ConfigOverrides& overrides, Inspected& result) {
  std::optional<std::string> reason;
  try {
    const Checkpoint checkpoint = Checkpoint::open(result.folder, overrides, {}, ScaleCheck::Skip);
    result.config = checkpoint.config();
    result.generation = checkpoint.generation();
    result.summary = summarize(checkpoint);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (reason) summarize_headers(*reason, overrides, result);
}

void look_at_text_files(Inspected& result) {
  std::vector<std::string>& remarks = result.summary.remarks;
  const std::filesystem::path tokenizer = result.folder / "tokenizer.json";
  try {
    result.template_name = std::filesystem::path(ChatTemplate::load(result.folder).where()).filename();
  } catch (const Error& error) {
    remarks.push_back(fmt::format("the chat template cannot be used: {}", error.what()));
  }
  try {
    if (!is_there(tokenizer)) {
      remarks.emplace_back("no tokenizer.json: the model can compute on token ids only");
      return;
    }
    result.tokenizer_tokens = Tokenizer::load(tokenizer).vocab_size();
  } catch (const Error& error) {
    remarks.push_back(fmt::format("the tokenizer cannot be used: {}", error.what()));
    return;
  }
  if (*result.tokenizer_tokens > result.config.vocab) {
    remarks.push_back(fmt::format("tokenizer.json has {} tokens, more than the vocab_size {} of config.json",
                                  *result.tokenizer_tokens, result.config.vocab));
  }
}

Inspected inspect(const InspectArguments& arguments) {
  Inspected result;
  result.folder = locate_checkpoint(arguments.model);
  look_at_weights(arguments.overrides, result);
  look_at_text_files(result);
  const bool has_mtp = result.config.mtp_layers > 0;
  result.layout = memory_layout(result.config, CacheType::BF16, has_mtp);
  result.fp8_layout = memory_layout(result.config, {CacheType::Fp8, CacheType::BF16}, has_mtp);
  return result;
}

/// "3 KDA, MLA, 3 KDA, MLA", with whole repetitions counted: "2 x (3 KDA, MLA)".
std::string layer_pattern(const Config& config) {
  std::vector<std::string> groups(1);  // each up to and with an MLA layer
  std::int64_t kda = 0;
  const auto flush = [&] {
    if (kda > 0) groups.back() += fmt::format("{}{} KDA", groups.back().empty() ? "" : ", ", kda);
    kda = 0;
  };
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_mla(layer)) {
      ++kda;
      continue;
    }
    flush();
    groups.back() += groups.back().empty() ? "1 MLA" : ", 1 MLA";
    if (layer + 1 < config.layers) groups.emplace_back();
  }
  flush();
  std::string text;
  for (std::size_t i = 0; i < groups.size();) {
    std::size_t end = i;
    while (end < groups.size() && groups[end] == groups[i]) ++end;
    text += text.empty() ? "" : ", then ";
    text += end - i == 1 ? groups[i] : fmt::format("{} x ({})", end - i, groups[i]);
    i = end;
  }
  return text;
}

std::string_view name_of(AttentionGate gate) {
  switch (gate) {
    case AttentionGate::None: return "no gate";
    case AttentionGate::HeadWise: return "a gate for each head";
    case AttentionGate::ElementWise: return "a gate for each value";
  }
  return "";
}

std::string line(std::string_view label, std::string_view text) { return fmt::format("{:<{}}{}\n", label, kLabelWidth, text); }

std::string describe_experts(const Config& c) {
  if (c.experts == 0) return fmt::format("none: every layer has a dense MLP, {} wide", c.dense_width);
  std::string text =
      fmt::format("{}, {} wide; a token uses {}, from {} of {} groups; {}", c.experts, c.expert_width, c.top_k, c.kept_groups,
                  c.num_groups, c.shared_width > 0 ? fmt::format("and a shared one, {} wide", c.shared_width) : "none is shared");
  if (c.first_moe_layer == 0) return text;
  return text + fmt::format("; {} a dense MLP, {} wide",
                            c.first_moe_layer == 1 ? "layer 0 has" : fmt::format("layers 0 to {} have", c.first_moe_layer - 1),
                            c.dense_width);
}

std::string describe_context(const Config& c) {
  std::string text = fmt::format("{} tokens; rope base {}", with_commas(c.context), with_commas(std::llround(c.rope_theta)));
  if (c.yarn) text += fmt::format(", YaRN x {:g} from {}", c.yarn->factor, with_commas(c.yarn->original_context));
  return text;
}

std::string architecture(const Inspected& m) {
  const Config& c = m.config;
  std::string text = fmt::format("{}: BailingMoeV3ForCausalLM, {} parameters, {}\n\n", short_name(m.folder.string()),
                                 short_count(m.summary.parameters), short_bytes(m.summary.bytes));
  text += line("layers", fmt::format("{}: {}{}", c.layers, layer_pattern(c), c.mtp_layers > 0 ? "; and an MTP layer" : ""));
  text += line("hidden size", fmt::format("{}", c.hidden));
  text += line("KDA", fmt::format("{} heads of {}; convolution over {} tokens; {} decay{}; {} gates", c.heads, c.head_dim,
                                  c.conv_taps, c.bounded_gate ? "bounded" : "unbounded",
                                  c.bounded_gate ? fmt::format(" (log at least {:g})", c.gate_lower_bound) : "",
                                  c.low_rank_gates ? "low-rank" : "full-rank"));
  text +=
      line("MLA", fmt::format("{} heads of {} + {} rotated, values of {}; latent of {}; {}; {}", c.heads, c.nope_dim, c.rope_dim,
                              c.value_dim, c.kv_rank, c.q_rank ? fmt::format("query rank {}", *c.q_rank) : "direct queries",
                              name_of(c.attention_gate)));
  text += line("experts", describe_experts(c));
  text += line("context", describe_context(c));
  text += line("vocabulary",
               fmt::format("{}; {}; {}{}", with_commas(c.vocab),
                           m.tokenizer_tokens ? fmt::format("tokenizer.json has {} tokens", with_commas(*m.tokenizer_tokens))
                                              : "no tokenizer",
                           "chat template: " + (m.template_name.empty() ? "none" : m.template_name),
                           c.tied_head ? "; the head is the embedding" : ""));
  text += line("sampling",
               fmt::format("temperature {:g}, top-k {}, top-p {:g}, min-p {:g}; ends at {}", m.generation.temperature,
                           m.generation.top_k, m.generation.top_p, m.generation.min_p, fmt::join(m.generation.eos_ids, ", ")));
  return text;
}

std::string table_row(std::string_view label, std::int64_t parameters, std::int64_t bytes, std::string_view stored) {
  return fmt::format("{:<{}}{:>19}{:>19}  {}", label, kLabelWidth, with_commas(parameters), with_commas(bytes), stored);
}

std::string sizes(const ModelSummary& s) {
  std::string text = fmt::format("{:<{}}{:>19}{:>19}  {}\n", "", kLabelWidth, "parameters", "bytes", "stored as");
  for (const ComponentSummary& component : s.components) {
    std::vector<std::pair<std::int64_t, std::string>> types;
    for (const auto& [type, bytes] : component.bytes_by_type) types.emplace_back(bytes, name_of(type));
    std::sort(types.rbegin(), types.rend());
    std::string stored;
    for (const auto& [bytes, name] : types) stored += (stored.empty() ? "" : " + ") + name;
    text += table_row(name_of(component.component), component.parameters, component.bytes, stored) + "\n";
  }
  text += table_row("all", s.parameters, s.bytes, fmt::format("{}, {}", short_count(s.parameters), short_bytes(s.bytes))) + "\n";
  if (s.parameters != s.main_parameters) {
    text += table_row("without MTP", s.main_parameters, s.main_bytes,
                      fmt::format("{}, {}", short_count(s.main_parameters), short_bytes(s.main_bytes))) +
            "\n";
  }
  text += table_row("a token uses", s.active_parameters, s.bytes_per_token,
                    fmt::format("{}, read for each; {} counting the embedding", short_count(s.active_parameters),
                                short_count(s.active_parameters_with_embedding))) +
          "\n";
  return text;
}

/// "10,368 bytes a token, 1,152 more with the MTP layer"
std::string cache_bytes(const MemoryLayout& m) {
  const std::string mtp =
      m.mtp_layers > 0 ? fmt::format(", {} more with the MTP layer", with_commas(m.mtp_cache_bytes_per_token())) : "";
  return fmt::format("{} bytes a token{}", with_commas(m.cache_bytes_per_token()), mtp);
}

std::string memory(const Inspected& m) {
  return line("cache", cache_bytes(m.layout)) + line("", "with --kv fp8 " + cache_bytes(m.fp8_layout)) +
         line("state", fmt::format("{} bytes a sequence, and {} of convolution tails", with_commas(m.layout.state_bytes()),
                                   with_commas(m.layout.tails_bytes())));
}

std::string odd(const std::vector<std::string>& remarks) {
  if (remarks.empty()) return line("odd", "nothing");
  std::string text;
  for (const std::string& remark : remarks) text += line(text.empty() ? "odd" : "", one_line(remark));
  return text;
}

std::string as_text(const Inspected& m) {
  return architecture(m) + "\n" + sizes(m.summary) + "\n" + memory(m) + odd(m.summary.remarks);
}

Json as_json(const Config& c) {
  Json kinds = Json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) kinds.push_back(c.is_mla(layer) ? "mla" : "kda");
  Json json = {{"layers", c.layers},
               {"layer_kinds", std::move(kinds)},
               {"mtp_layers", c.mtp_layers},
               {"hidden", c.hidden},
               {"vocab", c.vocab},
               {"context", c.context},
               {"tied_head", c.tied_head},
               {"heads", c.heads},
               {"head_dim", c.head_dim},
               {"conv_taps", c.conv_taps},
               {"bounded_gate", c.bounded_gate},
               {"low_rank_gates", c.low_rank_gates}};
  json["q_rank"] = c.q_rank ? Json(*c.q_rank) : Json();
  json.update({{"kv_rank", c.kv_rank},
               {"nope_dim", c.nope_dim},
               {"rope_dim", c.rope_dim},
               {"value_dim", c.value_dim},
               {"attention_gate", c.attention_gate == AttentionGate::None       ? "none"
                                  : c.attention_gate == AttentionGate::HeadWise ? "head"
                                                                                : "element"},
               {"rope_theta", c.rope_theta},
               {"yarn_factor", c.yarn ? Json(c.yarn->factor) : Json()},
               {"dense_width", c.dense_width},
               {"experts", c.experts},
               {"expert_width", c.expert_width},
               {"shared_width", c.shared_width},
               {"first_moe_layer", c.first_moe_layer},
               {"top_k", c.top_k},
               {"num_groups", c.num_groups},
               {"kept_groups", c.kept_groups},
               {"routed_scaling", c.routed_scaling},
               {"routed_limits", c.routed_limits},
               {"shared_limits", c.shared_limits}});
  return json;
}

Json as_json(const Inspected& m) {
  Json json = {{"model", m.folder.string()}, {"architecture", "BailingMoeV3ForCausalLM"}, {"config", as_json(m.config)}};
  json["generation"] = {{"temperature", m.generation.temperature},
                        {"top_k", m.generation.top_k},
                        {"top_p", m.generation.top_p},
                        {"min_p", m.generation.min_p},
                        {"eos_ids", m.generation.eos_ids}};
  json["tokenizer_tokens"] = m.tokenizer_tokens ? Json(*m.tokenizer_tokens) : Json();
  json["chat_template"] = m.template_name.empty() ? Json() : Json(m.template_name);
  json["memory"] = {{"cache_bytes_per_token", m.layout.cache_bytes_per_token()},
                    {"mtp_cache_bytes_per_token", m.layout.mtp_cache_bytes_per_token()},
                    {"fp8_cache_bytes_per_token", m.fp8_layout.cache_bytes_per_token()},
                    {"fp8_mtp_cache_bytes_per_token", m.fp8_layout.mtp_cache_bytes_per_token()},
                    {"state_bytes_per_sequence", m.layout.state_bytes()},
                    {"tail_bytes_per_sequence", m.layout.tails_bytes()}};
  json.update(to_json(m.summary));
  return json;
}

}  // namespace

int inspect_command(const InspectArguments& arguments) {
  const Inspected model = inspect(arguments);
  write_out(arguments.json ? dump_json(as_json(model), 2) + "\n" : as_text(model));
  return kExitSuccess;
}

}  // namespace calandra
