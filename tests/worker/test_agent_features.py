"""What an agent can ask of the loop: tools per chat and turn, typed answers, deps, titles, plugins, prices."""

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import AgentLimits, Budgets, CompactionPolicy, OwnerLimits
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.config import ModelFacts, Price
from holdfast.core.codec import decode_keepsakes
from holdfast.core.journal import AttemptFailed, CallsStarted, ChatRenamed, MessageAdded, Noted, TurnEnded
from holdfast.core.limits import Limits
from holdfast.core.records import Cause, Role, State, Synthetic, ToolResult
from holdfast.errors import ConfigError, RefusedError, ToolFailed, TurnFailed, TurnStopped
from holdfast.hooks import Arguments, Hook, RunContext
from holdfast.models.base import Request, Settings, StreamPart, Usage
from holdfast.models.scripted import Call, Count, Cut, Fail, Finish, Hold, Say, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext
from holdfast.worker import plugins
from tests.support.turns import QUICK, WAIT_S, Gate, entries, rested, running, said, weather
from tests.support.waiting import eventually, until


@tool(replay="pure")
def clock() -> str:
    """The time."""
    return "noon"


@pytest.mark.parametrize("name", ["file.read", "größe", "x" * 65])
def test_a_tool_with_a_name_that_providers_refuse_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has 1 to 64 letters"):
        Agent("a", "scripted", tools=[tool(name=name)(clock.function)])


# --- active tools ------------------------------------------------------------------------------------


async def test_tools_are_limited_by_agent_chat_and_turn_and_an_empty_list_means_none(store_url: str) -> None:
    model = ScriptedModel(after="echo")
    async with running(store_url, Agent("a", model, tools=[weather, clock])) as (app, _):
        free, tied = await app.create("a", "all"), await app.create("a", "one", active_tools=["clock"])
        none = await app.create("a", "none", active_tools=[])
        for chat in (free, tied, none):
            assert await rested(chat) is State.IDLE
        await tied.send("nothing in this turn", active_tools=[])
        await rested(tied)
        await tied.send("and again")
        await rested(tied)
    offered = {request.messages[-1].text: [spec.name for spec in request.tools] for request in model.requests}
    assert offered == {
        "all": ["weather", "clock"],
        "one": ["clock"],
        "none": [],
        "nothing in this turn": [],
        "and again": ["clock"],
    }


async def test_a_turns_limit_holds_for_the_whole_turn_and_after_a_handover(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], [Call(name="weather", arguments={"city": "Bern"})], "Done.")
    agent = Agent("a", model, tools=[weather, gate.tool(replay="pure")])
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        chat = await app.create("a")
        await chat.send("go", active_tools=["gate"])
        async with app.worker(grace_s=0.0):
            await gate.entered.wait()
            await chat.send("steering opens nothing", mode="steer")
        gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert texts == ["through", "weather is not active. Active tools: gate."]


async def test_a_tool_that_the_agent_does_not_have_cannot_be_active(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel("Hi."), tools=[weather])) as (app, _):
        with pytest.raises(ConfigError, match="wether"):
            await app.create("a", "go", active_tools=["wether"])
        chat = await app.create("a")
        with pytest.raises(ConfigError, match="its tools \\(weather\\)"):
            await chat.send("go", active_tools=["wether"])
        assert await chat.messages() == []


# --- what a step records ------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "fallback", "recorded"), [(None, 4096, 4096), (None, None, None), (128, 4096, 128)])
async def test_a_step_records_the_context_limit(
    store_url: str, own: int | None, fallback: int | None, recorded: int | None
) -> None:
    model = ScriptedModel("Hello.", context_limit=own)
    async with running(store_url, Agent("a", model, compaction=CompactionPolicy(context_limit=fallback))) as (app, _):
        chat = await app.create("a", "go")
        await rested(chat)
        assert (await chat.messages())[-1].context_limit == recorded


async def test_cost_is_durable_and_a_cost_budget_ends_the_turn_after_a_handover(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Count(input_tokens=1_000_000), Call(name="gate")], "Never.")
    agent = Agent("a", model, tools=[gate.tool()], limits=AgentLimits(cost=2.5))
    app = App(store_url, agents=[agent], retry=QUICK, models=priced({model.name: Price(input=3, output=5)}))
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=WAIT_S):
            await gate.entered.wait()
            gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        ended = [entry for entry in await entries(chat) if isinstance(entry, TurnEnded)]
        assert (ended[-1].cause, ended[-1].detail) == (Cause.BUDGET, "max_cost: 3.0000 of 2.5")
        assert (await chat.snapshot()).chat.turn_cost == 3.0
    assert len(model.requests) == 1


