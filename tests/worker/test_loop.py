"""The loop through the public surface, on both stores: model, tools, commit, stop, shutdown, queue, failure."""

import asyncio
import re
import threading
from typing import Any

import pytest

from holdfast import AgentLimits
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.journal import AttemptFailed, PreviewReset, TurnEnded
from holdfast.core.records import CallState, Cause, Role, State, Synthetic, ToolCall, ToolResult
from holdfast.events import CallDone
from holdfast.hooks import Arguments, Ask, Hook, RunContext, Veto
from holdfast.models.scripted import Call, Cut, Fail, Hold, Say, ScriptedModel, Stall
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext
from tests.support.turns import QUICK, WAIT_S, Gate, entries, rested, running, said, weather
from tests.support.waiting import until


async def test_a_tool_step_and_then_text_whose_prompt_holds_call_and_result(store_url: str) -> None:
    model = ScriptedModel([Say(text="Looking. "), Call(name="weather", arguments={"city": "Bern"})], "It rains.")
    async with running(store_url, Agent("a", model, instructions="Be brief.", tools=[weather])) as (app, _):
        chat = await app.create("a", "Weather in Bern?")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages()) == [
            ("user", "Weather in Bern?"),
            ("assistant", "Looking. "),
            ("tool", "rain in Bern"),
            ("assistant", "It rains."),
        ]
    second = model.requests[1].messages
    assert [message.role for message in second] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert second[2].calls[0].call_id == second[3].parts[0].call_id  # type: ignore[union-attr]


async def test_parallel_calls_run_in_parallel_and_their_results_stand_in_call_order(store_url: str) -> None:
    first, second = Gate(), Gate()
    one, two = first.tool(name="one"), second.tool(name="two")
    model = ScriptedModel([Call(name="one"), Call(name="two")], "Done.")
    async with running(store_url, Agent("a", model, tools=[one, two])) as (app, _):
        chat = await app.create("a", "go")
        await asyncio.gather(first.entered.wait(), second.entered.wait())
        second.opened.set()
        async for update in chat.stream():
            if isinstance(update, CallDone):
                break  # the sibling's result is durable while the first still runs
        assert not first.opened.is_set()
        first.opened.set()
        assert await rested(chat) is State.IDLE
        names = [m.parts[0].name for m in await chat.messages() if isinstance(m.parts[0], ToolResult)]
        assert names == ["one", "two"]


async def test_a_stop_in_mid_stream_keeps_partial_text_partial_call_and_answers_it(store_url: str) -> None:
    model = ScriptedModel(
        [
            Say(text="Reading. "),
            Call(name="weather", arguments='{"path":"main.go"', piece_chars=4),
            Hold(name="here"),
            Stall(),
        ]
    )
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        chat = await app.create("a", "read it")
        await model.reached("here")
        await chat.stop()
        assert await chat.wait(WAIT_S) is State.IDLE
        *_, partial, result = await chat.messages()
        assert partial.text == "Reading. "
        assert partial.stopped is Cause.USER
        call = partial.calls[0]
        assert call.arguments == '{"path":"main.go"'
        answer = result.parts[0]
        assert isinstance(answer, ToolResult)
        assert (answer.call_id, answer.name, answer.error) == (call.call_id, "weather", True)
        assert answer.synthetic is Synthetic.CANCELLED
        assert (await chat.snapshot()).chat.cause is Cause.USER
    assert model.open_streams == 0


