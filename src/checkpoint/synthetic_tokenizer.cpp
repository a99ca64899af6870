#include "checkpoint/synthetic_tokenizer.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

namespace calandra {
namespace {

// Frequent pieces of English and of code, in about the order in which training would find them. Letters first, so that
// words share their parts.
constexpr std::string_view kParts =
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea ra ce "
    "li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em "
    "ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op wo sa ay "
    "ex ke ui fr oo ag if av ay bo go da do gi up by my cl qu ck "
    "ing ion tion ent ter ate ment ness able ally ous ive ers est ist ity ful less ism ence ance ical ation ction ight ough ould "
    "ight ound ever other self ward ship hood like";
constexpr std::string_view kWords =
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you were all "
    "her she there would their we him been has when who will no more if out so up said what its about than into them can only "
    "other time new some could these two may first then do any like my now over such our man me even most made after also did "
    "many off before must well back through years much where your way down should because long each just state those people too "
    "how little good world make very year still see own work men day get here old between both under life never know same last "
    "another while us might great go come since against right came take used himself few house during without again place "
    "around however home small found thought went say part once high general upon school every number number course system set "
    "point water hand head fact want something public put eye asked side find line using give light word group war always until "
    "power large possible name less better room often hour night answer question example problem code model data token layer "
    "state value key query cache memory test file function return result error string list object class import include void int "
    "const auto float double bool true false null none self def for while if else switch case break continue struct namespace "
    "using public private template type size count index length begin end first last next open close read write print input "
    "output user system assistant tool call name text content message role think thinking detailed weather city get city unit "
    "please help write explain describe summary translate language English Chinese French German Spanish Paris London Tokyo "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April June July August September October "
    "November December morning evening today tomorrow yesterday week month hundred thousand million percent money price cost "
    "company market business government country city street river mountain garden letter story book page paper picture music "
    "song movie game player team friend family mother father brother sister child children woman women girl boy king queen "
    "doctor teacher student science history nature animal horse bird fish tree flower sun moon star earth sky sea fire wind "
    "rain snow summer winter spring autumn red blue green yellow black white happy sad young beautiful strong quick slow early "
    "late easy hard important different special available according together though although perhaps almost already enough "
    "really quite rather indeed certainly";
// Spaces are written as they are: these are whole pieces of the pre-tokenizer.
constexpr std::string_view kMarks[] = {
    "SYSTEM", "HUMAN",  "ASSISTANT", "OBSERVATION", "  ",     "    ",   "        ", "\n\n",   "\r\n",   "\n\n\n", ", ",
    " (",     " {",     " [",        " \"",         " '",     "()",     "();",      ");",     ").",     "),",     "{}",
    "[]",     "[0",     " =",        " ==",         " !=",    " <=",    " >=",      " +",     " -",     " *",     " /",
    " &&",    " ||",    " ->",       "->",          "::",     "//",     " //",      "/*",     "*/",     "--",     "...",
    ".\n",    ";\n",    ":\n",       "{\n",         "}\n",    " {\n",   ",\n",      "\":",    "\",",    "\": ",   "</",
    "/>",     "'s",     "'t",        "'re",         "'ve",    "'ll",    "'m",       "'d",     "\u2019", "\u2018", "\u201c",
    "\u201d", "\u2013", "\u2014",    "\u2026",      "\u00e9", "\u00e8", "\u00e0",   "\u00fc", "\u00f6", "\u00e4", "\u00df",
    "\u00f1", "\u00e7", "\u4e00",    "\u7684",      "\u4e2d", "\u56fd", "\u4eba",   "\u5927", "\u662f", "\u4e0d", "\u6211",
    "\u4f60", "\u597d", "\uff0c",    "\u3002"};

constexpr const char* kSplitPattern =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Collects merges so that every piece taught becomes one token, and no token is made twice.
class MergeBuilder {
 public:
  explicit MergeBuilder(std::size_t count) : count_(count) {}

  bool full() const { return merges_.size() >= count_; }
  const std::vector<std::pair<std::string, std::string>>& merges() const { return merges_; }

  /// Merges what earlier merges leave of `piece`, from the left.
  void teach(const std::string& piece) {
    while (!full()) {
      const std::vector<std::string> tokens = encode(piece);
      if (tokens.size() < 2 || !add(tokens[0], tokens[1])) return;
    }
  }

