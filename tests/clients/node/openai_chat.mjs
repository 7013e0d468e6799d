// The official SDK, chat completions.

import OpenAI from "openai";
import { CELSIUS, CITY, IMAGE, MODEL, PROMPTS, run, seen, weather } from "./cases.mjs";

const client = new OpenAI({ maxRetries: 6 });
client.idempotencyHeader = "Idempotency-Key"; // the SDK keys its own retries once it knows the header's name

const user = (content) => ({ role: "user", content });

async function ask(messages, more = {}) {
  const completion = await client.chat.completions.create({ model: MODEL, messages, ...more });
  return completion.choices[0].message;
}

const text = async (name = "text") => ({ text: (await ask([user(PROMPTS[name])])).content });

async function stream(name = "stream") {
  const pieces = [];
  const chunks = client.chat.completions.stream({ model: MODEL, messages: [user(PROMPTS[name])] });
  chunks.on("content", (delta) => pieces.push(delta));
  return { text: await chunks.finalContent(), streamed: pieces.join(""), pieces: pieces.length };
}

async function tool() {
  let ran = 0;
  const spec = { name: "weather", description: "The weather.", parameters: CITY, strict: true };
  const tools = [{ type: "function", function: spec }];
  const messages = [{ role: "system", content: "rule-brief" }, user(PROMPTS.tool)];
  for (;;) {
    const answer = await ask(messages, { tools });
    if (!answer.tool_calls?.length) return { text: answer.content, ran };
    messages.push(answer);
    for (const call of answer.tool_calls) {
      ran++;
      const content = weather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function structured() {
  const completion = await client.chat.completions.parse({
    model: MODEL,
    messages: [user(PROMPTS.structured)],
    response_format: { type: "json_schema", json_schema: { name: "weather", schema: CELSIUS, strict: true } },
  });
  return { value: JSON.parse(completion.choices[0].message.content) };
}

async function image() {
  const content = [
    { type: "text", text: PROMPTS.image },
    { type: "image_url", image_url: { url: IMAGE } },
  ];
  return { text: (await ask([user(content)])).content };
}

async function second() {
  const first = await ask([user(PROMPTS.text)]);
  return { text: (await ask([user(PROMPTS.text), first, user(PROMPTS.second)])).content };
}

async function deltas(name) {
  let text = "";
  for await (const chunk of await client.chat.completions.create({
    model: MODEL,
    messages: [user(PROMPTS[name])],
    stream: true,
  })) {
    text += chunk.choices[0]?.delta.content ?? "";
    if (text) seen();
  }
  return { text };
}

await run({
  text,
  stream,
  tool,
  own: () => stream("own"),
  structured,
  image,
  second,
  error: () => text("error"),
  broken: () => stream("broken"),
  approval: () => text("approval"),
  deploy: () => text("deploy"),
  going: () => deltas("going"),
  killed: () => deltas("killed"),
});
