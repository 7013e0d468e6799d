"""The wire of Chat Completions, judged by the provider's own SDK."""

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core.history import make_valid
from holdfast.core.records import (
    Cause,
    Expansion,
    File,
    Message,
    Reasoning,
    Role,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.errors import LostResult, ProviderError
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    OutputSpec,
    ReasoningDelta,
    Request,
    ResponseFinished,
    Settings,
    StreamPart,
    TextDelta,
    ToolSpec,
    Usage,
)
from holdfast.models.http.sse import SseEvent
from holdfast.models.wires.openai_chat import (
    FORMS,
    Decoder,
    OpenAIChat,
    OpenAIChatFragments,
    encode_request,
)
from tests.models.judge import as_the_sdk_reads_it, assembled, ours, sdk_on_recording, theirs
from tests.support.chat_server import (
    DONE,
    Bytes,
    Data,
    Reply,
    body_of,
    chunk,
    more_of_call,
    saying,
    started_call,
    usage,
)


def user(text: str) -> Message:
    return Message(id="u", role=Role.USER, parts=(Text(text=text),))


def result(call_id: str, content: str, **more: Any) -> Message:
    return Message(id="r", role=Role.TOOL, parts=(ToolResult(call_id=call_id, name="t", content=content, **more),))


def assistant(*parts: Any, **more: Any) -> Message:
    return Message(id="a", role=Role.ASSISTANT, parts=parts, **more)


def sent(request: Request, **options: Any) -> Any:
    """The body, once the SDK's types have agreed with every key in it."""
    body = json.loads(encode_request("gpt-test", request, **options))
    assert as_the_sdk_reads_it(body) == body
    return body


# --- what we send


def test_a_request_holds_exactly_the_messages_of_the_history_in_order() -> None:
    messages = [
        Message(id="s", role=Role.SYSTEM, parts=(Text(text="Be brief."),)),
        user("Weather in Bern and Basel?"),
        assistant(
            Text(text="I look."),
            ToolCall(call_id="call_1", name="weather", arguments='{"city":"Bern"}'),
            ToolCall(call_id="call_2", name="weather", arguments='{"city":"Basel"}'),
        ),
        result("call_1", "rain"),
        result("call_2", "sun", error=True),
        assistant(Text(text="Rain, "), Text(text="sun.")),
        user("Tänk you 水"),
    ]
    assert sent(Request(messages=messages)) == {
        "model": "gpt-test",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Bern and Basel?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
                    },
                    {
                        "id": "call_2",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Basel"}'},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_2", "content": "sun"},
            {"role": "assistant", "content": "Rain, sun."},
            {"role": "user", "content": "Tänk you 水"},
        ],
    }


def test_nothing_internal_is_sent() -> None:
    """No id, time, cause or marker of ours is the provider's business."""
    messages = [
        user("go"),
        assistant(ToolCall(call_id="call_1", name="t", arguments="{}", cut=True), stopped=Cause.USER, model="m"),
        result("call_1", "cancelled", error=True, synthetic=Synthetic.CANCELLED),
    ]
    assert [sorted(message) for message in sent(Request(messages=messages))["messages"]] == [
        ["content", "role"],
        ["role", "tool_calls"],
        ["content", "role", "tool_call_id"],
    ]


def test_a_call_that_was_cut_off_is_sent_with_empty_arguments_and_reasoning_not_at_all() -> None:
    history = [
        user("go"),
        assistant(
            Reasoning(text="hm"), ToolCall(call_id="call_1", name="t", arguments='{"path":"main.go"', cut=True)
        ),
        result("call_1", "stopped", error=True),
        assistant(Reasoning(text="signed elsewhere", provider="p", signature=msgspec.Raw(b'"x"'))),
        user("go on"),
    ]
    roles = sent(Request(messages=make_valid(history)))["messages"]
    assert [message["role"] for message in roles] == ["user", "assistant", "tool", "user"]
    assert roles[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert "content" not in roles[1]


def test_images_and_inline_files_are_sent_as_parts() -> None:
    message = Message(
        id="u",
        role=Role.USER,
        parts=(
            Text(text="What is this?"),
            File(media_type="image/png", uri="https://example.org/x.png"),
            File(media_type="application/pdf", uri="data:application/pdf;base64,AAAA", name="a.pdf"),
            File(media_type="application/json", uri="data:application/json;base64,e30=", name="a.json"),
        ),
    )
    assert sent(Request(messages=[message]))["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
                {"type": "text", "text": "[file a.json]\n{}"},  # as a file, all that is no PDF is refused
            ],
        }
    ]


