"""The one retry path: attempts, waits, fallbacks, stops. Time is faked; what streams is a script or a server."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.deadlines import ModelDeadlines
from holdfast.core.journal import Delta
from holdfast.core.records import Cause, File, Message, Role, Text, ToolCall, ToolResult, result_message
from holdfast.core.retry import RetryPolicy
from holdfast.errors import (
    AdmissionTimeout,
    ConfigError,
    ConnectionFailed,
    FirstByteTimeout,
    LostResult,
    ModelCallFailed,
    ProviderError,
    SilenceTimeout,
    StoreUnavailable,
)
from holdfast.models.base import (
    Alive,
    Model,
    Opened,
    Progress,
    Request,
    ResponseFinished,
    Settings,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.calls import Caller, Completed, FailedAttempt, Observer, Stopped, failure_of
from holdfast.models.providers import Providers
from holdfast.models.resolve import Models
from holdfast.models.scripted import Call, Cut, Fail, Finish, Hold, Say, ScriptedModel, Stall, Think
from holdfast.stops import StopSignal
from tests.models.conftest import CALM, KEY, Serve, asking, until
from tests.models.faketime import FakeTime
from tests.support.chat_server import (
    DONE,
    ChatServer,
    Data,
    Reply,
    chunk,
    refusing,
    saying,
)
from tests.support.chat_server import (
    Cut as CutConnection,
)
from tests.support.chat_server import (
    Stall as StallConnection,
)
from tests.support.looptime import LoopTime

pytestmark = pytest.mark.timeout(60)

ModelOn = Callable[[ChatServer], Model]


class Notes(Observer):
    """Writes down what it is told, in order."""

    def __init__(self, time: FakeTime | None = None) -> None:
        self.told: list[Any] = []
        self.failed: list[FailedAttempt] = []
        self._time = time

    async def attempt_started(self, n: int, model: Model) -> None:
        self.told.append(("started", n, model.name))

    def delta(self, delta: Delta) -> None:
        self.told.append(delta.text)

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        waits = None if self._time is None else len(self._time.slept)
        self.failed.append(failed)
        self.told.append(("failed", failed.n, failed.code, waits))


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def caller(time: FakeTime) -> Caller:
    return Caller(time.providers())


async def completed(caller: Caller, *models: Model, **options: Any) -> Completed:
    request = options.pop("request", asking())
    outcome = await caller.call(models, request, **options)
    assert isinstance(outcome, Completed)
    return outcome


async def failed(caller: Caller, *models: Model, **options: Any) -> ModelCallFailed:
    with pytest.raises(ModelCallFailed) as caught:
        await completed(caller, *models, **options)
    return caught.value


async def stopped(call: "asyncio.Task[Completed | Stopped]") -> Stopped:
    async with asyncio.timeout(10):
        outcome = await call
    assert isinstance(outcome, Stopped)
    return outcome


# --- a good day


async def test_a_response_becomes_a_message_with_ids_of_ours(caller: Caller) -> None:
    model = ScriptedModel([Think(text="hm"), "I look.", Call(name="weather", arguments={"city": "Bern"})])
    done = await completed(caller, model)
    assert done.message.role is Role.ASSISTANT
    assert done.message.model == "scripted"
    assert done.message.text == "I look."
    (call,) = done.message.calls
    assert call.name == "weather"
    assert call.arguments == '{"city":"Bern"}'
    assert call.call_id.startswith("call_")
    assert (done.finished.reason, done.n, done.failed) == ("tool_calls", 1, ())
    assert done.usage is not None
    assert (done.message.input_tokens, done.message.output_tokens) == (
        done.usage.input_tokens,
        done.usage.output_tokens,
    )


async def test_a_response_without_a_word_is_a_success(caller: Caller) -> None:
    """A clean exit with an empty answer was reported as a failure, eight days in a row [trinity#160]."""
    done = await completed(caller, ScriptedModel([Finish()]))
    assert (done.message.parts, done.finished.reason, done.failed) == ((), "stop", ())


async def test_no_model_at_all_is_a_configuration_error(caller: Caller) -> None:
    with pytest.raises(ConfigError):
        await caller.call([], asking())


# --- retries


async def test_two_429s_then_success_on_an_auxiliary_call(
    caller: Caller, time: FakeTime, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(refusing(429), refusing(429, retry_after="3"), saying("A title"))
    done = await completed(caller, model_on(server), policy=RetryPolicy(attempts_max=3))
    assert done.message.text == "A title"
    assert [(attempt.code, attempt.status, attempt.retry_in_ms) for attempt in done.failed] == [
        ("rate_limit", 429, 1000),
        ("rate_limit", 429, 3000),
    ]
    assert time.slept == [1.0, 3.0]
    assert len(server.asked) == 3
    assert server.asked[0].raw == server.asked[2].raw


@pytest.mark.parametrize("status", [500, 502, 503, 529, 408])
async def test_what_may_pass_is_tried_five_times_with_growing_waits(
    caller: Caller, time: FakeTime, status: int
) -> None:
    model = ScriptedModel(Fail(status=status))
    error = await failed(caller, model)
    assert len(model.requests) == len(error.attempts) == len(error.errors) == 5
    assert time.slept == [1.0, 2.0, 4.0, 8.0]


async def test_jitter_takes_a_random_share_of_the_wait() -> None:
    time = FakeTime(jitter=0.25)
    await failed(Caller(time.providers()), ScriptedModel(Fail()))
    assert time.slept == [0.25, 0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after": "3600"}, 60.0),
        ({"retry_after": "Fri, 31 Dec 2099 23:59:59 GMT"}, 60.0),
        ({"retry_after": "Fri, 31 Dec 1999 23:59:59 GMT"}, 1.0),
        ({"retry_after": ""}, 1.0),
        ({"retry_after": "soon"}, 1.0),
        ({"retry_after": "0"}, 1.0),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 529])
async def test_retry_after_is_honoured_or_ignored(
    caller: Caller,
    time: FakeTime,
    serve: Serve,
    model_on: ModelOn,
    status: int,
    headers: dict[str, str],
    wait_s: float,
) -> None:
    server = await serve(refusing(status, **headers), saying("Hi"))
    await completed(caller, model_on(server))
    assert time.slept == [wait_s]


async def test_a_400_makes_one_attempt(caller: Caller, time: FakeTime, serve: Serve, model_on: ModelOn) -> None:
    server = await serve(refusing(400, "messages[1] is wrong"))
    fallback = ScriptedModel("never asked", name="fallback")
    error = await failed(caller, model_on(server), fallback)
    assert len(server.asked) == 1
    assert (error.code, time.slept, list(fallback.requests)) == ("bad_request", [], [])
    assert "messages[1] is wrong" in str(error)
    assert error.__cause__ is error.errors[0]


@pytest.mark.parametrize("code", ["context_too_long", "refused", "bad_request"])
async def test_what_is_the_requests_own_fault_goes_nowhere_else(caller: Caller, time: FakeTime, code: str) -> None:
    model, fallback = ScriptedModel(Fail(status=400, code=code)), ScriptedModel("never asked")
    error = await failed(caller, model, fallback)
    assert (error.code, len(model.requests), len(fallback.requests), time.slept) == (code, 1, 0, [])


async def test_a_stream_that_ends_without_finishing_is_retried_and_then_lost(caller: Caller) -> None:
    once = await completed(caller, ScriptedModel([Say(text="Hello"), Cut(attempts=1), Say(text=" again")]))
    assert once.message.text == "Hello again"
    assert [attempt.code for attempt in once.failed] == ["lost_result"]
    error = await failed(caller, ScriptedModel([Say(text="Hello"), Cut()]))
    assert error.code == "lost_result"
    assert [type(each) for each in error.errors] == [LostResult] * 5


async def test_a_server_that_cuts_breaks_off_and_talks_nonsense_is_survived(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(
        Reply(steps=(chunk({"content": "Hel"}), CutConnection())),
        Reply(steps=(chunk({"content": "Hel"}), Data({"error": {"message": "x", "type": "server_error"}}))),
        Reply(steps=(chunk({"content": "Hel"}), Data("{not json"))),
        Reply(steps=(chunk({"content": "Hel"}), DONE)),
        saying("Hello"),
    )
    notes = Notes()
    done = await completed(caller, model_on(server), observer=notes)
    assert done.message.text == "Hello"
    assert [attempt.code for attempt in done.failed] == ["connection", "server_error", "lost_result", "lost_result"]
    assert all(attempt.streamed for attempt in done.failed)


async def test_a_stalled_stream_is_retried(caller: Caller, serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), StallConnection())), saying("Hello"))
    request = asking()
    done = await completed(
        caller, model_on(server), request=replace(request, deadlines=replace(request.deadlines, silence_s=1.0))
    )
    assert done.message.text == "Hello"
    assert [attempt.code for attempt in done.failed] == ["timeout"]
    await server.until_connections(1)


