"""Health: what a process says of itself, to whom, and under which circumstances it must still say it."""

import asyncio
import json
import threading
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast import AgentLimits
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import State
from holdfast.health.checks import Figures, diagnose
from holdfast.health.prometheus import prometheus
from holdfast.hooks import Hook
from holdfast.models.scripted import Call, Hold, Say, ScriptedModel
from holdfast.store.migrations import migrations
from holdfast.store.records import StoreOptions
from tests.support.looptime import LoopTime
from tests.support.turns import QUICK, Gate, rested, running, said, weather
from tests.support.waiting import eventually, until

NAMES = {
    "thread_count",
    "asyncio_task_count",
    "running_executions",
    "conversation_history_size",
    "conversation_history_limit",
}


def test_without_any_app_or_loop_it_says_what_it_knows_and_why_not_the_rest() -> None:
    threads_before = threading.active_count()  # what an earlier test left to end by itself may end meanwhile
    told = holdfast.diagnostics()
    assert (told["status"], told["reasons"], told["version"]) == ("ok", [], holdfast.__version__)
    figures = told["diagnostics"]
    assert set(figures) >= NAMES
    assert threading.active_count() <= figures["thread_count"] <= threads_before
    assert (figures["running_executions"], figures["conversation_history_size"]) == (0, 0)
    assert figures["conversation_history_limit"] == 1000
    assert figures["asyncio_task_count"] is None
    assert figures["unknown"]["asyncio_task_count"] == "no event loop of holdfast runs in this process"