def test_what_a_slash_command_stands_for_is_said_after_what_was_typed() -> None:
    """As one text: many servers that speak this wire take no list of parts."""
    part = Expansion(name="review", source="skill", text="Look for races.")
    message = Message(id="u", role=Role.USER, parts=(Text(text="/review it"), part))
    content = sent(Request(messages=[message]))["messages"][0]["content"]
    assert content == "/review it\n\nLook for races."
    shown = msgspec.structs.replace(
        message, parts=(*message.parts, File(media_type="image/png", uri="https://example.org/x.png"))
    )
    content = sent(Request(messages=[shown]))["messages"][0]["content"]
    assert [block["type"] for block in content] == ["text", "text", "image_url"]


def test_a_file_this_wire_cannot_carry_is_an_error_that_says_so() -> None:
    message = Message(
        id="u", role=Role.USER, parts=(File(media_type="application/pdf", uri="https://example.org/a"),)
    )
    with pytest.raises(ProviderError, match="application/pdf only inline") as caught:
        encode_request("m", Request(messages=[message]))
    assert caught.value.code == "bad_request"


def test_settings_and_tools_are_sent_as_the_provider_names_them() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = Request(
        messages=[user("hi")],
        tools=(
            ToolSpec(name="weather", description="Weather.", schema=schema),
            ToolSpec(name="now", schema=msgspec.Raw(b'{"type":"object"}')),
        ),
        settings=Settings(
            temperature=0.2,
            top_p=0.9,
            max_tokens=100,
            stop=("END",),
            seed=7,
            tool_choice="weather",
            parallel_calls=False,
            reasoning_effort="low",
            output=OutputSpec(name="answer", schema=schema, strict=True),
            extra={"user": "u-1"},
        ),
    )
    body = sent(request)
    del body["messages"], body["model"], body["stream"], body["stream_options"]
    assert body == {
        "temperature": 0.2,
        "top_p": 0.9,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "user": "u-1",
        "tools": [
            {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": schema}},
            {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}},
        ],
    }
    assert sent(request, max_tokens_as="max_completion_tokens")["max_completion_tokens"] == 100


def test_without_tools_nothing_about_tools_is_sent() -> None:
    body = sent(Request(messages=[user("hi")], settings=Settings(tool_choice="auto", parallel_calls=True)))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.parametrize(
    ("unsupported", "changed"),
    [
        ({"max_tokens"}, {"max_completion_tokens": 100, "temperature": 0.5}),
        ({"max_tokens", "temperature"}, {"max_completion_tokens": 100}),
        ({"max_tokens", "max_completion_tokens"}, {"temperature": 0.5}),
        ({"temperature"}, {"max_tokens": 100}),
        ({"something"}, {"max_tokens": 100, "temperature": 0.5}),
    ],
)
def test_a_parameter_that_was_refused_is_sent_in_its_other_form_or_not_at_all(
    unsupported: set[str], changed: dict[str, Any]
) -> None:
    request = Request(
        messages=[user("hi")],
        settings=Settings(max_tokens=100, temperature=0.5),
        unsupported=frozenset(unsupported),
    )
    body = sent(request)
    assert {
        name: body[name] for name in body.keys() & {"max_tokens", "max_completion_tokens", "temperature"}
    } == changed


