#pragma once
// Chat templates are written in Jinja. This is an interpreter for the part of the language that the templates of
// published checkpoints use, with the settings Hugging Face gives it: trim_blocks, lstrip_blocks, no escaping, break and
// continue, immutable data. A template is parsed once and rendered from any number of threads. Statements, operators,
// filters and tests that are not known are refused when the template is parsed; functions, methods and format
// specifications when they are used. Every error is an Error that names the template and the line. A render ends after
// bounded work (max_work), in bounded stack, and no value it makes takes more than 64 MiB.

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
  /// Bytes made or walked over plus 64 for every step taken, charged before it is done: ends a template that would run
  /// for more than some seconds. What it makes in all, and so what may be alive at a time, is less than this.
  std::uint64_t max_work = std::uint64_t{1} << 30;
  /// What strftime_now tells; the local time of the machine if empty.
  std::function<std::tm()> clock;
};

class JinjaTemplate {
 public:
  /// `where` names the template in errors, as in "chat_template.jinja:12: unknown filter 'x'". Throws Error.
  static JinjaTemplate parse(std::string_view source, std::string where);

  /// `context` is an object: the variables that the template may read. Throws Error: for what the template refuses by
  /// raise_exception, for what fails in Python, for a context nested deeper than 500, and when the options' limits are met.
  std::string render(const nlohmann::ordered_json& context, const JinjaOptions& options = {}) const;

  /// The variables that the template may read from its context.
  const std::set<std::string>& variables() const;

 private:
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace calandra
