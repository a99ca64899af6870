// The npm package `openai` with /v1/chat/completions, /v1/completions and /v1/models: streams say what whole replies say, tools and structured
// output make their round trip, errors are of the types that the package has for them, and who aborts is noticed.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import * as z from "zod";
import { all, answer, model, question, startServer, weather, weatherQuestion, weatherSchema } from "./server.js";

const server = await startServer();
const client = new OpenAI({ baseURL: server.v1, apiKey: "none", maxRetries: 0 });
const caching = await startServer("--prefix-cache", "on");
const asked = { model, messages: [{ role: "user", content: question }], temperature: 0 };
const told = { model, messages: [{ role: "user", content: "Tell me about Bath." }], temperature: 0.9, seed: 7, max_tokens: 80 };
const endless = { ...told, max_tokens: 20000, ignore_eos: true };

/// Usage without what depends on how fast the server was: how many tokens it guessed.
const counts = ({ completion_tokens_details: { accepted_prediction_tokens, rejected_prediction_tokens, ...details }, ...usage }) => {
  assert.ok(accepted_prediction_tokens >= 0 && accepted_prediction_tokens < usage.completion_tokens && rejected_prediction_tokens >= 0);
  return { ...usage, details };
};

test("a chat is answered, with its reasoning and usage that adds up", async () => {
  const reply = await client.chat.completions.create(asked);
  const [choice] = reply.choices;
  assert.equal(choice.message.content, answer);
  assert.match(choice.message.reasoning_content, /told me/);
  assert.equal(choice.finish_reason, "stop");
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.ok(reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens);
  assert.match(reply._request_id, /./);

  const short = await client.chat.completions.create({ ...asked, reasoning_effort: "none" });
  assert.equal(short.choices[0].message.content, answer);
  assert.equal(short.usage.completion_tokens_details.reasoning_tokens, 0);
});

test("what is up to a breakpoint is found by a request that goes on differently, under the same salt alone", async () => {
  const cached = new OpenAI({ baseURL: caching.v1, apiKey: "none", maxRetries: 0 });
  const text = "Be brief and polite, and never talk about the weather.";
  const system = { role: "system", content: [{ type: "text", text, prompt_cache_breakpoint: { mode: "explicit" } }] };
  const ask = async (content, cache_salt) => {
    const messages = [system, { role: "user", content }];
    const { usage } = await cached.chat.completions.create({ model, max_tokens: 1, prompt_cache_key: "a", cache_salt, messages });
    return usage.prompt_tokens_details;
  };
  assert.equal((await ask("Who are you?", "one")).cached_tokens, 0);
  const found = await ask("What is your name?", "one");
  assert.ok(found.cached_tokens > 0 && found.cache_write_tokens > 0);
  assert.equal((await ask("What is your name?", "two")).cached_tokens, 0);
});

test("what an earlier request has computed is counted as cached and changes nothing", async () => {
  const cached = new OpenAI({ baseURL: caching.v1, apiKey: "none", maxRetries: 0 });
  const [first, again] = [await cached.chat.completions.create(told), await cached.chat.completions.create(told)];
  assert.equal(first.usage.prompt_tokens_details.cached_tokens, 0);
  assert.equal(again.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens - 1);
  assert.deepEqual(again.choices, first.choices);
});

test("a stream says what the whole reply says", async () => {
  for (const request of [asked, told]) {
    const whole = await client.chat.completions.create(request);
    const chunks = await all(await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } }));
    const joined = (key) => chunks.map((chunk) => chunk.choices[0]?.delta[key] ?? "").join("");
    assert.ok(chunks.length > 5, "pieces come as they are made");
    assert.equal(joined("content"), whole.choices[0].message.content);
    assert.equal(joined("reasoning_content"), whole.choices[0].message.reasoning_content);
    assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
    assert.deepEqual(counts(chunks.at(-1).usage), counts(whole.usage));
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  }
});

