"""litellm: `completion` and `responses`, for a server that is compatible with OpenAI's."""

import json
import os

import litellm
from cases import IMAGE, KEY, MODEL, PROMPTS, URL, run, seen, weather
from pydantic import BaseModel

WITH = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}


class Weather(BaseModel):
    celsius: int


def user(content):
    return {"role": "user", "content": content}


def ask(*messages, **more):
    return litellm.completion(messages=list(messages), **WITH, **more).choices[0].message


def text(name="text"):
    return {"text": ask(user(PROMPTS[name])).content}


def stream(name="stream"):
    pieces = []
    for chunk in litellm.completion(messages=[user(PROMPTS[name])], stream=True, **WITH):
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            seen()
    return {"text": "".join(pieces), "streamed": "".join(pieces), "pieces": len(pieces)}


def tool():
    messages, ran = [{"role": "system", "content": "rule-brief"}, user(PROMPTS["tool"])], 0
    answer = ask(*messages, tools=[WEATHER])
    while answer.tool_calls:
        messages.append(answer.model_dump())
        for call in answer.tool_calls:
            ran += 1
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = ask(*messages, tools=[WEATHER])
    return {"text": answer.content, "ran": ran}


def structured():
    return {"value": json.loads(ask(user(PROMPTS["structured"]), response_format=Weather).content)}


def image():
    content = [{"type": "text", "text": PROMPTS["image"]}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return {"text": ask(user(content)).content}


def second():
    first = ask(user(PROMPTS["text"]))
    return {"text": ask(user(PROMPTS["text"]), first.model_dump(), user(PROMPTS["second"])).content}


# --- responses


def output_of(response):
    if response.error is not None:
        raise RuntimeError(response.error)
    items = response.model_dump()["output"]  # those that litellm has no type for are dictionaries anyway
    parts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    waits = [item["name"] for item in items if item["type"] == "mcp_approval_request"]
    return {"text": "".join(parts), "waits": waits}


def text_2(name="text"):
    return output_of(litellm.responses(input=PROMPTS[name], **WITH))


def stream_2(name="stream"):
    pieces, final = [], None
    for event in litellm.responses(input=PROMPTS[name], stream=True, **WITH):
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
            seen()
        if event.type in ("response.completed", "response.failed", "response.incomplete"):
            final = event.response
    if final is None:
        raise RuntimeError("the stream ended without an end")
    return {**output_of(final), "streamed": "".join(pieces), "pieces": len(pieces)}


def tool_2():
    spec = {"type": "function", "name": "weather", "parameters": CITY}
    asked, ran = {"tools": [spec], "instructions": "rule-brief", **WITH}, 0
    response = litellm.responses(input=PROMPTS["tool"], **asked)
    while calls := [item for item in response.output if item.type == "function_call"]:
        ran += len(calls)
        results = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": weather(**json.loads(call.arguments)),
            }
            for call in calls
        ]
        response = litellm.responses(input=results, previous_response_id=response.id, **asked)
    return {**output_of(response), "ran": ran}


def structured_2():
    return {
        "value": json.loads(
            output_of(litellm.responses(input=PROMPTS["structured"], text_format=Weather, **WITH))["text"]
        )
    }


def image_2():
    content = [
        {"type": "input_text", "text": PROMPTS["image"]},
        {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
    ]
    return output_of(litellm.responses(input=[user(content)], **WITH))


def second_2():
    first = litellm.responses(input=PROMPTS["text"], **WITH)
    return output_of(litellm.responses(input=PROMPTS["second"], previous_response_id=first.id, **WITH))


if os.environ["PROTOCOL"] == "responses":
    text, stream, tool, structured, image, second = text_2, stream_2, tool_2, structured_2, image_2, second_2

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
        "going": lambda: stream("going"),
        "killed": lambda: stream("killed"),
    }
)
