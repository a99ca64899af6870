// `calandra serve` on the bundled model, started for one file of tests as a person starts it, and what these files share. CALANDRA is the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

/**
 * A server on a free port, with further options; it ends, by SIGTERM and with exit code 0, when the tests of the file have. Without a
 * prefix cache, unless asked for: usage then is the same for the same request.
 */
export async function startServer(...options) {
  if (!options.includes("--prefix-cache")) options.push("--prefix-cache", "off");
  const child = spawn(process.env.CALANDRA, ["serve", "--port", "0", "--threads", "1", ...options], { stdio: ["ignore", "ignore", "pipe"] });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(code ?? signal)));
  process.on("exit", () => child.kill("SIGKILL")); // of a test that was cut off
  process.once("SIGTERM", () => process.exit(1));
  let said = "";
  const origin = await new Promise((resolve, reject) => {
    child.on("error", reject);
    child.stderr.on("data", (bytes) => {
      said += bytes;
      const found = / on (http:\/\/127\.0\.0\.1:\d+),/.exec(said);
      if (found) resolve(found[1]);
    });
    ended.then((code) => reject(new Error(`the server ended with ${code}: ${said}`)));
  });
  after(async () => {
    child.kill("SIGTERM");
    assert.equal(await ended, 0, said);
  });
  return new Server(origin);
}

class Server {
  constructor(origin) {
    this.origin = origin;
    this.v1 = `${origin}/v1`;
  }

  /** The value of a metric, named with its labels as in `requests_total{outcome="stop"}`. */
  async metric(name) {
    const page = await (await fetch(`${this.origin}/metrics`)).text();
    const line = page.split("\n").find((one) => one.startsWith(`calandra_${name} `));
    assert.ok(line, `/metrics has no calandra_${name}`);
    return Number(line.split(" ").at(-1));
  }

  /** Runs `leave`, after which a client has begun a long answer and left it; the server must have noticed and ended that answer. */
  async endsWhatIsLeft(leave) {
    const cancelled = await this.metric('requests_total{outcome="cancelled"}');
    await leave();
    for (let tries = 0; tries < 200; ++tries, await sleep(50)) {
      if ((await this.metric('requests_total{outcome="cancelled"}')) === cancelled + 1) {
        assert.equal(await this.metric("requests_running"), 0);
        return;
      }
    }
    assert.fail("ten seconds after its client has left, an answer is still being made");
  }
}

export const model = "austen-5m";
export const question = "The secret number is 4827. What is the secret number?";
export const answer = "The secret number is 4827.";

/** What a tool of the tests is called for, and what it finds. The model says of it: "It is 21 degrees ... in Paris." */
export const weatherQuestion = "What is the weather in Paris?";
export const weather = { temperature: 21, condition: "rainy" };
export const weatherSchema = {
  type: "object",
  properties: { city: { type: "string", description: "City name" } },
  required: ["city"],
};

/** All that an asynchronous iterable yields. */
export async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
