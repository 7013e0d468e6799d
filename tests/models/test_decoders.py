"""What the wires of Anthropic, OpenAI Responses and Gemini read, where it is more than a good day or a bad one."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core.records import Message, Part, Role, Text
from holdfast.errors import LostResult, ProviderError
from holdfast.models.assembler import Assembler
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.calls import Caller, Completed
from holdfast.models.http.sse import SseEvent
from holdfast.models.resolve import Models
from holdfast.models.wires import anthropic, gemini, openai_chat, openai_responses
from holdfast.models.wires.failures import provider_error, read_fields
from holdfast.models.wires.mapping import count_of
from tests.models.conftest import asking
from tests.models.judges import THEIRS, ours
from tests.support.chat_server import ChatServer, Data, Reply, Step
from tests.support.scale import scaled
from tests.support.speakers import Anthropic, Call, Gemini, Responses, Speaker

SPEAKERS: dict[str, type[Speaker]] = {"anthropic": Anthropic, "responses": Responses, "gemini": Gemini}
MODULES: dict[str, Any] = {"anthropic": anthropic, "responses": openai_responses, "gemini": gemini}
WIRES = pytest.mark.parametrize("wire", list(MODULES))
MODULES["chat"] = openai_chat  # whose streams have a file of their own


def read(wire: str, *values: Any) -> list[StreamPart]:
    decoder = MODULES[wire].Decoder("test")
    parts: list[StreamPart] = []
    for value in values:
        value = value.value if isinstance(value, Data) else value
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        parts += decoder.feed(SseEvent(data=data))
    return [*parts, *decoder.end()]


# --- any stream


@st.composite
def streams(draw: st.DrawFn, speaker: Speaker) -> tuple[Step, ...]:
    """Blocks of text, thoughts and calls in any order, as the provider documents them."""
    words = st.lists(
        st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=5)
    )
    steps = list(speaker.begin())
    at = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "calls", "unknown"]), max_size=5)):
        if kind == "text":
            steps += speaker.text(*draw(words), at=at)
        elif kind == "thought":
            steps += speaker.thought(*draw(words), at=at)
        elif kind == "calls":
            pieces = draw(st.sampled_from([("{}",), ('{"a"', ":1}"), ('{"é":', "[1,", "2]}"), ("", '{"a":{}}')]))
            steps += speaker.calls(Call("t", pieces), at=at)
        at += kind != "unknown"
    return (*steps, *speaker.end(draw(st.sampled_from(["stop", "length", "refused"]))))


@WIRES
@settings(max_examples=scaled(10, 50), deadline=None)
@given(data=st.data())
def test_the_sdk_makes_the_same_of_any_documented_stream(wire: str, data: st.DataObject) -> None:
    speaker = SPEAKERS[wire]()
    steps = data.draw(streams(speaker))

    async def both() -> None:
        async with ChatServer(Reply(steps=steps)) as server:
            models = Models({})
            done = await Caller().call([models.get(f"{speaker.kind}:m@{server.root}/v1")], asking())
            assert isinstance(done, Completed)
            theirs = await THEIRS[speaker.kind](server)
            if done.finished.reason == "refused":
                theirs.calls = []  # which an SDK leaves to its user: here they are void
            assert ours(done) == theirs
            await models.aclose()

    asyncio.run(both())


@WIRES
@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b"{}", b'{"type":"message_start"}', b"[DONE]", b'{"error":1}'])
    )
)
def test_no_garbage_raises_anything_but_a_provider_error(wire: str, events: list[bytes]) -> None:
    with contextlib.suppress(ProviderError):
        read(wire, *events)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "index", "text"]), inner),
    max_leaves=4,
)


@WIRES
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_good_stream_with_any_field_spoilt_raises_nothing_but_a_provider_error(
    wire: str, data: st.DataObject
) -> None:
    speaker: Speaker = SPEAKERS[wire]()
    told = (
        *speaker.begin(),
        *speaker.thought("hm", at=0),
        *speaker.calls(Call("t"), at=1),
        *speaker.end("tool_calls"),
    )
    values = json.loads(json.dumps([step.value for step in told if isinstance(step, Data)]))
    place = data.draw(st.sampled_from(values))
    while True:
        key = data.draw(
            st.sampled_from(sorted(place)) if isinstance(place, dict) else st.sampled_from(range(len(place)))
        )
        deeper = place[key]
        if not isinstance(deeper, dict | list) or not deeper or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = deeper
    with contextlib.suppress(ProviderError):
        read(wire, *values)


@WIRES
def test_a_deeply_nested_event_loses_the_result_and_not_the_process(wire: str) -> None:
    with pytest.raises(LostResult):
        read(wire, b'{"error":' + b"[" * 100_000)


# --- Anthropic

SAYS = Anthropic()


def block(at: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[Any]:
    return [
        {"type": "content_block_start", "index": at, "content_block": start},
        *({"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": at},
    ]


def test_redacted_thinking_is_kept_to_be_given_back() -> None:
    parts = read("anthropic", *block(0, {"type": "redacted_thinking", "data": "xyz"}), *SAYS.end())
    assert parts[0] == ReasoningDelta(signature=Raw(b'{"type":"redacted_thinking","data":"xyz"}'))


def test_thinking_without_words_or_without_a_signature_is_read_as_it_is() -> None:
    signed = block(0, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "s"})
    assert read("anthropic", *signed) == [ReasoningDelta(signature=Raw(b'{"type":"thinking","signature":"s"}'))]
    unsigned = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    assert read("anthropic", *unsigned) == [ReasoningDelta(text="hm")]


def test_what_was_sent_is_counted_with_the_first_word_so_that_a_stop_knows_it() -> None:
    parts = read("anthropic", *SAYS.begin(), *SAYS.text("Hel", "lo")[:2])
    assert parts == [
        TextDelta(text="Hel"),
        Usage(input_tokens=7, output_tokens=1, cached_tokens=2, cache_write_tokens=1),
    ]


def test_later_counts_replace_earlier_ones_field_by_field() -> None:
    later = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9, "cache_read_input_tokens": 4}}
    assert read("anthropic", *SAYS.begin(), later) == [
        Usage(input_tokens=9, output_tokens=9, cached_tokens=4, cache_write_tokens=1),
        Usage(input_tokens=9, output_tokens=9, cached_tokens=4, cache_write_tokens=1),
    ]


def test_arguments_that_come_with_the_start_of_a_call_are_read_unless_others_follow() -> None:
    start = {"type": "tool_use", "id": "i", "name": "t", "input": {"a": 1}}
    assert read("anthropic", *block(0, start)) == [
        CallStarted(index=0, name="t", provider_id="i"),
        CallArguments(index=0, text='{"a":1}'),
        CallEnded(index=0),
    ]
    delta = {"type": "input_json_delta", "partial_json": '{"b":2}'}
    assert read("anthropic", *block(0, start, delta))[1:] == [
        CallArguments(index=0, text='{"b":2}'),
        CallEnded(index=0),
    ]


def test_a_whole_message_in_one_document_is_read_as_well() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "i", "name": "t", "input": {}},
    ]
    document = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": {"input_tokens": 1}}
    assert read("anthropic", document) == [
        ReasoningDelta(text="hm"),
        ReasoningDelta(signature=Raw(b'{"type":"thinking","signature":"s"}')),
        TextDelta(text="Hi"),
        CallStarted(index=0, name="t", provider_id="i"),
        CallEnded(index=0),
        Usage(input_tokens=1),
        ResponseFinished(reason="tool_calls", provider_reason="tool_use"),
    ]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("stop_sequence", "stop"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "other"),
        ("new one", "other"),
    ],
)
def test_the_other_finish_reasons_of_anthropic(stop: str, reason: Any) -> None:
    ended = {"type": "message_delta", "delta": {"stop_reason": stop}}
    assert read("anthropic", ended) == [ResponseFinished(reason=reason, provider_reason=stop)]


# --- OpenAI Responses

SPEAKS = Responses()


def test_reasoning_is_signed_by_the_end_of_its_item_not_by_its_beginning() -> None:
    SPEAKS.begin()
    parts = read("responses", *SPEAKS.thought("hm", at=0))
    signature = Raw(b'{"type":"reasoning","id":"rs_0","encrypted_content":"c2lnbmVkIGJ5IG1l"}')
    assert parts == [ReasoningDelta(text="hm"), ReasoningDelta(signature=signature)]


def test_the_parts_of_a_summary_are_paragraphs() -> None:
    def delta(at: int, text: str) -> list[dict[str, Any]]:
        where = {"output_index": 0, "summary_index": at}
        return [
            {"type": "response.reasoning_summary_part.added", **where},
            {"type": "response.reasoning_summary_text.delta", **where, "delta": text},
        ]

    texts = [
        part.text for part in read("responses", *delta(0, "a"), *delta(1, "b")) if isinstance(part, ReasoningDelta)
    ]
    assert "".join(texts) == "a\n\nb"


def test_what_did_not_stream_is_taken_from_the_finished_item() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "t", "arguments": '{"a":1}'},
    ]
    events = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    expected = [
        ReasoningDelta(text="hm"),
        TextDelta(text="Hi"),
        CallStarted(index=0, name="t", provider_id="c"),
        CallArguments(index=0, text='{"a":1}'),
        CallEnded(index=0),
    ]
    assert read("responses", *events) == expected
    whole = {"object": "response", "status": "completed", "output": items}
    assert read("responses", whole) == [*expected, ResponseFinished(reason="tool_calls", provider_reason="completed")]


def item_done(at: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": at, "item": item}


def said(at: int, text: str, phase: str | None = None) -> list[dict[str, Any]]:
    """One message of a response, streamed."""
    done = item_done(at, type="message", content=[{"type": "output_text", "text": text}], phase=phase)
    return [{"type": "response.output_text.delta", "output_index": at, "delta": text}, done]


def assembled(*parts: StreamPart) -> tuple[Part, ...]:
    assembler = Assembler(lambda: "call")
    for part in parts:
        assembler.add(part)
    return assembler.parts()


def test_the_messages_of_one_response_stay_apart_keep_their_phase_and_go_back_as_they_came() -> None:
    told = [*said(0, "Let me look.", "commentary"), *said(1, "It rains.", "final_answer")]
    parts = assembled(*read("responses", *told))
    message = Message(id="m", role=Role.ASSISTANT, parts=parts)
    assert [(part.text, part.phase) for part in parts if isinstance(part, Text)] == [
        ("Let me look.", "commentary"),
        ("\n\nIt rains.", "final_answer"),
    ]
    assert (message.text, message.answer) == ("Let me look.\n\nIt rains.", "It rains.")
    back = json.loads(b"[" + openai_responses.encode_message(message, "openai") + b"]")
    assert back == [
        {"role": "assistant", "content": "Let me look.", "phase": "commentary"},
        {"role": "assistant", "content": "It rains.", "phase": "final_answer"},
    ]


def test_messages_without_a_phase_stay_apart_as_well() -> None:
    parts = assembled(*read("responses", *said(0, "One."), *said(1, "Two.")))
    assert parts == (Text(text="One."), Text(text="\n\nTwo."))
    message = Message(id="m", role=Role.ASSISTANT, parts=parts)
    assert openai_responses.encode_message(message, "openai").count(b'"role"') == 2
    assert message.answer == "One.\n\nTwo."


def test_one_message_with_a_phase_goes_back_with_it() -> None:
    (part,) = assembled(*read("responses", *said(0, "It rains.", "final_answer")))
    message = Message(id="m", role=Role.ASSISTANT, parts=(part,))
    assert json.loads(openai_responses.encode_message(message, "openai"))["phase"] == "final_answer"


CALL = {"type": "function_call", "call_id": "c", "name": "t"}
ADDED = {"type": "response.output_item.added", "output_index": 0}
ARGUMENTS = '{"a":1}'


@pytest.mark.parametrize(
    "events",
    [
        [
            {**ADDED, "item": {**CALL, "arguments": ""}},
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": ARGUMENTS},
            item_done(0, **CALL, arguments=""),
        ],
        [
            {**ADDED, "item": {**CALL, "arguments": ""}},
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": ARGUMENTS},
        ],
        [{**ADDED, "item": {**CALL, "arguments": ARGUMENTS}}, item_done(0, **CALL)],
        [{**ADDED, "item": {**CALL, "arguments": ARGUMENTS}}],
    ],
    ids=["done alone", "done and no end", "with its start", "with its start and no end"],
)
def test_arguments_that_come_whole_are_read_wherever_they_come(events: list[dict[str, Any]]) -> None:
    ended = {"type": "response.completed", "response": {"status": "completed"}}
    assert read("responses", *events, ended) == [
        CallStarted(index=0, name="t", provider_id="c"),
        CallArguments(index=0, text=ARGUMENTS),
        CallEnded(index=0),
        ResponseFinished(reason="tool_calls", provider_reason="completed"),
    ]


def test_arguments_that_streamed_are_not_read_again_at_their_end() -> None:
    piece = {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": ARGUMENTS}
    whole = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": ARGUMENTS}
    parts = read("responses", {**ADDED, "item": CALL}, piece, whole, item_done(0, **CALL, arguments=ARGUMENTS))
    assert parts.count(CallArguments(index=0, text=ARGUMENTS)) == 1


def test_a_text_that_comes_only_with_its_end_or_with_that_of_the_response_is_read() -> None:
    done = {"type": "response.output_text.done", "output_index": 0, "text": "Hi"}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
    ended = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    for events in ([done, ended], [ended]):
        assert read("responses", *events)[:-1] == [TextDelta(text="Hi")]


USAGES: dict[str, tuple[dict[str, Any], ...]] = {
    "chat": (
        {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]},
        {"usage": {"prompt_tokens": 7.0, "completion_tokens": "3", "prompt_tokens_details": {"cached_tokens": 2.0}}},
    ),
    "responses": (
        *said(0, "Hi"),
        {
            "type": "response.completed",
            "response": {
                "usage": {"input_tokens": 7.0, "output_tokens": "3", "input_tokens_details": {"cached_tokens": 2.0}}
            },
        },
    ),
    "anthropic": (
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 5.0, "output_tokens": "3", "cache_read_input_tokens": 2.0},
        },
    ),
    "gemini": (
        {
            "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7.0, "candidatesTokenCount": "3", "cachedContentTokenCount": 2.0},
        },
    ),
}


@pytest.mark.parametrize("wire", list(USAGES))
def test_a_count_that_is_written_as_a_fraction_or_a_text_loses_no_response(wire: str) -> None:
    parts = read(wire, *USAGES[wire])
    assert TextDelta(text="Hi") in parts
    usage = [part for part in parts if isinstance(part, Usage)][-1]
    assert usage == Usage(input_tokens=7, output_tokens=3, cached_tokens=2)


@pytest.mark.parametrize(
    "value", [None, True, -1, [], {}, "many", "inf", 1e400, 1e300, 10**30, 1 << 63, float("nan")]
)
def test_what_is_no_count_counts_nothing(value: Any) -> None:
    assert count_of(value) in (0, 1)


def test_what_was_put_into_the_cache_is_told_apart() -> None:
    usage = {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 4}
    (*_, told, _) = read("anthropic", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    assert told == Usage(input_tokens=11, output_tokens=3, cached_tokens=2, cache_write_tokens=4)


def test_a_refusal_is_text_and_says_so_at_the_end() -> None:
    refusal = {"type": "response.refusal.delta", "output_index": 0, "delta": "No."}
    ended = {"type": "response.completed", "response": {"status": "completed"}}
    assert read("responses", refusal, ended) == [
        TextDelta(text="No."),
        ResponseFinished(reason="refused", provider_reason="completed"),
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", "server_error"),
        ("context_length_exceeded", "context_too_long"),
        ("rate_limit_exceeded", "rate_limit"),
        ("bio_policy", "refused"),
    ],
)
def test_a_failed_response_is_raised_with_its_kind(code: str, kind: str) -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"code": code, "message": "boom"}}}
    with pytest.raises(ProviderError, match="boom") as caught:
        read("responses", failed)
    assert caught.value.code == kind


def test_a_model_that_does_not_reason_is_asked_again_without_its_encrypted_reasoning() -> None:
    body = {
        "message": "Encrypted content is not supported with this model.",
        "type": "invalid_request_error",
        "param": "include",
        "code": None,
    }
    fields = read_fields(json.dumps({"error": body}).encode())
    error = provider_error("m", 400, fields, amendable=openai_responses.AMENDABLE)
    assert (error.code, error.parameter) == ("unsupported_parameter", "include")


# --- Gemini


def candidate(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, "index": 0, **more}]}


def test_a_signature_comes_right_before_the_part_it_belongs_to() -> None:
    signature = ReasoningDelta(signature=Raw(b'{"thoughtSignature":"c2ln"}'))
    call = {"functionCall": {"name": "t", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    assert read("gemini", candidate(call))[:2] == [signature, CallStarted(index=0, name="t")]
    assert read("gemini", candidate({"text": "x", "thoughtSignature": "c2ln"})) == [signature, TextDelta(text="x")]
    assert read("gemini", candidate({"text": "", "thoughtSignature": "c2ln"})) == [signature]
    assert read("gemini", candidate({"text": "hm", "thought": True, "thoughtSignature": "c2ln"})) == [
        ReasoningDelta(text="hm", signature=Raw(b'{"thoughtSignature":"c2ln","thought":true}'))
    ]


def test_a_prompt_that_is_blocked_is_a_refusal() -> None:
    assert read("gemini", {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}) == [
        ResponseFinished(reason="refused", provider_reason="PROHIBITED_CONTENT")
    ]


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"])
def test_a_call_the_model_could_not_spell_is_a_lost_result_to_be_asked_for_again(reason: str) -> None:
    with pytest.raises(LostResult, match=reason):
        read("gemini", candidate({"text": "Hi"}, finishReason=reason))


def test_other_candidates_are_not_ours() -> None:
    other = {"candidates": [{"content": {"parts": [{"text": "no"}]}, "index": 1, "finishReason": "STOP"}]}
    assert read("gemini", other) == []


def test_a_wait_that_google_asks_for_in_the_body_counts() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    body = {"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": details}}
    error = provider_error("m", 429, read_fields(json.dumps([body]).encode()))
    assert (error.code, error.retry_after_s) == ("rate_limit", 34.5)
    error = provider_error("m", 429, read_fields(json.dumps(body).encode()), headers={"retry-after": "2"})
    assert error.retry_after_s == 2.0
