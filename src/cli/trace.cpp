#include "engine/trace.h"

#include "base/new_file.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace calandra {

namespace {

void warn_of_strange_numbers(const Trace& trace) {
  std::vector<std::string> strange;
  for (const auto& [name, tensor] : trace.tensors) {
    if (tensor.type != ElementType::F32) continue;
    for (std::size_t at = 0; at < tensor.data.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, tensor.data.data() + at, sizeof value);
      if (std::isfinite(value)) continue;
      strange.push_back(name);
      break;
    }
  }
  if (!strange.empty())
    write_note(fmt::format("note: {} tensors hold values that are not finite, {} among them\n", strange.size(), strange.front()));
}

}  // namespace

int trace_command(const TraceArguments& arguments) {
  { const NewFile probe(arguments.dump); }  // fails now rather than after the run
  const auto model = open_model(arguments.model, true);
  TraceOptions options;
  options.ids = arguments.prompt ? model->tokenizer().encode(*arguments.prompt) : arguments.ids;
  options.greedy = arguments.greedy;
  options.splits = arguments.splits;
  const Trace trace = run_trace(*model, options);
  write_trace(trace, arguments.dump);
  warn_of_strange_numbers(trace);

  std::string lines =
      fmt::format("{}: {} tensors of {} tokens\n", arguments.dump.string(), trace.tensors.size(), options.ids.size());
  if (!trace.greedy_ids.empty()) lines += fmt::format("greedy ids: {}\n", fmt::join(trace.greedy_ids, ","));
  if (!trace.draft_ids.empty()) lines += fmt::format("draft ids: {}\n", fmt::join(trace.draft_ids, ","));
  write_out(lines);
  return kExitSuccess;
}

}  // namespace calandra