async def test_a_stop_in_a_tool_answers_the_call_and_takes_the_next_queued_message(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Next answered.")
    async with running(store_url, Agent("a", model, tools=[gate.tool()])) as (app, _):
        chat = await app.create("a", "first")
        await gate.entered.wait()
        await chat.send("second")
        await chat.stop()
        assert await rested(chat) is State.IDLE
        history = said(await chat.messages())
        assert history[2][1].startswith("Cancelled while it ran: stopped by the user")
        assert history[3:] == [("user", "second"), ("assistant", "Next answered.")]


async def test_what_a_tool_returns_because_it_was_cancelled_is_not_its_result(store_url: str) -> None:
    entered = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Answers its cancellation with an error of its own."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "error: I was cancelled"
        return "never"

    async with running(store_url, Agent("a", ScriptedModel([Call(name="stubborn")]), tools=[stubborn])) as (app, _):
        chat = await app.create("a", "go")
        await entered.wait()
        await chat.stop()
        assert await rested(chat) is State.IDLE
        assert "I was cancelled" not in str(said(await chat.messages()))


@pytest.mark.parametrize("replay", ["pure", "unsafe"])
async def test_a_shutdown_during_a_blocking_tool_is_never_a_stop(store_url: str, replay: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    agent = Agent("a", model, tools=[gate.tool(replay=replay)])
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.05):
            await gate.entered.wait()
        snapshot = await chat.snapshot()
        assert (snapshot.chat.state, snapshot.chat.worker, snapshot.chat.cause) == (State.RUNNING, None, None)
        assert snapshot.chat.wake_at is not None
        gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        tool_said = [text for role, text in said(await chat.messages()) if role == "tool"]
    if replay == "pure":
        assert (gate.starts, tool_said) == (2, ["through"])
    else:
        assert gate.starts == 1
        assert tool_said[0].startswith("Outcome unknown")


async def test_a_shutdown_in_mid_stream_asks_the_model_again_and_resets_the_preview(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Hold(name="here"), Say(text="answer.")])
    app = App(store_url, agents=[Agent("a", model)], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await model.reached("here")
        model.resume("here")
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[-1] == ("assistant", "Half an answer.")
        assert [e.cause for e in await entries(chat) if isinstance(e, PreviewReset)] == [Cause.SHUTDOWN]
    assert len(model.requests) == 2


async def test_a_step_that_finishes_within_the_grace_is_committed(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "Done.")
    app = App(store_url, agents=[Agent("a", model, tools=[gate.tool()])], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        await gate.entered.wait()
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0)
        gate.opened.set()
        await stopping
        assert ("tool", "through") in said(await chat.messages())
        assert await chat.state() is State.RUNNING, "the next worker asks the model"


async def test_a_drain_while_a_hook_follows_an_outcome_does_not_ask_the_model(store_url: str) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def follow(_: ToolResult, __: RunContext) -> None:
        reached.set()
        await go_on.wait()

    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")
    agent = Agent("a", model, tools=[weather], hooks=[Hook("after_tool", follow)])
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        await reached.wait()
        stopping = asyncio.ensure_future(worker.stop())
        await chat.snapshot()  # meanwhile the runner is woken by the drain, and decides
        go_on.set()
        await stopping
        assert await chat.state() is State.RUNNING
    assert len(model.requests) == 1, "the next worker asks the model"


async def test_who_drains_begins_no_call_beside_those_that_run(store_url: str) -> None:
    gates = {name: Gate() for name in ("one", "two", "three")}
    model = ScriptedModel([Call(name=name) for name in gates], "Done.")
    tools = [gate.tool(name=name) for name, gate in gates.items()]
    app = App(store_url, agents=[Agent("a", model, tools=tools, limits=AgentLimits(parallel_calls=2))], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        worker = app.new_worker(grace_s=WAIT_S)
        await worker.start()
        await asyncio.gather(gates["one"].entered.wait(), gates["two"].entered.wait())
        stopping = asyncio.ensure_future(worker.stop())
        gates["one"].opened.set()
        async for update in chat.stream():
            if isinstance(update, CallDone):
                break
        await chat.snapshot()  # meanwhile the runner knows of the free place
        gates["two"].opened.set()
        gates["three"].opened.set()
        await stopping
        assert await chat.state() is State.RUNNING
        assert [gate.starts for gate in gates.values()] == [1, 1, 0]
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert [gate.starts for gate in gates.values()] == [1, 1, 1]


async def test_a_stop_that_arrives_while_nobody_holds_the_chat_wins_when_it_is_picked_up(store_url: str) -> None:
    model = ScriptedModel([Say(text="Half an "), Hold(name="here"), Stall()])
    app = App(store_url, agents=[Agent("a", model)], retry=QUICK)
    async with app:
        chat = await app.create("a", "go")
        async with app.worker(grace_s=0.0):
            await model.reached("here")
        await chat.stop()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        assert (await chat.snapshot()).chat.cause is Cause.USER
    assert len(model.requests) == 1, "work nobody wants any more is not run again"


async def test_failed_attempts_are_recorded_and_then_it_succeeds(store_url: str) -> None:
    model = ScriptedModel([Fail(status=429, attempts=1), Say(text="Half "), Cut(attempts=2), Say(text="whole.")])
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
        assert [(entry.code, entry.status) for entry in failed] == [("rate_limit", 429), ("lost_result", None)]
        assert said(await chat.messages())[-1] == ("assistant", "Half whole.")


async def test_a_bad_request_makes_one_attempt_and_fails_with_its_story(store_url: str) -> None:
    model = ScriptedModel([Fail(status=400, message="no such field: x")])
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.FAILED
        error = (await chat.snapshot()).chat.error
        assert error is not None
        assert "no such field: x" in str(error.chain) + error.message
    assert len(model.requests) == 1


async def test_the_final_error_holds_every_cause_first_and_fallback_alike(store_url: str) -> None:
    first = ScriptedModel([Fail(status=402, message="pay first")], name="first", provider="p1")
    second = ScriptedModel([Fail(status=400, message="no thanks")], name="second", provider="p2")
    async with running(store_url, Agent("a", first, fallbacks=[second])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.FAILED
        error = (await chat.snapshot()).chat.error
        assert error is not None
        story = " ".join(error.chain)
        assert "pay first" in story
        assert "no thanks" in story
        await chat.retry()
        assert await rested(chat) is State.FAILED


async def test_an_empty_answer_is_a_success(store_url: str) -> None:
    async with running(store_url, Agent("a", ScriptedModel([]))) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert await chat.text() == ""


@pytest.mark.parametrize(
    ("budget", "detail"),
    [
        (AgentLimits(steps=2), "max_steps"),
        (AgentLimits(tokens=1), "max_tokens"),
        (AgentLimits(seconds=0.000_001), "max_seconds"),
    ],
)
async def test_a_budget_ends_the_turn_with_its_name(store_url: str, budget: AgentLimits, detail: str) -> None:
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], after="repeat")
    async with running(store_url, Agent("a", model, tools=[weather], limits=budget)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        ended = [entry for entry in await entries(chat) if isinstance(entry, TurnEnded)]
        assert ended[-1].cause is Cause.BUDGET
        assert (ended[-1].detail or "").startswith(detail)
        snapshot = await chat.snapshot()
        assert snapshot.open_calls == (), "open calls are still run and answered"


@pytest.mark.parametrize(
    ("wall_ms", "budget", "after", "detail"),
    [
        (1_000, AgentLimits(seconds=3_600.0), "It rains.", ""),
        (1 << 42, AgentLimits(seconds=0.000_001, steps=20), "repeat", "max_seconds"),
    ],
    ids=["set forward", "set back"],
)
async def test_a_clock_that_is_set_during_a_turn_neither_ends_it_nor_gives_it_more_time(
    store_url: str, wall_ms: int, budget: AgentLimits, after: str, detail: str
) -> None:
    """The turn begins decades ago, or decades ahead, by the clock that is on the wall while it runs."""
    step = [Call(name="weather", arguments={"city": "Bern"})]
    model = ScriptedModel(step, after="repeat") if after == "repeat" else ScriptedModel(step, after)
    agent = Agent("a", model, tools=[weather], limits=budget)
    app = App(store_url, agents=[agent], options=StoreOptions(clock=FakeClock(wall_ms=wall_ms)))
    async with app, app.worker(poll_s=0.5):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        [ended] = [entry for entry in await entries(chat) if isinstance(entry, TurnEnded)]
        assert (ended.detail or "").partition(":")[0] == detail


async def test_a_call_to_a_tool_that_is_not_active_names_the_active_ones(store_url: str) -> None:
    model = ScriptedModel([Call(name="gate"), Call(name="nonsense")], "Done.")
    agent = Agent("a", model, tools=[weather, Gate().tool()], active_tools=["weather"])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert texts == [
            "gate is not active. Active tools: weather.",
            "nonsense is not a tool of this agent. Active tools: weather.",
        ]
    assert [spec.name for spec in model.requests[0].tools] == ["weather"]


@pytest.mark.parametrize("name", ["functions.weather", "", "wetter in bern", "x" * 200])
async def test_a_call_to_what_is_no_name_of_a_tool_is_answered_and_the_turn_goes_on(
    store_url: str, name: str
) -> None:
    """Models make them up, and every provider refuses a history that holds one."""
    model = ScriptedModel([Call(name=name, arguments={"city": "Bern"})], "So be it.")
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert (await chat.messages())[1].calls[0].name == name
    *_, asked, answered = model.requests[1].messages
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", asked.calls[0].name)
    assert isinstance(answered.parts[0], ToolResult)
    assert answered.parts[0].name == asked.calls[0].name


async def test_an_empty_list_of_active_tools_means_none(store_url: str) -> None:
    model = ScriptedModel("Hello.")
    async with running(store_url, Agent("a", model, tools=[weather], active_tools=[])) as (app, _):
        await rested(await app.create("a", "go"))
    assert model.requests[0].tools == ()


async def test_a_tool_that_fails_or_times_out_is_a_tool_error_and_the_turn_goes_on(store_url: str) -> None:
    @tool
    def boom() -> str:
        """Raises."""
        raise SystemExit(3)

    @tool(deadline_s=0.05)
    async def slow() -> str:
        """Never ends."""
        await asyncio.Event().wait()
        return ""

    @tool
    def odd() -> object:
        """Returns what is no JSON."""
        return object()

    calls = [Call(name="boom"), Call(name="slow"), Call(name="odd"), Call(name="weather", arguments={"town": "x"})]
    async with running(store_url, Agent("a", ScriptedModel(calls, "Done."), tools=[boom, slow, odd, weather])) as (
        app,
        _,
    ):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert texts[0] == "SystemExit: 3"
        assert texts[1] == "Timed out after 0.05 s. It may have taken effect in part."
        assert "cannot be turned into JSON" in texts[2]
        assert "city: Field required" in texts[3]


async def test_an_approval_waits_without_a_worker_and_resumes_once(store_url: str) -> None:
    gate = Gate()
    gate.opened.set()
    model = ScriptedModel([Call(name="gate")], "Done.")
    async with running(store_url, Agent("a", model, tools=[gate.tool(needs_approval=True)])) as (app, worker):
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) is State.WAITING
        snapshot = await chat.snapshot()
        assert (snapshot.chat.worker, snapshot.calls[0].state) == (None, CallState.ASKING)
        assert gate.starts == 0
        await chat.approve(snapshot.calls[0].id, by="ada")
        while await chat.state() is not State.IDLE:
            await chat.wait(WAIT_S)
        assert gate.starts == 1
        await until(lambda: worker.running_chats == [])


async def test_hooks_change_veto_and_ask(store_url: str) -> None:
    seen: list[str] = []

    def before(part: ToolCall, _: RunContext) -> Any:
        if '"veto"' in part.arguments:
            return Veto(reason="Not that city.")
        return None

    hooks = [
        Hook("before_tool", before),
        Hook("before_model", lambda request, _: seen.append("before_model")),
        Hook("after_model", lambda done, _: seen.append("after_model")),
        Hook("after_tool", lambda result, _: seen.append("after_tool")),
        Hook("on_turn_end", lambda snapshot, _: seen.append("on_turn_end")),
    ]
    model = ScriptedModel(
        [Call(name="weather", arguments={"city": "veto"}), Call(name="weather", arguments={"city": "Bern"})], "Done."
    )
    async with running(store_url, Agent("a", model, tools=[weather], hooks=hooks)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
        assert texts == ["Not that city.", "rain in Bern"]
        assert seen[:3] == ["before_model", "after_model", "after_tool"]


async def test_a_hook_that_hangs_costs_its_deadline_and_others_still_run(store_url: str) -> None:
    blocked = threading.Event()
    ran: list[str] = []
    hooks = [
        Hook("before_model", lambda request, _: blocked.wait(60), name="sleeper", deadline_s=0.1),
        Hook("before_model", lambda request, _: ran.append("other")),
    ]
    async with running(store_url, Agent("a", ScriptedModel("Hello.", "Again."), hooks=hooks)) as (app, worker):
        try:
            chat = await app.create("a", "go")
            assert await rested(chat) is State.IDLE
            assert ran == ["other"]
            assert worker.hooks.failed == 1
            assert worker.hooks.suspended == ["sleeper"]
            await chat.send("again")
            assert await rested(chat) is State.IDLE
            assert (ran, worker.hooks.failed) == (["other", "other"], 1)
        finally:
            blocked.set()


async def test_a_guard_that_fails_closed_denies_the_call(store_url: str) -> None:
    def guard(part: ToolCall, _: RunContext) -> Any:
        raise RuntimeError("no database")

    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")
    agent = Agent("a", model, tools=[weather], hooks=[Hook("before_tool", guard, fails="closed")])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert "a guard could not decide" in said(await chat.messages())[2][1]


async def test_a_hook_that_asks_makes_the_chat_wait_with_changed_arguments(store_url: str) -> None:
    hooks = [
        Hook("before_tool", lambda part, _: Arguments(text='{"city":"Chur"}')),
        Hook("before_tool", lambda part, _: Ask(question="Really?")),
    ]
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[weather], hooks=hooks)) as (app, _):
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) is State.WAITING
        call = (await chat.snapshot()).calls[0]
        assert call.question == "Really?"
        await chat.approve(call.id)
        while await chat.state() is not State.IDLE:
            await chat.wait(WAIT_S)
        assert said(await chat.messages())[2] == ("tool", "rain in Chur")


