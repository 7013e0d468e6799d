"""OpenAI Agents SDK: a model of its interface, a function tool, a SQLite session, which keeps a turn at its end."""

import asyncio
from typing import Any

from agents import Agent, ModelResponse, RunContextWrapper, Runner, Usage, function_tool, set_tracing_disabled
from agents.memory import SQLiteSession
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from workload import ANSWER, QUESTION, TEXT, Workload

work = Workload()


def said(text: str, cycle: int) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id=f"message-{cycle}", content=[part], role="assistant", status="completed", type="message"
    )


class Scripted(Model):
    def __init__(self, chat: str) -> None:
        self.chat = chat

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        cycle = sum(1 for item in input if isinstance(item, dict) and item.get("type") == "function_call_output")
        if not work.asked(self.chat, cycle):
            return ModelResponse(output=[said(ANSWER, cycle)], usage=Usage(), response_id=None)
        call = ResponseFunctionToolCall(
            call_id=f"call-{cycle}", name="weather", arguments='{"city":"Bern"}', type="function_call"
        )
        return ModelResponse(output=[said(TEXT, cycle), call], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Place:
    def __init__(self, chat: str) -> None:
        self.chat, self.cycle = chat, -1


@function_tool
async def weather(context: RunContextWrapper[Place], city: str) -> str:
    """Current weather in a city."""
    context.context.cycle += 1
    return await work.tool(context.context.chat, context.context.cycle)


async def one(chat: str) -> None:
    agent = Agent(name="cycler", model=Scripted(chat), tools=[weather])
    session = SQLiteSession(chat, work.database.removeprefix("sqlite:///"))
    await Runner.run(agent, QUESTION, session=session, context=Place(chat), max_turns=work.cycles + 5)


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(work.drive(one))
