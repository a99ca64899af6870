// The npm package `@anthropic-ai/sdk` with /v1/messages and /v1/messages/count_tokens.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { all, answer, model, question, startServer, weather, weatherQuestion, weatherSchema } from "./server.js";

const server = await startServer();
const caching = await startServer("--prefix-cache", "on");
const connect = (baseURL, apiKey) => new Anthropic({ baseURL, apiKey, authToken: null, maxRetries: 0 });
const client = connect(server.origin, "none");
const asked = { model, max_tokens: 200, temperature: 0, messages: [{ role: "user", content: question }] };
const told = { model, max_tokens: 80, temperature: 0.9, seed: 7, messages: [{ role: "user", content: "Tell me about Bath." }] };
const thinking = { thinking: { type: "enabled", budget_tokens: 100 } };
const endless = { ...told, max_tokens: 20000, ignore_eos: true };
const tools = [{ name: "get_weather", description: "Get the current weather", input_schema: weatherSchema }];

/** A message without what differs between two of them, ids, and without what the package adds. */
function comparable({ id, content, parsed_output, stop_details, ...rest }) {
  return { ...rest, content: content.map(({ id, parsed_output, ...block }) => block) };
}

test("a message is answered, with and without thinking", async () => {
  const plain = await client.messages.create(asked);
  assert.deepEqual(plain.content, [{ type: "text", text: answer }]);
  assert.equal(plain.stop_reason, "end_turn");
  const thought = await client.messages.create({ ...asked, ...thinking });
  assert.deepEqual(thought.content.map(({ type }) => type), ["thinking", "text"]);
  assert.match(thought.content[0].thinking, /told me/);
  assert.equal(thought.content[1].text, answer);
  assert.ok(thought.usage.output_tokens > plain.usage.output_tokens);
});

test("counted tokens are those of the answer's prompt", async () => {
  for (const more of [{}, thinking, { system: "Be brief." }, { tools }]) {
    const { usage } = await client.messages.create({ ...asked, ...more });
    const { model, messages, system, tools, thinking } = { ...asked, ...more };
    const { input_tokens: counted } = await client.messages.countTokens({ model, messages, system, tools, thinking });
    assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens);
  }
});

test("what a request has marked the next one finds, and both are told so", async () => {
  const { messages } = connect(caching.origin, "none");
  const system = [{ type: "text", text: "Be brief and polite, and never talk about the weather.", cache_control: { type: "ephemeral" } }];
  const ask = (content) => ({ model, max_tokens: 1, system, messages: [{ role: "user", content }] });
  const { usage: first } = await messages.create(ask("Who are you?"));
  const { usage: second } = await messages.stream(ask("What is your name?")).finalMessage();
  assert.ok(first.cache_creation_input_tokens > 0);
  assert.equal(first.cache_read_input_tokens, 0);
  assert.equal(second.cache_creation_input_tokens, 0);
  assert.equal(second.cache_read_input_tokens, first.cache_creation_input_tokens);
});

test("a stream says what the whole message says", async () => {
  for (const request of [{ ...asked, ...thinking }, told, { ...asked, messages: [{ role: "user", content: weatherQuestion }], tools }]) {
    const whole = await client.messages.create(request);
    const stream = client.messages.stream(request);
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const events = await all(stream);
    assert.deepEqual(comparable(await stream.finalMessage()), comparable(whole));
    assert.equal(text, whole.content.filter((block) => block.type === "text").map((block) => block.text).join(""));
    assert.ok(events.filter(({ type }) => type === "content_block_delta").length > whole.content.length);
    const raw = await all(await client.messages.create({ ...request, stream: true }));
    assert.deepEqual(raw.map(({ type }) => type), events.map(({ type }) => type));
  }
});

test("a tool is called, its result is read, with the blocks sent back as they came", async () => {
  const messages = [{ role: "user", content: weatherQuestion }];
  const request = { ...asked, ...thinking, tools, messages };
  const call = await client.messages.stream(request).finalMessage();
  assert.equal(call.stop_reason, "tool_use");
  const use = call.content.at(-1);
  assert.deepEqual([use.type, use.name, use.input], ["tool_use", "get_weather", { city: "Paris" }]);
  messages.push({ role: "assistant", content: call.content });
  messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: JSON.stringify(weather) }] });
  const last = await client.messages.create(request);
  assert.match(last.content.at(-1).text, /21.*Paris/);
});