async def test_what_a_tool_spends_counts_in_the_budget_and_in_what_the_turn_shows(store_url: str) -> None:
    @tool(replay="pure")
    async def research(context: ToolContext) -> str:
        """Ask a model of its own."""
        context.spent(tokens=900, cost=1.5)
        context.spent(tokens=100, cost=1.25)
        raise ToolFailed("it found nothing, and was paid for")

    model = ScriptedModel([Call(name="research")], "Never.")
    agent = Agent("a", model, tools=[research], limits=AgentLimits(cost=2.5))
    async with running(store_url, agent, models=priced({model.name: Price(input=0, output=0)})) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        told = await entries(chat)
    ended = next(entry for entry in told if isinstance(entry, TurnEnded))
    assert (ended.cause, ended.detail, ended.cost) == (Cause.BUDGET, "max_cost: 2.7500 of 2.5", 2.75)
    spent = [(entry.text, entry.tokens, entry.cost) for entry in told if isinstance(entry, Noted)]
    assert spent == [("1,000 tokens, 2.7500", 1_000, 2.75)]


async def test_a_tool_learns_what_is_left_of_every_budget_that_binds_it(store_url: str) -> None:
    told: list[tuple[int | None, float | None]] = []

    @tool(replay="pure")
    async def research(context: ToolContext) -> str:
        """Ask a model of its own."""
        left = await context.budget_left()
        told.append((left.tokens, left.cost))
        context.spent(tokens=100, cost=1.25)
        return "found"

    model = ScriptedModel(*[[Call(name="research")]] * 2, "Done.", [Call(name="research")], "Done.")
    limits = AgentLimits(cost=4.0, chat_cost=6.0)
    budgets = Budgets(each=OwnerLimits(cost=3.5))
    prices = priced({model.name: Price(input=0, output=0)})
    app = App(store_url, agents=[Agent("a", model, tools=[research], limits=limits)], models=prices, budgets=budgets)
    async with app, app.worker():
        chat = await app.create("a", "go", owner="ann")
        assert await rested(chat) is State.IDLE
        await app.set_budget("ann", OwnerLimits(cost=100.0))
        await chat.send("again")
        assert await rested(chat) is State.IDLE
    assert [cost for _, cost in told] == [3.5, 2.25, 3.5], "of the owner, twice; then of the chat"
    assert [tokens for tokens, _ in told] == [None] * 3


async def test_calls_of_a_tool_that_run_at_once_are_told_an_even_share_of_what_is_left(store_url: str) -> None:
    told: list[float | None] = []
    together = asyncio.Barrier(3)

    @tool(replay="pure")
    async def research(context: ToolContext) -> str:
        """Ask a model of its own."""
        left = await context.budget_left()
        told.append(left.cost)
        await together.wait()
        context.spent(cost=1.0)
        return "found"

    @tool(replay="pure")
    async def other() -> str:
        """Spends nothing."""
        return "nothing"

    @tool(replay="pure")
    async def alone(context: ToolContext) -> str:
        """The same, and no other of its kind."""
        told.append((await context.budget_left()).cost)
        return "found"

    model = ScriptedModel([*[Call(name="research")] * 3, Call(name="other")], [Call(name="alone")], "Done.")
    agent = Agent("a", model, tools=[research, other, alone], limits=AgentLimits(cost=6.0))
    async with running(store_url, agent, models=priced({model.name: Price(input=0, output=0)})) as (app, _):
        assert await rested(await app.create("a", "go")) is State.IDLE
    assert told == [2.0, 2.0, 2.0, 3.0]


async def test_what_calls_have_spent_is_off_what_they_are_told_before_they_end(store_url: str) -> None:
    told: dict[str, list[float | None]] = {"one": [], "two": [], "other": []}
    together = asyncio.Barrier(3)

    async def ask(who: str, context: ToolContext) -> None:
        told[who].append((await context.budget_left()).cost)
        await together.wait()

    @tool(replay="pure")
    async def research(who: str, context: ToolContext) -> str:
        """Spends all that it is told."""
        await ask(who, context)
        context.spent(cost=told[who][-1] or 0.0)
        await together.wait()
        await ask(who, context)
        return "found"

    @tool(replay="pure")
    async def other(context: ToolContext) -> str:
        """Another one, which runs beside them."""
        await ask("other", context)
        await together.wait()
        await ask("other", context)
        return "nothing"

    calls = [Call(name="research", arguments={"who": who}) for who in ("one", "two")]
    model = ScriptedModel([*calls, Call(name="other")], "Done.")
    agent = Agent("a", model, tools=[research, other], limits=AgentLimits(cost=6.0))
    async with running(store_url, agent, models=priced({model.name: Price(input=0, output=0)})) as (app, _):
        assert await rested(await app.create("a", "go")) is State.IDLE
    assert told == {"one": [3.0, 0.0], "two": [3.0, 0.0], "other": [6.0, 0.0]}


