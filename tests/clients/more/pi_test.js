// The coding agent @mariozechner/pi-coding-agent, with the configuration of docs/clients.md: it lets the model call a tool, runs it, and sends back
// what it found, by each of the server's APIs.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { outputOf, section } from "../examples.js";
import { startServer } from "../server.js";

const folder = mkdtempSync(join(tmpdir(), "calandra-pi-"));
after(() => rmSync(folder, { recursive: true }));

/** The bundled model, but greedy unless a request says otherwise: the agent has no option for it. */
function greedyModel() {
  const bundled = fileURLToPath(new URL("../../../models/austen-5m", import.meta.url));
  const greedy = join(folder, "austen-5m");
  mkdirSync(greedy);
  for (const name of readdirSync(bundled)) if (name !== "generation_config.json") symlinkSync(join(bundled, name), join(greedy, name));
  writeFileSync(join(greedy, "generation_config.json"), JSON.stringify({ do_sample: false, eos_token_id: [2033, 2032] }));
  return greedy;
}

const server = await startServer(greedyModel());
const documented = /```json\n(.*?)\n```/s.exec(section("Pi"))[1];
const program = fileURLToPath(import.meta.resolve("@mariozechner/pi-coding-agent")).replace(/index\.js$/, "cli.js");

for (const [api, baseUrl, thinking] of [
  [null, server.v1, "off"], // as documented
  ["openai-completions", server.v1, "low"],
  ["anthropic-messages", server.origin, "low"],
]) {
  test(`the agent lists its folder, by ${api ?? "what is documented"}`, async () => {
    const config = JSON.parse(documented);
    Object.assign(config.providers.calandra, { baseUrl, api: api ?? config.providers.calandra.api });
    const home = join(folder, `agent-${api}`), work = join(folder, `work-${api}`);
    mkdirSync(home);
    mkdirSync(work);
    writeFileSync(join(home, "models.json"), JSON.stringify(config));
    writeFileSync(join(work, "notes.txt"), "");
    const output = await outputOf("node", [
      program, "--model", "calandra/austen-5m", "--thinking", thinking, "--tools", "bash", "--system-prompt", "You are an agent.",
      "--no-session", "--mode", "json", "-p", "Use bash with command ls.",
    ], { cwd: work, env: { ...process.env, PI_CODING_AGENT_DIR: home, PI_OFFLINE: "1", PI_TELEMETRY: "0" } });
    const messages = output.trim().split("\n").map((line) => JSON.parse(line))
      .filter(({ type }) => type === "message_end").map(({ message }) => message);
    assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "toolResult", "assistant"], output);
    const [, asked, result, last] = messages;
    const call = asked.content.find(({ type }) => type === "toolCall");
    assert.deepEqual([call.name, call.arguments], ["bash", { command: "ls" }]);
    assert.deepEqual([result.toolCallId, result.isError, result.content[0].text], [call.id, false, "notes.txt\n"]);
    assert.equal(last.stopReason, "stop");
    assert.ok(last.usage.input > asked.usage.input && last.usage.output > 0);
    assert.equal(asked.content.some(({ type }) => type === "thinking"), thinking !== "off");
  });
}
