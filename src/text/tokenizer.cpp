#include "text/tokenizer.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/piece_cache.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

namespace calandra {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 31;  // positions within a piece have 32 bits

/// The added tokens that are looked for in the same text, spelled as they are found there.
AddedTokenFinder finder_of(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer) {
  std::vector<AddedToken> chosen;
  RegexScratch scratch;
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    AddedToken copy = token;
    if (normalized) copy.content = normalizer.normalize(token.content, scratch);
    if (!copy.content.empty()) chosen.push_back(std::move(copy));
  }
  return AddedTokenFinder(std::move(chosen));
}

}  // namespace

Vocabulary::Vocabulary(const TokenizerFile& file) {
  spans_.reserve(file.tokens.size());
  for (const TokenizerFile::Token& token : file.tokens) {
    spans_.push_back({bytes_.size(), static_cast<std::uint32_t>(token.bytes.size())});
    bytes_.insert(bytes_.end(), token.bytes.begin(), token.bytes.end());
  }
}

struct Tokenizer::Scratch {
  RegexScratch regex;
  PreTokenizer::Scratch pre_tokenizer;
  Bpe::Scratch bpe;
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view where) { return Tokenizer(TokenizerFile::parse(json, where)); }

Tokenizer::Tokenizer(TokenizerFile file)
    : vocabulary_(file),
      added_tokens_(std::move(file.added_tokens)),
      raw_finder_(finder_of(added_tokens_, false, file.normalizer)),
      normalized_finder_(finder_of(added_tokens_, true, file.normalizer)),
      normalizer_(std::move(file.normalizer)),
      pre_tokenizer_(std::move(file.pre_tokenizer)),
      bpe_(file.byte_ids, file.merges),
      ignore_merges_(file.ignore_merges) {
  plain_ids_.reserve(file.tokens.size());
  for (std::int32_t id = 0; id < vocabulary_.size(); ++id) {
    const bool is_plain = file.tokens[static_cast<std::size_t>(id)].kind == TokenizerFile::Token::Kind::Plain;
    if (is_plain) plain_ids_.emplace(vocabulary_.bytes(id), id);
  }
  for (const AddedToken& token : added_tokens_) {
    if (token.special) special_ids_.push_back(token.id);
  }
  std::ranges::sort(special_ids_);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::string replaced;
  if (!is_valid_utf8(text)) {
    replaced = lossy_utf8(text);
    text = replaced;
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 1);
  Scratch scratch;
  PieceCache cache(text.size());
  for (const TextSection& raw : raw_finder_.split(text)) {
    if (raw.id != TextSection::kText) {
      ids.push_back(raw.id);
      continue;
    }
    const std::string normal = normalizer_.empty() ? std::string() : normalizer_.normalize(raw.text, scratch.regex);
    for (const TextSection& section : normalized_finder_.split(normalizer_.empty() ? raw.text : std::string_view(normal))) {
      if (section.id != TextSection::kText) {
        ids.push_back(section.id);
      } else {
        encode_text(section.text, scratch, cache, ids);
      }
    }
  }
  return ids;
}

/// Encodes normalized text without added tokens.
void Tokenizer::encode_text(std::string_view text, Scratch& scratch, PieceCache& cache, std::vector<std::int32_t>& ids) const {
  if (text.size() > kMaxTextBytes) fail("text to tokenize: found {} bytes, expected at most {}", text.size(), kMaxTextBytes);
  pre_tokenizer_.split(text, scratch.regex, scratch.pre_tokenizer);
  for (const std::string_view piece : scratch.pre_tokenizer.pieces) {
    cache.encode(piece, ids, [&](std::vector<std::int32_t>& out) {
      const auto whole = ignore_merges_ ? plain_ids_.find(piece) : plain_ids_.end();
      if (whole != plain_ids_.end()) {
        out.push_back(whole->second);
      } else {
        bpe_.encode(piece, scratch.bpe, out);
      }
    });
  }
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view bytes) const {
  const auto added = std::ranges::find(added_tokens_, bytes, &AddedToken::content);
  if (added != added_tokens_.end()) return added->id;
  const auto plain = plain_ids_.find(bytes);
  if (plain == plain_ids_.end()) return std::nullopt;
  return plain->second;
}

bool Tokenizer::is_special(std::int32_t id) const { return std::ranges::binary_search(special_ids_, id); }

}  // namespace calandra
