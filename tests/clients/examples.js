// The examples of docs/clients.md, run as they stand there but for the server's address.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { startServer } from "./server.js";

const text = readFileSync(new URL("../../docs/clients.md", import.meta.url), "utf8");

/** The section below a heading. */
export function section(heading) {
  const [, body] = text.split(`\n## ${heading}\n`);
  assert.ok(body, `docs/clients.md has no section ${heading}`);
  return body.split("\n## ")[0];
}

/** The standard output of a command, which may say nothing on standard error and must end with 0. */
export async function outputOf(program, args, options = {}) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
  const said = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"]) child[name].setEncoding("utf8").on("data", (piece) => (said[name] += piece));
  const code = await new Promise((resolve, reject) => child.on("error", reject).on("close", resolve));
  assert.deepEqual({ code, stderr: said.stderr }, { code: 0, stderr: "" }, said.stdout);
  return said.stdout;
}

/** One test for each example of these sections, which needs the packages of the folder that the tests run in: it prints what docs/clients.md says. */
export async function testExamples(...headings) {
  const server = await startServer();
  for (const heading of headings) {
    const examples = [...section(heading).matchAll(/```js\n(.*?)\n```\n\n```\n(.*?)\n```/gs)];
    assert.ok(examples.length, `no example below ${heading}`);
    for (const [i, [, code, printed]] of examples.entries()) {
      test(`docs/clients.md, ${heading}, example ${i + 1}`, async () => {
        const output = await outputOf("node", ["--input-type=module", "--eval", code.replaceAll("http://127.0.0.1:8080", server.origin)]);
        assert.equal(output.trim(), printed);
      });
    }
  }
}