async def test_what_a_tool_says_it_spent_is_a_figure_that_a_store_can_hold() -> None:
    context = ToolContext()
    for wrong in ({"tokens": -1}, {"cost": float("nan")}, {"cost": -0.1}):
        with pytest.raises(ValueError, match="what is spent is nothing or more, not"):
            context.spent(**wrong)
    for wrong in ({"tokens": 1 << 50}, {"cost": 1e300}):
        with pytest.raises(ValueError, match="a call spends at most 1,099,511,627,776 tokens"):
            context.spent(**wrong)
    assert context.spending == (0, 0.0)


async def test_what_a_long_call_kept_is_there_after_a_crash_however_much_others_keep(store_url: str) -> None:
    gate, found = Gate(), []

    @tool(replay="idempotent")
    async def long(context: ToolContext) -> str:
        """Keep something, and wait."""
        found.append(context.kept.get("mine"))
        await context.keep("mine", "7")
        gate.entered.set()
        await gate.opened.wait()
        return "done"

    @tool(replay="idempotent")
    async def short(context: ToolContext) -> str:
        """Keep a lot."""
        await gate.entered.wait()
        for number in range(40):
            await context.keep(f"other-{number}", "x")
        return "kept"

    model = ScriptedModel([Call(name="long"), Call(name="short")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[long, short])])
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.01):
            await eventually(lambda: _kept(chat, "other-39"))
        gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert len(decode_keepsakes((await chat.snapshot()).chat.keepsakes)) == 32
    assert found == [None, "7"]


async def test_a_call_that_can_keep_nothing_beside_the_others_says_so_and_is_the_only_one_to_fail(
    store_url: str,
) -> None:
    through, opened = [], asyncio.Event()

    @tool(replay="idempotent")
    async def keeper(n: int, context: ToolContext) -> str:
        """Keep something, and wait."""
        try:
            await context.keep(f"mine-{n}", "7")
        finally:
            through.append(n)
            if len(through) == 33:
                opened.set()
        await opened.wait()
        return "kept"

    model = ScriptedModel([Call(name="keeper", arguments={"n": n}) for n in range(33)], "Done.")
    limits = AgentLimits(parallel_calls=33)
    async with App(store_url, agents=[Agent("a", model, tools=[keeper], limits=limits)]) as app, app.worker():
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        told = [part for message in await chat.messages() for part in message.parts if isinstance(part, ToolResult)]
    failed = [part.content for part in told if part.error]
    assert [part.content for part in told if not part.error] == ["kept"] * 32
    (said,) = failed
    assert said.startswith("what the tool has to find after a crash could not be kept: ")
    assert said.endswith("other calls that run keep 32 things already")


async def _kept(chat: Chat, key: str) -> bool:
    return key in decode_keepsakes((await chat.snapshot()).chat.keepsakes)


@pytest.mark.parametrize("end", ["stop", "shutdown"])
async def test_what_a_tool_spent_before_a_stop_or_a_shutdown_counts(store_url: str, end: str) -> None:
    gate = Gate()

    @tool(replay="idempotent")
    async def research(context: ToolContext) -> str:
        """Spend, and wait."""
        context.spent(tokens=40, cost=0.5)
        gate.entered.set()
        await gate.opened.wait()
        return "found"

    app = App(store_url, agents=[Agent("a", ScriptedModel([Call(name="research")], "Done."), tools=[research])])
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.01):
            await gate.entered.wait()
            if end == "stop":
                await chat.stop()
                assert await rested(chat) is State.IDLE
        if end == "shutdown":
            gate.opened.set()
            async with app.worker():
                assert await rested(chat) is State.IDLE
        ended = [entry for entry in await entries(chat) if isinstance(entry, TurnEnded)]
        assert ended[-1].cost == (0.5 if end == "stop" else 1.0), "twice, for it ran again"