async def test_a_person_is_asked_what_a_hook_asks_and_what_the_tool_asks_and_the_body_knows(store_url: str) -> None:
    approved: list[bool] = []

    @tool(needs_approval=lambda arguments, context: "Without a net?")
    async def jump(context: ToolContext) -> str:
        """Jump."""
        approved.append(context.approved)
        return "jumped"

    hook = Hook("before_tool", lambda part, _: Ask(question="Really?"))
    agent = Agent("a", ScriptedModel([Call(name="jump")], "Done."), tools=[jump], hooks=[hook])
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go")
        assert await chat.wait(WAIT_S) is State.WAITING
        call = (await chat.snapshot()).calls[0]
        assert call.question == "Really?\nWithout a net?"
        await chat.approve(call.id)
        while await chat.state() is not State.IDLE:
            await chat.wait(WAIT_S)
    assert approved == [True]


async def test_a_tool_knows_its_call_and_its_chat(store_url: str) -> None:
    seen: list[ToolContext] = []

    @tool(replay="idempotent")
    async def pay(amount: int, context: ToolContext) -> str:
        """Pay."""
        seen.append(context)
        return f"paid {amount}"

    model = ScriptedModel([Call(name="pay", arguments={"amount": 3})], "Done.")
    agent = Agent("a", model, tools=[pay], deps=lambda context: {"db": context.chat_id})
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "go", owner="ada", metadata={"k": 1})
        assert await rested(chat) is State.IDLE
    context = seen[0]
    assert (context.owner, context.chat_id, context.metadata) == ("ada", chat.id, {"k": 1})
    assert context.key == f"{chat.id}:{context.call_id}"
    assert context.deps == {"db": chat.id}


