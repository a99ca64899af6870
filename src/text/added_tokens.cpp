#include "text/added_tokens.h"

#include "text/unicode.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

unsigned char byte_at(std::string_view bytes, std::size_t i) { return static_cast<unsigned char>(bytes[i]); }

bool touches_word(std::string_view before, std::string_view after) {
  if (!before.empty() && is_word_character(decode_utf8(last_character(before)))) return true;
  return !after.empty() && is_word_character(decode_utf8(after.substr(0, first_utf8_unit(after).size)));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), first_byte_(257) {
  std::ranges::stable_sort(tokens_, {}, &AddedToken::content);  // as unsigned bytes
  // Two may have the same normalized content: the first in the file stands.
  const auto same_content = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same_content), tokens_.end());
  for (const AddedToken& token : tokens_) ++first_byte_[byte_at(token.content, 0) + std::size_t{1}];
  for (std::size_t i = 1; i < first_byte_.size(); ++i) first_byte_[i] += first_byte_[i - 1];
}

/// Narrows the sorted tokens byte by byte to those that agree with the text.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t position) const {
  const std::size_t first = byte_at(text, position);
  auto begin = tokens_.begin() + first_byte_[first];
  auto end = tokens_.begin() + first_byte_[first + 1];
  const AddedToken* longest = nullptr;
  for (std::size_t depth = 1; begin != end; ++depth) {
    // A token that ends here sorts before those that go on.
    if (begin->content.size() == depth) longest = &*begin++;
    if (begin == end || position + depth == text.size()) break;
    const auto next_byte = [depth](const AddedToken& token) { return byte_at(token.content, depth); };
    const unsigned char wanted = byte_at(text, position + depth);
    begin = std::ranges::lower_bound(begin, end, wanted, {}, next_byte);
    end = std::ranges::upper_bound(begin, end, wanted, {}, next_byte);
  }
  return longest;
}

std::vector<TextSection> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextSection> sections;
  std::size_t done = 0;  // bytes before this are in a section
  const auto add_text_until = [&](std::size_t end) {
    if (done < end) sections.push_back({TextSection::kText, text.substr(done, end - done)});
  };
  for (std::size_t i = 0; i < text.size() && !tokens_.empty();) {
    const AddedToken* const token = longest_at(text, i);
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = i + token->content.size();
    i = end;
    if (token->single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (token->lstrip) begin -= trailing_white_space(text.substr(done, begin - done));
    if (token->rstrip) i = end += leading_white_space(text.substr(end));
    add_text_until(begin);
    sections.push_back({token->id, text.substr(begin, end - begin)});
    done = end;
  }
  add_text_until(text.size());
  return sections;
}

}  // namespace calandra