def priced(prices: Mapping[str, Price]) -> dict[str, ModelFacts]:
    return {name: ModelFacts(price=price) for name, price in prices.items()}


def test_a_cost_budget_without_a_price_for_every_model_is_refused(tmp_path: Path) -> None:
    agent = Agent("a", "openai:gpt-5", fallbacks=["openai:x"], limits=AgentLimits(cost=1))
    url = f"sqlite:///{tmp_path / 'x.db'}"
    price = Price(input=2.0, output=3.0)
    with pytest.raises(ConfigError, match=r"give App\(models={'openai:gpt-5': ModelFacts\(price"):
        App(url, agents=[agent])
    with pytest.raises(ConfigError, match=r"or \[models\.\"openai:x\"\] with price"):
        App(url, agents=[agent], models=priced({"openai:gpt-5": price}))
    App(url, agents=[agent], models=priced({"openai:gpt-5": price, "openai:x": price}))


def test_a_parameter_that_an_agent_does_not_have_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'a': instruction is no parameter of Agent; did you mean instructions\?"):
        Agent("a", "scripted", instruction="Be brief.")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"xyz is no parameter of Agent; known are instructions, tools, output, "):
        Agent("a", "scripted", xyz=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"limits": AgentLimits(parallel_calls=0)}, "limits: parallel_calls must be at least 1, it is 0"),
        ({"limits": AgentLimits(chats=0)}, "limits: chats must be at least 1, it is 0"),
        ({"compaction": CompactionPolicy(context_limit=0)}, "compaction: context_limit must be at least 1, it is 0"),
    ],
)
def test_a_limit_that_nothing_could_meet_is_refused(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"agent 'a': {problem}"):
        Agent("a", "scripted", **parameters)


def test_what_was_cached_has_a_price_of_its_own() -> None:
    facts = {"m": ModelFacts(price=Price(input=10.0, output=20.0, cached=1.0)), "n": ModelFacts(context_limit=1_000)}
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000)
    assert Agent("a", "m").cost_of("m", usage, facts) == pytest.approx(6.0 + 0.4 + 10.0)
    assert Agent("a", "m").cost_of("n", usage, facts) == 0.0


async def test_a_failed_attempt_is_recorded_with_provider_model_status_and_delay(store_url: str) -> None:
    first = ScriptedModel([Say(text="Half "), Cut()], name="one", provider="p1")
    second = ScriptedModel([Fail(status=402)], name="two", provider="p2")
    third = ScriptedModel("Here.", name="three", provider="p3")
    async with running(store_url, Agent("a", first, fallbacks=[second, third])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
        story = [(entry.provider, entry.model, entry.code, entry.status, entry.next_model) for entry in failed]
        assert story[-2:] == [("p1", "one", "lost_result", None, "two"), ("p2", "two", "payment", 402, "three")]
        assert [entry.next_model for entry in failed[:-2]] == ["one"] * (len(failed) - 2)
        assert all(entry.retry_in_ms is not None for entry in failed[:-2])


# --- structured output ----------------------------------------------------------------------------------


class Invoice(BaseModel):
    number: int
    total: float


async def test_a_typed_answer_comes_out_typed_and_its_schema_goes_to_the_model(store_url: str) -> None:
    model = ScriptedModel('```json\n{"number": 7, "total": 1.5}\n```')
    async with running(store_url, Agent("a", model, output=Invoice)) as (app, _):
        chat = await app.create("a", "the invoice")
        assert await chat.output() == Invoice(number=7, total=1.5)
    spec = model.requests[0].settings.output
    assert spec is not None
    assert spec.name == "Invoice"


async def test_an_answer_that_does_not_fit_is_repaired_once_in_the_same_turn(store_url: str) -> None:
    model = ScriptedModel('{"number": "seven"}', '{"number": 7, "total": 2}')
    async with running(store_url, Agent("a", model, output=Invoice)) as (app, _):
        chat = await app.create("a", "the invoice")
        assert await chat.output() == Invoice(number=7, total=2.0)
        messages = await chat.messages()
        assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert messages[2].synthetic is Synthetic.INVALID_OUTPUT
        assert "total: Field required" in messages[2].text
        assert (await chat.snapshot()).chat.turn == 1
    assert [message.id for message in model.requests[1].messages] == [message.id for message in messages[:3]]


async def test_an_answer_that_does_not_fit_twice_fails_the_turn_and_a_retry_asks_again(store_url: str) -> None:
    model = ScriptedModel("no", "never", '{"number": 7, "total": 2}')
    async with running(store_url, Agent("a", model, output=Invoice)) as (app, _):
        chat = await app.create("a", "the invoice")
        with pytest.raises(TurnFailed, match="invalid_output: the answer is not a valid Invoice"):
            await chat.output()
        assert len(model.requests) == 2
        await chat.retry()
        assert await chat.output() == Invoice(number=7, total=2.0)
        texts = [message.text for message in await chat.messages() if message.role is Role.ASSISTANT]
        assert texts == ["no", "never", '{"number": 7, "total": 2}'], "nothing that was said is lost"


async def test_an_answer_that_is_no_object_travels_inside_of_one(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel('{"result": [1, 2]}'), output=list[int])) as (app, _):
        assert await (await app.create("a", "numbers")).output() == [1, 2]


