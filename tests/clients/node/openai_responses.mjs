// The official SDK, responses.

import OpenAI from "openai";
import { CELSIUS, CITY, IMAGE, MODEL, PROMPTS, run, seen, weather } from "./cases.mjs";

const client = new OpenAI({ maxRetries: 6 });
client.idempotencyHeader = "Idempotency-Key"; // the SDK keys its own retries once it knows the header's name

// Not `output_text`, which the streams of older SDKs leave out.
const said = (response) =>
  response.output.flatMap((item) => (item.type === "message" ? item.content.map((part) => part.text) : [])).join("");

async function text(name = "text") {
  const response = await client.responses.create({ model: MODEL, input: PROMPTS[name] });
  if (response.error) throw new Error(response.error.message);
  return { text: response.output_text };
}

// Its user is the person who approves.
async function approval() {
  const asked = await client.responses.create({ model: MODEL, input: PROMPTS.approval });
  const input = asked.output
    .filter((item) => item.type === "mcp_approval_request")
    .map((item) => ({ type: "mcp_approval_response", approval_request_id: item.id, approve: true }));
  const response = await client.responses.create({ model: MODEL, input, previous_response_id: asked.id });
  return { text: response.output_text };
}

async function stream(name = "stream") {
  const pieces = [];
  const events = client.responses.stream({ model: MODEL, input: PROMPTS[name] });
  events.on("response.output_text.delta", (event) => pieces.push(event.delta));
  const response = await events.finalResponse();
  return { text: said(response), streamed: pieces.join(""), pieces: pieces.length };
}

async function tool() {
  let ran = 0;
  const asked = {
    model: MODEL,
    instructions: "rule-brief",
    tools: [{ type: "function", name: "weather", description: "The weather.", parameters: CITY, strict: true }],
  };
  let response = await client.responses.create({ ...asked, input: PROMPTS.tool });
  for (;;) {
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return { text: response.output_text, ran };
    ran += calls.length;
    const input = calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: weather(JSON.parse(call.arguments)),
    }));
    response = await client.responses.create({ ...asked, input, previous_response_id: response.id });
  }
}

async function structured() {
  const format = { type: "json_schema", name: "weather", schema: CELSIUS, strict: true };
  const response = await client.responses.parse({ model: MODEL, input: PROMPTS.structured, text: { format } });
  return { value: response.output_parsed };
}

async function image() {
  const content = [
    { type: "input_text", text: PROMPTS.image },
    { type: "input_image", image_url: IMAGE, detail: "auto" },
  ];
  const response = await client.responses.create({ model: MODEL, input: [{ role: "user", content }] });
  return { text: response.output_text };
}

async function second() {
  const first = await client.responses.create({ model: MODEL, input: PROMPTS.text });
  const again = await client.responses.create({
    model: MODEL,
    input: PROMPTS.second,
    previous_response_id: first.id,
  });
  const input = [{ role: "user", content: PROMPTS.text }, ...first.output, { role: "user", content: PROMPTS.second }];
  const whole = await client.responses.create({ model: MODEL, input });
  return { text: again.output_text, also: whole.output_text };
}

async function broken() {
  for await (const event of await client.responses.create({ model: MODEL, input: PROMPTS.broken, stream: true })) {
    if (event.type === "response.failed") throw new Error(event.response.error.message);
  }
  return { text: "nothing said that it failed" };
}

// As docs/how-to/openai-sdk.md has it.
async function resumed(name) {
  let id, place;
  let stream = await client.responses.create({ model: MODEL, input: PROMPTS[name], stream: true });
  for (let tries = 0; tries < 100; tries++) {
    try {
      stream ??= await client.responses.retrieve(id, { stream: true, starting_after: place });
      for await (const event of stream) {
        if (event.type === "response.created") id = event.response.id;
        if (event.type === "response.completed") return { text: said(event.response) };
        if (event.type === "response.output_text.delta") seen();
        place = event.sequence_number;
      }
      return { text: "the stream ended without an end" };
    } catch (error) {
      if (id === undefined) throw error;
    }
    stream = undefined;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error("not over after many tries");
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
  broken,
  approval,
  deploy: () => text("deploy"),
  going: () => resumed("going"),
  killed: () => resumed("killed"),
});
