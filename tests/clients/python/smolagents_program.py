"""smolagents: an agent that calls tools; its answer is the argument of one, `final_answer`."""

import base64
import io

from cases import IMAGE, KEY, MODEL, PROMPTS, URL, run, seen, weather
from PIL import Image
from smolagents import OpenAIModel, ToolCallingAgent
from smolagents import tool as tool_of

model = OpenAIModel(model_id=MODEL, api_base=URL, api_key=KEY)
ran = []


@tool_of
def the_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Where.
    """
    ran.append(city)
    return weather(city)


the_weather.name = "weather"


def agent(**more):
    return ToolCallingAgent(tools=[the_weather], model=model, verbosity_level=-1, max_steps=4, **more)


def prompt(name):
    """The same prompt, its text as the final answer."""
    before, _, words = PROMPTS[name].rpartition("[[say ")
    return f'{before}[[call final_answer {{"answer": "{words.removesuffix("]]")}"}}]]'


def text(name="text", **more):
    return {"text": agent().run(prompt(name), **more)}


def stream():
    """The argument of a call is what is streamed; the SDK that makes it has its own rows."""
    pieces, final = [], None
    for event in agent(stream_outputs=True).run(prompt("stream"), stream=True):
        pieces.append(event)
        final = getattr(event, "output", None) or final
        seen()
    return {"text": final, "streamed": final, "pieces": len(pieces)}


def tool():
    answer = agent(instructions="rule-brief").run(prompt("tool"))
    return {"text": answer.removeprefix("Observation:\n"), "ran": len(ran)}


def image():
    return text("image", images=[Image.open(io.BytesIO(base64.b64decode(IMAGE.partition(",")[2])))])


def second():
    clerk = agent()
    clerk.run(prompt("text"))
    return {"text": clerk.run(prompt("second"), reset=False)}


run(
    {
        "text": text,
        "stream": stream,
        "tool": tool,
        "own": lambda: text("own"),
        "image": image,
        "second": second,
        "error": lambda: {"text": agent().run(PROMPTS["error"])},
        "approval": lambda: text("approval"),
    }
)