  /// False if another merge makes the same token.
  bool add(const std::string& left, const std::string& right) {
    if (!made_.insert(left + right).second) return false;
    ranks_.emplace(key(left, right), merges_.size());
    merges_.emplace_back(left, right);
    return true;
  }

 private:
  // Byte 0 is in none of the pieces.
  static std::string key(const std::string& left, const std::string& right) { return left + '\0' + right; }

  std::vector<std::string> encode(const std::string& piece) const {
    std::vector<std::string> tokens;
    for (const char c : piece) tokens.emplace_back(1, c);
    while (true) {
      std::size_t best_rank = merges_.size(), best = 0;
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto found = ranks_.find(key(tokens[i], tokens[i + 1]));
        if (found != ranks_.end() && found->second < best_rank) best_rank = found->second, best = i;
      }
      if (best_rank == merges_.size()) return tokens;
      tokens[best] += tokens[best + 1];
      tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

  std::size_t count_;
  std::vector<std::pair<std::string, std::string>> merges_;
  std::unordered_map<std::string, std::size_t> ranks_;
  std::unordered_set<std::string> made_;
};

bool only_letters(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

/// Words of the vocabulary so far (with or without a leading space) followed by pieces of words, short sums of ranks first.
void add_combinations(MergeBuilder& builder) {
  std::vector<std::string> left, right;
  for (const auto& [a, b] : builder.merges()) {
    const std::string token = a + b;
    const bool spaced = token[0] == ' ';
    if (!only_letters(std::string_view(token).substr(spaced ? 1 : 0))) continue;
    left.push_back(token);
    if (!spaced) right.push_back(token);
  }
  for (std::size_t sum = 0; sum < left.size() + right.size() && !builder.full(); ++sum) {
    for (std::size_t r = 0; r <= std::min(sum, right.size() - 1) && !builder.full(); ++r) {
      if (sum - r < left.size()) builder.add(left[sum - r], right[r]);
    }
  }
}

std::string utf8(unsigned code_point) {  // below U+0800
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

bool is_printable(unsigned byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

/// GPT-2's table: a byte as a printable character, itself where it is one, else from U+0100 on.
const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> characters;
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) characters[byte] = utf8(is_printable(byte) ? byte : next++);
    return characters;
  }();
  return table;
}

std::string byte_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_characters()[static_cast<unsigned char>(c)];
  return text;
}

std::string quoted(const std::string& text) { return dump_json(text); }

nlohmann::ordered_json added_token_entry(const LingToken& token) {
  return {{"content", token.text}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},       {"normalized", false},  {"special", token.special}};
}

/// The part that is large: {"type": "BPE", ..., "vocab": {...}, "merges": [...]}, written as text because an object of 157,000
/// ordered keys would be searched at every insertion.
std::string bpe_model(std::int64_t base) {
  std::string out =
      R"({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, )"
      R"("fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {)";
  std::int64_t id = 0;
  const auto add_vocab = [&](const std::string& text) {
    fmt::format_to(std::back_inserter(out), "{}{}: {}", id == 0 ? "" : ",\n", quoted(text), id);
    ++id;
  };
  // Ids of bytes as in GPT-2: printable ones first.
  for (unsigned byte = 0; byte < 256; ++byte)
    if (is_printable(byte)) add_vocab(byte_characters()[byte]);
  for (unsigned byte = 0; byte < 256; ++byte)
    if (!is_printable(byte)) add_vocab(byte_characters()[byte]);
  const auto merges = synthetic_merges(base - 256);
  for (const auto& [left, right] : merges) add_vocab(byte_text(left) + byte_text(right));
  out += "},\n\"merges\": [";
  const char* separator = "";
  for (const auto& [left, right] : merges) {
    out += separator;
    out += quoted(byte_text(left) + " " + byte_text(right));
    separator = ",\n";
  }
  out += "]}";
  return out;
}

}  // namespace

