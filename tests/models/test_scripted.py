"""The scripted model: plain data in, the same response for the same history, whatever happened in between."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from holdfast.core.deadlines import ModelDeadlines
from holdfast.core.records import Message, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.errors import ConfigError, FirstByteTimeout, ProviderError, SilenceTimeout
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Model,
    Opened,
    ReasoningDelta,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.calls import Caller, Completed
from holdfast.models.resolve import Models
from holdfast.models.scripted import (
    REQUESTS_KEPT,
    Call,
    Count,
    Cut,
    Fail,
    Finish,
    Hold,
    Say,
    Script,
    ScriptedModel,
    Stall,
    Think,
    Together,
    read_script,
    script_of,
)

pytestmark = pytest.mark.timeout(60)


def after(*answers: str, question: str = "hi", **options: object) -> Request:
    """A request in whose history the model has answered so often."""
    messages = []
    for answer in answers:
        messages.append(Message(id="u", role=Role.USER, parts=(Text(text=question),)))
        messages.append(Message(id="a", role=Role.ASSISTANT, parts=(Text(text=answer),)))
    messages.append(Message(id="u", role=Role.USER, parts=(Text(text=question),)))
    return Request(messages=messages, **options)  # type: ignore[arg-type]


async def parts_of(model: Model, request: Request | None = None) -> list[StreamPart]:
    async with aclosing(model.stream(request or after())) as parts:
        return [part async for part in parts]


async def text_of(model: Model, request: Request) -> str:
    return "".join(part.text for part in await parts_of(model, request) if isinstance(part, TextDelta))


async def test_the_history_chooses_the_response() -> None:
    model = ScriptedModel("one", "two", "three")
    assert await text_of(model, after()) == "one"
    assert await text_of(model, after("one", "two")) == "three"
    assert await text_of(model, after("one")) == "two"
    assert await text_of(ScriptedModel("one", "two", "three"), after("one")) == "two"  # after a restart


async def test_a_tool_step_counts_as_one_response() -> None:
    model = ScriptedModel([Call(name="weather", arguments={"city": "Bern"})], "It rains.")
    first = await Caller().call([model], after())
    assert isinstance(first, Completed)
    (call,) = first.message.calls
    result = Message(
        id="r", role=Role.TOOL, parts=(ToolResult(call_id=call.call_id, name="weather", content="rain"),)
    )
    request = Request(messages=[*after().messages, first.message, result])
    assert await text_of(model, request) == "It rains."


async def test_a_script_may_start_again_with_every_turn() -> None:
    model = ScriptedModel("one", "two", per="turn")
    assert await text_of(model, after("one", "two")) == "one"


async def test_what_follows_the_last_response_is_said_in_the_script() -> None:
    with pytest.raises(ProviderError, match="has 1 responses, and this is the request for number 2") as caught:
        await parts_of(ScriptedModel("one"), after("one"))
    assert caught.value.code == "bad_request"
    assert await text_of(ScriptedModel("one", after="repeat"), after("one", "one")) == "one"
    assert (
        await text_of(ScriptedModel("one", after="echo"), after("one", question="hello you")) == "You said: hello you"
    )


async def test_a_response_is_streamed_in_pieces_with_calls_counts_and_an_end() -> None:
    model = ScriptedModel(
        [
            Think(text="let me see", signature="sig"),
            Say(text="I look."),
            Call(name="weather", arguments='{"city":', piece_chars=5),
            Count(input_tokens=9, output_tokens=4, cached_tokens=1),
        ]
    )
    assert await parts_of(model) == [
        Opened(request_id="scripted-1"),
        ReasoningDelta(text="let "),
        ReasoningDelta(text="me "),
        ReasoningDelta(text="see"),
        ReasoningDelta(signature=msgspec.Raw(b'"sig"')),
        TextDelta(text="I "),
        TextDelta(text="look."),
        CallStarted(index=0, name="weather", provider_id="scripted-0"),
        CallArguments(index=0, text='{"cit'),
        CallArguments(index=0, text='y":'),
        CallEnded(index=0),
        Usage(input_tokens=9, output_tokens=4, cached_tokens=1),
        ResponseFinished(reason="tool_calls"),
    ]


@pytest.mark.parametrize("text", ["", " ", "a", " a  b ", "one\ntwo\n", "水 火"])
async def test_the_pieces_make_the_whole(text: str) -> None:
    assert await text_of(ScriptedModel([Say(text=text)]), after()) == text
    assert await text_of(ScriptedModel([Say(text=text, piece_chars=1)]), after()) == text


async def test_parallel_calls_come_interleaved() -> None:
    calls = Together(
        calls=(Call(name="a", arguments="1234", piece_chars=2), Call(name="b", arguments="5678", piece_chars=2))
    )
    parts = await parts_of(ScriptedModel([calls, Call(name="c")]))
    assert [part.text for part in parts if isinstance(part, CallArguments)] == ["12", "56", "34", "78", "{}"]
    assert [part.index for part in parts if isinstance(part, CallEnded)] == [0, 1, 2]


async def test_a_failure_can_be_had_in_the_first_attempts_only() -> None:
    model = ScriptedModel([Say(text="Hel"), Fail(status=429, retry_after="7", attempts=2), Say(text="lo")])
    for attempt in (1, 2):
        with pytest.raises(ProviderError) as caught:
            await parts_of(model, after(attempt=attempt))
        assert (caught.value.code, caught.value.status, caught.value.retry_after_s) == ("rate_limit", 429, 7.0)
    assert await text_of(model, after(attempt=3)) == "Hello"
    assert await text_of(model, after(attempt=3)) == "Hello"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Fail(status=None, code="connection"), "connection"),
        (Fail(status=None, code="timeout"), "timeout"),
        (Fail(status=400, code="context_length_exceeded"), "context_too_long"),
        (Fail(status=529), "overloaded"),
    ],
)
async def test_any_kind_of_failure_can_be_had(step: Fail, code: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await parts_of(ScriptedModel([step]))
    assert caught.value.code == code


async def test_a_cut_stream_has_no_end_and_a_finish_reason_can_be_chosen() -> None:
    assert await parts_of(ScriptedModel(["Hel", Cut(), "lo"])) == [
        Opened(request_id="scripted-1"),
        TextDelta(text="Hel"),
    ]
    assert (await parts_of(ScriptedModel(["Hi", Finish(reason="length")])))[-1] == ResponseFinished(reason="length")


async def test_the_pace_is_the_scripts_or_the_steps() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    model = ScriptedModel(
        ["a b", Say(text="c", pace_s=2.0), Call(name="t", pace_s=0.0), Stall(for_s=3.0)], pace_s=1.0, sleep=sleep
    )
    await parts_of(model)
    assert slept == [1.0, 1.0, 2.0, 3.0]


async def test_a_stall_ends_at_the_requests_deadlines() -> None:
    deadlines = ModelDeadlines(first_byte_s=0.05, silence_s=0.05)
    with pytest.raises(FirstByteTimeout, match="first_byte_s"):
        await parts_of(ScriptedModel([Stall(), "Hi"]), after(deadlines=deadlines))
    with pytest.raises(SilenceTimeout, match="silence_s"):
        await parts_of(ScriptedModel(["Hi", Stall()]), after(deadlines=deadlines))


async def test_a_held_stream_waits_for_the_test_and_says_when() -> None:
    model = ScriptedModel(["Hel", Hold(name="half"), "lo"])
    reading = asyncio.create_task(text_of(model, after()))
    await model.reached("half")
    assert not reading.done()
    assert model.open_streams == 1
    model.resume("half")
    assert await reading == "Hello"
    assert model.open_streams == 0


async def test_the_last_requests_are_kept_and_no_more() -> None:
    model = ScriptedModel("Hi", after="repeat")
    for n in range(REQUESTS_KEPT + 5):
        await parts_of(model, after(question=str(n)))
    assert len(model.requests) == REQUESTS_KEPT
    assert model.requests[-1].messages[-1].text == str(REQUESTS_KEPT + 4)


SCRIPT = {
    "after": "repeat",
    "pace_s": 0.0,
    "responses": [
        "Hello.",
        [{"step": "think", "text": "hm"}, {"step": "call", "name": "weather", "arguments": {"city": "Bern"}}],
        {"step": "fail", "status": 500, "attempts": 1},
    ],
}


def test_a_script_is_plain_data() -> None:
    assert script_of(SCRIPT) == Script(
        after="repeat",
        responses=(
            (Say(text="Hello."),),
            (Think(text="hm"), Call(name="weather", arguments={"city": "Bern"})),
            (Fail(status=500, attempts=1),),
        ),
    )
    assert script_of(["Hello."]) == Script(responses=((Say(text="Hello."),),))
    assert script_of(msgspec.to_builtins(script_of(SCRIPT))) == script_of(SCRIPT)


async def test_a_script_can_live_in_a_file_and_be_named_in_the_models_name(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(SCRIPT))
    assert read_script(file) == script_of(SCRIPT)
    model = Models({}).get(f"scripted:{file}")
    assert await text_of(model, after()) == "Hello."
    done = await Caller().call([model], after("Hello."))
    assert isinstance(done, Completed)
    assert [type(part) for part in done.message.parts] == [Reasoning, ToolCall]


@pytest.mark.parametrize(
    "content", ["{", "7", '[{"step": "sing"}]', '[{"step": "say", "txt": "x"}]', '{"responsez": []}']
)
def test_a_file_that_is_no_script_is_a_configuration_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"script\.json"):
        read_script(file)
    with pytest.raises(ConfigError, match="missing"):
        read_script(tmp_path / "missing.json")


async def test_the_model_called_scripted_says_what_it_hears() -> None:
    model = Models({}).get("scripted")
    assert await text_of(model, after("You said: hi", question="Hello, you.")) == "You said: Hello, you."
    assert await text_of(model, Request(messages=[])) == "You have not said anything yet."
