#pragma once
// Chat templates are written in Jinja. This is an interpreter for the part of the language that the templates of
// published checkpoints use, with the settings Hugging Face gives it: trim_blocks, lstrip_blocks, no escaping, break and
// continue, immutable data. A template is parsed once and rendered from any number of threads. A construct that is not
// known is refused when the template is parsed, with its line; templates cannot hang, overflow the stack or fill memory.

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

namespace calandra {

namespace jinja {
struct Program;
}

struct JinjaOptions {
  std::size_t max_output_bytes = std::size_t{64} << 20;
  /// Bytes produced plus 64 for every step taken: ends a template that would run for more than some seconds.
  std::uint64_t max_work = std::uint64_t{4} << 30;
  /// What strftime_now tells; the local time of the machine if empty.
  std::function<std::tm()> clock;
};

class JinjaTemplate {
 public:
  /// `where` names the template in errors, as in "chat_template.jinja:12: unknown filter 'x'".
  static JinjaTemplate parse(std::string_view source, std::string where);

  /// `context` is an object: the variables that the template may read.
  std::string render(const nlohmann::ordered_json& context, const JinjaOptions& options = {}) const;

  /// The variables that the template may read from its context.
  const std::set<std::string>& variables() const;

 private:
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace calandra
