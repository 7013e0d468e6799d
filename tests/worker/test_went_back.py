"""A database that goes back under a running worker: what was lost is told, nothing is doubled, nothing loops."""

import logging
from collections.abc import Sequence

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core import commands as cmd
from holdfast.core.records import Snapshot, State
from holdfast.errors import StaleWriter
from holdfast.health.checks import diagnose, worker_figures
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import Tool, tool
from holdfast.worker.held_chat import MISSES_MAX
from tests.support.rewinding import Backup
from tests.support.turns import Gate, rested, running, said
from tests.support.waiting import until


def reasons(app: App) -> list[str]:
    return list(diagnose([app], "test")["reasons"])


def _named(name: str, gate: Gate) -> Tool:
    async def wait() -> str:
        gate.starts += 1
        gate.entered.set()
        await gate.opened.wait()
        return f"{name} is through"

    wait.__name__ = name
    wait.__doc__ = f"Wait for {name}."
    return tool(wait)


async def test_a_runner_whose_steps_were_undone_leaves_and_the_chat_goes_on_from_what_is_there(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Gate(), Gate()
    tools = [_named("first", first), _named("second", second)]
    model = ScriptedModel([Call(name="first")], [Call(name="second")], "Done.")
    async with running(store_url, Agent("a", model, tools=tools)) as (app, worker):
        chat = await app.create("a", "go")
        await first.entered.wait()
        backup = Backup(store_url)
        first.opened.set()
        await second.entered.wait()
        with caplog.at_level(logging.WARNING):
            backup.put_back()
            second.opened.set()
            assert await rested(chat) is State.IDLE
        spoken = said(await chat.messages())
        assert [text for role, text in spoken if role == "assistant"][-1] == "Done."
        unknown = [text for role, text in spoken if role == "tool" and "Outcome unknown" in text]
        assert len(unknown) == 1, "the first call had begun, and the database had not got what came of it"
        assert len(model.requests) <= 5, "the model is asked for what was lost, and not without end"
        assert app.store.incidents.counts["database_went_back"] >= 1
        assert "database_went_back" in reasons(app)
        logged = [record for record in caplog.records if getattr(record, "action", "") == "database_went_back"]
        assert logged
        assert all(getattr(record, "chat", chat.id) == chat.id for record in logged)
        assert worker.running_chats == []
        assert await app.store.find_violations() == []


async def test_a_worker_whose_claim_was_undone_drives_the_chat_once(store_url: str) -> None:
    """It claims it again, under the same number. The runner of the claim that was lost leaves."""
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[gate.tool()])])
    async with app:
        chat = await app.create("a", "go")
        backup = Backup(store_url)
        async with app.worker(poll_s=0.05) as worker:
            await gate.entered.wait()
            backup.put_back()
            await until(lambda: gate.starts == 2)
            await until(lambda: len(worker.running_chats) == 1)
            gate.opened.set()
            assert await rested(chat) is State.IDLE
        assert said(await chat.messages()) == [
            ("user", "go"),
            ("assistant", ""),
            ("tool", "through"),
            ("assistant", "Done."),
        ]


async def test_a_chat_that_the_database_never_heard_of_is_left(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    backup: Backup | None = None
    async with running(store_url, Agent("a", model, tools=[gate.tool()])) as (app, worker):
        backup = Backup(store_url)
        await app.create("a", "go")
        await gate.entered.wait()
        backup.put_back()
        gate.opened.set()
        await until(lambda: not worker.running_chats)
        assert len(model.requests) == 1
        assert worker.runner_errors == 0


async def test_a_chat_whose_steps_come_to_nothing_is_left_after_a_few(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: the model is not asked without end for what nobody takes."""
    model = ScriptedModel("Done.")
    async with running(store_url, Agent("a", model)) as (app, worker):
        commit = app.store.commit

        async def refuse(snapshot: Snapshot, commands: Sequence[cmd.Command], commit_id: str) -> Snapshot:
            if any(isinstance(command, cmd.Respond) for command in commands):
                raise StaleWriter("nobody foresaw this")
            return await commit(snapshot, commands, commit_id)

        with monkeypatch.context() as broken:
            broken.setattr(app.store, "commit", refuse)
            chat = await app.create("a", "go")
            await until(lambda: worker.misses.left == 1)
            assert len(model.requests) <= 2 * MISSES_MAX
        figures = worker_figures(worker).told()
        assert figures["steps_missed"] == MISSES_MAX
        assert figures["chats_left_after_misses"] == 1
        assert await rested(chat) is State.IDLE