async def test_a_stopped_turn_has_no_output(store_url: str) -> None:
    model = ScriptedModel([Say(text='{"number"'), Hold(name="here")])
    async with running(store_url, Agent("a", model, output=Invoice)) as (app, _):
        chat = await app.create("a", "the invoice")
        await model.reached("here")
        await chat.stop()
        with pytest.raises(TurnStopped):
            await chat.output()


# --- dependencies and hooks -------------------------------------------------------------------------------


async def test_tools_and_hooks_of_a_chat_share_what_deps_made_for_it(store_url: str) -> None:
    seen: list[Any] = []
    made: list[str] = []

    async def deps(context: RunContext) -> dict[str, str]:
        made.append(context.chat_id)
        return {"account": context.owner}

    @tool
    async def look(context: ToolContext) -> str:
        """Look."""
        seen.append(context.deps)
        return "ok"

    hooks = [Hook("before_tool", lambda call, context: seen.append((context.deps, context.metadata)))]
    model = ScriptedModel([Call(name="look")], [Call(name="look")], "Done.")
    async with running(store_url, Agent("a", model, tools=[look], hooks=hooks, deps=deps)) as (app, _):
        chat = await app.create("a", "go", owner="ada", metadata={"plan": "pro"})
        assert await rested(chat) is State.IDLE
    assert seen == [({"account": "ada"}, {"plan": "pro"}), {"account": "ada"}] * 2
    assert made == [chat.id], "once, however many steps"


async def test_what_a_tool_says_of_its_progress_is_in_the_journal_before_its_result(store_url: str) -> None:
    held = asyncio.Event()

    @tool
    async def dig(context: ToolContext) -> str:
        """Dig."""
        context.progress("1 m, ")
        await held.wait()
        await asyncio.to_thread(context.progress, "2 m, ")
        context.progress("3 m")
        return "water"

    model = ScriptedModel([Call(name="dig")], "Done.")
    async with running(store_url, Agent("a", model, tools=[dig])) as (app, _):
        chat = await app.create("a", "go")
        notes: list[Noted] = []
        async for event in chat.events():
            entry = event.body
            if isinstance(entry, Noted):
                notes.append(entry)
                held.set()  # the first words were told while it ran
            if isinstance(entry, MessageAdded) and entry.call_state is not None:
                break
    assert "".join(note.text for note in notes) == "1 m, 2 m, 3 m"
    assert {note.topic for note in notes} == {"progress"}
    assert all(note.call_id for note in notes)


