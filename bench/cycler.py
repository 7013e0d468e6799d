"""An app whose chats take one cycle after the other for ever, a response and a tool: for `bench.processes`."""

import asyncio
from pathlib import Path

from holdfast import Agent, AgentLimits, App, CompactionPolicy, tool
from holdfast.testing import Call, Say, ScriptedModel

GO = Path("go")  # in the folder of the server: no chat goes on before it is there
_TEXT = "I will look that up and come back with what I find. "
_RESULT = "It is 14 degrees and raining in Bern, with more rain to come. "
_started = False


@tool
async def weather(city: str) -> str:
    """Current weather in a city."""
    global _started
    while not _started:
        _started = GO.exists()  # noqa: ASYNC240  nothing is measured yet
        await asyncio.sleep(0 if _started else 0.05)
    return _RESULT


_model = ScriptedModel(
    [Say(text=_TEXT, piece_chars=30), Call(name="weather", arguments='{"city":"Bern"}')], after="repeat"
)
app = App(
    agents=[
        Agent(
            "cycler",
            _model,
            tools=[weather],
            limits=AgentLimits(steps=1_000_000_000),
            compaction=CompactionPolicy(context_limit=None),
        )
    ],
    chats_max=1_000,
)
