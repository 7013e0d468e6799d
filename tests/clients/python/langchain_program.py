"""LangChain: `ChatOpenAI`, with chat completions or with responses."""

import os

from cases import IMAGE, MODEL, PROMPTS, run, seen, weather
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool as tool_of
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model=MODEL, use_responses_api=os.environ["PROTOCOL"] == "responses")


class Weather(BaseModel):
    """The weather."""

    celsius: int


def text(name="text"):
    answer = model.invoke(PROMPTS[name])
    blocks = answer.content if isinstance(answer.content, list) else []
    waits = [block["name"] for block in blocks if block["type"] == "mcp_approval_request"]
    return {"text": answer.text, "waits": waits}


def stream(name="stream"):
    whole, pieces = None, []
    for chunk in model.stream(PROMPTS[name]):
        whole = chunk if whole is None else whole + chunk
        if chunk.text:
            pieces.append(chunk.text)
            seen()
    return {"text": whole.text, "streamed": "".join(pieces), "pieces": len(pieces)}


def tool():
    the_weather, ran = tool_of(weather), 0
    bound = model.bind_tools([the_weather])
    messages = [SystemMessage("rule-brief"), HumanMessage(PROMPTS["tool"])]
    answer = bound.invoke(messages)
    while answer.tool_calls:
        messages.append(answer)
        for call in answer.tool_calls:
            ran += 1
            messages.append(the_weather.invoke(call))
        answer = bound.invoke(messages)
    return {"text": answer.text, "ran": ran}


def structured():
    return {"value": model.with_structured_output(Weather).invoke(PROMPTS["structured"]).model_dump()}


def image():
    content = [{"type": "text", "text": PROMPTS["image"]}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return {"text": model.invoke([HumanMessage(content)]).text}


def second():
    first = model.invoke(PROMPTS["text"])
    messages = [HumanMessage(PROMPTS["text"]), first, HumanMessage(PROMPTS["second"])]
    return {"text": model.invoke(messages).text}


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
