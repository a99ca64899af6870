// Asks ajv which documents fit some schemas. See README.md.

import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import fs from "node:fs";
import path from "node:path";

import { KEYS, LARGE, NUMBERS, SCHEMAS, STRINGS } from "./schemas.mjs";

const OUT = path.resolve(import.meta.dirname, "../../../tests/data/grammar/cases.json");
const PER_SCHEMA = 60; // of each verdict, at most

let seed = 1;
const random = (n) => {
  seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
  return Math.floor((seed / 2 ** 32) * n);
};
let numbers = NUMBERS;
const pick = (list) => list[random(list.length)];

/// Something that often fits: it follows the schema where that says something.
function make(schema, root, depth) {
  if (typeof schema === "boolean" || random(8) === 0 || depth > 6) return anyValue(depth);
  if (schema.$ref) return make(schema.$ref.split("/").slice(1).reduce((at, key) => at[key], root), root, depth);
  if (schema.anyOf) return make(pick(schema.anyOf), root, depth);
  if (schema.allOf) return Object.assign({}, ...schema.allOf.map((s) => make({ type: "object", ...s }, root, depth)));
  if (schema.enum) return pick(schema.enum);
  if ("const" in schema) return schema.const;
  if (schema.properties) {
    const names = Object.keys(schema.properties).filter((n) => (schema.required ?? []).includes(n) || random(3) === 0);
    if (random(4) === 0) names.push(pick(KEYS));
    for (let i = names.length - 1; i > 0; --i) {
      const j = random(i + 1);
      [names[i], names[j]] = [names[j], names[i]];
    }
    return Object.fromEntries(names.map((n) => [n, make(schema.properties[n] ?? schema.additionalProperties ?? true, root, depth + 1)]));
  }
  if (schema.items || schema.prefixItems) {
    return Array.from({ length: random(6) }, (_, i) => make(schema.prefixItems?.[i] ?? schema.items, root, depth + 1));
  }
  const type = Array.isArray(schema.type) ? pick(schema.type) : schema.type;
  if (type === "integer") return pick(NUMBERS.filter(Number.isInteger));
  if (type === "number") return pick(numbers);
  if (type === "boolean") return pick([true, false]);
  if (type === "null") return null;
  return pick(STRINGS);
}

function anyValue(depth) {
  const kind = random(depth > 3 ? 5 : 7);
  if (kind === 0) return null;
  if (kind === 1) return pick([true, false]);
  if (kind === 2) return pick(numbers);
  if (kind <= 4) return pick(STRINGS);
  if (kind === 5) return Array.from({ length: random(4) }, () => anyValue(depth + 1));
  return Object.fromEntries(Array.from({ length: random(4) }, () => [pick(KEYS), anyValue(depth + 1)]));
}

const ajv = new Ajv2020({ strict: false, allErrors: false });
addFormats(ajv, { mode: "full" });
const result = [];
for (const [name, schema] of Object.entries(SCHEMAS)) {
  const validate = ajv.compile(schema);
  numbers = JSON.stringify(schema).includes("integer") ? NUMBERS : [...NUMBERS, ...LARGE];
  const accepted = new Set(), rejected = new Set();
  const add = (value) => {
    const into = validate(value) ? accepted : rejected;
    if (into.size < PER_SCHEMA) into.add(JSON.stringify(value));
  };
  if (name === "formats") {
    for (const key of Object.keys(schema.properties)) for (const s of STRINGS) add({ [key]: s });
  }
  for (let i = 0; i < 20000 && (accepted.size < PER_SCHEMA || rejected.size < PER_SCHEMA); ++i) add(make(schema, schema, 0));
  result.push({ name, schema, accepted: [...accepted], rejected: [...rejected] });
  console.log(name, accepted.size, rejected.size);
}
// Every string against every format.
const formats = [];
for (const format of Object.values(SCHEMAS.formats.properties).map((p) => p.format)) {
  const validate = ajv.compile({ type: "string", format });
  formats.push({ format, accepted: STRINGS.filter((s) => validate(s)), rejected: STRINGS.filter((s) => !validate(s)) });
}
const lines = result.map((r) => JSON.stringify(r)).join(",\n");
fs.writeFileSync(OUT, `{"schemas": [\n${lines}\n],\n"formats": [\n${formats.map((f) => JSON.stringify(f)).join(",\n")}\n]}\n`);
