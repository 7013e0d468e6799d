"""Approvals: asked by one process, which is killed; answered, or ended otherwise, under another; resumed once."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.journal import CallChanged, TurnResumed
from holdfast.core.records import CallState, State, Synthetic, ToolResult
from holdfast.errors import RefusedError
from holdfast.store.records import StoreOptions
from tests.promises.program import Log
from tests.support.programs import Program
from tests.support.turns import WAIT_S, entries, rested, said
from tests.support.waiting import eventually, until
from tests.tools.asking import HOUR_S, paying_agent
from tests.worker.lives import SteppedClock


class Case(Struct, frozen=True):
    """How it was asked, what was done about it, and what came of that."""

    how: str
    act: Callable[[Chat, str, SteppedClock], Awaitable[object]]
    text: str  # the call's result, as the model is told
    paid: int = 0
    synthetic: Synthetic | None = None
    resumed: int = 1
    asked_model: int = 2


async def approve(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.approve(call_id, by="ada")


async def deny(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.deny(call_id, "Not on a Monday.", by="ada")


async def approve_twice(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.approve(call_id, by="ada")
    for again in (chat.approve(call_id, by="bob"), chat.deny(call_id, "No!", by="bob")):
        with pytest.raises(RefusedError, match="is approved"):
            await again


async def deny_then_approve(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.deny(call_id, "Not on a Monday.", by="ada")
    with pytest.raises(RefusedError, match="is denied"):
        await chat.approve(call_id, by="bob")


async def let_it_expire(chat: Chat, call_id: str, clock: SteppedClock) -> None:
    clock.ahead_ms += int(HOUR_S * 1000)


async def stop(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.stop()
    assert await chat.state() is State.IDLE
    with pytest.raises(RefusedError, match="a chat that is idle does not take approve"):
        await chat.approve(call_id)


async def interrupt(chat: Chat, call_id: str, _clock: SteppedClock) -> None:
    await chat.send("Never mind.", "interrupt")
    with pytest.raises(RefusedError, match="is cancelled"):
        await chat.approve(call_id)


PAID = "paid 5"
DENIED = 'Denied: a person refused this call. They said: "Not on a Monday."'
EXPIRED = "Denied: nobody answered the approval in time."
CASES = {
    "approved": Case("tool", approve, PAID, paid=1),
    "approved, asked by a hook": Case("hook", approve, PAID, paid=1),
    "approved twice": Case("tool", approve_twice, PAID, paid=1),
    "denied": Case("hook", deny, DENIED, synthetic=Synthetic.DENIED),
    "denied, then approved": Case("tool", deny_then_approve, DENIED, synthetic=Synthetic.DENIED),
    "expired": Case("hook", let_it_expire, EXPIRED, synthetic=Synthetic.EXPIRED),
    "stopped": Case(
        "tool",
        stop,
        "Never ran: stopped by the user.",
        synthetic=Synthetic.CANCELLED,
        resumed=0,
        asked_model=1,
    ),
    "interrupted": Case(
        "tool", interrupt, "Never ran: the user sent a new message.", synthetic=Synthetic.CANCELLED, resumed=0
    ),
}


async def asked_and_killed(app: App, url: str, log: Path, how: str, state: State) -> tuple[Chat, str]:
    """A chat that waits for an approval, and whose worker is dead."""
    chat = await app.create("paying", "Pay them.")
    with Program("tests.tools.asking", url, str(log), how) as program:

        async def is_asking() -> bool:
            calls = (await chat.snapshot()).calls
            return await chat.state() is state and CallState.ASKING in [call.state for call in calls]

        await eventually(is_asking, WAIT_S)
        if how == "sibling":
            await until(lambda: "look" in log.read_text(), WAIT_S)
        program.process.kill()
        assert program.process.wait(WAIT_S) == -signal.SIGKILL
    (call,) = await chat.open_calls()
    assert (call.kind, call.tool, call.arguments) == ("approval", "pay", '{"amount":5}')
    assert call.why == ("Really pay?" if how == "hook" else "Run pay?")
    return chat, call.id


def counted(log: Path) -> tuple[int, int]:
    lines = log.read_text().splitlines()
    return lines.count("pay"), sum(line.startswith("model") for line in lines)


@pytest.mark.parametrize("name", CASES)
async def test_an_approval_survives_its_worker_and_is_settled_once(store_url: str, tmp_path: Path, name: str) -> None:
    case, log, clock = CASES[name], tmp_path / "log", SteppedClock()
    agent = paying_agent(Log(str(log)), case.how)
    app = App(store_url, agents=[agent], options=StoreOptions(clock=clock))
    async with app:
        chat, call_id = await asked_and_killed(app, store_url, log, case.how, State.WAITING)
        waiting = (await chat.snapshot()).chat
        assert (waiting.worker, waiting.wake_at is None) == (None, case.how != "hook"), "nobody polls for it"
        await case.act(chat, call_id, clock)
        async with app.worker(poll_s=0.1):
            while await chat.state() is not State.IDLE:
                await rested(chat)
        result = (await chat.messages())[2].parts[0]
        assert isinstance(result, ToolResult)
        assert (result.content, result.synthetic) == (case.text, case.synthetic)
        told = await entries(chat)
        assert await chat.open_calls() == []
    assert sum(isinstance(entry, TurnResumed) for entry in told) == case.resumed
    assert counted(log) == (case.paid, case.asked_model)
    approved = [entry.by for entry in told if isinstance(entry, CallChanged) and entry.state is CallState.APPROVED]
    assert approved == ["ada"] * case.paid


async def test_an_edit_ends_the_approval_and_the_new_turn_asks_anew(store_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    app = App(store_url, agents=[paying_agent(Log(str(log)), "tool")])
    async with app:
        chat, old = await asked_and_killed(app, store_url, log, "tool", State.WAITING)
        await chat.edit((await chat.messages())[0].id, "Pay the others.")
        with pytest.raises(RefusedError):
            await chat.approve(old)
        async with app.worker(poll_s=0.1):
            assert await rested(chat) is State.WAITING
            with pytest.raises(RefusedError, match="not one of the chat's current calls"):
                await chat.approve(old)
            (new,) = await chat.open_calls()
            assert counted(log)[0] == 0
            await new.approve()
            while await chat.state() is not State.IDLE:
                await rested(chat)
        assert said(await chat.messages())[2:] == [("tool", PAID), ("assistant", "Done.")]
    assert counted(log) == (1, 3)


async def test_an_approval_is_taken_while_a_sibling_still_runs_whoever_runs_it_by_then(
    store_url: str, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", asyncio.Event()
    app = App(store_url, agents=[paying_agent(Log(str(log)), "sibling", gate.wait)])
    async with app:
        chat, call_id = await asked_and_killed(app, store_url, log, "sibling", State.RUNNING)
        async with app.worker(poll_s=0.1):
            await until(lambda: log.read_text().count("look") == 2, WAIT_S)
            await chat.approve(call_id, by="ada")

            async def paid() -> bool:
                return ("tool", PAID) in said(await chat.messages())

            await eventually(paid, WAIT_S)
            assert not gate.is_set(), "its sibling still runs"
            assert await chat.state() is State.RUNNING
            gate.set()
            while await chat.state() is not State.IDLE:
                await rested(chat)
        assert said(await chat.messages())[2:] == [("tool", PAID), ("tool", "seen"), ("assistant", "Done.")]
    assert counted(log) == (1, 2)
