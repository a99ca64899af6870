#pragma once
// Places in a conversation that a client expects to come back to. It marks a block; which token of the prompt that is the template
// decides, which may write blocks in another order than the API has them and put anything between them.

#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace calandra {

/// The end of a block.
struct ChatMark {
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  std::size_t tools = 0;     // not 0: of the tool before which there are one less
  std::size_t messages = 0;  // else the last of so many messages, of which there are
  std::size_t parts = kAll;  //   so many parts of the content
  std::size_t calls = kAll;  //   and so many calls
};

/// Positions in `prompt`, which are the tokens of `chat`, ascending, each once. Up to there a conversation that goes on differently has
/// the same tokens. A mark on what the template does not show has none. Takes as long as rendering and encoding the conversation up to
/// each mark.
std::vector<std::int64_t> positions_of(std::span<const ChatMark> marks, const ChatRequest& chat,
                                       std::span<const std::int32_t> prompt, const ChatPrompt& rendered,
                                       const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace calandra
