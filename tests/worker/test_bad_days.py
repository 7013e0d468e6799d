"""A runner's bad days: a store that fails under it, a history it cannot read, a model that breaks the rules."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.journal import AttemptFailed
from holdfast.core.records import State
from holdfast.core.retry import RetryPolicy
from holdfast.errors import CorruptRecord, StoreError, TurnFailed, UnknownRecord
from holdfast.models.base import Request, StreamPart
from holdfast.models.scripted import Call, Fail, Hold, Say, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.worker.worker import Worker
from tests.support.behind import sql
from tests.support.fixtures import FailingStore
from tests.support.turns import QUICK, Gate, entries, rested, said
from tests.support.waiting import until


def app_on(url: str, agent: Agent, **options: Any) -> App:
    return App(url, agents=[agent], retry=QUICK, options=StoreOptions(**options))


async def runner_error(worker: Worker, kind: type[BaseException]) -> BaseException:
    """The first error of this kind that a runner ended with."""
    await until(lambda: any(isinstance(error, kind) for error in worker.errors))
    return next(error for error in worker.errors if isinstance(error, kind))


async def test_a_commit_that_fails_for_a_while_is_tried_again_and_never_becomes_a_stop(
    failing_store: FailingStore,
) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool()])
    app, watching = app_on(failing_store.url, agent, deadline_s=1.0), App(failing_store.steady_url, agents=[agent])
    async with watching, app, app.worker(poll_s=0.2) as worker:
        chat = await watching.create("a", "go")
        await gate.entered.wait()
        with failing_store.outage():
            gate.opened.set()
            await until(lambda: worker.commit_times.failed)
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[2:] == [("tool", "through"), ("assistant", "Done.")]
        assert (await chat.snapshot()).chat.cause is None
        assert list(worker.errors) == []
    assert (gate.starts, len(model.requests)) == (1, 2)


async def test_a_persist_error_propagates_as_itself_when_the_lease_runs_out_and_the_chat_goes_on(
    failing_store: FailingStore,
) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool()])
    app = app_on(failing_store.url, agent, deadline_s=1.0, lease_ttl_ms=3_000)
    watching = App(failing_store.steady_url, agents=[agent])
    async with watching, app, app.worker(poll_s=0.2) as worker:
        chat = await watching.create("a", "go")
        await gate.entered.wait()
        with failing_store.outage():
            gate.opened.set()
            error = await runner_error(worker, StoreError)
        assert str(error), "readable at the top"
        assert not isinstance(error.__context__, asyncio.CancelledError)
        assert await rested(chat) is State.IDLE
        snapshot = await chat.snapshot()
        assert (snapshot.chat.cause, snapshot.chat.error) == (None, None)
        result = said(await chat.messages())[2][1]
        assert result == "through" or result.startswith("Outcome unknown"), "never a cancellation"
    assert gate.starts == 1


def rewrite(url: str, old: str, new: str) -> None:
    """Change stored text behind holdfast's back."""
    sql(url, "UPDATE journal SET body = replace(body, ?, ?)", (old, new))


async def test_a_history_of_newer_code_is_left_to_a_worker_that_knows_it(store_url: str) -> None:
    model = ScriptedModel("Hello.")
    app = app_on(store_url, Agent("a", model))
    async with app:
        chat = await app.create("a", "a hologram")
        rewrite(store_url, '"kind":"text"', '"kind":"hologram"')
        async with app.worker(poll_s=0.1) as worker:
            await runner_error(worker, UnknownRecord)
            await until(lambda: not worker.strays)
            snapshot = await chat.snapshot()
            assert (snapshot.chat.state, snapshot.chat.unclean) == (State.RUNNING, 0)
            assert snapshot.chat.wake_at is not None
            rewrite(store_url, '"kind":"hologram"', '"kind":"text"')
            assert await rested(chat) is State.IDLE
    assert len(model.requests) == 1


