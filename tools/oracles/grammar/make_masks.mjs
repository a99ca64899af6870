// Asks XGrammar for the masks along some texts of some grammars, with the vocabulary of the bundled model. See README.md.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const HERE = import.meta.dirname;
const ROOT = path.resolve(HERE, "../../..");
const require = createRequire(import.meta.url);
// The package's CommonJS file is named as if it were a module.
const packaged = path.join(HERE, "node_modules/@mlc-ai/web-xgrammar/lib/index.js");
const renamed = packaged.replace(/js$/, "cjs");
fs.copyFileSync(packaged, renamed);
const { TokenizerInfo, GrammarCompiler, GrammarMatcher } = require(renamed);

const GRAMMARS = {
  json: {
    text: `root ::= ws object
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
value ::= object | array | string | number | ("true" | "false" | "null") ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\\"" ([^"\\\\\\x00-\\x1F] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= [ \\n]{0,3}
`,
    examples: [`{"name": "A caf\u00e9 in \u6771\u4eac \u{1F600}", "n": [1, -2.5e+10, {"deep": null}], "t": true}`, `{\n "\\u00e9\\n": ""}`, `{}`],
  },
  sum: {
    text: `root ::= term (" + " term)* " = " [0-9]+ "\\n"
term ::= factor (" * " factor)*
factor ::= "(" term (" + " term)* ")" | [1-9] [0-9]{0,3} | name
name ::= [a-z] [a-z0-9_]*
`,
    examples: ["12 + (3 * the + x_1) * 4 = 99\n", "a = 1\n"],
  },
  words: {
    text: `root ::= ("the " | "then " | "there" [ ,])+ ([^a-z0-9\\n] | "." [^a])? end
end ::= "" | "\u4e2d\u56fd" [^\\x00-\\x7F]{1,4} | "\u00e9"? "!"{2,}
`,
    examples: ["the then there,the \u4e2d\u56fd\u4eba\u4eba", "there \u{1F600}\u00e9!!!", "the .\u00e9"],
  },
  nested: {
    text: `root ::= "a" root "b" | "ab" | list
list ::= "[" items? "]"
items ::= root | root ", " items
`,
    examples: ["aaaabbbb", "a[ab, [], [aabb, []]]b"],
  },
};

/// The byte of each character that stands for one in tokenizer.json.
const BYTE_OF = (() => {
  const printable = [];
  for (const [a, b] of [[33, 126], [161, 172], [174, 255]]) for (let i = a; i <= b; ++i) printable.push(i);
  const of = new Map(printable.map((b) => [String.fromCodePoint(b), b]));
  let next = 256;
  for (let b = 0; b < 256; ++b) if (!printable.includes(b)) of.set(String.fromCodePoint(next++), b);
  return of;
})();

const tokenizer = JSON.parse(fs.readFileSync(path.join(ROOT, "models/austen-5m/tokenizer.json"), "utf8"));
const vocab = [];
for (const [token, id] of Object.entries(tokenizer.model.vocab)) vocab[id] = token;
const bytes = vocab.map((token) => Buffer.from([...token].map((c) => BYTE_OF.get(c))));
const END = vocab.length;

/// Whether the bytes begin a text in UTF-8. XGrammar lets some bytes through that no such text has.
function isBegun(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes, { stream: true });
    return true;
  } catch {
    return false;
  }
}

function isWhole(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

function hash(ids) {
  let value = 0xcbf29ce484222325n; // FNV-1a over the ids, four bytes each
  for (const id of ids) {
    for (let shift = 0; shift < 32; shift += 8) value = ((value ^ BigInt((id >>> shift) & 255)) * 0x100000001b3n) & 0xffffffffffffffffn;
  }
  return value.toString(16).padStart(16, "0");
}

const info = await TokenizerInfo.createTokenizerInfo([...vocab, "</s>"], "byte_level", false, END + 1, [END]);
const compiler = await GrammarCompiler.createGrammarCompiler(info);
const cases = [];
for (const [name, { text, examples }] of Object.entries(GRAMMARS)) {
  const grammar = await compiler.compileGrammar(text, "root");
  const walks = [];
  for (const example of examples) {
    const matcher = await GrammarMatcher.createGrammarMatcher(grammar);
    const steps = [];
    let rest = Buffer.from(example);
    for (;;) {
      const mask = await matcher.getNextTokenBitmask();
      const ids = [];
      for (let id = 0; id < END; ++id) if ((mask[id >> 5] >>> (id & 31)) & 1 && isBegun(bytes[id])) ids.push(id);
      // Inside of a character nothing is compared.
      const step = isWhole(rest) ? { count: ids.length, hash: hash(ids), end: ((mask[END >> 5] >>> (END & 31)) & 1) === 1 } : {};
      steps.push(step);
      if (rest.length === 0) break;
      let best = -1;
      for (let id = 0; id < END; ++id) if (rest.subarray(0, bytes[id].length).equals(bytes[id]) && (best < 0 || bytes[id].length > bytes[best].length)) best = id;
      if (!matcher.acceptToken(best)) throw new Error(`${name}: refused ${vocab[best]} of ${example}`);
      step.token = best;
      rest = rest.subarray(bytes[best].length);
    }
    walks.push(steps);
  }
  cases.push({ name, text, num_tokens: END, walks });
  console.log(name, walks.map((w) => w.length).join(" "));
}
fs.writeFileSync(path.join(ROOT, "tests/data/grammar/masks.json"), `[\n${cases.map((c) => JSON.stringify(c)).join(",\n")}\n]\n`);