test("a tool is called, its result is read: by the package's runner, whole and streamed", async () => {
  for (const stream of [false, true]) {
    const calls = [];
    const runner = client.beta.messages.toolRunner({
      ...asked,
      messages: [{ role: "user", content: weatherQuestion }],
      stream,
      tools: [betaZodTool({
        name: "get_weather",
        description: "Get the current weather",
        inputSchema: z.object({ city: z.string().describe("City name") }),
        run: (given) => (calls.push(given), JSON.stringify(weather)),
      })],
    });
    const last = await runner.runUntilDone();
    assert.match(last.content.at(-1).text, /21.*Paris/);
    assert.deepEqual(calls, [{ city: "Paris" }]);
  }
});

test("structured output parses and validates", async () => {
  // The package takes bounds of numbers and texts out of a schema: without them this model does not end.
  const found = z.object({ kind: z.enum(["prime", "other"]), digits: z.literal([3, 4]), isNumber: z.boolean() });
  const request = { ...asked, max_tokens: 300, output_config: { format: zodOutputFormat(found) } };
  const { parsed_output: parsed } = await client.messages.parse(request);
  assert.deepEqual(found.parse(parsed), parsed);
  assert.deepEqual((await client.messages.stream(request).finalMessage()).parsed_output, parsed);
});

test("an answer ends where it is told to", async () => {
  const cut = await client.messages.create({ ...told, max_tokens: 5 });
  assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ["max_tokens", 5]);
  const stopped = await client.messages.create({ ...asked, stop_sequences: ["number"] });
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text], ["stop_sequence", "number", "The secret "]);
});

test("errors are of the types that the package has for them", async () => {
  const create = (more) => client.messages.create({ ...asked, ...more });
  for (const [more, field] of [
    [{ max_tokens: 0 }, "max_tokens"],
    [{ temperature: "hot" }, "temperature"],
    [{ messages: [{ role: "system", content: "x" }] }, "messages[0].role"],
    [{ mcp_servers: [{}] }, "mcp_servers"],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(create({ ...more, stream }), (error) => {
        assert.ok(error instanceof Anthropic.BadRequestError, String(error));
        assert.equal(error.type, "invalid_request_error");
        assert.ok(error.error.error.message.startsWith(`${field}: `), error.message);
        assert.match(error.requestID, /./);
        return true;
      });
    }
  }
  await assert.rejects(create({ model: "gpt-5" }), (error) => error instanceof Anthropic.NotFoundError && error.type === "not_found_error");
  await assert.rejects(client.messages.batches.list(), Anthropic.NotFoundError);
});

test("a key is asked for, in either header", async () => {
  const locked = await startServer("--api-key", "secret");
  await assert.rejects(connect(locked.origin, "wrong").messages.create(asked), (error) =>
    error instanceof Anthropic.AuthenticationError && error.type === "authentication_error");
  assert.equal((await connect(locked.origin, "secret").messages.create(asked)).content[0].text, answer);
  const bearer = new Anthropic({ baseURL: locked.origin, apiKey: null, authToken: "secret" });
  assert.equal((await bearer.messages.create(asked)).content[0].text, answer);
});

test("a stream that its reader leaves is no longer made", async () => {
  await server.endsWhatIsLeft(async () => {
    for await (const event of await client.messages.create({ ...endless, stream: true })) {
      if (event.type === "content_block_delta") break;
    }
  });
  await server.endsWhatIsLeft(async () => {
    const stream = client.messages.stream(endless);
    stream.on("text", () => stream.abort());
    await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  });
});

test("a whole reply that takes too long for its client is no longer made", async () => {
  await server.endsWhatIsLeft(() => assert.rejects(client.messages.create(endless, { timeout: 1000 }), Anthropic.APIConnectionTimeoutError));
});

test("the models are listed", async () => {
  assert.deepEqual((await all(client.models.list())).map(({ id }) => id), [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});
