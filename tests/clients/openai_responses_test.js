// The npm package `openai` with /v1/responses.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import * as z from "zod";
import { all, answer, model, question, startServer, weather, weatherQuestion, weatherSchema } from "./server.js";

const server = await startServer();
const client = new OpenAI({ baseURL: server.v1, apiKey: "none", maxRetries: 0 });
const asked = { model, input: question, temperature: 0, store: false };
const told = { model, input: "Tell me about Bath.", temperature: 0.9, seed: 7, max_output_tokens: 80 };
const endless = { ...told, max_output_tokens: 20000, ignore_eos: true };

/** A response without what differs between two of them, ids and times, and without what the package adds. */
function comparable({ id, created_at, completed_at, output, output_text, output_parsed, ...rest }) {
  return { ...rest, output: output.map(({ id, call_id, parsed_arguments, ...item }) => item) };
}

test("a text is answered, with its reasoning and usage that adds up", async () => {
  const reply = await client.responses.create(asked);
  assert.equal(reply.status, "completed");
  assert.equal(reply.output_text, answer);
  assert.deepEqual(reply.output.map(({ type }) => type), ["reasoning", "message"]);
  assert.match(reply.output[0].content[0].text, /told me/);
  assert.equal(reply.usage.total_tokens, reply.usage.input_tokens + reply.usage.output_tokens);
  assert.ok(reply.usage.output_tokens_details.reasoning_tokens > 0);

  const short = await client.responses.create({ ...asked, reasoning: { effort: "none" } });
  assert.deepEqual(short.output.map(({ type }) => type), ["message"]);
});

test("a stream says what the whole response says, event by event and at its end", async () => {
  for (const request of [asked, told]) {
    const whole = await client.responses.create(request);
    const events = await all(await client.responses.create({ ...request, stream: true }));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
    const deltas = (type) => events.filter((event) => event.type === type).map(({ delta }) => delta).join("");
    assert.equal(deltas("response.output_text.delta"), whole.output_text);
    assert.equal(deltas("response.reasoning_text.delta"), whole.output[0].content[0].text);
    assert.equal(events.at(-1).type, `response.${whole.status}`);
    assert.deepEqual(comparable(events.at(-1).response), comparable(whole));
  }
});

test("the package's own stream puts the whole response together", async () => {
  const whole = await client.responses.create(told);
  const stream = client.responses.stream(told);
  let snapshot = "";
  stream.on("response.output_text.delta", (event) => (snapshot = event.snapshot));
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.equal(snapshot, whole.output_text);
  assert.deepEqual(final.usage, whole.usage);
});

test("a tool is called, its result is read, with the items sent back as they came", async () => {
  const tools = [{ type: "function", name: "get_weather", description: "Get the current weather", parameters: weatherSchema, strict: true }];
  const input = [{ role: "user", content: weatherQuestion }];
  const final = await client.responses.stream({ ...asked, input, tools }).finalResponse();
  const whole = await client.responses.create({ ...asked, input, tools });
  assert.deepEqual(comparable(final), comparable(whole));
  const call = whole.output.find(({ type }) => type === "function_call");
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Paris" }]);
  input.push(...whole.output, { type: "function_call_output", call_id: call.call_id, output: JSON.stringify(weather) });
  assert.match((await client.responses.create({ ...asked, input, tools })).output_text, /21.*Paris/);
});

test("structured output parses and validates", async () => {
  const found = z.object({ number: z.int().min(0).max(9999), kind: z.enum(["prime", "other"]) });
  const request = { ...asked, max_output_tokens: 300, text: { format: zodTextFormat(found, "found") } };
  const { output_parsed: parsed } = await client.responses.parse(request);
  assert.deepEqual(found.parse(parsed), parsed);
  assert.equal(parsed.number, 4827);
  assert.deepEqual((await client.responses.stream(request).finalResponse()).output_parsed, parsed);
});

test("a response that is cut off is incomplete", async () => {
  const reply = await client.responses.create({ ...told, max_output_tokens: 20 });
  assert.deepEqual([reply.status, reply.incomplete_details, reply.usage.output_tokens], ["incomplete", { reason: "max_output_tokens" }, 20]);
});

test("errors are of the types that the package has for them", async () => {
  for (const [more, param] of [
    [{ temperature: "hot" }, "temperature"],
    [{ previous_response_id: "resp_1" }, "previous_response_id"],
    [{ input: [{ type: "item_reference", id: "x" }] }, "input[0].type"],
    [{ tools: [{ type: "web_search" }] }, "tools[0].type"],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(client.responses.create({ ...asked, ...more, stream }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError, String(error));
        assert.deepEqual([error.type, error.param], ["invalid_request_error", param]);
        return true;
      });
    }
  }
  await assert.rejects(client.responses.create({ ...asked, model: "gpt-5" }), OpenAI.NotFoundError);
  await assert.rejects(client.responses.retrieve("resp_1"), OpenAI.NotFoundError);
});

test("a stream that its reader leaves is no longer made", async () => {
  await server.endsWhatIsLeft(async () => {
    for await (const event of await client.responses.create({ ...endless, stream: true })) {
      if (event.type === "response.output_text.delta") break;
    }
  });
  await server.endsWhatIsLeft(async () => {
    const stream = client.responses.stream(endless);
    stream.on("response.output_text.delta", () => stream.abort());
    await assert.rejects(stream.done(), OpenAI.APIUserAbortError);
  });
});
