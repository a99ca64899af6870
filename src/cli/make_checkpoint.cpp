#include "base/error.h"
#include "checkpoint/synthetic.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace calandra {

int make_checkpoint_command(const MakeCheckpointArguments& arguments) {
  const SyntheticOptions& options = arguments.options;
  ProgressBar bar("Writing " + arguments.folder.filename().string());
  const InterruptWatch interrupt(InterruptWatch::Second::Ignored, InterruptWatch::Ending::Asked);
  struct Stopped {};
  SyntheticSize size;
  try {
    size = make_checkpoint(options, arguments.folder, [&](std::int64_t done, std::int64_t total) {
      if (InterruptWatch::pending()) throw Stopped();
      bar.update(done, total);
    });
  } catch (const Stopped&) {
    bar.clear();
    write_note(fmt::format("calandra: {}: stopped, nothing is left of it\n", one_line(arguments.folder.string())));
    return kExitInterrupted;
  }
  bar.clear();
  write_out(fmt::format("{}: {} in {}, {} parameters, {} tensor bytes in {} file{}{}\n", one_line(arguments.folder.string()),
                        name_of(options.model), name_of(options.format), with_commas(size.parameters),
                        with_commas(size.tensor_bytes), size.shards, size.shards == 1 ? "" : "s",
                        options.headers_only ? ", all holes" : ""));
  return kExitSuccess;
}

}  // namespace calandra
