"""The official SDK, chat completions."""

import json

from cases import IMAGE, MODEL, PROMPTS, run, seen, weather
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=6)  # a deploy may take a few seconds
client._idempotency_header = "Idempotency-Key"  # the SDK keys its own retries once it knows the header's name

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Weather(BaseModel):
    celsius: int


def user(content):
    return {"role": "user", "content": content}


def ask(*messages, **more):
    return client.chat.completions.create(model=MODEL, messages=list(messages), **more).choices[0].message


def text(name="text"):
    return {"text": ask(user(PROMPTS[name])).content}


def stream(name="stream"):
    pieces = []
    with client.chat.completions.stream(model=MODEL, messages=[user(PROMPTS[name])]) as events:
        for event in events:
            if event.type == "content.delta":
                pieces.append(event.delta)
        completion = events.get_final_completion()
    return {"text": completion.choices[0].message.content, "streamed": "".join(pieces), "pieces": len(pieces)}


def tool():
    messages, ran = [{"role": "system", "content": "rule-brief"}, user(PROMPTS["tool"])], 0
    answer = ask(*messages, tools=[WEATHER])
    while answer.tool_calls:
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls:
            ran += 1
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = ask(*messages, tools=[WEATHER])
    return {"text": answer.content, "ran": ran}


def structured():
    completion = client.chat.completions.parse(
        model=MODEL, messages=[user(PROMPTS["structured"])], response_format=Weather
    )
    return {"value": completion.choices[0].message.parsed.model_dump()}


def image():
    content = [{"type": "text", "text": PROMPTS["image"]}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return {"text": ask(user(content)).content}


def second():
    first = ask(user(PROMPTS["text"]))
    said = first.model_dump(exclude_none=True)
    return {"text": ask(user(PROMPTS["text"]), said, user(PROMPTS["second"])).content}


def deltas(name):
    text = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=[user(PROMPTS[name])], stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
            seen()
    return {"text": text}


run(
    {
        "text": text,
        "stream": stream,
        "tool": tool,
        "own": lambda: stream("own"),
        "structured": structured,
        "image": image,
        "second": second,
        "error": lambda: text("error"),
        "broken": lambda: stream("broken"),
        "approval": lambda: text("approval"),
        "deploy": lambda: text("deploy"),
        "going": lambda: deltas("going"),
        "killed": lambda: deltas("killed"),
    }
)
