#include "checkpoint/summary.h"

#include "base/error.h"
#include "base/mapped_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>
#include <unordered_map>
#include <utility>

namespace calandra {
namespace {

constexpr std::array<std::string_view, 10> kComponentNames = {"embedding",      "head",           "kda",    "mla",   "dense_mlp",
                                                              "routed_experts", "shared_experts", "router", "norms", "mtp"};

/// A model card is a text for people; more than this is something else.
constexpr std::size_t kMaxCardBytes = 4 << 20;

/// Adds the tensors of a list to sums, component by component.
class Adder {
 public:
  Adder(const Config& config, std::span<const TensorHeader> tensors) : config_(config) {
    for (const TensorHeader& tensor : tensors) unused_.emplace(tensor.name, &tensor);
  }

  ModelSummary add_up() {
    ModelSummary summary;
    for (const TensorSpec& spec : list_tensors(config_)) add(spec, summary);
    for (const auto& [name, tensor] : unused_) summary.surplus.emplace_back(name);
    std::sort(summary.surplus.begin(), summary.surplus.end());
    for (const ComponentSummary& component : components_) {
      if (component.bytes == 0) continue;
      summary.components.push_back(component);
      summary.parameters += component.parameters;
      summary.bytes += component.bytes;
    }
    const ComponentSummary& mtp = of(Component::Mtp);
    summary.main_parameters = summary.parameters - mtp.parameters;
    summary.main_bytes = summary.bytes - mtp.bytes;
    add_active(summary);
    return summary;
  }

 private:
  ComponentSummary& of(Component component) { return components_[static_cast<std::size_t>(component)]; }

  void add(const TensorSpec& spec, ModelSummary& summary) {
    std::string name = spec.name;
    if (!spec.alias.empty() && !unused_.contains(name)) name = spec.alias;
    ComponentSummary& component = of(spec.component);
    component.component = spec.component;
    if (!take(name, component)) {
      summary.missing.push_back(spec.name);
      return;
    }
    component.parameters += num_elements(spec.shape);
    for (const char* suffix : {"_scale_inv", "_scale"}) take(name + suffix, component);
  }

  bool take(const std::string& name, ComponentSummary& component) {
    const auto found = unused_.find(name);
    if (found == unused_.end()) return false;
    const std::int64_t bytes = num_bytes(found->second->type, found->second->shape);
    component.bytes += bytes;
    component.bytes_by_type[found->second->type] += bytes;
    unused_.erase(found);
    return true;
  }

  void add_active(ModelSummary& summary) {
    const ComponentSummary& routed = of(Component::RoutedExpert);
    const ComponentSummary& embedding = of(Component::Embedding);
    const std::int64_t experts = std::max<std::int64_t>(config_.experts, 1);
    const auto idle = [&](std::int64_t amount) { return amount - amount / experts * config_.top_k; };
    summary.active_parameters_with_embedding = summary.main_parameters - idle(routed.parameters);
    // A tied table is read as the head.
    const bool table_only = !config_.tied_head;
    summary.active_parameters = summary.active_parameters_with_embedding - (table_only ? embedding.parameters : 0);
    summary.bytes_per_token = summary.main_bytes - idle(routed.bytes) - (table_only ? embedding.bytes : 0);
  }

