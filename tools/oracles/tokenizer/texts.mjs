// Texts to tokenize: fixed ones for each thing that has gone wrong somewhere, and random ones from a seed.

export const FIXED = [
  "", " ", "  ", "\n", "\r\n", "\t", "\u0000", "a", " a", "a  b", "x\n\n  y", "12345", "3.14159", "1,000,000",
  "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
  "I'm, you're, he'S, we'LL, they'Ve 'tis don't I'd I'D'd",
  "Elizabeth was  very   happy;\tMr. Darcy\r\n\r\nwas not.   \n  \n ",
  "它是一个真理，凡是有钱的单身汉，总想娶位太太。你好，世界！１２３ 一二三",
  "日本語のテキスト、カタカナとひらがな。한국어 텍스트도 있습니다.",
  "Съешь же ещё этих мягких французских булок, да выпей чаю. Ζαφείρι δέξου πάγκαλο",
  "مرحبا بالعالم ١٢٣ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
  "int main(int argc, char** argv) {\n  for (int i = 0; i < 10; ++i) {\n\tprintf(\"%d\\n\", i);\n  }\n  return 0;\n}\n",
  "def f(x):\n    return {k: v**2 for k, v in x.items() if v != 0x1F}\n\n\nclass A(B): pass  # TODO",
  "SELECT * FROM t WHERE a='b' AND c<>\"d\";--x\n<a href=\"https://example.org/?q=1&r=2#z\">link</a>",
  "😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ ✅ ☃ \u2705\ufe0f",
  "e\u0301 \u00e9 e\u0327\u0301 q\u0307\u0323 q\u0323\u0307 \u1e9b\u0323 \ufb01 ﷺ Å \u212b \u1100\u1161\u11a8 각 ①②½ ǆ",
  "a\u0300\u0301\u0302\u0303\u0304b \u0300 \u0344 \u0958 \u2126 \u1fee",
  "\u00a0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000|\u180e|\u200b\ufeff|\u0085\u000b\u000c|\u001c\u001f",
  "a\u180eb \u180e\u180e c \u180e", "x\u0085\u0085y \u0085\n z", "I'\u017fx 'K \u212a I'\u017f", "İstanbul ISTANBUL ıi ΣΑΣ ς",
  "<|startoftext|><|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>\n<think></think>", "<think", "<<think>>",
  "<think>\n\nhm </think>\n\n<tool_call>f<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>", "a<think>b<think >c< think>",
  "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>", "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>",
  "\uFFFD \uFFFE \uFFFF \u{10FFFF} \u{E0001} \uE000",
  " leading and trailing ", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "                                                                                         x",
  "\n\n\n\n\n\n\n\n\n\n\n\n \n \n \n\t\n", "----------------------------------------========####", "!?!?...,,,;;;:::'''\"\"\"```",
  "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis the the the The THE tHe",
  "word word_word wordWord word-word word.word word's words' 'word' 2words words2",
];

/// A generator of random whole numbers below n, the same on every machine.
export function random(seed) {
  let state = seed >>> 0;
  return (n) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
  };
}

