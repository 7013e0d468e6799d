"""Parts become a message, whole or cut off; clients' deltas tell the same story."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import make_valid, problems
from holdfast.core.journal import Delta
from holdfast.core.records import Message, Reasoning, Role, Text, ToolCall
from holdfast.errors import LostResult
from holdfast.models.assembler import Assembler, parts_of_deltas
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Opened,
    ReasoningDelta,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)

SIGNATURE = msgspec.Raw(b'"signed"')


def assembler(**options: int) -> Assembler:
    numbers = itertools.count(1)
    return Assembler(lambda: f"call_{next(numbers)}", provider="p", **options)


def assembled(*parts: StreamPart) -> tuple[Assembler, list[Delta]]:
    made = assembler()
    return made, [delta for part in parts if (delta := made.add(part)) is not None]


def test_text_reasoning_and_calls_become_the_parts_of_a_message() -> None:
    made, deltas = assembled(
        Opened(request_id="r1"),
        ReasoningDelta(text="let me "),
        ReasoningDelta(text="see"),
        TextDelta(text="I "),
        TextDelta(text="look"),
        CallStarted(index=0, name="weather", provider_id="abc"),
        CallArguments(index=0, text='{"city":'),
        CallArguments(index=0, text='"Bern"}'),
        CallEnded(index=0),
        Usage(input_tokens=5, output_tokens=9),
        ResponseFinished(reason="tool_calls"),
    )
    assert made.parts() == (
        Reasoning(text="let me see"),
        Text(text="I look"),
        ToolCall(call_id="call_1", name="weather", arguments='{"city":"Bern"}'),
    )
    assert made.usage == Usage(input_tokens=5, output_tokens=9)
    assert made.request_id == "r1"
    assert deltas == [
        Delta(part="reasoning", text="let me "),
        Delta(part="reasoning", text="see"),
        Delta(part="text", text="I "),
        Delta(part="text", text="look"),
        Delta(part="arguments", text="", call_id="call_1", name="weather"),
        Delta(part="arguments", text='{"city":', call_id="call_1", name="weather"),
        Delta(part="arguments", text='"Bern"}', call_id="call_1", name="weather"),
    ]


def test_interleaved_calls_stay_apart_and_in_order() -> None:
    made, _ = assembled(
        CallStarted(index=0, name="a"),
        CallStarted(index=1, name="b"),
        CallArguments(index=1, text='{"y"'),
        CallArguments(index=0, text='{"x"'),
        CallArguments(index=1, text=":2}"),
        CallArguments(index=0, text=":1}"),
        ResponseFinished(reason="tool_calls"),
    )
    assert made.parts() == (
        ToolCall(call_id="call_1", name="a", arguments='{"x":1}'),
        ToolCall(call_id="call_2", name="b", arguments='{"y":2}'),
    )


def test_call_ids_are_ours_and_never_the_providers() -> None:
    made, _ = assembled(
        CallStarted(index=0, name="a", provider_id="same"), CallStarted(index=1, name="b", provider_id="same")
    )
    assert [part.call_id for part in made.partial() if isinstance(part, ToolCall)] == ["call_1", "call_2"]


def test_a_call_cut_off_by_a_stop_keeps_its_argument_text_verbatim() -> None:
    made, _ = assembled(
        TextDelta(text="I open "),
        CallStarted(index=0, name="open"),
        CallArguments(index=0, text='{"path":'),
        CallArguments(index=0, text='"main.go"'),
    )
    assert made.partial() == (
        Text(text="I open "),
        ToolCall(call_id="call_1", name="open", arguments='{"path":"main.go"', cut=True),
    )


def test_a_response_that_ran_out_of_tokens_in_a_call_is_marked_as_cut() -> None:
    begun = (CallStarted(index=0, name="a"), CallArguments(index=0, text='{"x":'), CallEnded(index=0))
    made, _ = assembled(*begun, ResponseFinished(reason="length"))
    assert made.parts() == (ToolCall(call_id="call_1", name="a", arguments='{"x":', cut=True),)
    made, _ = assembled(*begun, ResponseFinished(reason="tool_calls"))  # wrong, but the model said that this was all
    assert made.parts() == (ToolCall(call_id="call_1", name="a", arguments='{"x":'),)
    whole = (CallStarted(index=0, name="a"), CallArguments(index=0, text="{}"), CallEnded(index=0))
    made, _ = assembled(*whole, ResponseFinished(reason="length"))
    assert made.parts() == (ToolCall(call_id="call_1", name="a", arguments="{}"),)


def test_a_call_without_any_argument_text_is_a_call_without_arguments() -> None:
    made, _ = assembled(CallStarted(index=0, name="now"), CallEnded(index=0), ResponseFinished(reason="tool_calls"))
    assert made.parts() == (ToolCall(call_id="call_1", name="now", arguments="{}"),)
    assert made.partial() == (ToolCall(call_id="call_1", name="now", arguments=""),)


def test_unsigned_reasoning_is_kept_in_the_record_and_not_sent() -> None:
    made, _ = assembled(ReasoningDelta(text="hm"), TextDelta(text="Yes."))
    message = Message(id="m", role=Role.ASSISTANT, parts=made.partial())
    assert message.parts == (Reasoning(text="hm"), Text(text="Yes."))
    assert make_valid([message])[0].parts == (Text(text="Yes."),)


def test_a_signature_closes_its_piece_of_reasoning() -> None:
    made, _ = assembled(
        ReasoningDelta(text="one"),
        ReasoningDelta(signature=SIGNATURE),
        ReasoningDelta(text="two"),
        ResponseFinished(),
    )
    assert made.parts() == (
        Reasoning(text="one", provider="p", signature=SIGNATURE),
        Reasoning(text="two"),
    )


def test_an_empty_response_is_a_response_without_parts() -> None:
    made, deltas = assembled(TextDelta(text=""), ResponseFinished())
    assert made.parts() == ()
    assert made.empty
    assert deltas == []


def test_what_no_store_can_keep_is_replaced() -> None:
    made, deltas = assembled(TextDelta(text="a\x00b\ud83dc"), TextDelta(text="水"), ResponseFinished())
    assert made.parts() == (Text(text="a\ufffdb\ufffdc水"),)
    assert "".join(delta.text for delta in deltas) == "a\ufffdb\ufffdc水"


def test_a_response_larger_than_a_message_may_be_is_refused_while_it_streams() -> None:
    made = assembler(bytes_max=10)
    made.add(TextDelta(text="12345"))
    made.add(TextDelta(text="é"))
    made.add(CallStarted(index=0, name="abc"))
    with pytest.raises(LostResult, match="more than 10 bytes"):
        made.add(CallArguments(index=0, text="x"))


def test_more_calls_than_a_batch_may_hold_are_refused() -> None:
    made = assembler(calls_max=2)
    made.add(CallStarted(index=0, name="a"))
    made.add(CallStarted(index=1, name="a"))
    with pytest.raises(LostResult, match="more than 2 calls"):
        made.add(CallStarted(index=2, name="a"))


# --- any split of the same response


class Shape(msgspec.Struct):
    """A response: blocks of text, reasoning and calls, some calls interleaved."""

    blocks: list[tuple[str, str]]


BLOCKS = st.lists(st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.text(max_size=12)), max_size=6)


def split(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def streamed(blocks: list[tuple[str, str]], pieces_of: "list[list[str]]") -> list[StreamPart]:
    parts: list[StreamPart] = []
    index = 0
    for (kind, _), pieces in zip(blocks, pieces_of, strict=True):
        if kind == "text":
            parts += [TextDelta(text=piece) for piece in pieces]
        elif kind == "reasoning":
            parts += [ReasoningDelta(text=piece) for piece in pieces]
        else:
            parts.append(CallStarted(index=index, name="tool"))
            parts += [CallArguments(index=index, text=piece) for piece in pieces]
            index += 1
    return parts


@given(BLOCKS, st.data())
def test_any_split_of_a_response_gives_the_same_message(blocks: list[tuple[str, str]], data: st.DataObject) -> None:
    whole, _ = assembled(*streamed(blocks, [[text] for _, text in blocks]), ResponseFinished())
    pieces, _ = assembled(*streamed(blocks, [split(text, data) for _, text in blocks]), ResponseFinished())
    assert pieces.parts() == whole.parts()


@given(BLOCKS, st.data())
def test_the_deltas_of_any_beginning_tell_what_the_assembler_holds(
    blocks: list[tuple[str, str]], data: st.DataObject
) -> None:
    """After a crash the successor has only the journal: it commits the same partial message."""
    parts = streamed(blocks, [split(text, data) for _, text in blocks])
    made, deltas = assembled(*parts[: data.draw(st.integers(0, len(parts)))])
    assert parts_of_deltas(deltas) == made.partial()
    if made.partial():
        message = Message(id="m", role=Role.ASSISTANT, parts=made.partial())
        assert problems(make_valid([message])) == []


def test_progress_in_the_journal_is_no_part_of_the_message() -> None:
    deltas = [
        Delta(part="text", text="a"),
        Delta(part="progress", text="50 %", call_id="c"),
        Delta(part="text", text="b"),
    ]
    assert parts_of_deltas(deltas) == (Text(text="ab"),)


def test_a_response_that_ended_as_refused_asks_for_nothing() -> None:
    assembler = Assembler(lambda: "c1")
    for part in (
        TextDelta(text="I will"),
        CallStarted(index=0, name="rm"),
        CallArguments(index=0, text='{"path":"/"}'),
        CallEnded(index=0),
        ResponseFinished(reason="refused", provider_reason="content_filter"),
    ):
        assembler.add(part)
    assert assembler.parts() == (Text(text="I will"),)
