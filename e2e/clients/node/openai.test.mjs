// OpenAI's client for Node, unmodified: PAGODA_URL and PAGODA_MODEL say where and what.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const model = process.env.PAGODA_MODEL;
const client = new OpenAI({ baseURL: `${process.env.PAGODA_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, messages, temperature: 0, max_tokens: 32 };

const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city",
    strict: true,
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("a conversation is answered and counted", async () => {
  const answer = await client.chat.completions.create(greedy);
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.ok(["stop", "length"].includes(answer.choices[0].finish_reason));
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("a stream is the same answer in chunks, with its usage at the end", async () => {
  const whole = await client.chat.completions.create(greedy);
  const stream = await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the client's own stream helper puts a forced call together", async () => {
  const runner = client.chat.completions.stream({ ...greedy, max_tokens: 64, tools: [weather], tool_choice: "required" });
  const answer = await runner.finalChatCompletion();
  const call = answer.choices[0].message.tool_calls[0];
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "get_weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
});

test("JSON of a schema parses", async () => {
  const schema = {
    type: "object",
    properties: { capital: { type: "string", maxLength: 20 }, large: { type: "boolean" } },
    required: ["capital", "large"],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.parse({
    ...greedy,
    max_tokens: 128,
    response_format: { type: "json_schema", json_schema: { name: "capital", strict: true, schema } },
  });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(value), ["capital", "large"]);
  assert.equal(typeof value.large, "boolean");
});

test("log probabilities come with every token", async () => {
  const answer = await client.chat.completions.create({ ...greedy, max_tokens: 5, logprobs: true, top_logprobs: 2 });
  const tokens = answer.choices[0].logprobs.content;
  assert.equal(tokens.length, 5);
  assert.ok(tokens.every((token) => token.top_logprobs.length === 2 && token.logprob <= 0));
  assert.equal(tokens.map((token) => token.token).join(""), answer.choices[0].message.content);
});

test("a completion echoes its prompt", async () => {
  const answer = await client.completions.create({ model, prompt: "One, two,", max_tokens: 4, temperature: 0, echo: true });
  assert.ok(answer.choices[0].text.startsWith("One, two,"));
});

test("models are listed", async () => {
  const names = [];
  for await (const entry of client.models.list()) names.push(entry.id);
  assert.ok(names.includes(model));
});

test("errors are the client's own", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "nobody" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...greedy, temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(client.embeddings.create({ model, input: "x" }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "unsupported_model");
    return true;
  });
});

test("a stream that is left goes quietly", async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 400, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  assert.match((await client.chat.completions.create(greedy)).choices[0].message.content, /Paris/);
});