async def test_a_hundred_turns_leave_threads_and_tasks_where_they_were(store_url: str) -> None:
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "Done.", per="turn")
    async with running(store_url, Agent("a", model, tools=[weather])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        for n in range(10):
            await chat.send(f"warm-up {n}")
            await chat.wait(WAIT_S)
        counts = (threading.active_count(), len(asyncio.all_tasks()))
        for n in range(100):
            await chat.send(f"turn {n}")
            await chat.wait(WAIT_S)
        # The readers of SQLite are made on demand, up to their bound of four.
        assert threading.active_count() <= counts[0] + 3
        # The last turn's hint and a claim may still be under way, now or when they were counted.
        await until(lambda: len(asyncio.all_tasks()) <= counts[1] + 1)
        assert len(await chat.messages()) == 4 * 111


async def test_interrupt_ends_the_old_answer_and_begins_the_new_one(store_url: str) -> None:
    model = ScriptedModel([Say(text="Long "), Hold(name="here"), Stall()], "Short.")
    async with running(store_url, Agent("a", model)) as (app, _):
        chat = await app.create("a", "tell me everything")
        await model.reached("here")
        await chat.send("be brief", mode="interrupt")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages()) == [
            ("user", "tell me everything"),
            ("assistant", "Long "),
            ("user", "be brief"),
            ("assistant", "Short."),
        ]
        assert (await chat.messages())[1].stopped is Cause.SUPERSEDED


