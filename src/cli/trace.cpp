#include "engine/trace.h"

#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"

#include <fmt/ranges.h>

namespace calandra {

int trace_command(const TraceArguments& arguments) {
  const auto model = open_model(arguments.model, true);
  TraceOptions options;
  options.ids = arguments.prompt ? model->tokenizer().encode(*arguments.prompt) : arguments.ids;
  options.greedy = arguments.greedy;
  options.splits = arguments.splits;
  const Trace trace = run_trace(*model, options);
  write_trace(trace, arguments.dump);

  std::string lines =
      fmt::format("{}: {} tensors of {} tokens\n", arguments.dump.string(), trace.tensors.size(), options.ids.size());
  if (!trace.greedy_ids.empty()) lines += fmt::format("greedy ids: {}\n", fmt::join(trace.greedy_ids, ","));
  if (!trace.draft_ids.empty()) lines += fmt::format("draft ids: {}\n", fmt::join(trace.draft_ids, ","));
  write_out(lines);
  return kExitSuccess;
}

}  // namespace calandra
