"""Promise 11. Errors keep their whole story: every cause in the chain survives retries and fallbacks, and every
attempt is recorded with provider, status and delay, for everybody to see, while it waits and afterwards.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast import Agent, AgentLimits, Hook, tool
from holdfast.errors import ConnectionFailed, StoreError, TurnFailed
from holdfast.testing import Call, Cut, Fail, Hold, Say, ScriptedModel
from tests.promises.surface import LATER, QUICK, WAIT_S, app_of, journal, judge, told_of, tool_texts
from tests.support.fixtures import FailingStore
from tests.support.turns import Gate
from tests.support.waiting import until

PLEASE_WAIT = Fail(status=429, message="slow down", retry_after="0.002", attempts=1)


async def failed_attempts(chat: Any) -> list[dict[str, Any]]:
    return [entry for entry in await journal(chat) if entry["kind"] == "attempt.failed"]


async def test_every_attempt_is_on_record_with_model_provider_status_and_delay(store_url: str) -> None:
    first = ScriptedModel([PLEASE_WAIT, Say(text="Half "), Cut()], name="first", provider="p1")
    second = ScriptedModel([Fail(status=402, message="pay first")], name="second", provider="p2")
    third = ScriptedModel("Here.", name="third", provider="p3")
    app = app_of(store_url, Agent("a", first, fallbacks=[second, third], retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Here."
        failed = await failed_attempts(chat)
        facts = [(entry["model"], entry["provider"], entry["code"], entry.get("status")) for entry in failed]
        assert facts == [
            ("first", "p1", "rate_limit", 429),
            *[("first", "p1", "lost_result", None)] * 4,
            ("second", "p2", "payment", 402),
        ]
        assert [entry.get("retry_in_ms") for entry in failed[:1]] == [2], "what the provider asked for"
        assert all(entry["retry_in_ms"] >= 0 for entry in failed[:4])
        assert [entry.get("retry_in_ms") for entry in failed[4:]] == [None, None]
        assert [entry["next_model"] for entry in failed] == [*["first"] * 4, "second", "third"]
        assert "slow down" in failed[0]["error"]
        assert "pay first" in failed[-1]["error"]
        assert len({entry["attempt"] for entry in failed}) == len(failed)
        assert (await chat.messages())[-1].model == "third"


async def test_a_failed_attempt_is_seen_while_the_next_one_still_waits(store_url: str) -> None:
    model = ScriptedModel(
        [Fail(status=529, message="overloaded, come back", retry_after=LATER)], name="m", provider="p"
    )
    app = app_of(store_url, Agent("a", model))
    async with app, app.worker(grace_s=0.0):
        chat = await app.create("a", "go")
        entry = await told_of(chat, "attempt.failed")
        assert (entry["model"], entry["provider"], entry["status"], entry["next_model"]) == ("m", "p", 529, "m")
        assert entry["retry_in_ms"] == 1_000 * int(LATER)
        assert "overloaded, come back" in entry["error"]
        assert await chat.state() == "running"
        assert len(model.requests) == 1
        await chat.stop()
        assert await chat.wait(WAIT_S) == "idle"


async def test_the_final_error_tells_of_every_attempt_first_cause_last(store_url: str) -> None:
    first = ScriptedModel([PLEASE_WAIT, Fail(status=500, message="a bolt of lightning")], name="first", provider="p1")
    second = ScriptedModel([Fail(status=402, message="pay first")], name="second", provider="p2")
    third = ScriptedModel([Fail(status=400, message="no such field: x")], name="third", provider="p3")
    app = app_of(store_url, Agent("a", first, fallbacks=[second, third], retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        with pytest.raises(TurnFailed) as raised:
            await chat.text()
        error = (await chat.snapshot()).chat.error
        assert error is not None
        assert (raised.value.code, raised.value.chain) == (error.code, error.chain)
        assert "after 7 attempts on 3 models" in error.message
        assert [line.partition(" (")[0] for line in error.chain] == [
            "attempt 7, third: bad_request",
            "attempt 6, second: payment",
            *(f"attempt {n}, first: server_error" for n in (5, 4, 3, 2)),
            "attempt 1, first: rate_limit",
        ]
        for text in ("no such field: x", "pay first", "a bolt of lightning", "slow down"):
            assert text in str(raised.value), "nothing is overwritten"
        assert "(p1, status 429, again after 0.002 s)" in error.chain[-1]
        assert "(p2, status 402)" in error.chain[1]
        told = [entry for entry in await journal(chat) if entry["kind"] == "chat.failed"]
        assert told[0]["error"]["chain"] == list(error.chain), "clients see the same story"


class Unplugged:
    """A model of somebody else, whose error has causes of its own."""

    name = provider = "unplugged"
    context_limit = None

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        try:
            try:
                raise OSError(113, "No route to host")
            except OSError as error:
                raise RuntimeError("the tunnel is down") from error
        except RuntimeError as error:
            raise ConnectionFailed("no connection to unplugged") from error
        yield


async def test_what_lies_below_an_attempts_error_is_in_the_chain(store_url: str) -> None:
    fallback = ScriptedModel([Fail(status=400, message="no thanks")], name="fallback")
    app = app_of(store_url, Agent("a", Unplugged(), fallbacks=[fallback], retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        with pytest.raises(TurnFailed) as raised:
            await chat.text()
    story = raised.value.chain
    assert "attempt 6, fallback: bad_request" in story[0]
    assert story[-3:] == (
        "attempt 1, unplugged: connection (unplugged, no status, again after "
        f"{story[-3].partition('again after ')[2]}",
        "attempt 1, because of RuntimeError: the tunnel is down",
        "attempt 1, because of OSError: [Errno 113] No route to host",
    )
    assert story[-3].endswith("no connection to unplugged")


async def test_a_retry_by_hand_leaves_the_first_failure_on_record(store_url: str) -> None:
    model = ScriptedModel([Fail(status=400, message="the first words")])
    app = app_of(store_url, Agent("a", model, retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "failed"
        model.script = ScriptedModel([Fail(status=402, message="the second words")]).script
        await chat.retry()
        assert await chat.wait(WAIT_S) == "failed"
        errors = [entry["error"]["message"] for entry in await journal(chat) if entry["kind"] == "chat.failed"]
        assert ["the first words" in errors[0], "the second words" in errors[1]] == [True, True]


async def test_attempts_before_a_handover_stay_on_record(store_url: str) -> None:
    model = ScriptedModel([Fail(status=503, message="not yet", attempts=1), Hold(name="here"), Say(text="Now.")])
    app = app_of(store_url, Agent("a", model, retry=QUICK))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await model.reached("here")
        model.resume("here")
        async with app.worker():
            assert await chat.text() == "Now."
        failed = await failed_attempts(chat)
        assert [entry["status"] for entry in failed] == [503, 503]
        assert len({entry["attempt"] for entry in failed}) == 2, "each has a number of its own"


# --- other errors --------------------------------------------------------------------------------------


async def test_a_tools_error_reaches_the_model_with_its_causes(store_url: str) -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        try:
            raise LookupError("no account 7")
        except LookupError as error:
            raise RuntimeError("could not pay") from error

    @tool
    def withdraw() -> str:
        """Withdraw."""
        try:
            raise KeyError("limit")
        except KeyError:
            raise ValueError("no limit known")  # noqa: B904  the cause is there, though nobody named it

    model = ScriptedModel([Call(name="pay"), Call(name="withdraw")], "Sorry.")
    app = app_of(store_url, Agent("a", model, tools=[pay, withdraw]))
    async with app, app.worker():
        assert await (await app.create("a", "go")).text() == "Sorry."
    assert tool_texts(model.requests[-1].messages) == [
        "RuntimeError: could not pay\nbecause of LookupError: no account 7",
        "ValueError: no limit known\nbecause of KeyError: 'limit'",
    ]
    judge(model)


async def test_a_tools_error_that_no_store_takes_as_it_is_still_reaches_the_model(store_url: str) -> None:
    @tool
    async def odd() -> str:
        """Odd."""
        raise ValueError("a NUL \x00, a lone surrogate \ud800, " + "and a lot more, " * 200_000)

    model = ScriptedModel([Call(name="odd")], "Sorry.")
    app = app_of(store_url, Agent("a", model, tools=[odd], limits=AgentLimits(result_chars=None)))
    async with app, app.worker() as worker:
        assert await (await app.create("a", "go")).text() == "Sorry."
        assert list(worker.errors) == []
    (told,) = tool_texts(model.requests[-1].messages)
    assert told.startswith("ValueError: a NUL")
    assert "bytes left out" in told


async def test_a_models_error_that_no_store_takes_as_it_is_is_told_all_the_same(store_url: str) -> None:
    model = ScriptedModel([Fail(status=400, message="bad byte \x00 or half a character \ud800, you see")])
    app = app_of(store_url, Agent("a", model, retry=QUICK))
    async with app, app.worker() as worker:
        with pytest.raises(TurnFailed, match=r"bad byte . or half a character ., you see"):
            await (await app.create("a", "go")).text()
        assert list(worker.errors) == []


@pytest.mark.parametrize("point", ["before_model", "before_tool"])
async def test_a_closed_guards_error_is_told_by_what_it_kept_from_happening(store_url: str, point: Any) -> None:
    def guard(*_: Any) -> None:
        raise PermissionError("the policy server said 503 \x00")

    gate = Gate()
    agent = Agent(
        "a",
        ScriptedModel([Call(name="gate")], "Well."),
        tools=[gate.tool()],
        hooks=[Hook(point, guard, name="policy", fails="closed")],
    )
    app = app_of(store_url, agent)
    story = "hook policy failed: PermissionError: the policy server said 503"
    async with app, app.worker():
        chat = await app.create("a", "go")
        if point == "before_model":
            with pytest.raises(TurnFailed, match=story):
                await chat.text()
        else:
            assert await chat.text() == "Well."
            assert story in tool_texts(await chat.messages())[0]
    assert gate.starts == 0


async def test_on_error_is_given_the_whole_story(store_url: str) -> None:
    seen: list[Any] = []
    model = ScriptedModel([Fail(status=503, message="one", attempts=1), Fail(status=400, message="two")])
    hooks = [Hook("on_error", lambda failure, _: seen.append(failure))]
    app = app_of(store_url, Agent("a", model, hooks=hooks, retry=QUICK))
    async with app, app.worker():
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) == "failed"
        assert seen == [(await chat.snapshot()).chat.error]
    assert ["two" in seen[0].chain[0], "one" in seen[0].chain[1]] == [True, True]


async def test_a_stores_error_stays_itself_and_is_no_stop(failing_store: FailingStore) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool()])
    app = app_of(failing_store.url, agent, deadline_s=1.0, lease_ttl_ms=4_000)
    async with app_of(failing_store.steady_url, agent) as steady, app, app.worker(poll_s=0.1) as worker:
        chat = await steady.create("a", "go")  # which has the usual time
        await gate.entered.wait()
        with failing_store.outage():
            gate.opened.set()
            await until(lambda: any(isinstance(error, StoreError) for error in worker.errors))
        (error,) = (error for error in worker.errors if isinstance(error, StoreError))
        assert str(error), "readable at the top"
        assert not isinstance(error.__context__, asyncio.CancelledError)
        assert await chat.wait(WAIT_S) == "idle"
        snapshot = await chat.snapshot()
        assert (snapshot.chat.cause, snapshot.chat.error) == (None, None)
    assert gate.starts == 1
