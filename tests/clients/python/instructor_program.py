"""instructor: every answer is a value of a type, by a tool that the model has to call, by a schema, or as JSON."""

import os

import instructor
from cases import IMAGE, MODEL, PROMPTS, run, seen
from openai import OpenAI
from pydantic import BaseModel

MODE = os.environ["MODE"]
client = instructor.from_openai(OpenAI(), mode=instructor.Mode[MODE])


class Weather(BaseModel):
    celsius: int


class Said(BaseModel):
    text: str


def ask(kind, *messages):
    return client.create(model=MODEL, response_model=kind, messages=list(messages))


def user(content):
    return {"role": "user", "content": content}


def typed(name):
    """The same prompt, its text in a value."""
    before, _, words = PROMPTS[name].rpartition("[[say ")
    return f'{before}[[answer {{"text": "{words.removesuffix("]]")}"}}]]'


def text(name="text"):
    return {"text": ask(Said, user(typed(name))).text}


def stream(name="stream"):
    parts = []
    for part in client.create_partial(model=MODEL, response_model=Said, messages=[user(typed(name))]):
        if part.text is not None:
            parts.append(part.text)
            seen()
    return {"text": parts[-1], "streamed": parts[-1], "pieces": len(parts)}


def image():
    content = [{"type": "text", "text": typed("image")}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return {"text": ask(Said, user(content)).text}


def second():
    said = {"role": "assistant", "content": text()["text"]}
    return {"text": ask(Said, user(typed("text")), said, user(typed("second"))).text}


def deploy():
    prompt = PROMPTS["deploy"].replace("once upon |a time", '{"text": "once upon |a time"}')
    return {"text": ask(Said, user(prompt)).text}


run(
    {
        "text": text,
        "stream": stream,
        "own": lambda: text("own"),
        "structured": lambda: {"value": ask(Weather, user(PROMPTS["structured"])).model_dump()},
        "image": image,
        "second": second,
        "error": lambda: ask(Said, user(PROMPTS["error"])),
        "broken": lambda: list(
            client.create_partial(model=MODEL, response_model=Said, messages=[user(PROMPTS["broken"])])
        ),
        "approval": lambda: text("approval"),
        **({"deploy": deploy} if MODE == "JSON" else {}),  # what is told in two parts is a text
    }
)
