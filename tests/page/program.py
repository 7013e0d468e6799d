"""A server for the tests of the page: agents that show everything that a page has to show, with scripted models."""

import asyncio
import os

from holdfast import Agent, App, Permissions, ToolContext, tool
from holdfast.cli.demo_agent import NAME as DEMO
from holdfast.cli.demo_agent import demo_agent
from holdfast.server.serve import serve
from holdfast.slash_commands import Expanded, SlashCommand, expansion
from holdfast.testing import Call, Fail, Say, ScriptedModel, Stall, Think
from holdfast.tools.outside import ask_user
from holdfast.tools.plan import plan_tool

STORY = " ".join(f"word{n}" for n in range(120))
LONG = "kelp " * 2_000 + "PAYLOAD"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
TURNED_NAME = f"mate\u202e\u0007{HOSTILE}"  # of an agent
MARKDOWN = """## A heading

Some **bold** words, a [link](https://example.com/) and `code`.

```python
def hold(fast: bool) -> str:
    return "kelp"  # on its rock
```

| wave | height |
| --- | --- |
| first | 3 m |
"""


NO_STEPS = [None, {"text": "Sail", "state": "constructor"}, {"text": "Rest", "state": "button primary"}]
REGEX = "Look:\n\n```js\nconst found = /kelp+/.test(sea);\n```\n"
SURE = "The sea.\n\nIt is calm."


def _model_that_breaks_off() -> ScriptedModel:
    """In the middle of a call, after words that the one behind it does not say."""
    said = Say(text="The sea.\n\nIt is rough.\n\nI sell.")
    refused = Fail(status=401, message="the key was refused")
    return ScriptedModel([said, Call(name="sell", arguments={"boats": 2}), refused], per="turn", pace_s=0.02)


@tool(needs_approval=True)
async def pay(amount: int, note: str = "") -> str:
    """Pay somebody."""
    return f"paid {amount}"


@tool(replay="pure")
async def measure(context: ToolContext) -> str:
    """Measure the waves."""
    for n in range(3):
        context.progress(f"wave {n}: {n + 1} m\n")
        await asyncio.sleep(0.05)
    return "waves of 3 m\n" + HOSTILE


@tool
async def sell(boats: int) -> str:
    """Sell boats."""
    return f"sold {boats}"


@tool(replay="pure")
async def haul() -> str:
    """Haul the net in, until it is stopped."""
    await asyncio.Event().wait()
    return "a fish"


@tool(replay="pure", output_bytes_max=6_000_000)
async def flood() -> str:
    """Say a lot."""
    return "kelp " * 1_000_000


def agents() -> list[Agent]:
    steps = [{"text": "Look at the sea", "state": "done"}, {"text": "Measure the waves", "state": "in_progress"}]
    edit = {
        "path": "log.md",
        "old": "Wind: NW 5\nWaves: 2 m\nSea: rough",
        "new": "Wind: NW 5\nWaves: 3 m\nSea: rough",
    }
    return [
        Agent("echo", "scripted"),
        Agent(TURNED_NAME, "scripted"),
        Agent("storyteller", ScriptedModel(STORY, per="turn", pace_s=0.03)),
        Agent(
            "writer", ScriptedModel([Think(text="The sea is rough."), Say(text=MARKDOWN)], per="turn", pace_s=0.01)
        ),
        Agent("lecturer", ScriptedModel(" ".join(f"kelp{n}" for n in range(2_000)), per="turn")),
        Agent("thinker", ScriptedModel(["Let me think… ", Stall()], per="turn")),  # until it is stopped
        Agent("payer", ScriptedModel([Call(name="pay", arguments={"amount": 7})], "Done.", per="turn"), tools=[pay]),
        Agent(
            "asker",
            ScriptedModel([Call(name="ask_user", arguments={"question": "Which sea?"})], "Thank you.", per="turn"),
            tools=[ask_user()],
        ),
        Agent(
            "sailor",
            ScriptedModel(
                [Call(name="plan", arguments={"items": steps}), Call(name="measure")],
                [Call(name="edit_file", arguments=edit)],
                "The waves are 3 m high.",
                per="turn",
            ),
            tools=[plan_tool(), measure, _edit_file],
        ),
        Agent(
            "seller",
            ScriptedModel([Call(name="sell", arguments={"boats": 2})], "Sold.", per="turn"),
            tools=[sell],
            permissions=Permissions(mode="ask"),
        ),
        Agent(
            "spender",
            ScriptedModel([Call(name="pay", arguments={"amount": 7, "note": LONG})], "Done.", per="turn"),
            tools=[pay],
        ),
        Agent(
            "hurried",
            ScriptedModel([Call(name="ask_user", arguments={"question": "Now?"})], "Late.", per="turn"),
            tools=[ask_user(expires_s=3600)],
        ),
        Agent("fisher", ScriptedModel([Call(name="haul")], "Caught.", per="turn"), tools=[haul]),
        Agent("flooder", ScriptedModel([Call(name="flood")], "So much.", per="turn"), tools=[flood]),
        Agent("broken", ScriptedModel([Fail(status=401, message="the key was refused")], per="turn")),
        Agent(
            "careless",
            ScriptedModel([Call(name="plan", arguments={"items": NO_STEPS})], REGEX, per="turn"),
            tools=[plan_tool()],
        ),
        Agent("doubtful", _model_that_breaks_off(), fallbacks=[ScriptedModel(SURE, per="turn")], tools=[sell]),
        Agent(
            "hostile", ScriptedModel(HOSTILE + "\n\n[x](javascript:alert(1))\n\n```" + "\nline" * 10_000, per="turn")
        ),
    ]


@tool(name="edit_file", replay="pure")
async def _edit_file(path: str, old: str, new: str) -> str:
    """Pretends."""
    return f"Edited {path}."


class Chart:
    """Slash commands, with names that nobody should have."""

    NAMES = ("chart", "check", f"x\u202e{HOSTILE.replace(' ', '')}")

    async def slash_commands(self, agent: Agent) -> list[SlashCommand]:
        return [SlashCommand(name=name, description=f"{HOSTILE} of {name}", source="skill") for name in self.NAMES]

    async def expand(self, agent: Agent, name: str, arguments: str) -> Expanded | None:
        return Expanded(parts=(expansion(name, "skill", f"Chart {arguments}"),)) if name in self.NAMES else None


def make_app(url: str, home: str, port: int = 0) -> App:
    app = App(database=url, agents=agents(), home=home, port=port, poll_s=0.2, grace_s=2.0)
    app.agents[DEMO] = demo_agent(app)  # as `holdfast serve` has it
    app.slash.sources.append(Chart())
    return app


def run(url: str, home: str, port: int, *, worker: bool) -> None:
    asyncio.run(serve(make_app(url, home, port), worker=worker))


if __name__ == "__main__":
    import sys

    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), worker=os.environ.get("WORKER", "1") == "1")