WORDS = st.text(alphabet=st.characters(codec="utf-8"), max_size=6)
IDS = st.sampled_from(["call_1", "call_2", "call_3"])
PARTS = st.one_of(
    st.builds(Text, text=WORDS),
    st.builds(Reasoning, text=WORDS),
    st.builds(
        ToolCall, call_id=IDS, name=st.just("t"), arguments=st.sampled_from(["", "{}", '{"a":1}', '{"a"', "[]"])
    ),
    st.builds(ToolResult, call_id=IDS, name=st.just("t"), content=WORDS),
    st.builds(File, media_type=st.just("image/png"), uri=st.just("https://example.org/x.png")),
)
HISTORIES = st.lists(
    st.builds(Message, id=st.just("m"), role=st.sampled_from(Role), parts=st.lists(PARTS, max_size=3).map(tuple))
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a timing decides nothing
@given(HISTORIES)
def test_any_valid_history_is_a_request_the_sdk_understands(history: list[Message]) -> None:
    valid = make_valid(history)
    body = sent(Request(messages=valid))
    expected = [
        message
        for message in valid
        if message.role in (Role.USER, Role.TOOL) or any(isinstance(part, Text | ToolCall) for part in message.parts)
    ]
    assert [message["role"] for message in body["messages"]] == [message.role for message in expected]
    calls = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    assert calls == [call.call_id for message in valid for call in message.calls]


def test_a_message_is_encoded_once_and_the_text_of_it_is_bounded() -> None:
    """A chat sends its whole history again with every step."""
    fragments = OpenAIChatFragments(bytes_max=5_000)
    history = [user("a"), assistant(Text(text="b"))]
    first = fragments.encode(history)
    held = fragments.bytes
    assert json.loads(first) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    history.append(user("c"))
    assert fragments.encode(history) == first[:-1] + b',{"role":"user","content":"c"}]'
    assert held < fragments.bytes
    for n in range(100):
        assert json.loads(fragments.encode([user(str(n)), *history]))[0]["content"] == str(n)
        assert fragments.bytes <= 5_000
    assert json.loads(fragments.encode([user("x" * 10_000)]))[0]["content"] == "x" * 10_000
    assert fragments.bytes <= 5_000


def test_equal_messages_that_are_not_the_same_object_are_never_confused() -> None:
    fragments = OpenAIChatFragments()
    for n in range(2_000):  # ids of dead objects are used again
        assert json.loads(fragments.encode([user(str(n))])) == [{"role": "user", "content": str(n)}]


# --- what we read

RECORDED = {
    "text": saying("Hel", "lo", " 水", "."),
    "empty": saying(),
    "length": saying("Hello", finish="length"),
    "filtered": saying("Hello", finish="content_filter"),
    "one call": Reply(
        steps=(
            chunk({"role": "assistant", "content": None}),
            started_call(0, "call_a", "weather"),
            more_of_call(0, '{"city"'),
            more_of_call(0, ':"Bern"}'),
            chunk({}, "tool_calls"),
            usage(),
            DONE,
        )
    ),
    "parallel calls, interleaved": Reply(
        steps=(
            chunk({"content": "I look."}),
            started_call(0, "call_a", "weather"),
            started_call(1, "call_b", "time"),
            more_of_call(1, '{"zone"'),
            more_of_call(0, '{"city"'),
            more_of_call(1, ":1}"),
            more_of_call(0, ":2}"),
            chunk({}, "tool_calls"),
            usage(),
            DONE,
        )
    ),
    "whole calls in one chunk": Reply(
        steps=(
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}},
                        {
                            "index": 1,
                            "id": "b",
                            "type": "function",
                            "function": {"name": "y", "arguments": '{"a":1}'},
                        },
                    ]
                }
            ),
            chunk({}, "tool_calls"),
            DONE,
        )
    ),
    "refusal": Reply(steps=(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"), DONE)),
    "finish with the last text": Reply(steps=(chunk({"content": "Hi"}, "stop"), DONE)),
    "no usage": Reply(steps=(chunk({"content": "Hi"}), chunk({}, "stop"), DONE)),
    "no [DONE]": Reply(steps=(chunk({"content": "Hi"}), chunk({}, "stop"), usage())),
    "comments and blank lines": Reply(
        steps=(Bytes(b": ping\n\n\n\n"), chunk({"content": "Hi"}), Bytes(b": x\n"), chunk({}, "stop"), DONE)
    ),
    "carriage returns": Reply(
        steps=(
            Bytes(b"data: " + json.dumps(chunk({"content": "Hi"}).value).encode() + b"\r\n\r\n"),
            Bytes(b"data: " + json.dumps(chunk({}, "stop").value).encode() + b"\r\rdata: [DONE]\r\n\r\n"),
        )
    ),
}


@pytest.mark.parametrize("name", RECORDED)
async def test_the_sdk_makes_the_same_of_a_recorded_stream(name: str) -> None:
    stream = body_of(RECORDED[name])
    made = ours(stream)
    assert made == await theirs(sdk_on_recording(stream))
    assert made.finish is not None


TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)


