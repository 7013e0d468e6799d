"""Every wire on a server that speaks it: the same day, good or bad, told in four languages. Judged by their SDKs."""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from holdfast.core.records import Cause, Reasoning, Text, ToolCall, ToolResult, result_message
from holdfast.core.retry import RetryPolicy
from holdfast.errors import (
    ConnectionFailed,
    FirstByteTimeout,
    LostResult,
    ModelCallFailed,
    ProviderError,
    SilenceTimeout,
)
from holdfast.models.base import (
    Model,
    Opened,
    Request,
    ResponseFinished,
    Settings,
    StreamPart,
    TextDelta,
    ToolSpec,
    Usage,
)
from holdfast.models.calls import Caller, Completed, Observer, Stopped
from holdfast.models.providers import Providers
from holdfast.models.resolve import Models
from holdfast.stops import StopSignal
from holdfast.system.clock import Timing
from tests.models.conftest import CALM, ENOUGH_S, KEY, Serve, asking
from tests.models.judges import THEIRS, as_anthropic_reads_it, ours
from tests.support.chat_server import ChatServer, Cut, Data, Reply, Reset, Stall, Step, Wait
from tests.support.speakers import (
    CACHED,
    INPUT,
    OUTPUT,
    SIGNED,
    THOUGHT,
    Anthropic,
    Call,
    Speaker,
    all_speakers,
    saying,
)

pytestmark = pytest.mark.timeout(60)

BERN = Call("weather", ('{"city"', ':"Bern"}'))
BASEL = Call("weather", ('{"ci', 'ty":"Basel"', ',"days":3}'))


@pytest.fixture(params=all_speakers(), ids=lambda speaker: speaker.kind)
def speaker(request: pytest.FixtureRequest) -> Speaker:
    made: Speaker = request.param
    return made


@pytest.fixture
def model_on(models: Models, speaker: Speaker) -> Callable[[ChatServer], Model]:
    return lambda server: models.get(
        f"{speaker.kind}:m@{server.url if 'google' not in speaker.kind else server.root}"
    )


ModelOn = Callable[[ChatServer], Model]


async def parts_of(model: Model, request: Request | None = None) -> list[StreamPart]:
    async with aclosing(model.stream(request or asking())) as parts:
        return [part async for part in parts]