const std::vector<LingToken>& ling_added_tokens() {
  // From id 156891 in the released models; those after </think> and the reserved ones are at places of our choice.
  // clang-format off
  static const std::vector<LingToken> tokens = {
      {"<|startoftext|>", true}, {"<|endoftext|>", true}, {"[CLS]", true}, {"[gMASK]", true}, {"<|role_end|>", true},
      {"<tool_call>"}, {"</tool_call>"},
      {"<|reserved_0|>", true}, {"<|reserved_1|>", true}, {"<|reserved_2|>", true}, {"<|reserved_3|>", true}, {"<|reserved_4|>", true},
      {"<think>"}, {"</think>"}, {"<role>"}, {"</role>"}, {"<arg_key>"}, {"</arg_key>"}, {"<arg_value>"}, {"</arg_value>"},
      {"<tool_response>"}, {"</tool_response>"}, {"<tools>"}, {"</tools>"}};
  // clang-format on
  return tokens;
}

std::int64_t min_synthetic_vocab() { return 256 + static_cast<std::int64_t>(ling_added_tokens().size()); }

std::int64_t base_vocab(std::int64_t vocab) {
  if (vocab < min_synthetic_vocab()) fail("vocab_size {}: a synthetic tokenizer needs at least {}", vocab, min_synthetic_vocab());
  return vocab >= kLingVocab ? kLingBaseVocab : vocab - static_cast<std::int64_t>(ling_added_tokens().size());
}

std::int64_t added_token_id(std::string_view text, std::int64_t vocab) {
  const auto& tokens = ling_added_tokens();
  const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const LingToken& token) { return token.text == text; });
  if (found == tokens.end()) fail("{}: not one of Ling's added tokens", text);
  return base_vocab(vocab) + (found - tokens.begin());
}

std::vector<std::pair<std::string, std::string>> synthetic_merges(std::int64_t count) {
  MergeBuilder builder(static_cast<std::size_t>(count));
  const std::vector<std::string> words = split_words(kWords);
  for (const std::string& part : split_words(kParts)) builder.teach(part);
  for (char letter = 'a'; letter <= 'z'; ++letter) builder.teach({' ', letter});
  for (const std::string& word : words) builder.teach(" " + word);
  for (const std::string_view mark : kMarks) builder.teach(std::string(mark));
  for (const std::string& word : words) {
    builder.teach(word);
    std::string capital = word;
    if (capital[0] >= 'a') capital[0] = static_cast<char>(capital[0] - 'a' + 'A');
    builder.teach(capital);
    builder.teach(" " + capital);
  }
  add_combinations(builder);
  if (!builder.full()) fail("a vocabulary with {} merges: at most {} can be made", count, builder.merges().size());
  return builder.merges();
}

std::string tokenizer_json(std::int64_t vocab) {
  using nlohmann::ordered_json;
  ordered_json added = ordered_json::array();
  for (const LingToken& token : ling_added_tokens()) {
    ordered_json entry;
    entry["id"] = added_token_id(token.text, vocab);
    entry.update(added_token_entry(token));
    added.push_back(std::move(entry));
  }
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json split = {{"type", "Split"},
                              {"pattern", ordered_json::object({{"Regex", kSplitPattern}})},
                              {"behavior", "Isolated"},
                              {"invert", false}};
  const ordered_json pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}};
  return fmt::format(
      "{{\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": {},\n\"normalizer\": null,\n\"pre_tokenizer\": {},\n"
      "\"post_processor\": null,\n\"decoder\": {},\n\"model\": {}}}\n",
      dump_json(added), dump_json(pre_tokenizer), dump_json(byte_level), bpe_model(base_vocab(vocab)));
}

std::string tokenizer_config_json(std::int64_t vocab, std::int64_t context) {
  nlohmann::ordered_json decoder;
  for (const LingToken& token : ling_added_tokens()) {
    decoder[std::to_string(added_token_id(token.text, vocab))] = added_token_entry(token);
  }
  const nlohmann::ordered_json config = {
      {"added_tokens_decoder", decoder},       {"add_bos_token", false},      {"add_eos_token", false},
      {"bos_token", "<|startoftext|>"},        {"eos_token", "<|role_end|>"}, {"pad_token", "<|endoftext|>"},
      {"clean_up_tokenization_spaces", false}, {"model_max_length", context}, {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return dump_json(config, 2) + "\n";
}

}  // namespace calandra