@st.composite
def recorded_streams(draw: st.DrawFn) -> bytes:
    """Streams as the provider documents them: deltas of text and of several calls, in any order."""
    steps = [chunk({"role": "assistant", "content": ""})]
    begun = 0
    for kind in draw(st.lists(st.sampled_from(["text", "refusal", "new call", "arguments", "nothing"]), max_size=12)):
        if kind == "text":
            steps.append(chunk({"content": draw(TEXTS)}))
        elif kind == "refusal":
            steps.append(chunk({"refusal": draw(TEXTS)}))
        elif kind == "new call":
            steps.append(started_call(begun, f"id_{begun}", draw(st.sampled_from(["a", "b"])), draw(TEXTS)))
            begun += 1
        elif kind == "arguments" and begun:
            steps.append(more_of_call(draw(st.integers(0, begun - 1)), draw(TEXTS)))
        elif kind == "nothing":
            steps.append(chunk({}))
    steps.append(chunk({}, draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))))
    if draw(st.booleans()):
        steps.append(usage(draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    if draw(st.booleans()):
        steps.append(DONE)
    return body_of(Reply(steps=tuple(steps)))


@settings(max_examples=60, deadline=None)
@given(recorded_streams())
def test_the_sdk_makes_the_same_of_any_documented_stream(stream: bytes) -> None:
    made, judged = ours(stream), asyncio.run(theirs(sdk_on_recording(stream)))
    if (finished := assembled(stream).finished) is not None and finished.reason == "refused":
        judged.calls = []  # which an SDK leaves to its user: here they are void
    if judged.usage is not None and judged.usage[:2] == (0, 0):
        judged.usage = None  # what some servers write where they count nothing
    judged.calls = [(name, arguments if arguments.strip() else "{}") for name, arguments in judged.calls]
    made.text = "".join(sorted(made.text))  # the SDK keeps text and refusal apart, we keep their order
    judged.text = "".join(sorted(judged.text)).replace("\x00", "\ufffd")
    judged.text = "".join(sorted(judged.text))
    judged.calls = [(name, arguments.replace("\x00", "\ufffd")) for name, arguments in judged.calls]
    assert made == judged


# --- where servers differ


def read(*values: Any) -> list[StreamPart]:
    decoder = Decoder("test")
    parts: list[StreamPart] = []
    for value in values:
        data = (
            value
            if isinstance(value, bytes)
            else json.dumps(value.value if isinstance(value, Data) else value).encode()
        )
        parts += decoder.feed(SseEvent(data=data))
    return parts + decoder.end()


def test_parts_come_in_order_and_finish_comes_last() -> None:
    assert read(
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "I look"}),
        started_call(0, "id_a", "weather", '{"a"'),
        more_of_call(0, ":1}"),
        chunk({}, "tool_calls"),
        usage(7, 3, 2, 1),
    ) == [
        ReasoningDelta(text="hm"),
        ReasoningDelta(signature=Raw(b'{"type":"reasoning_content"}')),
        TextDelta(text="I look"),
        CallStarted(index=0, name="weather", provider_id="id_a"),
        CallArguments(index=0, text='{"a"'),
        CallArguments(index=0, text=":1}"),
        Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1),
        CallEnded(index=0),
        ResponseFinished(reason="tool_calls", provider_reason="tool_calls", response_id="chatcmpl-1"),
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refused"),
        ("eos", "other"),
        ("tool_calls", "tool_calls"),
    ],
)
def test_finish_reasons_have_one_name_each(finish: str, reason: str) -> None:
    assert read(chunk({"content": "x"}), chunk({}, finish))[-1] == ResponseFinished(
        reason=reason,  # type: ignore[arg-type]
        provider_reason=finish,
        response_id="chatcmpl-1",
    )


def test_a_stream_without_a_finish_reason_is_not_finished() -> None:
    assert read(chunk({"content": "x"})) == [TextDelta(text="x")]
    assert read(chunk({"content": "x"}), b"[DONE]") == [TextDelta(text="x")]


def test_calls_with_a_stop_for_a_reason_are_calls_all_the_same() -> None:
    parts = read(started_call(0, "a", "t", "{}"), chunk({}, "stop"))
    assert parts[-1] == ResponseFinished(reason="tool_calls", provider_reason="stop", response_id="chatcmpl-1")


def test_whole_calls_without_index_or_id_are_calls_of_their_own() -> None:
    call = {"type": "function", "function": {"name": "t", "arguments": {"a": 1}}}
    assert read(chunk({"tool_calls": [call, call]}), chunk({}, "tool_calls"))[:4] == [
        CallStarted(index=0, name="t"),
        CallArguments(index=0, text='{"a":1}'),
        CallStarted(index=1, name="t"),
        CallArguments(index=1, text='{"a":1}'),
    ]


