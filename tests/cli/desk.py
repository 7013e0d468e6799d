"""An app whose agents do what a test of the terminal needs. Used as `--app tests.cli.desk:app`."""

import asyncio
from contextlib import suppress
from pathlib import Path

from holdfast import Agent, App, Memory, ToolContext, tool
from holdfast.testing import Call, Fail, Finish, Say, ScriptedModel
from holdfast.tools.outside import ask_user, client_tool

GATE = "gate"  # a file in the current folder
HANGS = "hangs"  # another one


@tool(replay="pure")
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@tool(replay="pure")
async def wait_at_the_gate(context: ToolContext) -> str:
    """Until the file is there."""
    context.progress("at the gate\n")
    while not Path(GATE).exists():  # noqa: ASYNC110  another process makes it
        await asyncio.sleep(0.01)
    return "through"


@tool(replay="pure")
async def hang() -> str:
    """Hear nothing, not even that it is cancelled."""
    Path(HANGS).touch()
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(needs_approval=True)
async def run_line(command: str) -> str:
    """Run it, so to speak."""
    return f"ran {len(command)} characters"


# Its payload stands where nobody looks, in the middle of much that is harmless.
SCRIPT = "\n".join([*(f"echo {n} of many" for n in range(100)), "PAYLOAD", *(f"echo {n} more" for n in range(100))])

ADDED = "# The sum\n\nIt is **five**, and `2 + 3` says so.\n"
EVIL = "before \x1b]0;owned\x07\x1b[2Jafter [my bank](https://evil.example/)\n"

AGENTS = [
    Agent("echo", ScriptedModel(after="echo")),
    Agent("adds", ScriptedModel([Say(text="Let me add."), Call(name="add", arguments={"a": 2, "b": 3})], ADDED),
          tools=[add]),
    Agent("gated", ScriptedModel([Say(text="One moment."), Call(name="wait_at_the_gate")], after="echo", per="turn"),
          tools=[wait_at_the_gate]),
    Agent("talks", ScriptedModel("and on " * 5000, per="turn", pace_s=0.02)),
    Agent("hangs", ScriptedModel([Call(name="hang")], "Never."), tools=[hang]),
    Agent("pays", ScriptedModel([Call(name="pay", arguments={"amount": 5})], after="echo", per="turn"), tools=[pay]),
    Agent("runs", ScriptedModel([Call(name="run_line", arguments={"command": SCRIPT})], "Done."), tools=[run_line]),
    Agent("asks", ScriptedModel([Call(name="ask_user", arguments={"question": "Which colour?"})], "Thank you."),
          tools=[ask_user()]),
    Agent("client", ScriptedModel([Call(name="open_page")], "Opened."), tools=[client_tool("open_page")]),
    Agent("remembers", ScriptedModel(
        Call(name="memory", arguments={"action": "remember", "text": "Ada likes tea \x1b[31mgreen."}),
        Call(name="memory", arguments={"action": "add", "block": "notes", "text": "Short answers."}), after="echo"),
        memory=Memory(episodes=False)),
    Agent("fails", ScriptedModel([Fail(status=400, message="no such thing")])),
    Agent("evil", ScriptedModel(EVIL)),
    Agent("runs-out", ScriptedModel([Say(text="It is"), Finish(reason="length")])),
]  # fmt: skip

app = App(agents=AGENTS)
not_an_app = "kelp"