async def error_of(model: Model, request: Request | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await parts_of(model, request)
    return caught.value


def brief(**seconds: float) -> Request:
    return asking(deadlines=replace(CALM, **seconds))


class Waits:
    """No time passes; what was waited for is kept."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)

    def caller(self) -> Caller:
        timing = Timing(now_s=lambda: sum(self.waited_s), sleep=self.sleep, jitter=lambda: 1.0)
        return Caller(Providers(timing=timing))


# --- a good day


async def test_a_response_streams_part_by_part_and_ends_with_finished(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    parts = await parts_of(model_on(await serve(saying(speaker, "Hel", "lo 水"))))
    assert parts[0] == Opened()
    assert [part for part in parts if isinstance(part, TextDelta)] == [TextDelta(text="Hel"), TextDelta(text="lo 水")]
    counted = [part for part in parts if isinstance(part, Usage)]
    assert replace(counted[-1], cache_write_tokens=0) == Usage(
        input_tokens=INPUT, output_tokens=OUTPUT, cached_tokens=CACHED, reasoning_tokens=THOUGHT
    )
    assert parts[-1] == ResponseFinished(
        reason="stop", provider_reason=speaker.reasons["stop"], response_id=speaker.response_id
    )


async def test_parts_arrive_while_the_provider_is_still_speaking(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    *before, last = speaker.text("Hel", "lo")
    cut = len(before) if not before else next(n for n, step in enumerate((*before, last)) if "Hel" in str(step)) + 1
    steps = (*before, last)
    reply = Reply(steps=(*speaker.begin(), *steps[:cut], Wait(), *steps[cut:], *speaker.end()))
    server = await serve(reply)
    async with aclosing(model_on(server).stream(asking())) as parts:
        assert await anext(parts) == Opened()
        assert await anext(parts) == TextDelta(text="Hel")
        server.go()
        assert TextDelta(text="lo") in [part async for part in parts]


SCENES: dict[str, Callable[[Speaker], tuple[Step, ...]]] = {
    "text": lambda says: (*says.text("Hel", "lo"), *says.end()),
    "nothing": lambda says: says.end(),
    "length": lambda says: (*says.text("Hel"), *says.end("length")),
    "one call": lambda says: (*says.calls(BERN), *says.end("tool_calls")),
    "no arguments": lambda says: (*says.calls(Call("now", ("{}",))), *says.end("tool_calls")),
    "calls": lambda says: (*says.text("I look.", at=0), *says.calls(BERN, BASEL, at=1), *says.end("tool_calls")),
    "thought": lambda says: (*says.thought("hm", " so", at=0), *says.text("Yes", at=1), *says.end()),
    "all": lambda says: (*says.thought("hm", at=0), *says.calls(BERN, BASEL, at=1), *says.end("tool_calls")),
    "refused": lambda says: (*says.text("I can"), *says.end("refused")),
}


@pytest.mark.parametrize("scene", SCENES)
async def test_the_sdk_makes_the_same_of_the_same_server(
    serve: Serve, model_on: ModelOn, speaker: Speaker, scene: str
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *SCENES[scene](speaker))))
    done = await Caller().call([model_on(server)], asking())
    assert isinstance(done, Completed)
    made = ours(done)
    if speaker.kind == "compatible":
        made.thought = ""
    assert made == await THEIRS[speaker.kind](server)


async def test_calls_made_in_parallel_are_told_apart_and_reasoning_comes_before_them(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    steps = (*speaker.begin(), *speaker.thought("hm"), *speaker.calls(BERN, BASEL, at=1), *speaker.end("tool_calls"))
    done = await Caller().call([model_on(await serve(Reply(steps=steps)))], asking())
    assert isinstance(done, Completed)
    reasoning, *calls = done.message.parts
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.signed) == ("hm", True)
    assert not speaker.signs or SIGNED in bytes(reasoning.signature).decode()
    assert [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)] == [
        ("weather", BERN.arguments),
        ("weather", BASEL.arguments),
    ]
    assert done.finished.reason == "tool_calls"


@pytest.mark.parametrize("reason", ["stop", "length", "refused"])
async def test_finish_reasons_have_one_name_each(
    serve: Serve, model_on: ModelOn, speaker: Speaker, reason: str
) -> None:
    model = model_on(await serve(saying(speaker, "x", reason=reason)))
    done = await Caller().call([model], asking())
    assert isinstance(done, Completed)
    assert done.message.finish == (None if reason == "stop" else reason), "whoever reads it is told"
    parts = await parts_of(model)
    assert parts[-1] == ResponseFinished(
        reason=reason,  # type: ignore[arg-type]
        provider_reason=speaker.reasons[reason],
        response_id=speaker.response_id,
    )


async def test_unknown_events_blocks_and_fields_are_passed_over(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    steps = (*speaker.begin(), *speaker.unknown(), *speaker.text("Hi"), *speaker.unknown(), *speaker.end())
    done = await Caller().call([model_on(await serve(Reply(steps=steps)))], asking())
    assert isinstance(done, Completed)
    assert done.message.parts == (Text(text="Hi"),)


# --- a bad day


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "rate_limit"), (500, "server_error"), (503, "overloaded"), (529, "overloaded"), (504, "timeout")],
)
@pytest.mark.parametrize("wait", [None, "7"])
async def test_a_failed_attempt_is_repeated_after_the_wait_the_provider_asks_for(
    serve: Serve, model_on: ModelOn, speaker: Speaker, status: int, code: str, wait: str | None
) -> None:
    headers = {} if wait is None else {"retry_after": wait}
    server = await serve(speaker.refusing(status, "whatever", "not now", **headers), saying(speaker, "Hi"))
    waits = Waits()
    done = await waits.caller().call([model_on(server)], asking())
    assert isinstance(done, Completed)
    (failed,) = done.failed
    assert (failed.code, failed.status, done.message.text) == (code, status, "Hi")
    assert failed.retry_in_ms == (1_000 if wait is None else 7_000)
    assert len(server.asked) == 2


async def test_a_stream_that_stalls_ends_at_the_silence_deadline(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker), Stall())))
    assert isinstance(await error_of(model_on(server), brief(silence_s=ENOUGH_S)), SilenceTimeout)
    await server.until_connections(0)


async def test_a_beginning_without_a_word_is_not_the_first_byte_of_a_response(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), Stall())))
    assert isinstance(await error_of(model_on(server), brief(first_byte_s=ENOUGH_S)), FirstByteTimeout)


def begun(speaker: Speaker) -> tuple[Step, ...]:
    """Text as far as its first word."""
    steps = speaker.text("Hel", "lo")
    return steps[: next(n for n, step in enumerate(steps) if "Hel" in str(step)) + 1]


@pytest.mark.parametrize("how", [Cut(), Reset()])
async def test_a_connection_cut_in_mid_stream_is_a_failed_connection(
    serve: Serve, model_on: ModelOn, speaker: Speaker, how: Step
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker), how)))
    assert isinstance(await error_of(model_on(server)), ConnectionFailed)


async def test_a_stream_that_ends_early_but_cleanly_is_a_lost_result(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker))))
    assert not any(isinstance(part, ResponseFinished) for part in await parts_of(model_on(server)))
    with pytest.raises(ModelCallFailed) as caught:
        await Waits().caller().call([model_on(server)], asking(), policy=RetryPolicy(attempts_max=1))
    assert isinstance(caught.value.errors[0], LostResult)


ERRORS = {
    "compatible": {
        "overloaded_error": "overloaded",
        "rate_limit_error": "rate_limit",
        "server_error": "server_error",
    },
    "compatible-responses": {
        "server_error": "server_error",
        "rate_limit_exceeded": "rate_limit",
        "invalid_prompt": "refused",
    },
    "compatible-anthropic": {
        "overloaded_error": "overloaded",
        "api_error": "server_error",
        "rate_limit_error": "rate_limit",
    },
    "compatible-google": {
        "UNAVAILABLE": "overloaded",
        "INTERNAL": "server_error",
        "RESOURCE_EXHAUSTED": "rate_limit",
    },
}


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_an_error_in_mid_stream_is_raised_with_its_kind(
    serve: Serve, model_on: ModelOn, speaker: Speaker, which: int
) -> None:
    kind, code = list(ERRORS[speaker.kind].items())[which]
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker), speaker.error(kind, "boom"))))
    error = await error_of(model_on(server))
    assert (error.code, error.status) == (code, None)
    assert "boom" in str(error)


@pytest.mark.parametrize("data", ["{", "not json", "[1]", '"x"', "\x00"])
async def test_what_is_no_event_loses_the_result(
    serve: Serve, model_on: ModelOn, speaker: Speaker, data: str
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker), Data(data), *speaker.end())))
    assert isinstance(await error_of(model_on(server)), LostResult)


TOO_LONG = {
    "compatible": (400, "invalid_request_error", "This model's maximum context length is 8192 tokens."),
    "compatible-responses": (400, "invalid_request_error", "Your input exceeds the context window of this model."),
    "compatible-anthropic": (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    "compatible-google": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
}
WRONG_KEY = {
    "compatible": (401, "invalid_request_error", "Incorrect API key provided"),
    "compatible-responses": (401, "invalid_request_error", "Incorrect API key provided"),
    "compatible-anthropic": (401, "authentication_error", "invalid x-api-key"),
    "compatible-google": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
}


@pytest.mark.parametrize(("table", "code"), [(TOO_LONG, "context_too_long"), (WRONG_KEY, "authentication")])
async def test_the_providers_own_words_for_an_error_are_understood(
    serve: Serve, model_on: ModelOn, speaker: Speaker, table: dict[str, tuple[int, str, str]], code: str
) -> None:
    server = await serve(speaker.refusing(*table[speaker.kind]))
    assert (await error_of(model_on(server))).code == code


NOT_TAKEN_BACK = {
    "compatible-responses": (
        "The encrypted content for item rs_1 could not be verified. Reason: Encrypted content could not be parsed.",
        "Reasoning input items can only be provided to a reasoning or computer use model. Remove reasoning items "
        "from your input and try again.",
    ),
    "compatible-anthropic": (
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When "
        "`thinking` is enabled, a final `assistant` message must start with a thinking block.",
        "messages.1.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response.",
    ),
    "compatible-google": (
        "Corrupted thought signature.",
        "Unable to submit request because Thought signature is not valid.. Learn more:",
    ),
}


@pytest.mark.parametrize(
    ("speaker", "words"),
    [(speaker, words) for speaker in all_speakers() for words in NOT_TAKEN_BACK.get(speaker.kind, ())],
    indirect=["speaker"],
)
async def test_reasoning_that_a_provider_does_not_take_back_is_left_out_of_that_request(
    serve: Serve, model_on: ModelOn, speaker: Speaker, words: str
) -> None:
    """Another model made it, or another account: a chat with it in its history must not end there."""
    thinking = (*speaker.thought("hm"), *speaker.calls(BERN, at=1), *speaker.end("tool_calls"))
    refusal = speaker.refusing(400, "invalid_request_error", words)
    server = await serve(Reply(steps=(*speaker.begin(), *thinking)), refusal, *2 * [saying(speaker, "Rain")])
    caller, model = Waits().caller(), model_on(server)
    thought = await caller.call([model], asking())
    assert isinstance(thought, Completed)
    (call,) = thought.message.calls
    answered = result_message(ToolResult(call_id=call.call_id, name=call.name, content="rain"), 0)
    request = replace(
        asking(),
        messages=[*asking().messages, thought.message, answered],
        settings=Settings(reasoning_effort="low", max_tokens=9_000),
    )
    done = await caller.call([model], request)
    assert isinstance(done, Completed)
    assert [failed.code for failed in done.failed] == ["unsupported_parameter"]
    assert done.message.text == "Rain"
    assert call.call_id.encode() in server.asked[-1].raw
    await caller.call([model], request)  # other histories are another matter
    assert [SIGNED.encode() in asked.raw for asked in server.asked] == [False, True, False, True]


async def test_anthropic_is_asked_for_arguments_as_they_are_written_and_nobody_else(serve: Serve) -> None:
    """It says nothing while it writes a long one: longer than any deadline for silence, if that one is a file."""
    speaker = Anthropic()
    refusal = speaker.refusing(
        400, "invalid_request_error", "tools.0.custom.eager_input_streaming: Extra inputs are not permitted"
    )
    server = await serve(saying(speaker, "Hi"), refusal, *3 * [saying(speaker, "Hi")])
    models = Models({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.root})
    own, other = models.get("anthropic:claude-sonnet-4-5"), models.get(f"compatible-anthropic:m@{server.url}")
    caller, request = Waits().caller(), replace(asking(), tools=(ToolSpec(name="write_file"),))
    for model in (own, own, own, other):
        assert isinstance(await caller.call([model], request), Completed)
    asked = [asked.body["tools"][0].get("eager_input_streaming") for asked in server.asked]
    assert asked == [True, True, None, None, None], "a gateway that refuses it is asked without, from then on"
    assert as_anthropic_reads_it(server.asked[0].body) == server.asked[0].body
    await models.aclose()


async def test_a_stop_in_mid_stream_keeps_the_text_and_closes_the_socket(
    serve: Serve, model_on: ModelOn, speaker: Speaker
) -> None:
    server = await serve(Reply(steps=(*speaker.begin(), *begun(speaker), Stall())))
    stop: StopSignal[Cause] = StopSignal()
    seen = Seen()
    call = asyncio.create_task(Caller().call([model_on(server)], asking(), observer=seen, stop=stop))
    await seen.delta_came.wait()
    stop.set(Cause.USER)
    done = await call
    assert isinstance(done, Stopped)
    assert done.message is not None
    assert done.message.text == "Hel"
    await server.until_connections(0)


class Seen(Observer):
    def __init__(self) -> None:
        self.delta_came = asyncio.Event()

    def delta(self, delta: object) -> None:
        self.delta_came.set()


async def test_a_key_goes_into_a_header_and_nowhere_else(
    serve: Serve, models: Models, model_on: ModelOn, speaker: Speaker
) -> None:
    server = await serve(
        speaker.refusing(401, "authentication_error", f"wrong key {KEY}"),
        Reply(steps=(speaker.error("server_error", f"bad {KEY}"),)),
        saying(speaker, f"it is {KEY}"),
    )
    model = model_on(server)
    told = [repr(model)]
    for _ in range(2):
        told += traceback.format_exception(await error_of(model))
    told.append(str(await parts_of(model)))
    for asked in server.asked:
        assert KEY in "".join(asked.headers.values())
        assert KEY not in asked.path
        assert KEY.encode() not in asked.raw
    assert KEY not in "".join(told)
    assert "[key]" in "".join(told)
