// The npm package `@langchain/openai`, by chat completions and by responses.

import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { all, answer, model, question, startServer, weather, weatherQuestion } from "../server.js";

const server = await startServer();
const chat = (more) => new ChatOpenAI({
  model, apiKey: "none", temperature: 0, maxRetries: 0, configuration: { baseURL: server.v1 }, ...more,
});
const withoutUndefined = (value) => JSON.parse(JSON.stringify(value));

for (const [name, more] of [["chat completions", {}], ["responses", { useResponsesApi: true }]]) {
  test(`${name}: a stream says what the whole reply says, and its usage adds up`, async () => {
    const whole = await chat(more).invoke(question);
    assert.equal(whole.text, answer);
    const { input_tokens: input, output_tokens: output, total_tokens: total } = whole.usage_metadata;
    assert.equal(total, input + output);
    const chunks = await all(await chat(more).stream(question));
    const joined = chunks.reduce((sum, chunk) => sum.concat(chunk));
    assert.ok(chunks.length > 5);
    assert.equal(joined.text, whole.text);
    assert.deepEqual(withoutUndefined(joined.usage_metadata), withoutUndefined(whole.usage_metadata));
  });

  test(`${name}: a tool is called, its result is read`, async () => {
    const getWeather = tool(async () => JSON.stringify(weather), {
      name: "get_weather", description: "Get the current weather", schema: z.object({ city: z.string().describe("City name") }),
    });
    const withTool = chat(more).bindTools([getWeather]);
    const messages = [new HumanMessage(weatherQuestion)];
    const call = (await all(await withTool.stream(messages))).reduce((sum, chunk) => sum.concat(chunk));
    assert.deepEqual(call.tool_calls.map(({ name, args }) => [name, args]), [["get_weather", { city: "Paris" }]]);
    const result = await getWeather.invoke(call.tool_calls[0]);
    assert.ok(result instanceof ToolMessage);
    assert.match((await withTool.invoke([...messages, call, result])).text, /21.*Paris/);
  });

  test(`${name}: structured output validates`, async () => {
    const schema = z.object({ number: z.int().min(0).max(9999), kind: z.enum(["prime", "other"]) });
    const structured = chat({ ...more, maxTokens: 300 }).withStructuredOutput(schema, { method: "jsonSchema" });
    const found = await structured.invoke(question);
    assert.deepEqual(schema.parse(found), found);
    assert.equal(found.number, 4827);
  });

  test(`${name}: a stream that is aborted is no longer made`, async () => {
    await server.endsWhatIsLeft(async () => {
      const abort = new AbortController();
      const long = chat({ ...more, temperature: 0.9, maxTokens: 20000, modelKwargs: { ignore_eos: true } });
      await assert.rejects(async () => {
        for await (const chunk of await long.stream("Tell me about Bath.", { signal: abort.signal })) if (chunk.text) abort.abort();
      }, /[Aa]bort/);
    });
  });

  test(`${name}: errors carry the server's words and status`, async () => {
    await assert.rejects(chat({ ...more, temperature: 101 }).invoke("x"), (error) => error.status === 400 && error.param === "temperature");
    await assert.rejects(chat({ ...more, model: "gpt-5" }).invoke("x"), (error) => error.status === 404);
  });
}
