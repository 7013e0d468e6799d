"""pydantic-ai: an agent on `OpenAIChatModel` or `OpenAIResponsesModel`."""

import asyncio
import base64
import os

from cases import IMAGE, MODEL, PROMPTS, run, seen, weather
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

model = (OpenAIResponsesModel if os.environ["PROTOCOL"] == "responses" else OpenAIChatModel)(MODEL)
agent = Agent(model)


class Weather(BaseModel):
    celsius: int


def text(name="text"):
    return {"text": agent.run_sync(PROMPTS[name]).output}


def stream(name="stream"):
    async def read():
        pieces = []
        async with agent.run_stream(PROMPTS[name]) as result:
            async for piece in result.stream_text(delta=True, debounce_by=None):
                pieces.append(piece)
                seen()
        return {"text": "".join(pieces), "streamed": "".join(pieces), "pieces": len(pieces)}

    return asyncio.run(read())


def tool():
    ran = []

    def counted(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return weather(city)

    counted.__name__ = "weather"
    result = Agent(model, instructions="rule-brief", tools=[counted]).run_sync(PROMPTS["tool"])
    return {"text": result.output, "ran": len(ran)}


def structured():
    return {"value": Agent(model, output_type=Weather).run_sync(PROMPTS["structured"]).output.model_dump()}


def image():
    data = base64.b64decode(IMAGE.partition(",")[2])
    return {"text": agent.run_sync([PROMPTS["image"], BinaryContent(data, media_type="image/png")]).output}


def second():
    first = agent.run_sync(PROMPTS["text"])
    return {"text": agent.run_sync(PROMPTS["second"], message_history=first.all_messages()).output}


run(
    {
        "text": text,
        "stream": stream,
        "tool": tool,
        "own": lambda: text("own"),
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
