"""For tests of your own agents: a model that says what you tell it, a clock that moves when you say, crash points.

from holdfast import Agent, App
from holdfast.testing import Call, ScriptedModel

model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "It rains.")
app = App("sqlite:///test.db", agents=[Agent("support", model, tools=[weather])])
"""

from holdfast.clock import FakeClock
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

__all__ = [
    "POINTS",
    "Call",
    "Count",
    "Cut",
    "Fail",
    "FakeClock",
    "Finish",
    "Hold",
    "Say",
    "Script",
    "ScriptedModel",
    "Stall",
    "Think",
    "Together",
    "arm",
    "disarm",
    "read_script",
]