async def test_the_observer_hears_everything_in_order_and_before_the_wait(caller: Caller, time: FakeTime) -> None:
    notes = Notes(time)
    model = ScriptedModel([Say(text="Hel"), Fail(status=500, attempts=1), Say(text="lo")])
    await completed(caller, model, observer=notes)
    assert notes.told == [
        ("started", 1, "scripted"),
        "Hel",
        ("failed", 1, "server_error", 0),
        ("started", 2, "scripted"),
        "Hel",
        "lo",
    ]
    (attempt,) = notes.failed
    assert attempt.streamed
    assert (attempt.retry_in_ms, attempt.next_model, attempt.request_id) == (1000, "scripted", "scripted-1")


async def test_a_failed_attempt_that_said_nothing_is_told_apart(caller: Caller) -> None:
    notes = Notes()
    await completed(caller, ScriptedModel([Fail(status=503, attempts=1), "Hi"]), observer=notes)
    assert [attempt.streamed for attempt in notes.failed] == [False]


async def test_tokens_of_a_failed_attempt_are_recorded(caller: Caller, serve: Serve, model_on: ModelOn) -> None:
    counted = chunk({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": 1})
    server = await serve(Reply(steps=(counted,)), saying("Hi"))
    done = await completed(caller, model_on(server))
    assert done.failed[0].usage == Usage(input_tokens=5, output_tokens=1)


# --- unsupported parameters


def refuses(parameter: str) -> Reply:
    return refusing(
        400,
        {
            "error": {
                "message": f"Unsupported parameter: '{parameter}' is not supported with this model.",
                "type": "invalid_request_error",
                "param": parameter,
                "code": "unsupported_parameter",
            }
        },
    )


async def test_an_unsupported_parameter_is_sent_once_more_in_its_accepted_form(
    caller: Caller, time: FakeTime, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(refuses("max_tokens"), saying("Hi"))
    request = replace(asking(), settings=Settings(max_tokens=100))
    done = await completed(caller, model_on(server), request=request)
    assert [(attempt.code, attempt.retry_in_ms) for attempt in done.failed] == [("unsupported_parameter", 0)]
    first, second = (asked.body for asked in server.asked)
    assert (first["max_tokens"], second["max_completion_tokens"]) == (100, 100)
    assert "max_tokens" not in second
    assert time.slept == []
    # and the next call knows
    await completed(caller, model_on(server), request=request)
    assert server.asked[2].raw == server.asked[1].raw


@pytest.mark.parametrize(
    "words",
    [
        "Missing `reasoning_content` field in the assistant message at message index 1.",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    ],
)
async def test_a_server_that_misses_reasoning_gets_a_place_for_it_everywhere_and_from_then_on(
    caller: Caller, serve: Serve, model_on: ModelOn, words: str
) -> None:
    server = await serve(refusing(400, {"error": {"message": words, "type": "invalid_request_error"}}), saying("Hi"))
    said = Message(id="a", role=Role.ASSISTANT, parts=(Text(text="x"),))
    request = replace(asking(), messages=[*asking().messages, said, *asking().messages])
    done = await completed(caller, model_on(server), request=request)
    assert [attempt.code for attempt in done.failed] == ["unsupported_parameter"]
    await completed(caller, model_on(server), request=request)
    assert [asked.body["messages"][1].get("reasoning_content") for asked in server.asked] == [None, "", ""]


async def test_a_server_that_wants_ids_in_a_form_of_its_own_gets_them_so_from_then_on(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    words = "Tool call id was call_a but must be a-z, A-Z, 0-9, with a length of 9."
    refusal = {"object": "error", "message": words, "type": "invalid_function_call", "param": None, "code": "3280"}
    server = await serve(refusing(400, refusal), saying("Hi"))
    ids = ("call_a", "call_b")
    asked = Message(
        id="a", role=Role.ASSISTANT, parts=tuple(ToolCall(call_id=id, name="t", arguments="{}") for id in ids)
    )
    results = [result_message(ToolResult(call_id=id, name="t", content="x"), 0) for id in ids]
    request = replace(asking(), messages=[*asking().messages, asked, *results])
    await completed(caller, model_on(server), request=request)
    await completed(caller, model_on(server), request=request)
    first, second, third = (asked.body["messages"] for asked in server.asked)
    assert [call["id"] for call in first[1]["tool_calls"]] == ["call_a", "call_b"]
    short = [call["id"] for call in second[1]["tool_calls"]]
    assert all(re.fullmatch("[a-z0-9]{9}", id) for id in short)
    assert len(set(short)) == 2
    assert [message["tool_call_id"] for message in second[2:]] == short
    assert third == second, "the same from one request to the next, so that caches stay warm"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (404, "No endpoints found that support image input"),
    ],
)
async def test_a_model_that_sees_no_images_is_told_what_a_tool_returned_from_then_on(
    caller: Caller, serve: Serve, model_on: ModelOn, status: int, words: str
) -> None:
    server = await serve(refusing(status, {"error": {"message": words}}), saying("Hi"))
    asked = Message(id="a", role=Role.ASSISTANT, parts=(ToolCall(call_id="c", name="t", arguments="{}"),))
    image = File(media_type="image/png", uri="data:image/png;base64,AAAA", name="chart.png")
    result = result_message(ToolResult(call_id="c", name="t", content="a chart", files=(image,)), 0)
    request = replace(asking(), messages=[*asking().messages, asked, result])
    done = await completed(caller, model_on(server), request=request)
    assert [attempt.code for attempt in done.failed] == ["unsupported_parameter"]
    await completed(caller, model_on(server), request=request)
    first, second, third = (asked.body["messages"] for asked in server.asked)
    assert first[-1]["content"][1]["type"] == "image_url"
    assert [part["type"] for part in second[-1]["content"]] == ["text"]
    assert "is not able to see them: chart.png (image/png)" in second[-1]["content"][0]["text"]
    assert second == third


async def test_the_first_error_is_kept_when_the_accepted_form_fails_too(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(refuses("max_tokens"), refusing(400, "something else"))
    request = replace(asking(), settings=Settings(max_tokens=100))
    error = await failed(caller, model_on(server), request=request)
    assert [each.code for each in error.errors] == ["unsupported_parameter", "bad_request"]
    assert isinstance(error.__cause__, ExceptionGroup)
    assert error.__cause__.exceptions == error.errors


async def test_a_server_that_refuses_the_same_parameter_again_is_not_asked_for_ever(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(refuses("temperature"))
    request = replace(asking(), settings=Settings(temperature=0.5))
    error = await failed(caller, model_on(server), request=request)
    assert len(server.asked) == 2
    assert error.code == "unsupported_parameter"


async def test_a_parameter_without_another_form_makes_one_attempt(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(refuses("messages"))
    assert (await failed(caller, model_on(server))).code == "unsupported_parameter"
    assert len(server.asked) == 1


# --- fallbacks


@pytest.mark.parametrize(("status", "code"), [(402, "payment"), (401, "authentication"), (404, "not_found")])
async def test_what_only_another_provider_can_mend_goes_there_at_once(
    caller: Caller, time: FakeTime, status: int, code: str
) -> None:
    model, fallback = ScriptedModel(Fail(status=status)), ScriptedModel("Hi", name="fallback")
    done = await completed(caller, model, fallback)
    assert done.message.model == "fallback"
    assert [(attempt.code, attempt.next_model) for attempt in done.failed] == [(code, "fallback")]
    assert (len(model.requests), time.slept) == (1, [])


async def test_fallbacks_are_asked_in_order_once_each_and_a_failed_one_is_logged_by_name(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """The retry's error replaced the first one; the fallback's failure was not even logged [hermes#6622]."""
    caplog.set_level(logging.WARNING)
    first = ScriptedModel(Fail(status=500, message="first words"), name="first")
    second = ScriptedModel(Fail(status=503), name="second")
    third = ScriptedModel("Hi", name="third")
    done = await completed(caller, first, second, third)
    assert [attempt.model for attempt in done.failed] == ["first"] * 5 + ["second"]
    assert (done.message.model, done.n) == ("third", 7)
    records = [vars(record) for record in caplog.records if record.name == "holdfast.models.calls"]
    told = [(record["action"], record["model"], record["next_model"], record["code"]) for record in records]
    assert told == [
        ("model.fallback", "first", "second", "server_error"),
        ("model.fallback", "second", "third", "overloaded"),
    ]


async def test_the_final_error_carries_every_error_of_every_model(caller: Caller) -> None:
    first = ScriptedModel(Fail(status=500, message="first words"), name="first")
    second = ScriptedModel(Fail(status=401, message="second words"), name="second")
    error = await failed(caller, first, second)
    assert [each.code for each in error.errors] == ["server_error"] * 5 + ["authentication"]
    assert isinstance(error.__cause__, ExceptionGroup)
    assert error.__cause__.exceptions == error.errors
    assert error.code == "authentication"
    assert "after 6 attempts on 2 models" in str(error)
    failure = failure_of(error)
    assert failure.code == "authentication"
    assert "second words" in failure.chain[0]
    assert "first words" in failure.chain[-1]
    assert len(failure.chain) == 6
    assert failure.chain[-1].startswith("attempt 1, first: server_error")


async def test_the_causes_below_an_attempt_are_in_the_chain(caller: Caller, models: Models) -> None:
    refused = models.get("compatible:m@http://127.0.0.1:9/v1")
    error = await failed(caller, refused, policy=RetryPolicy(attempts_max=1))
    assert isinstance(error.errors[0], ConnectionFailed)
    chain = failure_of(error).chain
    assert any("ConnectError" in line for line in chain[1:])
    assert KEY not in "".join(chain)


async def test_the_budget_gates_the_start_of_a_retry_but_a_fallback_still_gets_its_attempt(
    caller: Caller, time: FakeTime
) -> None:
    class Slow(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            time.now_s += 400
            async for part in super().stream(request):
                yield part

    slow, fallback = Slow(Fail(status=500), name="slow"), ScriptedModel("Hi", name="fallback")
    done = await completed(caller, slow, fallback)
    assert len(slow.requests) == 3  # the fourth would start after 15 minutes
    assert done.message.model == "fallback"


# --- stops


async def test_a_stop_in_mid_stream_keeps_what_there_is_and_is_no_failed_attempt(
    caller: Caller, serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(
        Reply(
            steps=(
                chunk({"content": "I open "}),
                chunk(
                    {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "open", "arguments": '{"path":'}}]}
                ),
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"main.go"'}}]}),
                StallConnection(),
            )
        )
    )
    notes, stop = Notes(), StopSignal[Cause]()
    call = asyncio.create_task(caller.call([model_on(server)], asking(), observer=notes, stop=stop))
    await server.reached_wait()
    await until(lambda: '"main.go"' in notes.told)
    stop.set(Cause.USER)
    outcome = await stopped(call)
    assert outcome.message is not None
    assert outcome.message.stopped is Cause.USER
    text, cut = outcome.message.parts
    assert text == Text(text="I open ")
    assert isinstance(cut, ToolCall)
    assert (cut.arguments, cut.cut, cut.name) == ('{"path":"main.go"', True, "open")
    assert (outcome.cause, outcome.n, outcome.failed, notes.failed) == (Cause.USER, 1, (), [])
    await server.until_connections(0)


async def test_a_stop_before_the_first_piece_leaves_no_message(caller: Caller) -> None:
    model, stop = ScriptedModel([Hold(name="here")]), StopSignal[Cause]()
    call = asyncio.create_task(caller.call([model], asking(), stop=stop))
    await model.reached("here")
    stop.set(Cause.SHUTDOWN)
    outcome = await stopped(call)
    assert (outcome.message, outcome.n, outcome.cause) == (None, 1, Cause.SHUTDOWN)
    assert model.open_streams == 0


async def test_a_stop_ends_the_wait_for_the_next_attempt_at_once() -> None:
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    time = FakeTime()
    caller = Caller(Providers(timing=replace(time.timing, sleep=sleep)))
    model, stop = ScriptedModel(Fail(status=500)), StopSignal[Cause]()
    call = asyncio.create_task(caller.call([model, ScriptedModel("never")], asking(), stop=stop))
    await waiting.wait()
    stop.set(Cause.USER)
    outcome = await stopped(call)
    assert (outcome.message, outcome.n, len(outcome.failed), len(model.requests)) == (None, 1, 1, 1)


async def test_a_stop_that_was_there_before_asks_nobody(caller: Caller) -> None:
    model, stop = ScriptedModel("Hi"), StopSignal[Cause]()
    stop.set(Cause.USER)
    outcome = await caller.call([model], asking(), stop=stop)
    assert outcome == Stopped(cause=Cause.USER)
    assert list(model.requests) == []


async def test_a_stop_ends_the_wait_for_a_slot_and_the_slot_is_not_lost(time: FakeTime) -> None:
    caller = Caller(time.providers(scripted=1))
    model = ScriptedModel([Hold(name="busy"), "Hi"], after="repeat")
    busy = asyncio.create_task(caller.call([model], asking()))
    await model.reached("busy")
    stop = StopSignal[Cause]()
    waiting = asyncio.create_task(caller.call([model], asking(), stop=stop))
    await until(lambda: caller.providers.get("scripted").waiting == 1)
    stop.set(Cause.SUPERSEDED)
    assert (await stopped(waiting)) == Stopped(cause=Cause.SUPERSEDED)
    model.resume("busy")
    assert isinstance(await busy, Completed)
    await completed(caller, model)
    assert caller.providers.get("scripted").in_flight == 0


async def test_a_stop_ends_a_cool_down(time: FakeTime) -> None:
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    caller = Caller(Providers(timing=replace(time.timing, sleep=sleep)))
    caller.providers.get("scripted").cool("scripted", 30)
    model, stop = ScriptedModel("Hi"), StopSignal[Cause]()
    call = asyncio.create_task(caller.call([model], asking(), stop=stop))
    await waiting.wait()
    stop.set(Cause.USER)
    assert await stopped(call) == Stopped(cause=Cause.USER)


class Sore(ScriptedModel):
    """What many clients do: a cancelled read comes out as an error of their own."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield TextDelta(text="Hel")
        try:
            self._held("stream").reached.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionFailed("the connection was closed") from None


async def test_the_error_a_stream_raises_because_we_stopped_it_is_no_failure(caller: Caller) -> None:
    model, stop, notes = Sore(), StopSignal[Cause](), Notes()
    call = asyncio.create_task(caller.call([model], asking(), stop=stop, observer=notes))
    await model.reached("stream")
    stop.set(Cause.USER)
    outcome = await stopped(call)
    assert outcome.message is not None
    assert (outcome.message.text, outcome.failed, notes.failed) == ("Hel", (), [])


async def test_the_error_a_stream_raises_because_its_task_was_cancelled_is_the_cancellation(caller: Caller) -> None:
    model, notes = Sore(), Notes()
    call = asyncio.create_task(caller.call([model], asking(), observer=notes))
    await model.reached("stream")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert notes.failed == []
    assert caller.providers.get("scripted").in_flight == 0


async def test_a_cancellation_that_is_not_the_stops_passes_through_and_closes_the_stream(caller: Caller) -> None:
    model, stop, notes = ScriptedModel(["Hel", Hold(name="here")]), StopSignal[Cause](), Notes()
    call = asyncio.create_task(caller.call([model], asking(), stop=stop, observer=notes))
    await model.reached("here")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (model.open_streams, notes.failed, caller.providers.get("scripted").in_flight) == (0, [], 0)


async def test_a_stop_set_by_the_observer_itself_ends_the_stream(caller: Caller) -> None:
    stop = StopSignal[Cause]()

    class Impatient(Observer):
        def delta(self, delta: Delta) -> None:
            stop.set(Cause.BUDGET)

    model = ScriptedModel([Say(text="one two three"), Stall()])
    outcome = await caller.call([model], asking(), observer=Impatient(), stop=stop)
    assert isinstance(outcome, Stopped)
    assert outcome.message is not None
    assert outcome.cause is Cause.BUDGET
    await asyncio.sleep(0)  # the stop leaves no cancellation behind


async def test_a_stop_does_not_interrupt_the_observer_at_its_work(caller: Caller) -> None:
    """It commits a record then; cut in the middle, nobody would know whether it did."""
    stop = StopSignal[Cause]()
    committed = []

    class Committing(Observer):
        async def attempt_failed(self, failed: FailedAttempt) -> None:
            stop.set(Cause.USER)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            committed.append(failed.n)

    outcome = await caller.call([ScriptedModel(Fail())], asking(), observer=Committing(), stop=stop)
    assert isinstance(outcome, Stopped)
    assert committed == [1]


async def test_a_response_that_was_complete_when_the_stop_came_is_kept_whole(caller: Caller) -> None:
    stop = StopSignal[Cause]()

    class Late(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            async for part in super().stream(request):
                yield part
                stop.set(Cause.USER)

    outcome = await caller.call([Late([Call(name="t", arguments={"a": 1})])], asking(), stop=stop)
    assert isinstance(outcome, Stopped)
    assert outcome.message is not None
    (call,) = outcome.message.calls
    assert (call.arguments, call.cut) == ('{"a":1}', False)


async def test_an_error_of_the_observer_comes_out_as_itself(caller: Caller) -> None:
    class Broken(Observer):
        async def attempt_failed(self, failed: FailedAttempt) -> None:
            raise StoreUnavailable("database write failed")

    model = ScriptedModel(Fail())
    with pytest.raises(StoreUnavailable, match="database write failed"):
        await caller.call([model], asking(), observer=Broken())
    assert caller.providers.get("scripted").in_flight == 0


# --- what all chats share


async def test_calls_to_one_provider_are_limited_and_others_are_not(
    time: FakeTime, serve: Serve, models: Models, model_on: ModelOn
) -> None:
    server = await serve(saying("Hi"))
    model = model_on(server)
    caller = Caller(time.providers(**{model.provider: 2}))
    held = ScriptedModel([Hold(name="busy"), "Hi"], provider="other")
    other = asyncio.create_task(caller.call([held], asking()))
    await held.reached("busy")
    await asyncio.gather(*(completed(caller, model) for _ in range(10)))
    assert len(server.asked) == 10
    assert server.streaming_most <= 2
    figures = caller.providers.figures()
    assert figures[model.provider] == {"in_flight": 0, "waiting": 0, "concurrency_max": 2, "cooling_s": 0}
    assert figures["other"]["in_flight"] == 1
    held.resume("busy")
    await other


async def test_a_429_of_one_model_does_not_keep_the_fallback_on_the_same_provider_waiting(
    caller: Caller, time: FakeTime
) -> None:
    limited = ScriptedModel(Fail(status=429, retry_after="20"), provider="p", name="p:large")
    small = ScriptedModel("Hi", provider="p", name="p:small")
    done = await completed(caller, limited, small, policy=RetryPolicy(attempts_max=1))
    assert (done.message.model, time.slept) == ("p:small", [])
    assert caller.providers.get("p").cooling_of("p:large") == 20


async def test_after_a_429_everybody_on_that_model_waits(caller: Caller, time: FakeTime) -> None:
    """And nobody else."""
    limited = ScriptedModel([Fail(status=429, retry_after="20"), "never"], provider="p")
    error = await failed(caller, limited, policy=RetryPolicy(attempts_max=1))
    assert error.code == "rate_limit"
    assert caller.providers.get("p").cooling_s == 20
    await completed(caller, ScriptedModel("Hi", provider="q"))
    assert time.slept == []
    began_s = time.now_s
    await completed(caller, ScriptedModel("Hi", provider="p"))
    assert 20 <= time.now_s - began_s <= 21
    await completed(caller, ScriptedModel("Hi", provider="p"))
    assert time.now_s - began_s <= 21


async def test_only_a_429_cools_a_provider(caller: Caller) -> None:
    await failed(caller, ScriptedModel(Fail(status=529, retry_after="20")), policy=RetryPolicy(attempts_max=1))
    assert caller.providers.get("scripted").cooling_s == 0


async def test_a_cool_down_that_begins_while_waiting_for_a_slot_is_kept(time: FakeTime) -> None:
    caller = Caller(time.providers(p=1))
    model = ScriptedModel([Hold(name="busy"), Fail(status=429, retry_after="30")], provider="p")
    policy = RetryPolicy(attempts_max=1)
    busy = asyncio.create_task(caller.call([model], asking(), policy=policy))
    await model.reached("busy")
    began_s = time.now_s
    waiting = asyncio.create_task(completed(caller, ScriptedModel("Hi", provider="p")))
    await until(lambda: caller.providers.get("p").waiting == 1)
    model.resume("busy")
    with pytest.raises(ModelCallFailed):
        await busy
    await waiting
    assert time.now_s - began_s >= 30


async def test_a_slot_that_never_comes_free_fails_the_attempt_and_the_fallback_is_asked() -> None:
    time = FakeTime()
    caller = Caller(time.providers(p=1))
    model = ScriptedModel([Hold(name="busy")], provider="p")
    busy = asyncio.create_task(caller.call([model], asking()))
    await model.reached("busy")
    notes = Notes()
    done = await completed(
        caller,
        ScriptedModel("never", provider="p", name="first"),
        ScriptedModel("Hi", provider="q"),
        policy=RetryPolicy(total_s=0.1, delay_max_s=0.1),
        observer=notes,
    )
    assert [(attempt.model, attempt.code) for attempt in done.failed] == [("first", "timeout")]
    assert "1 calls are in flight, the limit is 1" in done.failed[0].error
    assert [told[1] for told in notes.told if told[0] == "started"] == [2]  # the first one never began
    busy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await busy


async def test_a_provider_that_cools_for_ever_fails_the_attempt_in_the_end(caller: Caller, time: FakeTime) -> None:
    provider = caller.providers.get("scripted")
    original = time.sleep

    async def always_more(seconds: float) -> None:
        await original(seconds)
        provider.cool("scripted", 60)

    providers = Providers(timing=replace(time.timing, sleep=always_more))
    provider = providers.get("scripted")
    provider.cool("scripted", 60)
    error = await failed(Caller(providers), ScriptedModel("never"))
    assert [type(each) for each in error.errors] == [AdmissionTimeout]
    assert time.now_s == pytest.approx(1_900)


class Thinking(ScriptedModel):
    """Lives, and says nothing for longer than any wait may take."""

    loop_time: LoopTime

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        for part in (Alive(), Alive(), Alive(), TextDelta(text="Hi"), Alive(), Alive(), Alive()):
            self.loop_time.advance(request.deadlines.silence_s / 2)
            await asyncio.sleep(0.01)  # the guard looks
            yield part
        yield ResponseFinished()


async def test_a_model_that_lives_is_not_ended_because_it_says_nothing(caller: Caller) -> None:
    model = Thinking()
    model.loop_time = LoopTime()
    done = await caller.call([model], asking(deadlines=replace(CALM, call_s=1_000.0)))
    assert isinstance(done, Completed)
    assert (done.message.text, done.n) == ("Hi", 1)


# --- models that do not keep their word


async def test_a_model_that_ignores_its_deadlines_is_ended_all_the_same(caller: Caller) -> None:
    class Endless(ScriptedModel):
        def __init__(self, *first: StreamPart) -> None:
            super().__init__()
            self.first = first

        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            for part in self.first:
                yield part
            await asyncio.Event().wait()

    deadlines = ModelDeadlines(connect_s=0.05, first_byte_s=0.05, silence_s=0.05)
    once = RetryPolicy(attempts_max=1)
    request = asking(deadlines=deadlines)
    error = await failed(caller, Endless(), request=request, policy=once)
    assert [type(each) for each in error.errors] == [FirstByteTimeout]
    error = await failed(caller, Endless(TextDelta(text="Hel")), request=request, policy=once)
    assert [type(each) for each in error.errors] == [SilenceTimeout]


async def test_a_model_that_says_what_it_waits_for_is_not_late_for_its_first_byte(caller: Caller) -> None:
    loop_time = LoopTime()

    class Loading(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            for _ in range(4):  # the guard's limit is 36 s
                yield Progress(text="loading")
                loop_time.advance(15.0)
                await asyncio.sleep(0)  # the guard looks whenever it is due
                await asyncio.sleep(0)
            async for part in super().stream(request):
                yield part

    class Hearing(Observer):
        def __init__(self) -> None:
            self.heard: set[str] = set()

        def progress(self, text: str) -> None:
            self.heard.add(text)

    observer = Hearing()
    request = asking(deadlines=ModelDeadlines(connect_s=15.0, first_byte_s=20.0))
    outcome = await caller.call([Loading("Hi.")], request, observer=observer, policy=RetryPolicy(attempts_max=1))
    assert isinstance(outcome, Completed)
    assert outcome.message.text == "Hi."
    assert observer.heard == {"loading"}


async def test_a_model_with_error_words_of_its_own_is_treated_as_a_broken_server(caller: Caller) -> None:
    class Odd(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            raise ProviderError("odd", code="odd")
            yield

    error = await failed(caller, Odd())
    assert len(error.errors) == 5


async def test_a_bug_in_a_model_is_not_retried_and_its_error_stays_in_the_chain(caller: Caller) -> None:
    class Buggy(ScriptedModel):
        async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
            raise KeyError("bug")
            yield

    with pytest.raises(ModelCallFailed, match="scripted broke: KeyError: 'bug'") as caught:
        await completed(caller, Buggy())
    assert len(caught.value.attempts) == 1
    assert isinstance(caught.value.errors[0].__cause__, KeyError)
    assert caller.providers.get("scripted").in_flight == 0


async def test_a_hundred_failing_and_stopped_calls_leave_no_task_behind(caller: Caller) -> None:
    before = len(asyncio.all_tasks())
    for n in range(100):
        stop = StopSignal[Cause]()
        model = ScriptedModel([Say(text="Hel"), Hold(name="here") if n % 2 else Fail()])
        call = asyncio.create_task(caller.call([model], asking(), stop=stop))
        if n % 2:
            await model.reached("here")
            stop.set(Cause.USER)
            await stopped(call)
        else:
            with pytest.raises(ModelCallFailed):
                await call
    assert len(asyncio.all_tasks()) == before
    assert caller.providers.figures() == {
        "scripted": {"in_flight": 0, "waiting": 0, "concurrency_max": 64, "cooling_s": 0}
    }
