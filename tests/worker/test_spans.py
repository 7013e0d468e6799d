"""Traces: a turn is one trace, whichever processes carried it; read at the wire, or as the SDK has it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Hook, RunContext, agent_tools, ask_user
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.journal import CallChanged
from holdfast.core.records import Message, State
from holdfast.models.scripted import Call, Count, Fail, Say, ScriptedModel
from holdfast.server.http import http_app
from holdfast.spans import SpanPlace, digest, place_of
from holdfast.tools.base import tool
from tests.support.carrying import carried
from tests.support.otlp import Received, Receiver
from tests.support.programs import ROOT, Program
from tests.support.turns import QUICK, rested
from tests.support.waiting import until
from tests.worker.carrier import AGENT, QUESTION, SECRET

TOKEN = "of-this-server-and-of-no-other-0"


# --- one turn, three workers -----------------------------------------------------------------------------


def trace_of(spans: list[Received]) -> str:
    """Of all of them: they are one."""
    (found,) = {span.trace_id for span in spans}
    return found


def named(spans: list[Received], name: str) -> list[Received]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_ms)


def told(span: Received) -> str:
    return f"{span.name} by {span.fence}"


OVER = {
    1: {"claim by 1", "chat travel-model by 1", "execute_tool weather by 1"},
    2: {"claim by 2", "worker lost by 1", "chat by 1", "chat travel-model by 2"},
}
"""What is over when each of the two is killed."""


@pytest.mark.timeout(240)
async def test_a_turn_that_three_workers_carried_is_one_trace_with_one_root_and_no_orphans(store_url: str) -> None:
    with Receiver() as receiver:

        async def before_kill(life: int) -> None:
            """What is over is delivered first: what a kill -9 takes with it besides is not to decide this test."""
            await until(lambda: {told(span) for span in receiver.spans()} >= OVER[life])

        after = await carried(store_url, receiver.environ, before_kill)
        await until(lambda: named(receiver.spans(), f"invoke_agent {AGENT}"))
        spans = receiver.spans()
    chat = after.chat
    assert trace_of(spans) == f"{digest(16, chat.id, chat.life, 1):032x}", "as any process works it out"
    assert {span.service for span in spans} == {"holdfast"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {chat.id}
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids)
    (root,) = [span for span in spans if not span.parent_id]
    assert root.name == f"invoke_agent {AGENT}"
    assert [span.name for span in spans if span.parent_id and span.parent_id not in ids] == []
    assert (root.fence, root.attributes["holdfast.steps"], root.failed) == (3, 3, False)
    assert root.start_ms <= min(span.start_ms for span in spans), "the first worker is long gone, its start is not"
    check_takeovers(spans)
    check_lost_work(spans)
    assert SECRET not in str(spans)
    assert QUESTION not in str(spans), "what was said is not in there unless it is asked for"


def check_takeovers(spans: list[Received]) -> None:
    claims = named(spans, "claim")
    assert [claim.fence for claim in claims] == [1, 2, 3]
    whys = [claim.attributes["holdfast.why"] for claim in claims]
    assert whys == ["turn_began", "worker_lost", "worker_lost"]
    assert [claim.links for claim in claims] == [(), (claims[0].span_id,), (claims[1].span_id,)]
    lost = named(spans, "worker lost")
    assert [(span.fence, span.attributes["holdfast.why"], span.failed) for span in lost] == [
        (1, "died", True),
        (2, "died", True),
    ]
    workers = [claim.attributes["holdfast.worker"] for claim in claims]
    assert len(set(workers)) == 3
    assert [span.attributes["holdfast.worker"] for span in lost] == workers[:2]


def check_lost_work(spans: list[Received]) -> None:
    (lost_answer,) = named(spans, "chat")
    answers = named(spans, "chat travel-model")
    assert (lost_answer.fence, lost_answer.failed) == (1, True)
    assert [(span.fence, span.failed) for span in answers] == [(1, False), (2, False), (3, False)]
    assert [span.links for span in answers] == [(), (lost_answer.span_id,), ()], "the model was asked again once"
    assert answers[1].attributes["gen_ai.usage.cache_read.input_tokens"] == 700
    lost_call, call = named(spans, "execute_tool book")
    assert (lost_call.fence, lost_call.attributes["error.type"], lost_call.links != ()) == (2, "worker_lost", True)
    assert (call.fence, call.failed, call.links) == (3, False, (lost_call.span_id,))
    assert call.attributes["gen_ai.tool.call.id"] == lost_call.attributes["gen_ai.tool.call.id"]


# --- a receiver that is no good ----------------------------------------------------------------------------


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'holdfast.db'}"


def run_turns(receiver: Receiver, url: str, count: int, **environ: str) -> Program:
    """A program that does so many turns, says `done` and ends."""
    return Program("tests.worker.traced_turns", url, str(count), environ={**receiver.environ, **environ})


def test_a_receiver_that_hangs_delays_no_turn(sqlite_url: str) -> None:
    """A delivery may take ten minutes here, longer than this test, and more is told than the queue holds."""
    narrow = {"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8"}
    with (
        Receiver(hangs=True) as receiver,
        run_turns(receiver, sqlite_url, 20, OTEL_EXPORTER_OTLP_TIMEOUT="600", **narrow) as program,
    ):
        assert program.hear() == "done"
        assert receiver.requests == 1, "the first delivery still hangs"
        program.process.kill()


def test_a_receiver_that_hangs_keeps_no_process_from_ending(sqlite_url: str) -> None:
    with Receiver(hangs=True) as receiver, run_turns(receiver, sqlite_url, 1) as program:
        assert program.hear() == "done"
        program.finish(100.0)


def test_a_process_that_ends_tells_what_it_still_has(sqlite_url: str) -> None:
    with Receiver() as receiver, run_turns(receiver, sqlite_url, 3, OTEL_BSP_SCHEDULE_DELAY="600000") as program:
        assert program.hear() == "done"
        program.finish()
        assert len(named(receiver.spans(), "invoke_agent echo")) == 3


def test_without_traces_nothing_of_opentelemetry_is_imported(sqlite_url: str) -> None:
    code = (
        "import sys; from holdfast import Agent, App\n"
        f"assert App({sqlite_url!r}, [Agent('echo', 'scripted')]).run_sync('echo', 'hello').text\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


# --- in one process ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")  # a process may come back to this module
def exporter() -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)  # once per process: the API takes no second one
    return made


Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Spans:
    exporter.clear()
    return lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def one(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


def under(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


@tool
async def pay(amount: int) -> str:
    """Pay."""
    raise ValueError("hunter2")


async def test_a_turn_its_attempts_and_its_tools_are_spans_that_hold_no_words(store_url: str, spans: Spans) -> None:
    script: list[Any] = [Fail(status=500, attempts=1), Count(input_tokens=5, output_tokens=7)]
    script.append(Call(name="pay", arguments={"amount": 3}))
    model = ScriptedModel(script, "secret words", name="openai:gpt-0", provider="openai")
    agent = Agent("teller", model, tools=[pay])
    for traces in (False, True):
        app = App(store_url, agents=[agent], retry=QUICK, traces=traces)
        async with app, app.worker():
            chat = await app.create("teller", "more secret words", owner="ann")
            await rested(chat)
    names = [span.name for span in spans()]
    assert sorted(names) == [
        "chat gpt-0",
        "chat gpt-0",
        "chat gpt-0",
        "claim",
        "execute_tool pay",
        "invoke_agent teller",
    ], "three requests to the model, and nothing of the app without traces"
    root = one(spans(), "invoke_agent teller")
    assert {under(span) for span in spans() if span is not root} == {id_of(root)}
    failed, first, last = (span for span in spans() if span.name == "chat gpt-0")
    assert about(failed)["error.type"] == "server_error"
    assert (about(failed)["holdfast.next"], about(failed)["http.response.status_code"]) == ("retry", 500)
    assert [link.context.span_id for link in first.links] == [id_of(failed)]
    assert not last.links, "another step"
    assert about(first) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-0",
        "gen_ai.response.model": "gpt-0",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.conversation.id": chat.id,
        "gen_ai.agent.name": "teller",
        "holdfast.attempt": 2,
    } == about(first)
    tool_span = about(one(spans(), "execute_tool pay"))
    assert (tool_span["error.type"], tool_span["gen_ai.tool.type"]) == ("tool_error", "function")
    assert about(root)["user.id"] == "ann"
    everything = " ".join(span.to_json() for span in spans())
    for word in ("secret", "hunter2"):
        assert word not in everything


async def test_what_was_said_is_in_spans_where_it_is_asked_for_bounded_and_without_secrets(
    store_url: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_PASSWORD", "correct horse battery")

    @tool
    async def read(path: str) -> str:
        """Read a file."""
        return "pin: correct horse battery, " + 100_000 * "x"

    model = ScriptedModel([Say(text="I look."), Call(name="read", arguments={"path": "a.txt"})], "The end.")
    app = App(store_url, agents=[Agent("reader", model, tools=[read])], traces=True, trace_content=True)
    async with app, app.worker():
        await rested(await app.create("reader", "read it"))
    tool_span = about(one(spans(), "execute_tool read"))
    assert json.loads(tool_span["gen_ai.tool.call.arguments"]) == {"path": "a.txt"}
    assert tool_span["gen_ai.tool.call.result"].startswith("pin: [BANK_PASSWORD], xxx")
    first, last = (about(span) for span in spans() if span.name == "chat scripted")
    assert json.loads(first["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "read it"}]}
    ]
    (said,) = json.loads(first["gen_ai.output.messages"])
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert json.loads(last["gen_ai.input.messages"])[-1]["parts"][0]["type"] == "tool_call_response"
    everything = [value for span in spans() for value in about(span).values() if isinstance(value, str)]
    assert max(map(len, everything)) < 20_000
    assert not any("horse" in value for value in everything)


async def test_a_wait_for_a_person_is_a_span_as_long_as_it_took(store_url: str, spans: Spans) -> None:
    @tool(needs_approval=True)
    async def wipe() -> str:
        """Wipe the disk."""
        return "wiped"

    calls = [Call(name="wipe"), Call(name="ask_user", arguments={"question": "Sure?"})]
    agent = Agent("cautious", ScriptedModel(calls, "Done."), tools=[wipe, ask_user()])
    app = App(store_url, agents=[agent], traces=True)
    async with app, app.worker():
        chat = await app.create("cautious", "wipe it")
        turn = await chat.turn()
        assert turn.state == "waiting"
        for call in turn.open:
            await (call.approve(by="ann") if call.kind == "approval" else call.answer("yes"))
        assert (await chat.turn()).text == "Done."
        entries = [(entry.body, entry.at) async for entry in chat.events()]
    (asked_at,) = [at for body, at in entries if isinstance(body, CallChanged) and body.state == "asking"]
    wait, asked = one(spans(), "wait for approval of wipe"), one(spans(), "execute_tool ask_user")
    assert (about(wait)["holdfast.outcome"], about(wait)["holdfast.waits_for"]) == ("approved", "approval")
    assert (about(asked)["holdfast.outcome"], about(asked)["holdfast.waits_for"]) == ("done", "question")
    assert wait.start_time == asked_at * 1_000_000
    assert about(one(spans(), "execute_tool wipe"))["holdfast.starts"] == 1, "once it was approved"


async def test_a_turn_that_a_person_stops_while_it_waits_has_its_root(store_url: str, spans: Spans) -> None:
    agent = Agent(
        "asker", ScriptedModel([Call(name="ask_user", arguments={"question": "Well?"})]), tools=[ask_user()]
    )
    app = App(store_url, agents=[agent], traces=True)
    async with app:
        async with app.worker():
            chat = await app.create("asker", "go")
            assert (await chat.turn()).state == "waiting"
        await chat.stop()  # no worker is there any more
    root = one(spans(), "invoke_agent asker")
    assert about(root)["holdfast.cause"] == "user"
    assert under(one(spans(), "execute_tool ask_user")) == id_of(root)


async def test_a_sub_agents_turn_is_in_the_trace_of_the_call_that_made_it(store_url: str, spans: Spans) -> None:
    spawn = Call(name="spawn_agent", arguments={"agent": "child", "task": "help"})
    script = ScriptedModel(spawn, "Spawned.")
    parent = Agent("parent", script, tools=agent_tools(["child"]))
    app = App(store_url, agents=[parent, Agent("child", ScriptedModel("Here."))], traces=True)
    async with app, app.worker():
        await rested(await app.create("parent", "go"))
        await until(lambda: [span for span in spans() if span.name == "invoke_agent child"])
    call, child = one(spans(), "execute_tool spawn_agent"), one(spans(), "invoke_agent child")
    assert under(child) == id_of(call)
    assert under(call) == id_of(one(spans(), "invoke_agent parent"))
    assert len({trace_id_of(span) for span in spans()}) == 1


async def test_a_turn_goes_on_in_the_trace_that_its_message_was_sent_from(store_url: str, spans: Spans) -> None:
    agent = Agent("echo", ScriptedModel(after="echo"))
    app = App(store_url, agents=[agent], traces=True)
    tracer = trace.get_tracer("a program")
    async with app, app.worker():
        with tracer.start_as_current_span("request") as request:
            chat = await app.create("echo", "hello", key="once")
        with tracer.start_as_current_span("the same request again"):
            again = await app.create("echo", "hello", key="once")
        await rested(chat)
        (sent, *_) = await chat.messages()
    assert again.id == chat.id, "where it was sent from is no part of what was asked"
    context = request.get_span_context()
    root = one(spans(), "invoke_agent echo")
    assert (trace_id_of(root), under(root)) == (context.trace_id, context.span_id)
    assert place_of(sent.traceparent) == SpanPlace(context.trace_id, context.span_id)
    assert trace_id_of(one(spans(), "chat scripted")) == context.trace_id


async def test_a_failed_turn_and_its_retry_are_one_trace_with_a_root_each(store_url: str, spans: Spans) -> None:
    def fail(message: Message, context: RunContext) -> None:
        """A hook is told of, too."""

    model = ScriptedModel([Fail(status=400, code="bad_request", attempts=1), Say(text="now")])
    agent = Agent("brittle", model, hooks=[Hook("on_error", fail, name="ours")])
    app = App(store_url, agents=[agent], traces=True)
    async with app, app.worker():
        chat = await app.create("brittle", "go")
        assert await rested(chat) is State.FAILED
        await chat.retry()
        await rested(chat)
    roots = [span for span in spans() if span.name == "invoke_agent brittle"]
    assert len({id_of(root) for root in roots}) == 2
    assert len({trace_id_of(span) for span in spans()}) == 1
    assert about(roots[0])["error.type"] == "bad_request"
    hook = one(spans()[: spans().index(roots[1])], "hook on_error")
    assert (under(hook), about(hook)["holdfast.hook.names"]) == (id_of(roots[0]), ("ours",))


# --- what a client sends --------------------------------------------------------------------------------------


SENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("given", [SENT, "hello", None])
async def test_a_turn_goes_on_in_the_trace_of_the_request_that_sent_its_message(
    given: str | None, tmp_path: Path, spans: Spans
) -> None:
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    app = App(url, agents=[Agent("echo", ScriptedModel(after="echo"))], traces=True)
    headers = {"authorization": f"Bearer {TOKEN}"} | ({} if given is None else {"traceparent": given})
    transport = httpx2.ASGITransport(app=http_app(app, token=TOKEN))
    async with app, app.worker(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/api/chats", json={"agent": "echo", "message": "hello"}, headers=headers)
        assert answer.status_code == 201, answer.text
        chat = app.chat(answer.json()["id"])
        await rested(chat)
        answer = await client.post(f"/api/chats/{chat.id}/messages", json={"message": "more"}, headers=headers)
        assert answer.status_code == 200, answer.text
        await rested(chat)
        sent = [place_of(message.traceparent) for message in await chat.messages() if message.role == "user"]
    place = place_of(SENT)
    assert place is not None
    assert sent == 2 * [place if given == SENT else None]
    roots = [span for span in spans() if span.name == "invoke_agent echo"]
    assert [trace_id_of(root) == place.trace_id for root in roots] == 2 * [given == SENT]
    assert [under(root) for root in roots] == 2 * [place.span_id if given == SENT else None]


async def test_no_span_of_a_request_holds_a_token_in_its_query(tmp_path: Path, spans: Spans) -> None:
    """FastAPI makes spans of requests by itself, with the query in them."""
    app = App(f"sqlite:///{tmp_path / 'holdfast.db'}", agents=[Agent("echo", "scripted")], traces=True)
    transport = httpx2.ASGITransport(app=http_app(app, token=TOKEN))
    async with app, httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(f"/login?token={TOKEN}")).status_code == 200
    assert TOKEN not in " ".join(span.to_json() for span in spans())


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "hello",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" + 200 * "x",
    ],
)
def test_what_is_no_traceparent_is_left_unread(wrong: str) -> None:
    assert place_of(wrong) is None


def test_a_traceparent_is_read_as_it_is_written() -> None:
    place = place_of(SENT)
    assert place is not None
    assert place.traceparent == SENT
    assert place_of("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-later") == place._replace(sampled=False)
