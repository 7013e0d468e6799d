"""The Agents SDK, with responses or with chat completions; one of its agents hands over to another."""

import asyncio
import os

from agents import Agent, Runner, function_tool, set_default_openai_api
from cases import IMAGE, MODEL, PROMPTS, run, seen, weather
from pydantic import BaseModel

if os.environ["PROTOCOL"] == "chat":
    set_default_openai_api("chat_completions")

agent = Agent(name="clerk", model=MODEL)
loop = asyncio.new_event_loop()


def ask(clerk, given):
    return loop.run_until_complete(Runner.run(clerk, given))


class Weather(BaseModel):
    celsius: int


def text(name="text"):
    return {"text": ask(agent, PROMPTS[name]).final_output}


def stream(name="stream"):
    async def read():
        pieces = []
        result = Runner.run_streamed(agent, PROMPTS[name])
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                pieces.append(event.data.delta)
                seen()
        return {"text": result.final_output, "streamed": "".join(pieces), "pieces": len(pieces)}

    return loop.run_until_complete(read())


def tool():
    ran = []

    @function_tool(name_override="weather")
    def counted(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return weather(city)

    clerk = Agent(name="clerk", model=MODEL, instructions="rule-brief", tools=[counted])
    return {"text": ask(clerk, PROMPTS["tool"]).final_output, "ran": len(ran)}


def structured():
    clerk = Agent(name="clerk", model=MODEL, output_type=Weather)
    return {"value": ask(clerk, PROMPTS["structured"]).final_output.model_dump()}


def image():
    content = [
        {"type": "input_text", "text": PROMPTS["image"]},
        {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
    ]
    return {"text": ask(agent, [{"role": "user", "content": content}]).final_output}


def second():
    first = ask(agent, PROMPTS["text"])
    items = [*first.to_input_list(), {"role": "user", "content": PROMPTS["second"]}]
    return {"text": ask(agent, items).final_output}


def handoff():
    """What the second agent is told has to reach the model, and what the first was told has not."""
    baker = Agent(name="baker", model=MODEL, instructions="rule-baker")
    clerk = Agent(name="clerk", model=MODEL, instructions="rule-clerk", handoffs=[baker])
    result = ask(clerk, PROMPTS["handoff"].replace("HANDOFF", "transfer_to_baker"))
    return {"text": result.final_output}


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
        "handoff": handoff,
        "deploy": lambda: text("deploy"),
        "going": lambda: stream("going"),
        "killed": lambda: stream("killed"),
    }
)
