#pragma once
// A conversation in the terminal.

#include "cli/commands.h"
#include "engine/model.h"

namespace calandra {

/// Runs until the person leaves. Returns the exit code.
int chat(const RunArguments& arguments, Model& model);

}  // namespace calandra
