// The npm packages `ai` and `@ai-sdk/openai-compatible`.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { all, answer, model as name, question, startServer, weather, weatherQuestion } from "../server.js";

const server = await startServer();
const provider = createOpenAICompatible({ name: "calandra", baseURL: server.v1, includeUsage: true, supportsStructuredOutputs: true });
const model = provider(name);
const asked = { model, prompt: question, temperature: 0, maxRetries: 0 };
const told = { model, prompt: "Tell me about Bath.", temperature: 0.9, seed: 7, maxOutputTokens: 80, maxRetries: 0 };
const tools = {
  get_weather: tool({
    description: "Get the current weather",
    inputSchema: z.object({ city: z.string().describe("City name") }),
    execute: async ({ city }) => ({ ...weather, city }),
  }),
};

test("a text is generated, with its reasoning and usage that adds up", async () => {
  const result = await generateText(asked);
  assert.equal(result.text, answer);
  assert.match(result.reasoningText, /told me/);
  assert.equal(result.finishReason, "stop");
  assert.equal(result.usage.totalTokens, result.usage.inputTokens + result.usage.outputTokens);
});

test("a stream says what the whole text says", async () => {
  for (const request of [asked, told]) {
    const whole = await generateText(request);
    const stream = streamText(request);
    const pieces = await all(stream.textStream);
    assert.ok(pieces.length > 3);
    assert.equal(pieces.join(""), whole.text);
    assert.equal(await stream.reasoningText, whole.reasoningText);
    const counts = ({ inputTokens, outputTokens, totalTokens, reasoningTokens, cachedInputTokens }) =>
      ({ inputTokens, outputTokens, totalTokens, reasoningTokens, cachedInputTokens });
    assert.deepEqual(counts(await stream.usage), counts(whole.usage));
  }
});

test("a tool is called, its result is read: whole and streamed", async () => {
  const request = { ...asked, prompt: weatherQuestion, tools, stopWhen: stepCountIs(3) };
  const whole = await generateText(request);
  assert.match(whole.text, /21.*Paris/);
  assert.deepEqual(whole.steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]), [["get_weather", { city: "Paris" }]]);
  const stream = streamText(request);
  assert.equal((await all(stream.textStream)).join(""), whole.text);
  assert.equal((await stream.steps).length, 2);
});

test("an object of a schema is generated: whole and streamed", async () => {
  const schema = z.object({ number: z.int().min(0).max(9999), kind: z.enum(["prime", "other"]) });
  const request = { ...asked, output: Output.object({ schema }), maxOutputTokens: 300 };
  const { output } = await generateText(request);
  assert.deepEqual(schema.parse(output), output);
  assert.equal(output.number, 4827);
  const stream = streamText(request);
  assert.deepEqual((await all(stream.partialOutputStream)).at(-1), output);
});

test("errors carry the server's words and status", async () => {
  await assert.rejects(generateText({ ...asked, temperature: 101 }), (error) =>
    APICallError.isInstance(error) && error.statusCode === 400 && /^temperature: found 101/.test(error.message) && !error.isRetryable);
  await assert.rejects(generateText({ ...asked, model: provider("gpt-5") }), (error) => error.statusCode === 404);
});

test("a stream that is aborted is no longer made", async () => {
  await server.endsWhatIsLeft(async () => {
    const abort = new AbortController();
    const { textStream } = streamText({
      ...told, maxOutputTokens: 20000, abortSignal: abort.signal, onError: () => {}, providerOptions: { calandra: { ignore_eos: true } },
    });
    for await (const _ of textStream) abort.abort();
  });
});
