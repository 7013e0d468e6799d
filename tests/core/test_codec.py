"""Records and their JSON: what newer code wrote survives older code, what nobody can read says so."""

import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core import codec, journal, records
from holdfast.core.records import (
    NOTHING,
    Failure,
    File,
    Frozen,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.errors import CorruptRecord, InvalidInput, UnknownRecord

# Text as it can be stored: JSON and both databases take everything but lone surrogates; NUL is refused earlier.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
RAW = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
).map(lambda value: Raw(msgspec.json.format(msgspec.json.encode(value), indent=2)))

st.register_type_strategy(Raw, RAW)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))  # JSON has no others


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.from_type(kind) if not isinstance(kind, type) else st.builds(kind, **_fields(kind))


def _fields(kind: type) -> dict[str, st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(kind)
    return {name: _values(hints[name]) for name in getattr(kind, "__struct_fields__", ())}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_values(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(_values(args[0]), _values(args[1]), max_size=3)
    if args and origin is not typing.Literal:
        return st.one_of([_values(arg) for arg in args])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return any_of(hint)
    if hint is int:
        return st.integers(-(2**53), 2**53)
    return st.from_type(hint)


ENTRIES = typing.get_args(journal.AnyEntry)


def same(a: object, b: object) -> bool:
    """Equal, Raw fields byte for byte."""
    return a == b and codec.encode(a) == codec.encode(b)


# --- there and back ----------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(any_of(Message))
def test_a_message_comes_back_as_it_was_written(message: Message) -> None:
    assert same(codec.decode_message(codec.encode(message)), message)


@pytest.mark.parametrize("kind", ENTRIES, ids=lambda kind: kind.__name__)
def test_every_journal_entry_comes_back_as_it_was_written(kind: type[journal.Entry]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(any_of(kind))
    def check(entry: journal.AnyEntry) -> None:
        assert same(codec.decode_entry(codec.encode(entry)), entry)

    check()


@settings(max_examples=50, deadline=None)
@given(any_of(Failure))
def test_a_failure_comes_back_as_it_was_written(failure: Failure) -> None:
    assert same(codec.decode_failure(codec.encode(failure)), failure)


@settings(max_examples=50, deadline=None)
@given(any_of(journal.Delta))
def test_a_delta_comes_back_as_it_was_written(delta: journal.Delta) -> None:
    assert same(codec.decode_delta(codec.encode(delta)), delta)


def test_every_journal_entry_can_be_read_and_has_a_name_of_its_own() -> None:
    defined = {kind for kind in vars(journal).values() if _is_entry(kind)}
    assert set(ENTRIES) == defined
    assert len({kind.__struct_config__.tag for kind in ENTRIES}) == len(ENTRIES)


def _is_entry(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, journal.Entry) and kind is not journal.Entry


def test_what_is_given_raw_is_kept_byte_for_byte() -> None:
    odd = b'{ "b" : 1,\t"a":[ 1.0,1e2 ] , "b":2 }'
    message = Message(
        id="m",
        role=Role.ASSISTANT,
        parts=(Reasoning(text="Hm", provider="p", signature=Raw(odd)),),
        metadata=Raw(odd),
    )
    stored = codec.encode(message)
    assert stored.count(odd) == 2
    back = codec.decode_message(stored)
    assert bytes(back.metadata) == odd
    assert isinstance(back.parts[0], Reasoning)
    assert bytes(back.parts[0].signature) == odd
    assert codec.encode(back) == stored


def test_a_message_inside_a_journal_entry_is_kept_byte_for_byte() -> None:
    body = b'{"id":"m", "role":"user", "parts":[{"kind":"hologram"}], "new":true}'
    entry = journal.MessageAdded(raw=Raw(body))
    back = codec.decode_entry(codec.encode(entry))
    assert isinstance(back, journal.MessageAdded)
    assert bytes(back.raw) == body


def test_what_is_absent_is_not_written_and_comes_back_as_absent() -> None:
    message = Message(id="m", role=Role.USER, parts=(Text(text="x"),))
    assert codec.encode(message) == b'{"id":"m","role":"user","parts":[{"kind":"text","text":"x"}]}'
    assert codec.decode_message(codec.encode(message)).metadata is NOTHING


def test_a_signature_that_is_null_is_no_signature() -> None:
    data = b'{"id":"m","role":"assistant","parts":[{"kind":"reasoning","text":"Hm","signature":null}]}'
    part = codec.decode_message(data).parts[0]
    assert isinstance(part, Reasoning)
    assert not part.signed
    assert Reasoning(signature=Raw(b'"s"')).signed


# --- newer code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"m","role":"user","parts":[{"kind":"hologram","of":"kelp"}]}',
        b'{"id":"m","role":"oracle","parts":[]}',
        b'{"id":"m","role":"user","parts":[],"stopped":"bored"}',
        b'{"id":"m","role":"tool","parts":[{"kind":"tool_result","call_id":"a","name":"t","synthetic":"dreamt"}]}',
    ],
)
def test_a_kind_that_this_code_does_not_know_is_left_to_code_that_does(data: bytes) -> None:
    with pytest.raises(UnknownRecord, match="written by newer code"):
        codec.decode_message(data)


def test_an_entry_of_an_unknown_kind_is_left_to_code_that_knows_it() -> None:
    with pytest.raises(UnknownRecord, match="journal entry"):
        codec.decode_entry(b'{"kind":"chat.dreamt"}')
    with pytest.raises(UnknownRecord, match="delta"):
        codec.decode_delta(b'{"part":"smell","text":"x"}')


def test_fields_that_this_code_does_not_know_are_ignored() -> None:
    data = b'{"id":"m","role":"user","parts":[{"kind":"text","text":"x","colour":"red"}],"mood":{"deep":[1]}}'
    assert codec.decode_message(data) == Message(id="m", role=Role.USER, parts=(Text(text="x"),))
    assert codec.decode_entry(b'{"kind":"turn.started","turn":1,"why":"?"}') == journal.TurnStarted(turn=1)


# --- no record at all -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"id":1,"role":"user","parts":[]}',
        b'{"id":"m","role":"user"}',
        b'{"id":"m","role":"user","parts":[{"text":"no kind"}]}',
        b'{"id":"m","role":"user","parts":[{"kind":"text"}]}',
        b'{"id":"\xff","role":"user","parts":[]}',
        b'{"id":"m","role":"user","parts":[]} and more',
        b'{"id":"m","role":"user","parts":[],"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda data: data[:30].decode(errors="replace"),
)
def test_bytes_that_are_no_record_are_said_to_be_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="are not a message"):
        codec.decode_message(data)


