#pragma once
// Opening a model for a command, with a progress bar where someone watches.

#include "cli/commands.h"
#include "engine/model.h"

#include <memory>
#include <string>

namespace calandra {

std::unique_ptr<Model> open_model(const ModelArguments& arguments, bool with_mtp = false);

/// What to call a model in a line of text: the folder's name, or owner/name as given.
std::string short_name(const std::string& folder_or_name);

/// All of a file, a pipe or, for "-", standard input. Throws Error that names it.
std::string read_input(const std::filesystem::path& file);

/// The same for a text; a note says so if it is not all UTF-8.
std::string read_text(const std::filesystem::path& file);

/// What to call that in a line of text: "standard input" for "-".
std::string input_name(const std::filesystem::path& file);

}  // namespace calandra
