// Changes to the bundled tokenizer.json, one for each thing such a file can ask for.

const byteLevel = (more) => ({ type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false, ...more });
const split = (pattern, behavior, invert = false) => ({ type: "Split", pattern, behavior, invert });
const sequence = (...pretokenizers) => ({ type: "Sequence", pretokenizers });
const added = (id, content, more) =>
  ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...more });

const DEEPSEEK = sequence(
  split({ Regex: "\\p{N}{1,3}" }, "Isolated"),
  split({ Regex: "[一-龥\u3040-ゟ゠-ヿ]+" }, "Isolated"),
  split({ Regex: "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" +
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" }, "Isolated"),
  byteLevel());

export function variants() {
  const list = [];
  const add = (name, changes) => list.push({ name, changes });
  for (const type of ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]) add(type, { normalizer: { type } });
  add("Strip", { normalizer: { type: "Strip", strip_left: true, strip_right: false } });
  add("Prepend", { normalizer: { type: "Prepend", prepend: "the " } });
  add("Replace text", { normalizer: { type: "Replace", pattern: { String: "a" }, content: "(A)" } });
  add("Replace pattern", { normalizer: { type: "Replace", pattern: { Regex: "\\s+|[0-9]" }, content: "_" } });
  add("Sequence of normalizers", { normalizer: { type: "Sequence", normalizers: [{ type: "NFKD" }, { type: "Lowercase" },
    { type: "Strip", strip_left: true, strip_right: true }] } });
  for (const behavior of ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]) {
    add(behavior, { pre_tokenizer: sequence(split({ Regex: "[ e]" }, behavior), byteLevel()) });
    add(behavior + ", inverted", { pre_tokenizer: sequence(split({ Regex: "[^ e]" }, behavior, true), byteLevel()) });
    add(behavior + ", text", { pre_tokenizer: sequence(split({ String: "th" }, behavior), byteLevel()) });
  }
  add("empty matches", { pre_tokenizer: sequence(split({ Regex: "(?=t)|n?" }, "MergedWithNext"), byteLevel()) });
  add("look-behind and lines", { pre_tokenizer: sequence(split({ Regex: "(?<=a)[a-z]?$|^.|(?<!e) " }, "Isolated"), byteLevel()) });
  add("classes of white space", { pre_tokenizer: sequence(split({ Regex: "[\\s\\p{P}]+|[^\\S\\n]|\\S{2,3}" }, "Isolated"), byteLevel()) });
  add("scripts", { pre_tokenizer: sequence(split({ Regex: "\\p{Han}+|\\p{Greek}|\\P{Latin}" }, "Contiguous"), byteLevel()) });
  add("case folding", { pre_tokenizer: sequence(split({ Regex: "(?i:s|THE|k)" }, "Isolated"), byteLevel()) });
  add("deepseek", { pre_tokenizer: DEEPSEEK });
  add("ByteLevel alone", { pre_tokenizer: byteLevel({ use_regex: true }) });
  add("ByteLevel with prefix space", { pre_tokenizer: byteLevel({ use_regex: true, add_prefix_space: true }) });
  add("Digits", { pre_tokenizer: sequence({ type: "Digits", individual_digits: false }, byteLevel({ add_prefix_space: true })) });
  add("single Digits", { pre_tokenizer: sequence({ type: "Digits", individual_digits: true }, byteLevel({ use_regex: true })) });
  add("ignore_merges", { model: { ignore_merges: true, merges: ["Ġ t", "h e"] } });
  add("merges as pairs", { model: { merges: [["Ġ", "t"], ["h", "e"], ["Ġt", "he"], ["Ġ", "a"]] } });
  add("flags of added tokens", { normalizer: { type: "NFKC" }, added_tokens: [
    added(2031, "the", { single_word: true }), added(2032, "<think>", { lstrip: true }), added(2033, "</think>", { rstrip: true }),
    added(2034, "wo", { normalized: true }), added(2035, "word", { normalized: true, special: true }),
    added(2036, "\ufb01", { normalized: true }), added(64, "a", { single_word: true, lstrip: true, rstrip: true, normalized: true }),
    added(2037, "<thin"), added(2038, "世界"), added(2039, " x", { lstrip: true })] });
  return list;
}