def test_calls_that_all_have_index_zero_are_told_apart_by_their_ids() -> None:
    parts = read(
        started_call(0, "id_a", "a", "{}"),
        started_call(0, "id_b", "b", '{"x"'),
        more_of_call(0, ":1}"),
        chunk({}, "stop"),
    )
    assert parts[:5] == [
        CallStarted(index=0, name="a", provider_id="id_a"),
        CallArguments(index=0, text="{}"),
        CallStarted(index=1, name="b", provider_id="id_b"),
        CallArguments(index=1, text='{"x"'),
        CallArguments(index=1, text=":1}"),
    ]


def test_a_server_that_repeats_id_and_name_with_every_piece_sends_one_call() -> None:
    parts = read(started_call(0, "id_a", "a", "{"), started_call(0, "id_a", "a", "}"), chunk({}, "stop"))
    assert parts[:3] == [
        CallStarted(index=0, name="a", provider_id="id_a"),
        CallArguments(index=0, text="{"),
        CallArguments(index=0, text="}"),
    ]


@pytest.mark.parametrize("id", [None, ""])
@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
@pytest.mark.parametrize("whole", ['{"x":1}', '{"x":"}"}', "{}"])
def test_whole_calls_that_all_have_index_zero_and_no_id_are_calls_of_their_own(
    id: str | None, names: tuple[str, str], whole: str
) -> None:
    """Gateways to Gemini number every call 0, and some of them give no ids."""
    calls = [{"index": 0, "id": id, "function": {"name": name, "arguments": whole}} for name in names]
    parts = read(*(chunk({"tool_calls": [call]}) for call in calls), chunk({}, "tool_calls"))
    assert parts[:4] == [
        CallStarted(index=0, name=names[0]),
        CallArguments(index=0, text=whole),
        CallStarted(index=1, name=names[1]),
        CallArguments(index=1, text=whole),
    ]


def test_a_server_that_repeats_the_name_without_an_id_sends_one_call() -> None:
    pieces = ("", '{"x"', ":1", "}", "")
    calls = [{"index": 0, "function": {"name": "a", "arguments": piece}} for piece in pieces]
    parts = read(*(chunk({"tool_calls": [call]}) for call in calls), chunk({}, "tool_calls"))
    assert [part for part in parts if isinstance(part, CallStarted)] == [CallStarted(index=0, name="a")]


def test_arguments_of_a_call_without_a_name_are_an_error() -> None:
    with pytest.raises(LostResult, match="never named"):
        read(more_of_call(0, "{}"))


def test_content_in_parts_is_text() -> None:
    assert read(chunk({"content": [{"type": "text", "text": "a"}, {"type": "thinking"}, "?"]}))[0] == TextDelta(
        text="a"
    )


