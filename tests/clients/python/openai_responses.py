"""The official SDK, responses."""

import json
import time

from cases import IMAGE, MODEL, PROMPTS, run, seen, weather
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=6)  # a deploy may take a few seconds
client._idempotency_header = "Idempotency-Key"  # the SDK keys its own retries once it knows the header's name

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    celsius: int


def text(name="text"):
    response = client.responses.create(model=MODEL, input=PROMPTS[name])
    if response.error is not None:
        raise RuntimeError(response.error.message)
    return {"text": response.output_text}


def approval():
    """Its user is the person who approves."""
    response = client.responses.create(model=MODEL, input=PROMPTS["approval"])
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        for item in response.output
        if item.type == "mcp_approval_request"
    ]
    response = client.responses.create(model=MODEL, input=answers, previous_response_id=response.id)
    return {"text": response.output_text}


def stream(name="stream"):
    pieces = []
    with client.responses.stream(model=MODEL, input=PROMPTS[name]) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
        response = events.get_final_response()
    return {"text": response.output_text, "streamed": "".join(pieces), "pieces": len(pieces)}


def tool():
    ran = []
    tools = {"model": MODEL, "tools": [WEATHER], "instructions": "rule-brief"}
    response = client.responses.create(input=PROMPTS["tool"], **tools)
    while calls := [item for item in response.output if item.type == "function_call"]:
        ran += [call.arguments for call in calls]
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": weather(**json.loads(call.arguments)),
            }
            for call in calls
        ]
        response = client.responses.create(input=outputs, previous_response_id=response.id, **tools)
    return {"text": response.output_text, "ran": len(ran)}


def structured():
    response = client.responses.parse(model=MODEL, input=PROMPTS["structured"], text_format=Weather)
    return {"value": response.output_parsed.model_dump()}


def image():
    content = [
        {"type": "input_text", "text": PROMPTS["image"]},
        {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
    ]
    return {"text": client.responses.create(model=MODEL, input=[{"role": "user", "content": content}]).output_text}


def second():
    first = client.responses.create(model=MODEL, input=PROMPTS["text"])
    again = client.responses.create(model=MODEL, input=PROMPTS["second"], previous_response_id=first.id)
    # The same with the items of the first turn, for those who keep the conversation themselves.
    items = [
        {"role": "user", "content": PROMPTS["text"]},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"role": "user", "content": PROMPTS["second"]},
    ]
    whole = client.responses.create(model=MODEL, input=items)
    return {"text": again.output_text, "also": whole.output_text}


def broken():
    for event in client.responses.create(model=MODEL, input=PROMPTS["broken"], stream=True):
        if event.type == "response.failed":
            raise RuntimeError(event.response.error.message)
    return {"text": "nothing said that it failed"}


def resumed(name):
    """As docs/how-to/openai-sdk.md has it: whatever broke off, the rest is asked for."""
    response_id = place = None
    stream = client.responses.create(model=MODEL, input=PROMPTS[name], stream=True)
    for _ in range(100):
        try:
            stream = stream or client.responses.retrieve(response_id, stream=True, starting_after=place)
            for event in stream:
                if event.type == "response.created":
                    response_id = event.response.id
                if event.type == "response.completed":
                    return {"text": event.response.output_text}
                if event.type == "response.output_text.delta":
                    seen()
                place = event.sequence_number
            return {"text": "the stream ended without an end"}
        except Exception:  # of the stream, of the connection, or of a server that is not there yet
            if response_id is None:
                raise
        stream = None
        time.sleep(0.2)
    raise RuntimeError("not over after many tries")


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
        "broken": broken,
        "approval": approval,
        "deploy": lambda: text("deploy"),
        "going": lambda: resumed("going"),
        "killed": lambda: resumed("killed"),
    }
)