async def test_steer_joins_at_the_next_step_boundary(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "As you wish.")
    async with running(store_url, Agent("a", model, tools=[gate.tool()])) as (app, _):
        chat = await app.create("a", "go")
        await gate.entered.wait()
        await chat.send("and be polite", mode="steer")
        gate.opened.set()
        assert await rested(chat) is State.IDLE
        assert [role for role, _ in said(await chat.messages())] == ["user", "assistant", "tool", "user", "assistant"]
    assert len(model.requests) == 2


async def test_queue_waits_for_the_turn_to_end(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], "First done.", "Second done.")
    async with running(store_url, Agent("a", model, tools=[gate.tool()])) as (app, _):
        chat = await app.create("a", "first")
        await gate.entered.wait()
        await chat.send("second")
        gate.opened.set()
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages())[-2:] == [("user", "second"), ("assistant", "Second done.")]


async def test_edit_while_running_cuts_and_reruns_after_the_old_work_is_dead(store_url: str) -> None:
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], after="echo")
    async with running(store_url, Agent("a", model, tools=[gate.tool()])) as (app, _):
        chat = await app.create("a", "first try")
        await gate.entered.wait()
        gate.entered.clear()
        model.script = ScriptedModel("Better.").script
        await chat.edit((await chat.messages())[0].id, "second try")
        assert await rested(chat) is State.IDLE
        assert said(await chat.messages()) == [("user", "second try"), ("assistant", "Better.")]


@pytest.mark.parametrize("mode", ["queue", "interrupt", "steer"])
async def test_every_way_of_sending_works_at_rest_while_waiting_and_after_a_failure(
    store_url: str, mode: Any
) -> None:
    ask = Gate()
    ask.opened.set()
    model = ScriptedModel(
        "Idle answered.", [Call(name="gate")], "Waiting answered.", [Fail(status=400, attempts=1)], after="echo"
    )
    async with running(store_url, Agent("a", model, tools=[ask.tool(needs_approval=True)])) as (app, _):
        chat = await app.create("a")
        await chat.send("one", mode=mode)
        assert await rested(chat) is State.IDLE
        await chat.send("two", mode=mode)
        assert await chat.wait(WAIT_S) is State.WAITING
        await chat.send("three", mode=mode)
        if mode != "interrupt":
            assert await chat.state() is State.WAITING
            await chat.approve((await chat.snapshot()).calls[0].id)
        while await chat.state() not in (State.IDLE, State.FAILED):
            await chat.wait(WAIT_S)
        history = said(await chat.messages())
        assert ("user", "three") in history
        await rested(chat)
