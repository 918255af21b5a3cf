// The official JavaScript client, unmodified, against the server at NPUSERVE_URL (see test_javascript_client.py).
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.NPUSERVE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const PARIS = "The capital of France is Paris. 😀";
const ask = (content, options) =>
  client.chat.completions.create({ model: "tiny", messages: [{ role: "user", content }], ...options });

test("chat completion", async () => {
  const reply = await ask("capital of France?");
  assert.equal(reply.choices[0].message.content, PARIS);
  assert.equal(reply.choices[0].finish_reason, "stop");
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
});

test("streamed chat completion with usage", async () => {
  const stream = await ask("capital of France?", { stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const usage = chunks.pop();
  assert.deepEqual(usage.choices, []);
  assert.ok(usage.usage.completion_tokens > 0);
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), PARIS);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
});

test("the stream helper puts the message together", async () => {
  const runner = client.chat.completions.stream({
    model: "tiny",
    messages: [{ role: "user", content: "capital of France?" }],
  });
  assert.equal((await runner.finalMessage()).content, PARIS);
});

test("streamed completion", async () => {
  const stream = await client.completions.create({ model: "tiny", prompt: "France", max_tokens: 60, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, PARIS);
});

test("models", async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map((model) => model.id), ["tiny"]);
});

test("a wrong value is a BadRequestError with its param", async () => {
  await assert.rejects(ask("x", { temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
});

test("an aborted stream frees its slot", async () => {
  const stream = await ask("endless", { stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
});
