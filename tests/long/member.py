"""One worker of a crew, as a deployment would run it: `python -m tests.long.member ORDERS` (JSON).

What its models are asked and which bodies run is written down outside of the database, line by line: whatever becomes
of the database, this stays true.
"""

import asyncio
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast import AgentLimits
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, Response, Say, ScriptedModel
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.outside import ask_user
from tests.worker.evidence import Evidence, Line, WatchedModel

LOOK_S = 0.02  # how often a body looks whether its gate is open
PACE_S = 0.05  # between two words of a model
EXPIRES_S = 600.0  # of a question
PATIENT_S, BRIEF_S = 1_800.0, 3.0  # that a turn of these agents may take


class Orders(Struct, frozen=True):
    url: str
    folder: str  # evidence, gates and words of the whole crew
    life: str
    ttl_s: float = 5.0
    poll_s: float = 0.3
    grace_s: float = 1.0


def agents(folder: Path, evidence: Evidence) -> list[Agent]:
    """`payer` pays twice and ends. `gated` and `checker` stand in a body until the test opens gate `a`; the first's
    may never be begun twice, the second's may. `late` stands at gate `a` and then at gate `b`. `asker` asks what
    expires. `talker` only talks, and for long from its second turn on. `patient` and `brief` are as `gated`, and
    have a time budget.
    """
    tools = toolbox(folder, evidence)
    scripts: dict[str, list[Response]] = {
        "payer": [(_say(6), Call(name="charge")), (_say(6), Call(name="charge")), (_say(6),)],
        "gated": [(_pass("a"),), (_say(1),)],
        "late": [(_pass("a"),), (_pass("b"),), (_say(1),)],
        "checker": [(Call(name="check_gate"),), (_say(1),)],
        "asker": [(Call(name="ask_user", arguments={"question": "Well?"}),), (_say(1),)],
        "talker": [(_say(1),), (_say(300),), (_say(1),)],
        "patient": [(_pass("a"),), (_say(1),)],
        "brief": [(_pass("a"),), (_say(1),)],
    }
    budgets = {"patient": AgentLimits(seconds=PATIENT_S), "brief": AgentLimits(seconds=BRIEF_S)}
    models = {
        name: ScriptedModel(*script, name=f"model of {name}", per="chat" if name == "talker" else "turn")
        for name, script in scripts.items()
    }
    return [
        Agent(name, WatchedModel(model, evidence), tools=tools, limits=budgets.get(name))
        for name, model in models.items()
    ]


def _pass(gate: str) -> Call:
    return Call(name="pass_gate", arguments={"gate": gate})


def _say(words: int) -> Say:
    return Say(text="word " * words, pace_s=PACE_S)


def toolbox(folder: Path, evidence: Evidence) -> list[Tool]:
    def enter(name: str, context: ToolContext) -> None:
        """On the disk before anything else happens."""
        call_id, chat_id, key = context.call_id, context.chat_id, context.key
        line = Line(what="entered", life=evidence.life, call_id=call_id, chat_id=chat_id, key=key, tool=name)
        evidence.write(line)

    async def stand_at(gate: str, name: str, context: ToolContext) -> str:
        enter(name, context)
        while not (folder / f"open-{gate}").exists():  # noqa: ASYNC110  who opens it is another process
            await asyncio.sleep(LOOK_S)
        return f"{evidence.life} went through"

    @tool
    async def charge(context: ToolContext) -> str:
        enter("charge", context)
        await asyncio.sleep(PACE_S)
        return f"{evidence.life} charged {context.call_id}"

    @tool
    async def pass_gate(gate: str, context: ToolContext) -> str:
        return await stand_at(gate, "pass_gate", context)

    @tool(replay="pure")
    async def check_gate(context: ToolContext) -> str:
        return await stand_at("a", "check_gate", context)

    return [charge, pass_gate, check_gate, ask_user(expires_s=EXPIRES_S)]


def make_app(orders: Orders) -> App:
    folder = Path(orders.folder)
    return App(
        orders.url,
        agents(folder, Evidence(folder / "evidence", orders.life)),
        lease_ttl_s=orders.ttl_s,
        poll_s=orders.poll_s,
        grace_s=orders.grace_s,
    )


if __name__ == "__main__":
    asyncio.run(make_app(msgspec.json.decode(sys.argv[1], type=Orders)).run_worker())