def test_text_that_is_no_unicode_is_said_to_be_corrupt() -> None:
    with pytest.raises(CorruptRecord):
        codec.decode_message('{"id":"\ud800","role":"user","parts":[]}')


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_at_all_make_decoding_fail_in_another_way(data: bytes) -> None:
    for decode in (codec.decode_message, codec.decode_entry, codec.decode_delta, codec.decode_failure):
        with pytest.raises((CorruptRecord, UnknownRecord)):
            decode(data)


# --- records ---------------------------------------------------------------------------------------------


def kinds() -> list[type[Frozen]]:
    return [kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, Frozen)]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_record_is_frozen_and_takes_its_fields_by_name(kind: type[Frozen]) -> None:
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        kind("by position")


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_no_field_is_an_optional_raw_for_msgspec_cannot_read_it_back(kind: type[Frozen]) -> None:
    for name, hint in typing.get_type_hints(kind).items():
        assert Raw not in typing.get_args(hint), name


def test_a_record_cannot_be_changed() -> None:
    message = Message(id="m", role=Role.USER, parts=())
    with pytest.raises(AttributeError):
        message.id = "n"  # type: ignore[misc]


def test_a_messages_text_is_that_of_its_text_parts_in_order() -> None:
    parts = (Reasoning(text="no"), Text(text="a"), ToolCall(call_id="c", name="t"), Text(text="b"))
    message = Message(id="m", role=Role.ASSISTANT, parts=parts)
    assert message.text == "ab"
    assert message.calls == (parts[2],)


def test_a_part_knows_its_kind_in_json() -> None:
    parts: list[tuple[records.Part, bytes]] = [
        (Text(text="x"), b"text"),
        (Reasoning(), b"reasoning"),
        (File(media_type="a/b", uri="u"), b"file"),
        (ToolCall(call_id="a", name="t"), b"tool_call"),
        (ToolResult(call_id="a", name="t"), b"tool_result"),
    ]
    for part, kind in parts:
        assert codec.encode(part).startswith(b'{"kind":"' + kind + b'"')


# --- text that comes in -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_text_that_can_be_stored_and_sent_is_let_through(text: str) -> None:
    codec.check_text("message", text, bytes_max=1_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\0b", "has a NUL character at position 1"),
        ("\0", "has a NUL character at position 0"),
        ("ab\ud800", "is not valid Unicode at position 2"),
        ("é" * 6, "is 12 bytes, the limit is 11"),
    ],
)
def test_text_that_a_store_or_provider_would_choke_on_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        codec.check_text("message", text, bytes_max=11)
    assert caught.value.field == "message"


def test_text_of_exactly_the_limit_is_let_through() -> None:
    codec.check_text("message", "é" * 5, bytes_max=10)