async def test_a_chat_that_newer_code_made_unreadable_keeps_its_worker_from_no_other(store_url: str) -> None:
    """It stays this worker's, whose lease hands it over when it ends: in a deploy that is soon."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")], after="echo"), tools=[gate.tool()])
    app = app_on(store_url, agent)
    async with app, app.worker(poll_s=0.05) as worker:
        newer = await app.create("a", "go")
        await gate.entered.wait()
        sql(store_url, "UPDATE chats SET phase = 'dreaming', version = version + 1 WHERE id = ?", (newer.id,))
        gate.opened.set()
        assert isinstance(await runner_error(worker, UnknownRecord), UnknownRecord)
        known = await app.create("a", "hello")
        assert await rested(known) is State.IDLE
        assert await known.text() == "You said: hello"
        sql(store_url, "UPDATE chats SET phase = 'calls' WHERE id = ?", (newer.id,))
        assert await rested(newer) is State.IDLE, "it was handed over as soon as it could be read"
    assert gate.starts == 2, "once in each chat"


async def test_a_chat_that_breaks_its_runner_fails_and_says_why_and_the_worker_lives(store_url: str) -> None:
    app = app_on(store_url, Agent("a", ScriptedModel(after="echo")))
    async with app:
        chat, other = await app.create("a", "broken"), await app.create("a")
        rewrite(store_url, '"kind":"text","text":"broken"', '"kind":"text","text":7')
        async with app.worker(poll_s=0.1) as worker:
            await runner_error(worker, CorruptRecord)
            assert await rested(chat) is State.FAILED
            error = (await chat.snapshot()).chat.error
            assert error is not None
            assert error.code == "corrupt_record"
            assert "CorruptRecord: stored bytes are not a message" in error.message
            await other.send("still there?")
            assert await rested(other) is State.IDLE


class Broken:
    """A model of somebody else that raises what no model may."""

    name = provider = "broken"
    context_limit = None

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        raise ZeroDivisionError("tokens per second")
        yield


async def test_a_model_that_breaks_its_contract_is_a_failed_attempt_with_its_story(store_url: str) -> None:
    fallback = ScriptedModel("Here I am.")
    app = app_on(store_url, Agent("a", Broken(), fallbacks=[fallback]))
    async with app, app.worker() as worker:
        chat = await app.create("a", "go")
        assert await chat.text() == "Here I am."
        failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
        assert {(entry.model, entry.code) for entry in failed} == {("broken", "model_broke")}
        assert "ZeroDivisionError: tokens per second" in failed[0].error
        assert list(worker.errors) == []
    alone = app_on(store_url, Agent("a", Broken()))
    async with alone, alone.worker():
        with pytest.raises(TurnFailed, match="ZeroDivisionError: tokens per second"):
            await (await alone.create("a", "go")).text()


async def test_a_stop_while_a_whole_response_cannot_be_committed_keeps_its_text(failing_store: FailingStore) -> None:
    model = ScriptedModel([Say(text="Half "), Hold(name="here"), Say(text="an answer.")])
    agent = Agent("a", model)
    app, watching = app_on(failing_store.url, agent, deadline_s=1.0), App(failing_store.steady_url, agents=[agent])
    async with watching, app, app.worker(poll_s=0.2) as worker:
        chat = await watching.create("a", "go")
        await model.reached("here")
        with failing_store.outage():
            model.resume("here")
            await until(lambda: worker.commit_times.failed)
            if failing_store.url != failing_store.steady_url:
                await chat.stop()  # comes in another way, and first
        if failing_store.url == failing_store.steady_url:
            await chat.stop()
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[-1] == ("assistant", "Half an answer.")


async def test_an_attempt_that_was_not_even_let_in_is_recorded_after_one_that_failed(store_url: str) -> None:
    model = ScriptedModel([Hold(name="here"), Fail(status=500, attempts=1), Say(text="Never.")])
    retry = RetryPolicy(base_s=0.001, delay_max_s=0.05, total_s=1.0)
    app = app_on(store_url, Agent("a", model, retry=retry))
    async with app, app.worker():
        chat = await app.create("a", "go")
        await model.reached("here")
        app.caller.providers.get(model.provider).cool(model.name, 60)  # somebody else's 429
        model.resume("here")
        assert await rested(chat) is State.FAILED
        failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
        assert (failed[0].code, failed[-1].code) == ("server_error", "timeout")
        assert len({entry.attempt for entry in failed}) == len(failed)