  const Config& config_;
  std::unordered_map<std::string_view, const TensorHeader*> unused_;
  std::array<ComponentSummary, kComponentNames.size()> components_;
};

std::string some_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names[0] : fmt::format("{} tensors, the first is {}", names.size(), printable(names[0]));
}

/// "4 in layers 35 to 41", with every run of layers that share a limit.
std::string describe_limits(const Config& config, float (Config::*limit)(std::int64_t) const) {
  std::string text;
  for (std::int64_t begin = 0; begin < config.layers;) {
    const float value = (config.*limit)(begin);
    std::int64_t end = begin + 1;
    while (end < config.layers && (config.*limit)(end) == value) ++end;
    if (value > 0) {
      const std::string where =
          end - begin == 1 ? fmt::format("layer {}", begin) : fmt::format("layers {} to {}", begin, end - 1);
      text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", value, where);
    }
    begin = end;
  }
  return text;
}

void add_limit_remarks(const Config& config, std::vector<std::string>& remarks) {
  const std::string routed = describe_limits(config, &Config::routed_limit);
  const std::string shared = describe_limits(config, &Config::shared_limit);
  if (!routed.empty()) remarks.push_back("SwiGLU limits of routed experts: " + routed);
  if (!shared.empty()) remarks.push_back("SwiGLU limits of shared experts: " + shared);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// A number of tokens that a text names: "256K" may mean 262,144 or 256,000.
struct Claim {
  double tokens = 0;
  double decimal_tokens = 0;
  std::string text;
};

bool is_digit(std::string_view text, std::size_t i) {
  return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
}

/// Whether a comma at `i` sets off three digits.
bool groups_digits(std::string_view text, std::size_t i) {
  return text[i] == ',' && is_digit(text, i + 1) && is_digit(text, i + 2) && is_digit(text, i + 3) && !is_digit(text, i + 4);
}

/// The number that starts at `begin`, K or M right after it; `begin` moves behind. Nothing for "30B", "3x" and the like.
std::optional<Claim> read_claim(std::string_view line, std::size_t& begin) {
  const std::size_t start = begin;
  std::string digits;
  for (; begin < line.size(); ++begin) {
    const bool point = line[begin] == '.' && is_digit(line, begin + 1);
    if (is_digit(line, begin) || point) {
      digits += line[begin];
    } else if (!groups_digits(line, begin)) {
      break;
    }
  }
  const char unit = begin < line.size() ? line[begin] : ' ';
  const int thousands = unit == 'k' || unit == 'K' ? 1 : unit == 'm' || unit == 'M' ? 2 : 0;
  if (thousands > 0) ++begin;
  const std::string_view text = line.substr(start, begin - start);
  bool other_word = false;
  for (; begin < line.size() && is_word(line[begin]); ++begin) other_word = true;
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (other_word || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return Claim{number * std::pow(1024.0, thousands), number * std::pow(1000.0, thousands), std::string(text)};
}

/// Close is enough: 262K means 262,144.
bool agrees(double claimed, std::int64_t context) { return std::abs(claimed / static_cast<double>(context) - 1) < 0.05; }

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// The largest claim of a line that speaks of context.
std::optional<Claim> largest_claim(std::string_view line) {
  constexpr double kLeast = 4096, kMost = 1 << 27;  // no context, or no number of tokens
  const std::string lower = to_lower(line);
  if (lower.find("context") == std::string::npos && lower.find("max_position_embeddings") == std::string::npos)
    return std::nullopt;
  std::optional<Claim> largest;
  for (std::size_t i = 0; i < line.size();) {
    if (!is_digit(line, i) || (i > 0 && (is_word(line[i - 1]) || line[i - 1] == '.'))) {
      ++i;
      continue;
    }
    const std::optional<Claim> claim = read_claim(line, i);
    if (claim && claim->tokens >= kLeast && claim->tokens <= kMost && (!largest || claim->tokens > largest->tokens))
      largest = claim;
  }
  return largest;
}

std::optional<std::string> card_remark(const std::filesystem::path& card, std::int64_t context) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(card, error) || std::filesystem::file_size(card, error) > kMaxCardBytes)
    return std::nullopt;
  return contradicted_context_claim(read_text_file(card, kMaxCardBytes), context);
}

}  // namespace

std::string_view name_of(Component component) { return kComponentNames[static_cast<std::size_t>(component)]; }

ModelSummary summarize(const Config& config, std::span<const TensorHeader> tensors) {
  ModelSummary summary = Adder(config, tensors).add_up();
  summary.remarks = config.remarks;
  add_limit_remarks(config, summary.remarks);
  if (!summary.missing.empty()) summary.remarks.push_back("missing: " + some_of(summary.missing));
  if (!summary.surplus.empty()) summary.remarks.push_back("not part of the network: " + some_of(summary.surplus));
  return summary;
}

ModelSummary summarize(const Checkpoint& checkpoint) {
  std::vector<TensorHeader> headers;
  for (const auto& [name, tensor] : checkpoint.tensors()) headers.push_back({name, tensor.view.type, tensor.view.shape});
  ModelSummary summary = Adder(checkpoint.config(), headers).add_up();
  summary.remarks = checkpoint.config().remarks;
  add_limit_remarks(checkpoint.config(), summary.remarks);
  summary.remarks.insert(summary.remarks.end(), checkpoint.remarks().begin(), checkpoint.remarks().end());
  if (auto claim = card_remark(checkpoint.folder() / "README.md", checkpoint.config().stated_context))
    summary.remarks.push_back(*std::move(claim));
  return summary;
}

std::optional<std::string> contradicted_context_claim(std::string_view card, std::int64_t context) {
  std::optional<Claim> largest;
  for (std::size_t begin = 0; begin < card.size();) {
    const std::size_t end = std::min(card.find('\n', begin), card.size());
    const std::optional<Claim> claim = largest_claim(card.substr(begin, end - begin));
    if (claim && (!largest || claim->tokens > largest->tokens)) largest = claim;
    begin = end + 1;
  }
  if (!largest || agrees(largest->tokens, context) || agrees(largest->decimal_tokens, context)) return std::nullopt;
  return fmt::format("README.md speaks of a context of {}, config.json allows {} tokens", largest->text, context);
}

nlohmann::ordered_json to_json(const ModelSummary& summary) {
  nlohmann::ordered_json json;
  json["parameters"] = summary.parameters;
  json["bytes"] = summary.bytes;
  json["main_parameters"] = summary.main_parameters;
  json["main_bytes"] = summary.main_bytes;
  json["active_parameters"] = summary.active_parameters;
  json["active_parameters_with_embedding"] = summary.active_parameters_with_embedding;
  json["bytes_per_token"] = summary.bytes_per_token;
  nlohmann::ordered_json& components = json["components"];
  for (const ComponentSummary& component : summary.components) {
    nlohmann::ordered_json& entry = components[std::string(name_of(component.component))];
    entry["parameters"] = component.parameters;
    entry["bytes"] = component.bytes;
    for (const auto& [type, bytes] : component.bytes_by_type) entry["bytes_by_type"][std::string(name_of(type))] = bytes;
  }
  json["missing"] = summary.missing;
  json["surplus"] = summary.surplus;
  json["remarks"] = summary.remarks;
  return json;
}

}  // namespace calandra