async def test_a_tool_that_never_stops_talking_fills_neither_memory_nor_journal(store_url: str) -> None:
    @tool
    def chatter(context: ToolContext) -> str:
        """Talk."""
        for n in range(20_000):
            context.progress(f"{n:05d} and so on and so forth\n")
        return "enough"

    model = ScriptedModel([Call(name="chatter")], "Done.")
    async with running(store_url, Agent("a", model, tools=[chatter])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        notes = [entry for entry in await entries(chat) if isinstance(entry, Noted)]
        assert notes
        assert sum(len(note.text) for note in notes) <= 262_144 + 8_192
        assert said(await chat.messages())[2] == ("tool", "enough")


async def test_what_a_thread_says_while_the_loop_is_busy_is_not_kept_in_heaps(store_url: str) -> None:
    loop, grew = asyncio.get_running_loop(), []

    @tool
    def chatter(context: ToolContext) -> str:
        """Talk."""
        busy, go = threading.Event(), threading.Event()
        loop.call_soon_threadsafe(busy.set)
        loop.call_soon_threadsafe(go.wait, 20)
        busy.wait(20)
        tracemalloc.start()
        for n in range(100):
            context.progress(f"{n:03d}" * 40_000)
        grew.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        go.set()
        return "enough"

    model = ScriptedModel([Call(name="chatter")], "Done.")
    async with running(store_url, Agent("a", model, tools=[chatter])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert grew[0] < 1_000_000, "of 12 MB that were said"
        assert [entry for entry in await entries(chat) if isinstance(entry, Noted)]


async def test_deps_that_cannot_be_made_fail_the_turn_with_their_error(store_url: str) -> None:
    def deps(context: RunContext) -> Any:
        raise LookupError("no such account")

    async with running(store_url, Agent("a", ScriptedModel("Hi."), deps=deps)) as (app, _):
        with pytest.raises(TurnFailed, match=r"deps_failed: .*no such account"):
            await (await app.create("a", "go")).text()


async def test_arguments_that_a_hook_changed_are_what_runs_and_what_the_journal_tells(store_url: str) -> None:
    hooks = [
        Hook("before_tool", lambda call, _: Arguments(text='{"city":"Chur"}')),
        Hook("before_tool", lambda call, _: Arguments(text=call.arguments.replace("Chur", "Davos"))),
    ]
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[weather], hooks=hooks)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[2] == ("tool", "rain in Davos")
        started = [entry for entry in await entries(chat) if isinstance(entry, CallsStarted)]
        assert list(started[0].arguments.values()) == ['{"city":"Davos"}']


async def test_a_call_that_waits_for_a_place_is_asked_about_once(store_url: str) -> None:
    asked: list[str] = []
    hooks = [Hook("before_tool", lambda call, _: asked.append(call.arguments))]
    calls = [Call(name="weather", arguments={"city": city}) for city in ("Bern", "Chur", "Davos")]
    agent = Agent(
        "a", ScriptedModel(calls, "Done."), tools=[weather], hooks=hooks, limits=AgentLimits(parallel_calls=1)
    )
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert texts == ["rain in Bern", "rain in Chur", "rain in Davos"]
    assert len(asked) == 3


async def test_changed_arguments_survive_a_handover_though_the_hook_would_say_otherwise(store_url: str) -> None:
    gate, cities = Gate(), iter(["Chur", "Davos"])

    @tool(replay="idempotent")
    async def book(city: str) -> str:
        """Book."""
        gate.starts += 1
        gate.entered.set()
        await gate.opened.wait()
        return f"booked {city}"

    hooks = [Hook("before_tool", lambda call, _: Arguments(text=f'{{"city":"{next(cities)}"}}'))]
    model = ScriptedModel([Call(name="book", arguments={"city": "Bern"})], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[book], hooks=hooks)], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await gate.entered.wait()
        gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[2] == ("tool", "booked Chur"), "an idempotent call is rerun as it was"
    assert gate.starts == 2


async def test_a_model_guard_that_fails_closed_keeps_the_request_from_being_sent(store_url: str) -> None:
    def guard(request: Request, _: RunContext) -> None:
        raise SystemExit("no filter today")

    model = ScriptedModel("Hi.")
    agent = Agent("a", model, hooks=[Hook("before_model", guard, fails="closed")])
    async with running(store_url, agent) as (app, _):
        with pytest.raises(TurnFailed, match=r"hook_failed: the model was not asked: .*no filter today"):
            await (await app.create("a", "go")).text()
    assert len(model.requests) == 0


async def test_a_response_that_the_chat_refuses_fails_the_turn_instead_of_being_asked_for_for_ever(
    store_url: str,
) -> None:
    model = ScriptedModel([Call(name="clock") for _ in range(3)], after="repeat")
    options = StoreOptions(limits=Limits(batch_calls_max=2))
    app = App(store_url, agents=[Agent("a", model, tools=[clock])], options=options)
    async with app, app.worker():
        with pytest.raises(TurnFailed, match="3 calls in one response; the limit is 2"):
            await (await app.create("a", "go")).text()
    assert len(model.requests) == 1


# --- titles ---------------------------------------------------------------------------------------------


async def renamed(chat: Chat) -> str:
    """Its title, as soon as it has one."""
    after = None
    while True:
        page = await chat._store.wait_journal(chat.id, after, deadline_s=WAIT_S)
        after = page.cursor
        if (title := (await chat.snapshot()).chat.title) is not None:
            return title


