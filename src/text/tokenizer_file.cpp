#include "text/tokenizer_file.h"

#include "base/error.h"
#include "text/json_view.h"
#include "text/unicode.h"

#include <simdjson.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace calandra {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;  // keeps a wild id from taking all memory

/// The byte alphabet: each byte has a visible character, itself where Latin-1 has one, else the next from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    char32_t next = 0x100;
    for (std::int16_t byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t character = visible ? static_cast<char32_t>(byte) : next++;
      bytes_[character] = byte;
      append_utf8(character, spellings_[static_cast<std::size_t>(byte)]);
    }
  }

  const std::string& spelling(std::size_t byte) const { return spellings_[byte]; }

  /// The bytes that `spelling` stands for; none if a character of it is not in the alphabet.
  std::optional<std::string> bytes(std::string_view spelling) const {
    std::string bytes;
    for (std::size_t i = 0; i < spelling.size();) {
      const Utf8Unit unit = first_utf8_unit(spelling.substr(i));
      if (unit.kind != Utf8Unit::Kind::Complete) return std::nullopt;
      const char32_t character = decode_utf8(spelling.substr(i, unit.size));
      if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(bytes_[character]));
      i += unit.size;
    }
    return bytes;
  }

 private:
  std::array<std::int16_t, 0x144> bytes_;  // by character
  std::array<std::string, 256> spellings_;
};

using IdsBySpelling = std::unordered_map<std::string_view, std::int32_t>;

/// Reads "model" and "added_tokens" into tokens and merges.
class VocabularyReader {
 public:
  VocabularyReader(const JsonView& root, const JsonView& model) : root_(root), model_(model) {}

  void read(TokenizerFile& file) {
    read_vocab(file.tokens);
    read_byte_ids(file.byte_ids);
    read_merges(file.merges);
    read_added_tokens(file.tokens, file.added_tokens);
  }

 private:
  static std::int32_t checked_id(std::int64_t id, std::string_view path, std::string_view token) {
    if (id < 0 || id >= kMaxTokens) {
      fail("{}: token \"{}\": found id {}, expected 0 to {}", path, printable(token), id, kMaxTokens - 1);
    }
    return static_cast<std::int32_t>(id);
  }

  void read_vocab(std::vector<TokenizerFile::Token>& tokens) {
    const JsonView vocab = model_.at("vocab");
    const simdjson::dom::object entries = vocab.as_object();
    ids_.reserve(2 * entries.size());
    for (const auto [spelling, value] : entries) {
      std::int64_t number = 0;
      if (value.get(number) != simdjson::SUCCESS)
        fail("{}: token \"{}\": expected an integer id", vocab.path(), printable(spelling));
      const std::int32_t id = checked_id(number, vocab.path(), spelling);
      if (!ids_.emplace(spelling, id).second) fail("{}: token \"{}\" is there twice", vocab.path(), printable(spelling));
      if (static_cast<std::size_t>(id) >= tokens.size()) tokens.resize(static_cast<std::size_t>(id) + 1);
      TokenizerFile::Token& token = tokens[static_cast<std::size_t>(id)];
      if (token.kind != TokenizerFile::Token::Kind::None) {
        fail("{}: token \"{}\": id {} is that of another token", vocab.path(), printable(spelling), id);
      }
      std::optional<std::string> bytes = alphabet_.bytes(spelling);
      token.kind = bytes ? TokenizerFile::Token::Kind::Plain : TokenizerFile::Token::Kind::Other;
      token.bytes = bytes ? *std::move(bytes) : std::string(spelling);
    }
  }