@pytest.mark.parametrize("reasoning", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_both_names(reasoning: str) -> None:
    assert read(chunk({reasoning: "hm"})) == [ReasoningDelta(text="hm")]


def of_deepseek(text: str, provider: str = "deepseek", type: str = "reasoning_content") -> Reasoning:
    return Reasoning(text=text, provider=provider, signature=Raw(json.dumps({"type": type}).encode()))


HISTORY = [
    user("go"),
    assistant(of_deepseek("hm"), Text(text="I look."), ToolCall(call_id="a", name="t", arguments="{}")),
    result("a", "rain"),
    assistant(Text(text="Rain.")),
    user("on"),
]


def reasoning_in(wire: OpenAIChat, *unsupported: str, history: list[Message] = HISTORY) -> list[Any]:
    body = json.loads(wire.encode(Request(messages=history, unsupported=frozenset(unsupported))))
    return [message.get("reasoning_content") for message in body["messages"] if message["role"] == "assistant"]


def test_reasoning_goes_back_to_the_server_that_sent_it_under_the_name_that_it_had() -> None:
    """DeepSeek and Moonshot refuse a history without it."""
    assert reasoning_in(OpenAIChat("m", provider="deepseek")) == ["hm", None]
    assert reasoning_in(OpenAIChat("m", provider="another")) == [None, None]
    assert reasoning_in(OpenAIChat("m")) == [None, None]
    other_wire = [user("go"), assistant(of_deepseek("hm", type="thinking"), Text(text="x")), user("on")]
    assert reasoning_in(OpenAIChat("m", provider="deepseek"), history=other_wire) == [None]


def test_where_reasoning_is_refused_or_missed_everywhere_it_is_left_out_or_filled_in() -> None:
    wire = OpenAIChat("m", provider="deepseek")
    assert reasoning_in(wire, "reasoning_content") == [None, None]
    assert reasoning_in(wire, "missing reasoning_content") == ["hm", ""]
    assert reasoning_in(wire) == ["hm", None]
    for form in FORMS:
        body = json.loads(wire.encode(Request(messages=HISTORY, unsupported=frozenset({form}))))
        said = [message["content"] for message in body["messages"]]
        assert said == ["go", "I look.", "rain", "Rain.", "on"], "all else stays as it was"


@pytest.mark.parametrize("then", [{"content": "x"}, {"tool_calls": [{"index": 0, "function": {"name": "t"}}]}, {}])
def test_reasoning_to_be_given_back_is_closed_by_whatever_follows_it(then: dict[str, Any]) -> None:
    kept = ReasoningDelta(signature=Raw(b'{"type":"reasoning_content"}'))
    parts = read(
        chunk({"reasoning_content": "h"}), chunk({"reasoning_content": "m", "content": None}), chunk(then, "stop")
    )
    assert parts[:3] == [ReasoningDelta(text="h"), ReasoningDelta(text="m"), kept]
    assert parts.count(kept) == 1
    assert kept not in read(chunk({"reasoning": "hm"}), chunk(then, "stop"))


def test_other_choices_and_empty_ones_are_not_ours() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert read(other, {"choices": []}, {"choices": None}, {"usage": None}, {}, chunk({})) == []


def test_a_refusal_is_text_and_says_so_at_the_end() -> None:
    assert read(chunk({"refusal": "No."}), chunk({}, "stop")) == [
        TextDelta(text="No."),
        ResponseFinished(reason="refused", provider_reason="stop", response_id="chatcmpl-1"),
    ]


def test_a_whole_completion_in_one_document_is_read_as_well() -> None:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    assert read(document) == [
        TextDelta(text="Hi"),
        Usage(input_tokens=1, output_tokens=2),
        ResponseFinished(reason="stop", provider_reason="stop", response_id="chatcmpl-1"),
    ]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error", "code": None}}, "server_error"),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "rate_limit"),
        ({"error": {"message": "full", "type": "overloaded_error"}}, "overloaded"),
        ({"error": {"message": "upstream", "code": 502}}, "server_error"),
        ({"error": "boom"}, "server_error"),
        (
            {
                "choices": [
                    {"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": "x", "code": 429}}
                ]
            },
            "rate_limit",
        ),
    ],
)
def test_an_error_in_the_stream_is_raised_with_its_kind(value: Any, code: str) -> None:
    with pytest.raises(ProviderError) as caught:
        read(chunk({"content": "Hel"}), value)
    assert caught.value.code == code
    assert caught.value.status is None


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"not json",
        b"[1]",
        b'"x"',
        b'{"choices": 7}',
        b'{"choices": [7]}',
        b"\xff\xfe",
        b'{"choices":[{"delta":{"tool_calls":[{"index":[],"function":{"name":"t"}}]}}]}',
    ],
)
def test_what_is_no_chunk_loses_the_result(data: bytes) -> None:
    with pytest.raises(LostResult, match="no chunk of a response"):
        read(data)


def test_a_deeply_nested_chunk_loses_the_result_and_not_the_process() -> None:
    with pytest.raises(LostResult):
        read(b'{"choices":' + b"[" * 100_000)


def test_an_emoji_cut_in_two_is_joined_and_a_lone_half_is_replaced() -> None:
    halves = [rb'{"choices":[{"delta":{"content":"a\ud83d"}}]}', rb'{"choices":[{"delta":{"content":"\ude00b"}}]}']
    assert read(*halves) == [TextDelta(text="a"), TextDelta(text="😀b")]
    assert read(rb'{"choices":[{"delta":{"content":"\ude00b"}}]}') == [TextDelta(text="\ufffdb")]


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b'{"choices":[{"delta":{"content":"x"}}]}', b"[DONE]"])))
def test_no_garbage_raises_anything_but_a_provider_error(events: list[bytes]) -> None:
    with contextlib.suppress(ProviderError):
        read(*events)
