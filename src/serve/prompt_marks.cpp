#include "serve/prompt_marks.h"

#include "base/error.h"
#include "base/json.h"
#include "base/sort_unique.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace calandra {
namespace {

/// What follows may make another token of the last bytes before it: so much of it is encoded with them.
constexpr std::size_t kBytesBeyond = 256;

/// What no tool is called and no text begins with: line ends, which would be part of a token before them, and a private character.
constexpr const char* kNothing = "\n\n\xEE\x80\x80";

Json first_of(const Json& array, std::size_t count) {
  Json first = Json::array();
  for (std::size_t i = 0; i < std::min(count, array.size()); ++i) first.push_back(array[i]);
  return first;
}

/// The conversation as it would be if it ended with the block, without what asks for an answer.
ChatRequest up_to(const ChatMark& mark, const ChatRequest& chat) {
  ChatRequest cut;
  cut.tools = chat.tools;
  cut.thinking = chat.thinking;
  cut.template_kwargs = chat.template_kwargs;
  cut.add_generation_prompt = false;
  if (mark.tools > 0) {
    cut.messages = chat.messages;
    cut.tools = first_of(chat.tools, mark.tools);
    return cut;
  }
  cut.messages = first_of(chat.messages, mark.messages);
  Json& last = cut.messages.back();
  if (const auto content = last.find("content"); content != last.end() && content->is_array())
    *content = first_of(*content, mark.parts);
  if (const auto calls = last.find("tool_calls"); calls != last.end() && calls->is_array() && mark.calls < calls->size()) {
    *calls = first_of(*calls, mark.calls);
    if (calls->empty()) last.erase("tool_calls");
  }
  return cut;
}

/// Whether more parts follow in the same message.
bool is_inside(const ChatMark& mark, const ChatRequest& chat) {
  if (mark.messages == 0) return false;
  const Json& message = chat.messages[mark.messages - 1];
  return message.contains("content") && message["content"].is_array() && mark.parts < message["content"].size();
}

class MarkFinder {
 public:
  MarkFinder(std::span<const std::int32_t> prompt, std::string_view text, const ChatTemplate& chat_template,
             const Tokenizer& tokenizer)
      : prompt_(prompt), text_(text), template_(chat_template), tokenizer_(tokenizer) {}

  /// Tokens that the prompt and the other conversation begin with; 0 for one that the template refuses.
  std::int64_t common_with(const ChatRequest& other) const {
    std::string text;
    try {
      text = template_.render(other).text;
    } catch (const Error&) {
      return 0;
    }
    const auto parting = static_cast<std::size_t>(std::ranges::mismatch(text_, text).in1 - text_.begin());
    std::size_t end = std::min(text.size(), parting + kBytesBeyond);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    const std::vector<std::int32_t> tokens = tokenizer_.encode(std::string_view(text).substr(0, end));
    return std::ranges::mismatch(prompt_, tokens).in1 - prompt_.begin();
  }

 private:
  std::span<const std::int32_t> prompt_;
  std::string_view text_;
  const ChatTemplate& template_;
  const Tokenizer& tokenizer_;
};

}  // namespace

std::vector<std::int64_t> positions_of(std::span<const ChatMark> marks, const ChatRequest& chat,
                                       std::span<const std::int32_t> prompt, const ChatPrompt& rendered,
                                       const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const MarkFinder finder(prompt, rendered.text, chat_template, tokenizer);
  std::vector<std::int64_t> positions;
  for (const ChatMark& mark : marks) {
    if (mark.tools > chat.tools.size()) continue;  // the choice hides them
    ChatRequest other = up_to(mark, chat);
    std::int64_t position = finder.common_with(other);
    // The block ends where another one would begin. That shows only if another one does: what follows the last tool is always the same,
    // and a text may begin like what the template writes behind another.
    if (mark.tools > 0) {
      other.tools.push_back({{"type", "function"}, {"function", {{"name", kNothing}}}});
      position = std::min(position, finder.common_with(other));
    } else if (is_inside(mark, chat)) {
      other.messages.back()["content"].push_back({{"type", "text"}, {"text", kNothing}});
      position = std::min(position, finder.common_with(other));
    }
    if (position > 0) positions.push_back(position);
  }
  sort_unique(positions);
  return positions;
}

}  // namespace calandra