  void read_byte_ids(std::array<std::int32_t, 256>& byte_ids) const {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(alphabet_.spelling(byte));
      if (found == ids_.end()) {
        fail("{}: no token \"{}\" for byte {}, expected one for each byte", model_.at("vocab").path(), alphabet_.spelling(byte),
             byte);
      }
      byte_ids[byte] = found->second;
    }
  }

  /// The two tokens of a merge: "a b" or ["a", "b"].
  static std::optional<std::pair<std::string_view, std::string_view>> merge_pair(simdjson::dom::element merge) {
    std::string_view left, right;
    simdjson::dom::array pair;
    if (merge.get(left) == simdjson::SUCCESS) {
      const std::size_t space = left.find(' ');
      if (space == std::string_view::npos || left.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
      return std::pair(left.substr(0, space), left.substr(space + 1));
    }
    if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
        pair.at(1).get(right) != simdjson::SUCCESS) {
      return std::nullopt;
    }
    return std::pair(left, right);
  }

  void read_merges(std::vector<Bpe::Merge>& merges) const {
    const JsonView list = model_.at("merges");
    std::string joined;
    const auto id_of = [&](std::string_view spelling) {
      const auto found = ids_.find(spelling);
      if (found == ids_.end())
        fail("{}[{}]: token \"{}\" is not in model.vocab", list.path(), merges.size(), printable(spelling));
      return found->second;
    };
    for (const simdjson::dom::element element : list.as_array()) {
      const auto pair = merge_pair(element);
      if (!pair) fail("{}[{}]: expected \"left right\" or [\"left\", \"right\"]", list.path(), merges.size());
      joined.assign(pair->first).append(pair->second);
      merges.push_back({id_of(pair->first), id_of(pair->second), id_of(joined)});
    }
  }

  static AddedToken added_token(const JsonView& entry) {
    AddedToken token;
    token.content = lossy_utf8(entry.string_at("content"));
    if (token.content.empty()) fail("{}.content: found nothing, expected a text", entry.path());
    token.id = checked_id(entry.at("id").as_int(), entry.path(), token.content);
    token.single_word = entry.bool_at("single_word", false);
    token.lstrip = entry.bool_at("lstrip", false);
    token.rstrip = entry.bool_at("rstrip", false);
    token.special = entry.bool_at("special", false);
    token.normalized = entry.bool_at("normalized", !token.special);
    return token;
  }

  void read_added_tokens(std::vector<TokenizerFile::Token>& tokens, std::vector<AddedToken>& added_tokens) {
    const std::optional<JsonView> list = root_.find("added_tokens");
    if (!list) return;
    for (const JsonView& entry : list->elements()) {
      AddedToken added = added_token(entry);
      const auto [known, is_new] = ids_.emplace(entry.string_at("content"), added.id);
      if (known->second != added.id) {
        fail("{}.id: found {} for \"{}\", which has id {} elsewhere", entry.path(), added.id, printable(added.content),
             known->second);
      }
      if (static_cast<std::size_t>(added.id) >= tokens.size()) tokens.resize(static_cast<std::size_t>(added.id) + 1);
      TokenizerFile::Token& token = tokens[static_cast<std::size_t>(added.id)];
      if (is_new && token.kind != TokenizerFile::Token::Kind::None) {
        fail("{}.id: found {} for \"{}\", the id of another token", entry.path(), added.id, printable(added.content));
      }
      token = {TokenizerFile::Token::Kind::Other, added.content};
      added_tokens.push_back(std::move(added));
    }
  }

  const JsonView& root_;
  const JsonView& model_;
  ByteAlphabet alphabet_;
  IdsBySpelling ids_;
};

/// Refuses settings of the model that would change what encoding gives.
void check_model(const JsonView& model) {
  if (const std::string_view type = model.string_at("type"); type != "BPE") {
    fail("{}.type: model \"{}\" is not implemented, expected \"BPE\"", model.path(), printable(type));
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::optional<JsonView> affix = model.find(key);
    if (affix && !affix->as_string().empty()) fail("{}: \"{}\" is not implemented", affix->path(), printable(affix->as_string()));
  }
  if (model.bool_at("byte_fallback", false)) fail("{}.byte_fallback: true is not implemented", model.path());
  if (const std::optional<JsonView> dropout = model.find("dropout"); dropout && dropout->as_number() != 0) {
    fail("{}: {} is not implemented, expected null", dropout->path(), dropout->as_number());
  }
}

/// A post-processor only adds tokens around a text, which we never do; one that could do more is refused.
void check_post_processor(const JsonView& config) {
  const std::string_view type = config.string_at("type");
  if (type == "Sequence") {
    for (const JsonView& part : config.at("processors").elements()) check_post_processor(part);
  } else if (type != "ByteLevel" && type != "TemplateProcessing" && type != "BertProcessing" && type != "RobertaProcessing") {
    fail("{}.type: post-processor \"{}\" is not implemented", config.path(), printable(type));
  }
}

void check_decoder(const JsonView& config) {
  if (const std::string_view type = config.string_at("type"); type != "ByteLevel") {
    fail("{}.type: decoder \"{}\" is not implemented, expected \"ByteLevel\"", config.path(), printable(type));
  }
}

}  // namespace

TokenizerFile TokenizerFile::parse(std::string_view json, std::string_view where) {
  simdjson::dom::parser parser;
  simdjson::dom::element document;
  if (const auto error = parser.parse(json.data(), json.size()).get(document); error != simdjson::SUCCESS) {
    fail("{}: not a JSON document: {}", where, simdjson::error_message(error));
  }
  const JsonView root(document, std::string(where));
  const JsonView model = root.at("model");
  check_model(model);
  if (const auto post_processor = root.find("post_processor")) check_post_processor(*post_processor);
  if (const auto decoder = root.find("decoder")) check_decoder(*decoder);
  const std::optional<JsonView> normalizer = root.find("normalizer");
  TokenizerFile file{.tokens = {},
                     .added_tokens = {},
                     .normalizer = normalizer ? Normalizer(*normalizer) : Normalizer(),
                     .pre_tokenizer = PreTokenizer(root.at("pre_tokenizer")),
                     .byte_ids = {},
                     .merges = {},
                     .ignore_merges = model.bool_at("ignore_merges", false)};
  VocabularyReader(root, model).read(file);
  return file;
}

}  // namespace calandra