// Assigned since Unicode 11 or before: the libraries here know different versions of Unicode, and none younger matters.
const BLOCKS = [
  [0x0000, 0x024f], [0x0250, 0x036f], [0x0370, 0x0377], [0x0384, 0x038a], [0x03a3, 0x0487], [0x05d0, 0x05ea],
  [0x0610, 0x061a], [0x0620, 0x06ff], [0x0904, 0x0950], [0x0958, 0x097f], [0x0985, 0x098c], [0x0e01, 0x0e3a],
  [0x0f40, 0x0f47], [0x0f71, 0x0f7d], [0x1100, 0x11ff], [0x1680, 0x169c], [0x16a0, 0x16f0], [0x1780, 0x17b3],
  [0x1800, 0x180e], [0x1810, 0x1819], [0x1d00, 0x1dbf], [0x1e00, 0x1f15], [0x1f80, 0x1fb4], [0x2000, 0x2064],
  [0x20d0, 0x20f0], [0x2100, 0x218b], [0x2190, 0x23ff], [0x2460, 0x2b73], [0x2e80, 0x2e99], [0x3000, 0x303f],
  [0x3041, 0x3096], [0x3099, 0x30ff], [0x3131, 0x318e], [0x3400, 0x3500], [0x4e00, 0x9fa5], [0xa000, 0xa48c],
  [0xac00, 0xd7a3], [0xe000, 0xe010], [0xf900, 0xfa6d], [0xfb00, 0xfb06], [0xfb1d, 0xfb36], [0xfb50, 0xfbb1],
  [0xfe00, 0xfe0f], [0xfe20, 0xfe2f], [0xfe30, 0xfe52], [0xff01, 0xffbe], [0xfff9, 0xfffd], [0x10000, 0x1000b],
  [0x10280, 0x1029c], [0x1d165, 0x1d169], [0x1d400, 0x1d454], [0x1d7ce, 0x1d7ff], [0x1f300, 0x1f64f],
  [0x1f680, 0x1f6c5], [0x1f910, 0x1f93a], [0x20000, 0x20100], [0x2f800, 0x2fa1d], [0xe0100, 0xe01ef],
];
const SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e"];
const WORDS = ("the of and to a in that it was he for on with as his they at be this from have or by one had not but what all " +
  "were when we there can an your which their said if do will each about how up out them then she many some so these would " +
  "Elizabeth Darcy however sentiment civility acquaintance return function const std::vector self.assertEqual i++ != == => " +
  "don't I'll we've it's HTTP/1.1 0x7f 3.5e-7 1234567890 你好 世界 模型 推理 。 ， привет мир 日本 안녕 é ü naïve 😀 👍🏽 … — “quoted”").split(" ");

function pick(next, list) { return list[next(list.length)]; }

function characters(next, count, blocks) {
  let text = "";
  for (let i = 0; i < count; ++i) {
    const [first, last] = pick(next, blocks);
    text += String.fromCodePoint(first + next(last - first + 1));
  }
  return text;
}

const KINDS = [
  (next) => Array.from({ length: 1 + next(30) }, () => pick(next, WORDS)).join(" "),
  (next) => Array.from({ length: 1 + next(30) }, () => pick(next, WORDS) + pick(next, SPACES)).join(""),
  (next) => characters(next, 1 + next(60), [[0x20, 0x7e]]),
  (next) => characters(next, 1 + next(60), [[0x00, 0x7f]]),
  (next) => characters(next, 1 + next(40), BLOCKS),
  (next) => characters(next, 1 + next(40), [pick(next, BLOCKS), [0x61, 0x7a], [0x300, 0x345]]),
  (next) => Array.from({ length: 1 + next(20) }, () => pick(next, SPACES)).join("") + characters(next, next(4), BLOCKS),
  (next) => pick(next, WORDS).repeat(1 + next(20)) + pick(next, SPACES).repeat(next(40)) + pick(next, WORDS),
  (next, added) => Array.from({ length: 1 + next(8) }, () => pick(next, [pick(next, added), pick(next, WORDS), pick(next, SPACES),
    pick(next, added).slice(0, -1), " " + pick(next, added), pick(next, added) + " "])).join(""),
];

/// Random texts with `added`, the contents of added tokens, strewn in.
export function randomTexts(seed, count, added) {
  const next = random(seed);
  const marks = added.length > 0 ? added : ["<none>"];
  return Array.from({ length: count }, () => pick(next, KINDS)(next, marks));
}

/// Random bytes, and well-formed text with bytes changed, lost or doubled.
export function randomBytes(seed, count) {
  const next = random(seed);
  const texts = randomTexts(seed + 1, count, []);
  return texts.map((text, index) => {
    if (index % 2 === 0) return Buffer.from(Array.from({ length: next(40) }, () => (next(3) ? next(256) : 0x20 + next(0x5f))));
    const bytes = [...Buffer.from(text)];
    for (let n = 1 + next(4); n > 0 && bytes.length > 0; --n) bytes.splice(next(bytes.length), next(2), ...Array(next(3)).fill(next(256)));
    return Buffer.from(bytes);
  });
}