async def test_a_title_is_made_beside_the_turn_after_two_rate_limits(store_url: str) -> None:
    titler = ScriptedModel([Fail(status=429, attempts=2), Say(text='"Rain in Bern."\n')], name="titler", provider="t")
    async with running(store_url, Agent("a", ScriptedModel("It rains."), title_model=titler)) as (app, worker):
        chat = await app.create("a", "Weather in Bern?")
        assert await renamed(chat) == "Rain in Bern"
        assert await rested(chat) is State.IDLE
        assert any([isinstance(event.body, ChatRenamed) async for event in chat.events()])
        await until(lambda: worker.titles.made == 1)  # counted once its commit was answered
    assert len(titler.requests) == 3
    assert "Weather in Bern?" in titler.requests[0].messages[-1].text


async def test_a_title_that_hangs_or_fails_costs_the_turn_nothing(store_url: str) -> None:
    titler = ScriptedModel([Hold(name="title")], [Fail(status=400)], name="titler", provider="t", after="repeat")
    async with running(store_url, Agent("a", ScriptedModel("One.", "Two."), title_model=titler)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        await titler.reached("title")
        await chat.send("again")
        assert await rested(chat) is State.IDLE
        assert (await chat.snapshot()).chat.title is None
    assert titler.open_streams == 0, "a shutdown ends it"


@pytest.mark.parametrize("titler", [Fail(status=400), Say(text="Rain in Bern")], ids=["fails", "works"])
async def test_a_title_is_asked_for_once_in_a_turn_however_many_steps_it_has(store_url: str, titler: Any) -> None:
    titles = ScriptedModel([titler], name="titler", provider="t", after="repeat")
    steps = [[Call(name="weather", arguments={"city": "Bern"})] for _ in range(5)]
    agent = Agent("a", ScriptedModel(*steps, "It rains."), tools=[weather], title_model=titles)
    async with running(store_url, agent) as (app, worker):
        chat = await app.create("a", "Weather?")
        await rested(chat)
        await until(lambda: worker.titles.made + worker.titles.failed == 1)
        assert len(titles.requests) == 1


async def test_what_a_title_took_counts_in_the_turn(store_url: str) -> None:
    titler = ScriptedModel([Say(text="Rain"), Count(input_tokens=700, output_tokens=30)], name="titler", provider="t")
    model = ScriptedModel([Say(text="It rains."), Count(input_tokens=10, output_tokens=2)])
    prices = {model.name: Price(input=1, output=1), "titler": Price(input=10, output=100)}
    agent = Agent("a", model, title_model=titler)
    async with running(store_url, agent, models=priced(prices)) as (app, worker):
        chat = await app.create("a", "Weather?")
        await rested(chat)
        await until(lambda: worker.titles.made == 1)
        chat_now = (await chat.snapshot()).chat
        assert chat_now.turn_tokens == 12 + 730
        assert chat_now.turn_cost == pytest.approx((12 + 700 * 10 + 30 * 100) / 1e6)


@pytest.mark.parametrize("zeros", [False, True], ids=["no usage", "a usage of zeros"])
async def test_a_token_budget_ends_a_turn_whose_provider_counts_nothing(store_url: str, zeros: bool) -> None:
    class Uncounted(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            async with aclosing(super().stream(request)) as parts:
                async for part in parts:
                    if not isinstance(part, Usage):
                        yield part
                    elif zeros:
                        yield Usage()

    model = Uncounted([Call(name="weather", arguments={"city": "Bern"})], after="repeat")
    agent = Agent("a", model, tools=[weather], limits=AgentLimits(steps=50, tokens=2_000))
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "Weather?")
        await rested(chat)
        ended = (await chat.snapshot()).chat
        assert (ended.cause, ended.step < 50) == (Cause.BUDGET, True)
        answered = [message for message in await chat.messages() if message.role is Role.ASSISTANT]
        assert all(message.input_tokens is None for message in answered), "it is no figure of the provider"
        assert sum(message.estimated_tokens or 0 for message in answered) == ended.turn_tokens


async def test_a_choice_of_tool_holds_for_the_first_response_of_a_turn(store_url: str) -> None:
    """Asked in every step to call something, a model never comes to an answer."""
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "It rains.", "It still does.")
    agent = Agent("a", model, tools=[weather], settings=Settings(tool_choice="required"))
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "Weather?")
        await rested(chat)
        await chat.send("And now?")
        await rested(chat)
    assert [request.settings.tool_choice for request in model.requests] == ["required", None, "required"]


