"""For tests of your own agents: a model that says what you tell it, a clock that moves when you say, crash points,
and a drill that kills your agent at each of its writes (docs/how-to/testing.md).

>>> @tool(replay="pure")
... async def weather(city: str) -> str:
...     "Weather of a city."
...     return f"rain in {city}"
>>> model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Take an umbrella.")
>>> app = App("sqlite:///example.db", agents=[Agent("support", model, tools=[weather])])
>>> app.run_sync("support", "Weather in Bern?").text
'Take an umbrella.'
>>> model.requests[-1].messages[-1].parts[0].content
'rain in Bern'
"""

from holdfast.faults import POINTS, arm, disarm
from holdfast.models.scripted import (
    Call,
    Count,
    Cut,
    Fail,
    Finish,
    Hold,
    Say,
    Script,
    ScriptedModel,
    Stall,
    Think,
    Together,
    read_script,
)
from holdfast.system.clock import FakeClock
from holdfast.testing.crash_drill import CrashDrill, DrillCall, Kill, Survived

__all__ = [
    "POINTS",
    "Call",
    "Count",
    "CrashDrill",
    "Cut",
    "DrillCall",
    "Fail",
    "FakeClock",
    "Finish",
    "Hold",
    "Kill",
    "Say",
    "Script",
    "ScriptedModel",
    "Stall",
    "Survived",
    "Think",
    "Together",
    "arm",
    "disarm",
    "read_script",
]
