"""Budgets at work: many chats and their sub-agents against one limit, with a provider at the wire that keeps its own
bill; what ends, what waits, what goes on, and what every kind of call leaves in the books.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.agent import Agent, AgentLimits, CompactionPolicy
from holdfast.app import App
from holdfast.config import ModelFacts, Price
from holdfast.core.budgets import Estimate
from holdfast.core.history import problems
from holdfast.core.journal import Compacted, TurnEnded
from holdfast.core.records import Cause, ChatRecord, State
from holdfast.core.spending import SpendingKind, Spent
from holdfast.errors import ConfigError
from holdfast.models.base import Settings
from holdfast.models.scripted import Call as ToolUse
from holdfast.models.scripted import Fail, Say, ScriptedModel
from holdfast.owner_limits import Budgets, OwnerLimits
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext
from holdfast.tools.sub_agents import agent_tools
from tests.support.chat_server import Step
from tests.support.chats import history, journal
from tests.support.provider import Answer, Provider, in_order, providing
from tests.support.speakers import Anthropic, Call
from tests.support.turns import QUICK, WAIT_S, rested, running

GIVEN, MADE = 60, 100
ONE = GIVEN + MADE  # what each answer at the wire is billed with
PATIENT = StoreOptions(lease_ttl_ms=10_000)


class Billing(Anthropic):
    """Its answers cost more than a word each, and no more than is reserved for them."""

    def begin(self) -> tuple[Step, ...]:
        usage = {"input_tokens": GIVEN, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
        return (self._data("message_start", message={**message, "stop_reason": None, "stop_sequence": None}),)

    def end(self, reason: str = "stop") -> tuple[Step, ...]:
        delta = {"stop_reason": self.reasons[reason], "stop_sequence": None}
        told = self._data("message_delta", delta=delta, usage={"output_tokens": MADE})
        return (told, self._data("message_stop"))


def parents_answer(results: Sequence[str]) -> Answer:
    if not results:
        return Answer(calls=(Call("spawn_agent", (json.dumps({"agent": "child", "task": "help"}),)),))
    if len(results) == 1:
        return Answer(calls=(Call("wait_agent", (json.dumps({"agent_id": _agent_id(results[0])}),)),))
    return Answer(text=("Done.",))


CHILDS_ANSWER = in_order(Answer(text=("Ok.",)))


def _agent_id(result: str) -> str:
    start = result.index("chat")
    return result[start:].split("\\")[0].split('"')[0]


def model_of(provider: Provider, name: str) -> str:
    return f"compatible-anthropic:{name}@{provider.url}"


def team(parent: Provider, child: Provider) -> list[Agent[Any]]:
    settings = Settings(max_tokens=MADE)
    return [
        Agent("parent", model_of(parent, "p"), tools=agent_tools(["child"]), settings=settings),
        Agent("child", model_of(child, "c"), settings=settings),
    ]


async def history_problems(app: App, chat_id: str) -> list[str]:
    return problems(await history(app.store, chat_id))


async def titled(app: App, chat_id: str) -> None:
    after = None
    while (await app.store.read_chat(chat_id)).chat.title is None:
        after = (await app.store.wait_journal(chat_id, after, 1.0)).cursor


async def everyone_rests(app: App) -> list[ChatRecord]:
    """Every chat there is, children included, once none is at work."""
    while True:
        lines = await app.store.list_chats(limit=200)
        chats = [(await app.store.read_chat(line.id)).chat for line in lines]
        made_meanwhile = len(await app.store.list_chats(limit=200)) > len(lines)
        if not made_meanwhile and all(chat.state in (State.IDLE, State.FAILED) for chat in chats):
            return chats
        await asyncio.sleep(0.05)


async def test_a_parents_turn_bounds_its_sub_agents_and_open_calls_are_answered(store_url: str) -> None:
    with providing(Billing(), parents_answer) as parent, providing(Billing(), CHILDS_ANSWER) as child:
        agents = team(parent, child)
        agents[0].limits = AgentLimits(tokens=2 * ONE)
        app = App(store_url, agents, retry=QUICK, options=PATIENT)
        async with app, app.worker(poll_s=0.2):
            await app.create("parent", "go", owner="ann")
            chats = {chat.agent: chat for chat in await everyone_rests(app)}
            calls = len(parent.asked) + len(child.asked)
            assert calls == 2, "the third would have been above the limit, whoever had made it"
            assert chats["parent"].cause is Cause.BUDGET
            ended = [entry for entry in await journal(app.store, chats["parent"].id) if isinstance(entry, TurnEnded)]
            assert await history_problems(app, chats["parent"].id) == []
    figures = f"{2 * ONE} of {2 * ONE} tokens"
    words = "max_tokens" if len(parent.asked) == 2 else "budget of the turn, with sub-agents"
    assert ended[-1].detail == f"{words}: {figures}", "by the parent itself, or with its child, whoever came first"


async def test_a_sub_agent_ends_at_what_is_left_of_the_turn_above_it(store_url: str) -> None:
    with providing(Billing(), parents_answer) as parent, providing(Billing(), CHILDS_ANSWER) as child:
        agents = team(parent, child)
        agents[0].limits = AgentLimits(tokens=ONE)  # the parent's first response takes all of it
        app = App(store_url, agents, retry=QUICK, options=PATIENT)
        async with app, app.worker(poll_s=0.2):
            await app.create("parent", "go", owner="ann")
            chats = {chat.agent: chat for chat in await everyone_rests(app)}
            ended = [entry for entry in await journal(app.store, chats["child"].id) if isinstance(entry, TurnEnded)]
    assert (len(parent.asked), len(child.asked)) == (1, 0)
    assert {name: chat.cause for name, chat in chats.items()} == {"parent": Cause.BUDGET, "child": Cause.BUDGET}
    assert ended[-1].detail == f"budget of turn 1 of chat {chats['parent'].id} above: {ONE} of {ONE} tokens"


async def test_every_kind_of_call_is_in_the_books(store_url: str) -> None:
    model = ScriptedModel([Say(text="half of"), Fail(attempts=1)], "Second.")
    agent = Agent(
        "a",
        model,
        title_model=ScriptedModel("A title"),
        compaction=CompactionPolicy(model=ScriptedModel("In short.")),
    )
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "one " * 50, owner="ann")
        await rested(chat)
        await asyncio.wait_for(titled(app, chat.id), WAIT_S)
        await chat.send("two")
        await rested(chat)
        await chat.compact()
        await rested(chat)
        kinds = {line.kind: line.lines for line in await app.store.budgets.usage(("kind",), owner="ann")}
        sums = await app.store.budgets.usage(("owner",))
        record = (await chat.snapshot()).chat
    assert kinds == {"lost": 1, "step": 2, "title": 1, "summary": 1}
    assert sums[0].tokens == record.chat_tokens


async def test_a_limit_on_the_cost_of_owners_needs_prices_and_limits_are_looked_at(tmp_path: Any) -> None:
    agent = Agent("a", "openai:gpt-5")
    with pytest.raises(ConfigError, match="needs a price for every model"):
        App(f"sqlite:///{tmp_path}/a.db", [agent], budgets=Budgets(each=OwnerLimits(day_cost=1.0)))
    for wrong in (Budgets(zone="Mars"), Budgets(each=OwnerLimits(tokens=-1)), Budgets(slice_tokens=0)):
        with pytest.raises(ConfigError, match="budgets"):
            App(f"sqlite:///{tmp_path}/a.db", [agent], budgets=wrong)
    facts = {"openai:gpt-5": ModelFacts(price=Price(input=1.0, output=2.0))}
    App(f"sqlite:///{tmp_path}/a.db", [agent], models=facts, budgets=Budgets(each=OwnerLimits(day_cost=1.0)))


async def test_a_day_is_one_of_the_zone(store_url: str) -> None:
    agent = Agent("a", ScriptedModel("Hi."))
    app = App(store_url, [agent], budgets=Budgets(zone="Pacific/Kiritimati"), options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        chat = await app.create("a", "hi")
        await rested(chat)
        (line,) = await app.store.budgets.usage(("day",))
        assert line.day == worker.draws.day()
        ahead = datetime.fromtimestamp(app.store.now_ms() / 1000 + 14 * 3600, UTC).date().isoformat()
        assert worker.draws.day() == ahead


async def test_what_a_worker_left_is_counted_by_its_next_sweep_unless_its_commit_was(
    store_url: str,
) -> None:
    agent = Agent("a", ScriptedModel("Hi."))
    app = App(store_url, [agent], budgets=Budgets(each=OwnerLimits(tokens=100)), options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        chat = (await (await app.create("a")).snapshot()).chat
        held, lost = [
            await worker.draws.draw(chat, agent, lambda: Estimate(tokens=40), lambda: True) for _ in range(2)
        ]
        spent = Spent(model="m", tokens=7)
        worker.draws.leave(chat, SpendingKind.STOPPED, (spent,), lost)
        await worker.draws.tidy()
        await worker.draws.tidy()
        assert await app.store.budgets.reserved_by(worker.name) == [held.id]
        (total,) = await app.usage(["kind"])
        assert (total.kind, total.lines, total.tokens) == ("stopped", 1, 7)
        await app.store.budgets.release(held.id or "")  # as by a commit that was written after all
        worker.draws.leave(chat, SpendingKind.STOPPED, (spent,), held)
        await worker.draws.tidy()
        assert (await app.usage(["kind"])) == [total]


def summarised_by(writer: ScriptedModel) -> Agent[Any]:
    policy = CompactionPolicy(model=writer, deadline_s=3.0)
    return Agent("a", ScriptedModel("First.", "Second."), settings=Settings(max_tokens=10), compaction=policy)


async def test_a_summary_that_is_tried_again_does_not_wait_for_its_own_reservation(store_url: str) -> None:
    writer = ScriptedModel([Say(text="half of"), Fail(attempts=1), Say(text="In short.")])
    agent = summarised_by(writer)
    budgets = Budgets(each=OwnerLimits(tokens=2_000))  # of which one attempt reserves more than half
    app = App(store_url, [agent], retry=QUICK, budgets=budgets, options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        chat = await app.create("a", "one " * 50, owner="ann")
        await rested(chat)
        await chat.send("two")
        await rested(chat)
        await chat.compact()
        await rested(chat)
        made = [entry for entry in await journal(app.store, chat.id) if isinstance(entry, Compacted)]
        assert [entry.trimmed for entry in made] == [False]
        (total,) = await app.store.budgets.usage(("owner",))
        assert total.tokens == (await chat.snapshot()).chat.chat_tokens
        assert (worker.draws.open_count, (await app.store.budgets.figures()).reservations) == (0, 0)


async def test_what_a_lost_attempt_at_a_summary_took_counts_where_a_budget_ends_the_next(store_url: str) -> None:
    writer = ScriptedModel([Say(text="half of"), Fail(attempts=1)])
    agent = summarised_by(writer)
    app = App(store_url, [agent], retry=QUICK, options=PATIENT)
    async with app, app.worker(poll_s=0.2):
        chat = await app.create("a", "one " * 50, owner="ann")
        await rested(chat)
        await chat.send("two")
        await rested(chat)
        (spent,) = await app.store.budgets.usage(("owner",))
        await app.set_budget("ann", OwnerLimits(tokens=spent.tokens + 1))
        await chat.compact()
        await rested(chat)
        kinds = {line.kind: line.tokens for line in await app.store.budgets.usage(("kind",))}
        assert (await app.store.budgets.figures()).reservations == 0
        assert kinds["summary"] > 1
    assert len(writer.requests) == 1


async def test_what_a_tool_takes_after_a_takeover_is_drawn_on_the_turn_above(store_url: str) -> None:
    entered, ran = asyncio.Event(), list[str]()

    @tool(replay="pure")
    async def costly(context: ToolContext) -> str:
        """Costs."""
        ran.append("once")
        if len(ran) == 1:
            entered.set()
            await asyncio.Event().wait()
        context.spent(tokens=5_000)
        return "done"

    spawn = ToolUse(name="spawn_agent", arguments={"agent": "child", "task": "help"})
    child = ScriptedModel([ToolUse(name="costly")], "One more.")
    agents: list[Agent[Any]] = [
        Agent(
            "parent", ScriptedModel([spawn], "Fine."), tools=agent_tools(["child"]), limits=AgentLimits(tokens=4_000)
        ),
        Agent("child", child, tools=[costly], settings=Settings(max_tokens=10)),
    ]
    app = App(store_url, agents, retry=QUICK, options=PATIENT)
    async with app:
        async with app.worker(poll_s=0.2, grace_s=0.1):
            await app.create("parent", "go", owner="ann")
            await asyncio.wait_for(entered.wait(), WAIT_S)
        async with app.worker(poll_s=0.2):
            chats = {chat.agent: chat for chat in await everyone_rests(app)}
    assert len(child.requests) == 1
    assert chats["child"].cause is Cause.BUDGET
