"""The worker that the demo kills: `python -m holdfast.cli.commands.demo_worker URL LEDGER`; an empty URL is in the
environment (`DATABASE`), where it may have a password.

Its tools write into a ledger, a plain file that outlives them, what they do to the world: one line when a body begins
and one when it is done. The demo reads it to judge what really happened.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import Agent, App, ToolContext, tool
from holdfast.core.records import Replay
from holdfast.errors import HoldfastError
from holdfast.models.scripted import Call, Say, ScriptedModel
from holdfast.tools.base import Tool

AGENT = "shop"
DATABASE = "HOLDFAST_DATABASE"
QUICK_S = 0.3
RERUN_S = 2.0
ENDLESS_S = 250.0
SIGN_S = 0.5
FIRST = "find_customer"
BATCH = ("look_up_price", "reserve_stock", "charge_card")
ORDER = "Please order one kelp press for me."
WAIT_S = 60.0  # for a worker to come to its tools, and for the chat to end
SEEN_S = 1.0  # for the eye: all three tools are seen to run
LOOK_S = 0.02


class DemoFailed(HoldfastError):
    code = "demo"


class Ledger:
    """One line per event: what, which tool, under which key, by which process."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, what: str, name: str, key: str) -> None:
        with self._path.open("a") as file:  # one small write: whole or not at all
            file.write(f"{what} {name} {key} {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[tuple[str, str, str, int]]:
        if not self._path.exists():
            return []
        rows = [row.split(" ") for row in self._path.read_text().splitlines()]
        return [(what, name, key, int(pid)) for what, name, key, pid in rows]

    def begun(self, pid: int) -> set[str]:
        """The tools whose bodies this process has begun."""
        return {name for what, name, _, by in self.read() if what == "begins" and by == pid}


async def until(condition: Callable[[], bool], alive: Callable[[], bool]) -> None:
    """Until what the worker does is there to be seen. Raises DemoFailed."""
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        if not alive():
            raise DemoFailed("the worker ended by itself: try `holdfast doctor`")
        if time.monotonic() > give_up_at:
            raise DemoFailed(f"the worker did not come to its tools within {WAIT_S:g} s: try `holdfast doctor`")
        await asyncio.sleep(LOOK_S)


def agent(ledger: Ledger) -> Agent:
    tools = [
        _step(ledger, FIRST, "pure", "customer 4711"),
        _step(ledger, "look_up_price", "pure", "12.00"),
        _reserve(ledger),
        _step(ledger, "charge_card", "unsafe", "charged"),
        _check(ledger),
    ]
    return Agent(AGENT, _model(), tools=tools)


def _model() -> ScriptedModel:
    return ScriptedModel(
        [Say(text="Let me find the customer."), Call(name=FIRST)],
        [
            Say(text="Found. I look up the price, reserve the stock and charge the card, all at once."),
            *(Call(name=name) for name in BATCH),
        ],
        [
            Say(text="Nobody knows whether the card was charged. I will not charge it blindly; I check."),
            Call(name="check_charge"),
        ],
        "Done: the order stands, and the card was charged at most once.",
        pace_s=0.04,
    )


def takes_s(ledger: Ledger, name: str) -> float:
    """Who is to be killed in the middle of it does not come to its end by itself, however late the kill comes: this
    machine may stand still for a while.
    """
    if name == FIRST:
        return QUICK_S
    pids = {pid for what, tool, _, pid in ledger.read() if (what, tool) == ("begins", name)}
    return RERUN_S if pids - {os.getpid()} else ENDLESS_S


async def _work(context: ToolContext, seconds: float) -> None:
    """It says so while it does, as tools do that take their time: the last sign of a worker that is killed."""
    ends_at = time.monotonic() + seconds
    while (left_s := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(SIGN_S, left_s))
        context.progress(".")


def _step(ledger: Ledger, name: str, replay: str, result: str) -> Tool:
    async def body(context: ToolContext) -> str:
        ledger.write("begins", name, context.key)
        await _work(context, takes_s(ledger, name))
        ledger.write("done", name, context.key)
        return result

    made: Tool = tool(name=name, replay=Replay(replay), description=name.replace("_", " "))(body)
    return made


def _reserve(ledger: Ledger) -> Tool:
    @tool(replay="idempotent")
    async def reserve_stock(context: ToolContext) -> str:
        """Reserve one piece. The stock's keeper knows the key, so twice is once."""
        ledger.write("begins", "reserve_stock", context.key)
        reserved = {key for what, _, key, _ in ledger.read() if what == "reserves"}
        if context.key not in reserved:
            ledger.write("reserves", "reserve_stock", context.key)
        await _work(context, takes_s(ledger, "reserve_stock"))
        ledger.write("done", "reserve_stock", context.key)
        return "reserved 1"

    return reserve_stock


def _check(ledger: Ledger) -> Tool:
    @tool(replay="pure")
    async def check_charge() -> str:
        """Ask the bank."""
        charged = any(what == "done" and name == "charge_card" for what, name, _, _ in ledger.read())
        return "the bank has a charge" if charged else "the bank has no charge"

    return check_charge


async def main(url: str, ledger: str) -> None:
    await App(url, agents=[agent(Ledger(ledger))]).run_worker()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] or os.environ[DATABASE], sys.argv[2]))