async def test_a_response_that_ends_as_refused_runs_none_of_its_calls(store_url: str) -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        """Wipe."""
        ran.append("wiped")
        return "gone"

    model = ScriptedModel([Say(text="I will."), Call(name="wipe"), Finish(reason="refused")])
    async with running(store_url, Agent("a", model, tools=[wipe])) as (app, _):
        chat = await app.create("a", "Go.")
        assert await rested(chat) is State.IDLE
        assert (ran, len(model.requests)) == ([], 1)
        last = (await chat.messages())[-1]
        assert (last.text, last.calls, last.finish) == ("I will.", (), "refused")


def test_what_is_put_into_a_cache_has_a_price_of_its_own() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=200_000, cache_write_tokens=400_000)
    for price, cost in (
        (Price(input=10, output=0, cached=1), 4.0 + 0.2 + 5.0),
        (Price(input=10, output=0, cached=1, cache_write=20), 4.0 + 0.2 + 8.0),
    ):
        facts = {"m": ModelFacts(price=price)}
        assert Agent("a", ScriptedModel()).cost_of("m", usage, facts) == pytest.approx(cost)


async def test_a_persons_title_is_never_replaced(store_url: str) -> None:
    titler = ScriptedModel([Hold(name="title"), Say(text="Mine")], name="titler", provider="t")
    async with running(store_url, Agent("a", ScriptedModel("One."), title_model=titler)) as (app, worker):
        chat = await app.create("a", "go")
        await titler.reached("title")
        await chat.rename("  Ada's \n chat ")
        titler.resume("title")
        assert await rested(chat) is State.IDLE
        while worker.titles._tasks:
            await asyncio.wait(set(worker.titles._tasks.values()))
        assert (await chat.snapshot()).chat.title == "Ada's chat"
        with pytest.raises(RefusedError, match="1 to 200 characters"):
            await chat.rename(" ")
        renames = [entry for entry in await entries(chat) if isinstance(entry, ChatRenamed)]
        assert len(renames) == 1


# --- plugins --------------------------------------------------------------------------------------------

AUDITED: list[str] = []


def audit_plugin() -> list[Hook]:
    return [Hook("on_turn_end", lambda snapshot, _: AUDITED.append(snapshot.chat.id), name="audit")]


NOT_A_HOOK = ["nonsense"]


def installed(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """As if packages with these entry points were installed."""
    found = EntryPoints(EntryPoint(name, f"{__name__}:{value}", plugins.GROUP) for name, value in points.items())
    monkeypatch.setattr(plugins, "entry_points", lambda group: found.select(group=group))


async def test_a_plugin_runs_only_where_it_is_named(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, audit="audit_plugin", broken="no_such_name", odd="NOT_A_HOOK")
    AUDITED.clear()
    for names in ((), ("audit",)):
        app = App(store_url, agents=[Agent("a", ScriptedModel("Hi."))], plugins=names)
        async with app, app.worker():
            chat = await app.create("a", "go")
            await rested(chat)
    assert [chat.id] == AUDITED


def test_a_plugin_that_is_missing_or_broken_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, audit="audit_plugin", broken="no_such_name", odd="NOT_A_HOOK")
    with pytest.raises(ConfigError, match="no plugin 'audits'; installed plugins: audit, broken, odd"):
        plugins.load_plugins(["audits"])
    with pytest.raises(ConfigError, match=r"'broken' .* could not be loaded: AttributeError"):
        plugins.load_plugins(["audit", "broken"])
    with pytest.raises(ConfigError, match=r"'odd' .* which is not a Hook"):
        plugins.load_plugins(["odd"])


async def test_a_hook_of_sixty_seconds_lets_the_turn_go_on_at_its_deadline_while_others_run(store_url: str) -> None:
    blocked, ran = threading.Event(), asyncio.Event()
    hooks = [
        Hook("before_tool", lambda call, _: blocked.wait(60), name="sleeper", deadline_s=0.2),
        Hook("before_tool", lambda call, _: None),
    ]
    slow = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")

    @tool
    async def note() -> str:
        """Note."""
        ran.set()
        return "noted"

    quick = Agent("quick", ScriptedModel([Call(name="note")], "Noted."), tools=[note])
    app = App(store_url, agents=[Agent("slow", slow, tools=[weather], hooks=hooks), quick])
    try:
        async with app, app.worker() as worker:
            held = await app.create("slow", "go")
            other = await app.create("quick", "go")
            assert await rested(other) is State.IDLE
            assert ran.is_set()
            assert await rested(held) is State.IDLE
            assert said(await held.messages())[2] == ("tool", "rain in Bern"), "an open guard that hangs lets it pass"
            assert (worker.hooks.failed, worker.hooks.suspended) == (1, ["sleeper"])
    finally:
        blocked.set()
