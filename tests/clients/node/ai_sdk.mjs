// AI SDK: the provider for OpenAI with responses or chat completions, and the provider for what is compatible.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool as toolOf } from "ai";
import { CELSIUS, CITY, IMAGE, KEY, MODEL, PROMPTS, run, seen, URL, weather } from "./cases.mjs";

const openai = createOpenAI({ baseURL: URL, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "holdfast",
  baseURL: URL,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const model = {
  responses: () => openai.responses(MODEL),
  chat: () => openai.chat(MODEL),
  compatible: () => compatible(MODEL),
}[process.env.PROTOCOL]();

async function text(name = "text") {
  const result = await generateText({ model, prompt: PROMPTS[name] });
  const waits = result.content
    .filter((part) => part.type === "tool-approval-request")
    .map((part) => part.toolCall.toolName.replace("mcp.", ""));
  return { text: result.text, waits };
}

async function stream(name = "stream") {
  const pieces = [];
  let failed;
  const result = streamText({ model, prompt: PROMPTS[name], onError: ({ error }) => (failed = error) });
  for await (const piece of result.textStream) {
    pieces.push(piece);
    seen();
  }
  if (failed) throw failed instanceof Error ? failed : new Error(JSON.stringify(failed));
  return { text: await result.text, streamed: pieces.join(""), pieces: pieces.length };
}

async function tool() {
  let ran = 0;
  const execute = async (given) => {
    ran++;
    return weather(given);
  };
  const result = await generateText({
    model,
    system: "rule-brief",
    prompt: PROMPTS.tool,
    tools: { weather: toolOf({ description: "The weather.", inputSchema: jsonSchema(CITY), execute }) },
    stopWhen: stepCountIs(5),
  });
  return { text: result.text, ran };
}

async function structured() {
  const result = await generateObject({ model, schema: jsonSchema(CELSIUS), prompt: PROMPTS.structured });
  return { value: result.object };
}

async function image() {
  const content = [
    { type: "text", text: PROMPTS.image },
    { type: "image", image: IMAGE },
  ];
  return { text: (await generateText({ model, messages: [{ role: "user", content }] })).text };
}

async function second() {
  const first = await generateText({ model, prompt: PROMPTS.text });
  const messages = [
    { role: "user", content: PROMPTS.text },
    ...first.response.messages,
    { role: "user", content: PROMPTS.second },
  ];
  return { text: (await generateText({ model, messages })).text };
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
  going: () => stream("going"),
  killed: () => stream("killed"),
});
