#include "engine/model.h"

#include "base/error.h"
#include "base/mapped_file.h"

#include <algorithm>

namespace calandra {
namespace {

std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  if (!is_there(file)) return std::nullopt;
  return Tokenizer::load(file);
}

std::variant<ChatTemplate, Error> load_template(const std::filesystem::path& folder) {
  try {
    return ChatTemplate::load(folder);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

Model::Model(const std::string& folder_or_name, const ModelOptions& options, const Checkpoint::Progress& progress)
    : name_(folder_or_name),
      options_(options),
      checkpoint_(Checkpoint::open(locate_checkpoint(folder_or_name), options.overrides, progress)),
      threads_(options.threads),
      compute_(kernels_for(choose_isa()), threads_, options.activations, checkpoint_.config().fp8_power_of_two_activations),
      forward_(checkpoint_.config(), checkpoint_.weights(), compute_, options.with_mtp),
      tokenizer_(load_tokenizer(checkpoint_.folder())),
      chat_template_(load_template(checkpoint_.folder())) {
  if (tokenizer_ && static_cast<std::int64_t>(tokenizer_->vocab_size()) > config().vocab) {
    fail("{}: {} tokens, expected at most the vocab_size {} of config.json", (checkpoint_.folder() / "tokenizer.json").string(),
         tokenizer_->vocab_size(), config().vocab);
  }
}

const ChatTemplate& Model::chat_template() const {
  if (const Error* error = std::get_if<Error>(&chat_template_)) throw *error;
  return std::get<ChatTemplate>(chat_template_);
}

const Tokenizer& Model::tokenizer() const {
  if (!tokenizer_) fail("{}: no tokenizer.json, which text needs; token ids do not", checkpoint_.folder().string());
  return *tokenizer_;
}

std::int64_t Model::num_samplable() const {
  return tokenizer_ ? static_cast<std::int64_t>(tokenizer_->vocab_size()) : config().vocab;
}

}  // namespace calandra