test("the package's own stream puts the whole reply together", async () => {
  const whole = await client.chat.completions.create(told);
  const stream = client.chat.completions.stream({ ...told, stream_options: { include_usage: true } });
  let heard = "";
  stream.on("content", (delta) => (heard += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(heard, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  assert.deepEqual(counts(final.usage), counts(whole.usage));
});

test("choices of one request are those of their own seeds, and a stream mixes none of them up", async () => {
  const whole = await client.chat.completions.create({ ...told, n: 3 });
  const chunks = await all(await client.chat.completions.create({ ...told, n: 3, stream: true }));
  const texts = ["", "", ""];
  for (const { choices: [choice] } of chunks) texts[choice.index] += choice.delta.content ?? "";
  assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
  assert.equal(new Set(texts).size, 3);
});

test("log probabilities belong to the text", async () => {
  const reply = await client.chat.completions.create({ ...asked, reasoning_effort: "none", logprobs: true, top_logprobs: 3 });
  const tokens = reply.choices[0].logprobs.content;
  assert.equal(tokens.map(({ token }) => token).join(""), answer);
  assert.equal(Buffer.from(tokens.flatMap(({ bytes }) => bytes)).toString(), answer);
  for (const { token, logprob, top_logprobs: top } of tokens) {
    assert.equal(top.length, 3);
    assert.equal(top[0].token, token); // temperature 0
    assert.equal(top[0].logprob, logprob);
    assert.ok(top.reduce((sum, one) => sum + Math.exp(one.logprob), 0) <= 1.000001);
  }
});

const tools = [{ type: "function", function: { name: "get_weather", description: "Get the current weather", parameters: weatherSchema } }];

test("a tool is called, its result is read: whole", async () => {
  const messages = [{ role: "user", content: weatherQuestion }];
  const call = await client.chat.completions.create({ ...asked, messages, tools });
  assert.equal(call.choices[0].finish_reason, "tool_calls");
  const [toolCall] = call.choices[0].message.tool_calls;
  assert.deepEqual([toolCall.function.name, JSON.parse(toolCall.function.arguments)], ["get_weather", { city: "Paris" }]);
  messages.push(call.choices[0].message, { role: "tool", tool_call_id: toolCall.id, content: JSON.stringify(weather) });
  const last = await client.chat.completions.create({ ...asked, messages, tools });
  assert.match(last.choices[0].message.content, /21.*Paris/);
});

test("a tool is called, its result is read: by the package's runner, streamed", async () => {
  const calls = [];
  const runner = client.chat.completions.runTools({
    ...asked,
    messages: [{ role: "user", content: weatherQuestion }],
    stream: true,
    tools: [{
      type: "function",
      function: { ...tools[0].function, parse: JSON.parse, function: (given) => (calls.push(given), weather) },
    }],
  });
  assert.match(await runner.finalContent(), /21.*Paris/);
  assert.deepEqual(calls, [{ city: "Paris" }]);
});

test("a tool that is demanded is called, one that is forbidden is not", async () => {
  const messages = [{ role: "user", content: "Tell me about Bath." }];
  const demanded = await client.chat.completions.create({ ...asked, messages, tools, tool_choice: "required", max_tokens: 200 });
  assert.equal(demanded.choices[0].message.tool_calls[0].function.name, "get_weather");
  const forbidden = await client.chat.completions.create({ ...told, tools, tool_choice: "none" });
  assert.equal(forbidden.choices[0].message.tool_calls, undefined);
});

const found = z.object({ number: z.int().min(0).max(9999), kind: z.enum(["prime", "other"]) });
const bounded = { ...asked, max_tokens: 1000, response_format: zodResponseFormat(found, "found") };

test("structured output parses and validates", async () => {
  const reply = await client.chat.completions.parse(bounded);
  const { parsed } = reply.choices[0].message;
  assert.deepEqual(found.parse(parsed), parsed);
  assert.equal(parsed.number, 4827);

  const stream = client.chat.completions.stream(bounded);
  assert.deepEqual((await stream.finalChatCompletion()).choices[0].message.parsed, parsed);
});

test("structured output that is cut off is said to be", async () => {
  await assert.rejects(client.chat.completions.parse({ ...bounded, max_tokens: 15 }), OpenAI.LengthFinishReasonError);
});

test("errors are of the types that the package has for them", async () => {
  const create = (more) => client.chat.completions.create({ ...asked, ...more });
  
  for (const [more, param] of [
    [{ temperature: "hot" }, "temperature"],
    [{ messages: [{ role: "nobody", content: "x" }] }, "messages[0].role"],
    [{ stop: [1] }, "stop"],
    [{ colour: "red" }, "colour"],
  ]) {
    await assert.rejects(create(more), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, String(error));
      assert.deepEqual({ status: error.status, type: error.type, param: error.param }, { status: 400, type: "invalid_request_error", param });
      assert.ok(error.message.includes(param), error.message);
      return true;
    });
    await assert.rejects(create({ ...more, stream: true }), OpenAI.BadRequestError);
  }
  await assert.rejects(create({ model: "gpt-5" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  await assert.rejects(client.models.retrieve("gpt-5"), OpenAI.NotFoundError);
  await assert.rejects(client.files.list(), OpenAI.NotFoundError);
  await assert.rejects(create({ messages: [{ role: "user", content: "word ".repeat(40000) }] }), (error) =>
    error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded");
});

test("a key is asked for", async () => {
  const locked = await startServer("--api-key", "secret");
  const withKey = (apiKey) => new OpenAI({ baseURL: locked.v1, apiKey, maxRetries: 0 }).chat.completions.create(asked);
  await assert.rejects(withKey("wrong"), (error) => error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key");
  assert.equal((await withKey("secret")).choices[0].message.content, answer);
});

test("a full server says so, and the package's retries wait for it", async () => {
  const small = await startServer("--max-running", "1", "--max-waiting", "1");
  const patient = new OpenAI({ baseURL: small.v1, apiKey: "none", maxRetries: 5 });
  const long = { ...endless, max_tokens: 400 };
  const running = [patient.chat.completions.create(long), patient.chat.completions.create(long), patient.chat.completions.create(long)];
  const refused = patient.chat.completions.create(long, { maxRetries: 0 });
  const results = await Promise.allSettled([...running, refused]);
  const failed = results.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
  assert.ok(failed.every((reason) => reason instanceof OpenAI.InternalServerError && reason.status === 503 && reason.code === "overloaded"));
  assert.deepEqual(results.slice(0, 3).map(({ status }) => status), Array(3).fill("fulfilled"));
  assert.ok((await small.metric('requests_total{outcome="refused"}')) > 0);
});

test("a stream that its reader leaves is no longer made", async () => {
  await server.endsWhatIsLeft(async () => {
    for await (const chunk of await client.chat.completions.create({ ...endless, stream: true })) {
      if (chunk.choices[0].delta.content) break;
    }
  });
  await server.endsWhatIsLeft(async () => {
    const stream = client.chat.completions.stream(endless);
    stream.on("content", () => stream.abort());
    await assert.rejects(stream.done(), OpenAI.APIUserAbortError);
  });
});

test("a whole reply that is aborted, or takes too long for its client, is no longer made", async () => {
  await server.endsWhatIsLeft(async () => {
    const abort = new AbortController();
    setTimeout(() => abort.abort(), 1000);
    await assert.rejects(client.chat.completions.create(endless, { signal: abort.signal }), OpenAI.APIUserAbortError);
  });
  await server.endsWhatIsLeft(() => assert.rejects(client.chat.completions.create(endless, { timeout: 1000 }), OpenAI.APIConnectionTimeoutError));
});

test("completions: a stream says what the whole reply says, of each prompt", async () => {
  const request = { model, prompt: ["It is a truth universally", "Emma was"], temperature: 0.8, seed: 3, max_tokens: 30, n: 2 };
  const whole = await client.completions.create(request);
  const texts = ["", "", "", ""];
  const chunks = await all(await client.completions.create({ ...request, stream: true, stream_options: { include_usage: true } }));
  for (const { choices: [choice] } of chunks) if (choice) texts[choice.index] += choice.text;
  assert.deepEqual(texts, whole.choices.map(({ text }) => text));
  assert.deepEqual(counts(chunks.at(-1).usage), counts(whole.usage));
  assert.equal(whole.usage.completion_tokens, 4 * 30);
});

test("the models are listed", async () => {
  const models = await all(client.models.list());
  assert.deepEqual(models.map(({ id, object }) => [id, object]), [[model, "model"]]);
  assert.equal((await client.models.retrieve(model)).id, model);
});