def test_a_figure_that_cannot_be_read_is_null_with_the_reason_and_hides_no_other() -> None:
    figures = Figures()
    figures.add("broken", lambda: 1 // 0)
    figures.add("fine", lambda: 3)
    assert figures.told() == {
        "broken": None,
        "fine": 3,
        "unknown": {"broken": "ZeroDivisionError: integer division or modulo by zero"},
    }


def test_what_is_no_text_hides_no_figure() -> None:
    """A file can have such a name, and a library may name a thread after it."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="watch caf\udce9", daemon=True)
    thread.start()
    try:
        told = json.loads(msgspec.json.encode(holdfast.diagnostics(detailed=True)))
        assert "watch caf\\udce9" in told["process"]["threads"]
    finally:
        over.set()
        thread.join()


async def test_a_busy_worker_counts_what_runs_and_what_it_keeps(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    async with running(store_url, Agent("a", model, tools=[gate.tool(deadline_s=77)])) as (app, _):
        chat = await app.create("a", "go")
        await gate.entered.wait()
        await until(lambda: holdfast.diagnostics()["status"] == "ok")  # a machine that stood still is a stalled loop
        told = holdfast.diagnostics(detailed=True)
        figures = told["diagnostics"]
        assert figures["running_executions"] == 1
        assert figures["conversation_history_size"] >= 1
        assert figures["asyncio_task_count"] == len(asyncio.all_tasks())
        (app_told,) = told["apps"]
        (worker_told,) = app_told["workers"]
        (running_tool,) = worker_told["tools_running"]
        assert (running_tool["tool"], running_tool["deadline_s"], running_tool["chat_id"]) == ("gate", 77, chat.id)
        assert worker_told["lease_trust_left_ms"] > 0
        assert worker_told["claims_taken"] == 1
        assert worker_told["commits"] >= 1
        assert worker_told["guard"]["alive"] is True
        assert app_told["store"]["store"] in ("sqlite", "postgresql")
        assert app_told["store"]["schema_version"] == migrations("sqlite")[-1].number
        assert json.loads(json.dumps(told)) == told, "plain data"
        gate.opened.set()
        assert await rested(chat) is State.IDLE
        await until(lambda: holdfast.diagnostics()["diagnostics"]["running_executions"] == 0)
        assert holdfast.diagnostics()["diagnostics"]["conversation_history_size"] == 0
    assert holdfast.diagnostics()["diagnostics"]["asyncio_task_count"] is None


async def test_collecting_works_from_another_thread_while_the_loop_is_blocked(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Hi."))) as (_app, _worker):
        told: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: told.append(holdfast.diagnostics(detailed=True)))
        thread.start()
        thread.join(10)  # the loop does nothing meanwhile
        assert told[0]["apps"][0]["workers"][0]["chats"] == 0


async def test_the_public_part_names_no_chat_no_owner_and_no_secret(store_url: str) -> None:
    gate = Gate()
    agent = Agent("secretive", ScriptedModel([Call(name="gate")]), tools=[gate.tool()])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("secretive", "my password is hunter2", owner="lovelace")
        await gate.entered.wait()
        public = json.dumps(holdfast.diagnostics())
        for word in (chat.id, "lovelace", "hunter2", "secretive", "gate", store_url):
            assert word not in public
        detailed = json.dumps(holdfast.diagnostics(detailed=True))
        for word in ("hunter2", "lovelace"):
            assert word not in detailed
        await chat.stop()
        await rested(chat)


async def test_a_hung_hook_is_a_reason_code(store_url: str) -> None:
    began, blocked = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        began.set()
        blocked.wait(60)

    hooks = [Hook("before_model", hang, name="sleeper", deadline_s=600.0)]
    async with running(store_url, Agent("a", ScriptedModel("Hi."), hooks=hooks)) as (app, _):
        try:
            chat = await app.create("a", "go")
            await until(began.is_set)  # a hook that no thread has begun yet hangs in none
            LoopTime().advance(600.0)
            await rested(chat)
            told = holdfast.diagnostics(detailed=True)
            assert told["status"] == "degraded"
            assert {"hooks_suspended", "threads_abandoned"} <= set(told["reasons"])
            assert told["apps"][0]["workers"][0]["hooks_suspended"] == ["sleeper"]
        finally:
            blocked.set()


async def test_a_draining_worker_says_so(store_url: str) -> None:
    gate = Gate()
    app = App(store_url, agents=[Agent("a", ScriptedModel([Call(name="gate")]), tools=[gate.tool()])])
    async with app:
        await app.create("a", "go")
        async with app.worker(grace_s=30) as worker:
            await gate.entered.wait()
            stopping = asyncio.ensure_future(worker.stop())
            await asyncio.sleep(0)
            assert holdfast.diagnostics()["status"] == "draining"
            gate.opened.set()
            await stopping


async def test_every_heartbeat_tells_the_fleet_how_the_worker_is(store_url: str) -> None:
    gate = Gate()
    agent = Agent("a", ScriptedModel([Call(name="gate")], "Done."), tools=[gate.tool()])
    app = App(store_url, agents=[agent], options=StoreOptions(lease_ttl_ms=3_000))
    async with app, app.worker() as worker:
        chat = await app.create("a", "go")
        await gate.entered.wait()

        async def one_chat() -> bool:
            infos = {lease.worker: lease.info for lease in await app.store.list_workers()}
            if (
                worker.name not in infos
            ):  # its lease did not outlive a machine that stood still: the next one will tell
                return False
            info = msgspec.json.decode(infos[worker.name])
            assert (info["agents"], info["version"]) == (["a"], holdfast.__version__)
            return bool(info["chats"] == 1)

        await eventually(one_chat)
        gate.opened.set()
        assert await rested(chat) is State.IDLE


async def test_an_agents_own_limit_keeps_room_for_the_others(store_url: str) -> None:
    gate = Gate()
    greedy = Agent(
        "greedy",
        ScriptedModel([Call(name="gate")], "Done.", per="chat"),
        tools=[gate.tool()],
        limits=AgentLimits(chats=1),
    )
    modest = Agent("modest", ScriptedModel(after="echo"))
    app = App(store_url, agents=[greedy, modest])
    async with app, app.worker(chats_max=2, poll_s=0.2) as worker:
        waiting = [await app.create("greedy", "go") for _ in range(4)]
        other = await app.create("modest", "and me?")
        assert await rested(other) is State.IDLE
        assert len({chat.id for chat in waiting} & set(worker.running_chats)) <= 1
        gate.opened.set()
        for chat in waiting:
            assert await rested(chat) is State.IDLE


async def test_of_a_long_chat_only_the_newest_messages_are_kept_and_requests_hold_all(store_url: str) -> None:
    turns: list[Any] = ["One.", [Call(name="weather", arguments={"city": "Bern"})], "Two."] * 4
    model = ScriptedModel(*turns, [Hold(name="last"), Say(text="End.")])
    app = App(store_url, agents=[Agent("a", model, tools=[weather])], retry=QUICK, history_limit=3)
    async with app, app.worker():
        chat = await app.create("a", "first")
        await rested(chat)
        for n in range(7):
            await chat.send(f"message {n}")
            await rested(chat)
        await chat.send("the last one")
        await model.reached("last")
        figures = holdfast.diagnostics()["diagnostics"]
        # The result is the third from the end: it goes with what asked for it.
        assert (figures["conversation_history_size"], figures["conversation_history_limit"]) == (2, 3)
        whole = await chat.messages()
        assert [message.id for message in model.requests[-1].messages] == [message.id for message in whole]
        assert len(whole) > 20
        model.resume("last")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[-1] == ("assistant", "End.")


async def test_prometheus_reads_the_same_figures(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Hi."))) as (app, worker):
        await rested(await app.create("a", "go"))
        await until(lambda: holdfast.diagnostics()["status"] == "ok")  # as above
        text = prometheus(diagnose([app], "1.2.3", detailed=True)).decode()
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["holdfast_status", ("ok",)] == 1
    assert samples["holdfast_status", ("unhealthy",)] == 0
    assert samples["holdfast_thread_count", ()] >= 1
    assert samples["holdfast_worker_claims_taken_total", (worker.name,)] == 1
    assert samples["holdfast_worker_chats_max", (worker.name,)] == 100
