"""A server as a process of its own, to be killed: `tests.support.servers` starts it."""

import asyncio
import os

from holdfast import Agent, AgentLimits, App, tool
from holdfast.server.serve import serve
from holdfast.testing import Call, ScriptedModel, Stall
from holdfast.tools.outside import client_tool

TOKEN = "test-token-of-the-servers-own"


@tool(needs_approval=True)
async def pay(amount: int, note: str = "") -> str:
    """Pay somebody."""
    return f"paid {amount}"


LONG = "kelp " * 1_000 + "PAYLOAD"


def agents() -> list[Agent]:
    story = " ".join(f"word{n}" for n in range(200))
    return [
        Agent("echo", "scripted"),
        Agent("talker", ScriptedModel(after="echo", per="turn", pace_s=0.01)),
        Agent("storyteller", ScriptedModel(story, per="turn", pace_s=0.02)),
        Agent("thinker", ScriptedModel(["Let me think… ", Stall()], per="turn")),  # until it is stopped
        Agent("payer", ScriptedModel([Call(name="pay", arguments={"amount": 7})], "Done.", per="turn"), tools=[pay]),
        Agent(
            "spender", ScriptedModel([Call(name="pay", arguments={"amount": 7, "note": LONG})], "Done."), tools=[pay]
        ),
        Agent(
            "asker",
            ScriptedModel([Call(name="look", arguments={"at": "sky"})], "Blue.", per="turn"),
            tools=[
                client_tool(
                    "look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}}
                )
            ],
        ),
        Agent("looker", ScriptedModel([Call(name="look")], "Seen.", per="turn")),
        Agent("bounded", ScriptedModel([Call(name="nothing")], "Two."), limits=AgentLimits(steps=1)),
        Agent("broken", ScriptedModel()),  # it has nothing to say, which is an error
    ]


def make_app(url: str, home: str, port: int = 0) -> App:
    return App(
        url,
        agents=agents(),
        home=home,
        port=port,
        poll_s=0.5,
        grace_s=2.0,
        streams_per_client_max=int(os.environ.get("HOLDFAST_TEST_STREAMS_PER_CLIENT", "5000")),
    )


def run(url: str, home: str, port: int, *, worker: bool) -> None:
    asyncio.run(serve(make_app(url, home, port), worker=worker))
