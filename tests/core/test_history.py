"""What a provider accepts, and how any list of messages is made into it (promise 4)."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.history import make_valid, problems
from holdfast.core.records import (
    File,
    Message,
    Part,
    Reasoning,
    Role,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
)

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
SIGNATURE = Raw(b'"opaque"')


def say(role: Role, *parts: Part, id: str = "m") -> Message:
    return Message(id=id, role=role, parts=parts)


def user(text: str = "Hi.") -> Message:
    return say(Role.USER, Text(text=text))


def model(*parts: Part) -> Message:
    return say(Role.ASSISTANT, *parts)


def call(id: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=id, name="tool", arguments=arguments)


def answer(id: str, content: str = "ok", synthetic: Synthetic | None = None) -> Message:
    return say(
        Role.TOOL, ToolResult(call_id=id, name="tool", content=content, synthetic=synthetic), id=f"{id}.result"
    )


def named(name: str) -> ToolCall:
    return ToolCall(call_id="a", name=name, arguments="{}")


def named_answer(name: str) -> Message:
    return say(Role.TOOL, ToolResult(call_id="a", name=name, content="ok"), id="a.result")


def repaired(id: str) -> ToolResult:
    return ToolResult(
        call_id=id,
        name="tool",
        content="No result was recorded for this call.",
        error=True,
        synthetic=Synthetic.REPAIRED,
    )


VALID: dict[str, list[Message]] = {
    "nothing": [],
    "a conversation": [user(), model(Text(text="Hello.")), user()],
    "instructions first": [say(Role.SYSTEM, Text(text="Be brief.")), user()],
    "calls and results in order": [user(), model(call("a"), call("b")), answer("a"), answer("b"), user()],
    "several batches": [user(), model(call("a")), answer("a"), model(Text(text="x"), call("b")), answer("b")],
    "signed reasoning": [user(), model(Reasoning(text="Hm", signature=SIGNATURE), Text(text="x"))],
    "a file": [say(Role.USER, File(media_type="image/png", uri="blob:1"))],
    "an empty result": [user(), model(call("a")), answer("a", "")],
    "a synthetic result": [user(), model(call("a")), answer("a", "gone", Synthetic.UNKNOWN)],
    "two users in a row": [user(), user()],
}

# Each rule: a history that breaks it, what is said about it, and what is made of it.
BROKEN: dict[str, tuple[list[Message], str, list[Message]]] = {
    "1: a call without a result": (
        [user(), model(call("a"))],
        "the history ends before the results of a",
        [user(), model(call("a")), say(Role.TOOL, repaired("a"), id="a.result")],
    ),
    "1: a message before the result": (
        [user(), model(call("a")), user("no"), answer("a")],
        "message 2 (user) comes before the results of a",
        [user(), model(call("a")), answer("a"), user("no")],
    ),
    "1: results in another order": (
        [user(), model(call("a"), call("b")), answer("b"), answer("a")],
        "message 2 answers b, expected is a",
        [user(), model(call("a"), call("b")), answer("a"), answer("b")],
    ),
    "1: two results": (
        [user(), model(call("a")), answer("a", "first"), answer("a", "second")],
        "message 3 answers a, expected is no result",
        [user(), model(call("a")), answer("a", "first")],
    ),
    "2: a result that nobody asked for": (
        [user(), answer("x")],
        "message 1 answers x, expected is no result",
        [user()],
    ),
    "2: a result before its call": (
        [user(), answer("a"), model(call("a"))],
        "message 1 answers a, expected is no result",
        [user(), model(call("a")), answer("a")],
    ),
    "3: a call id used twice": (
        [user(), model(call("a")), answer("a"), model(call("a"), Text(text="x")), answer("a", "again")],
        "call id a is used twice",
        [user(), model(call("a")), answer("a"), model(Text(text="x"))],
    ),
    "3: a call id used twice in one message": (
        [user(), model(call("a"), call("a")), answer("a"), answer("a")],
        "call id a is used twice",
        [user(), model(call("a")), answer("a")],
    ),
    "4: a call in a user message": (
        [say(Role.USER, Text(text="x"), call("a"))],
        "message 0 (user) holds a ToolCall",
        [say(Role.USER, Text(text="x"))],
    ),
    "4: reasoning in a user message": (
        [say(Role.USER, Text(text="x"), Reasoning(signature=SIGNATURE))],
        "message 0 (user) holds a Reasoning",
        [say(Role.USER, Text(text="x"))],
    ),
    "4: a result in an assistant message": (
        [user(), model(call("a"), ToolResult(call_id="a", name="tool", content="ok"))],
        "message 1 (assistant) holds a ToolResult",
        [user(), model(call("a")), answer("a")],
    ),
    "4: two results in one message": (
        [
            user(),
            model(call("a"), call("b")),
            say(Role.TOOL, ToolResult(call_id="a", name="tool"), ToolResult(call_id="b", name="tool")),
        ],
        "message 2 (tool) holds something other than one result",
        [user(), model(call("a"), call("b")), answer("a", ""), answer("b", "")],
    ),
    "4: text in a tool message": (
        [user(), say(Role.TOOL, Text(text="x"))],
        "message 1 (tool) holds something other than one result",
        [user()],
    ),
    "5: arguments cut off": (
        [user(), model(call("a", '{"city": "Be')), answer("a")],
        "the arguments of call a are not a JSON object",
        [user(), model(ToolCall(call_id="a", name="tool", arguments="{}", cut=True)), answer("a")],
    ),
    "5: arguments that are no object": (
        [user(), model(call("a", "[1]")), answer("a")],
        "the arguments of call a are not a JSON object",
        [user(), model(ToolCall(call_id="a", name="tool", arguments="{}", cut=True)), answer("a")],
    ),
    "5: arguments nested without end": (
        [user(), model(call("a", DEEP)), answer("a")],
        "the arguments of call a are not a JSON object",
        [user(), model(ToolCall(call_id="a", name="tool", arguments="{}", cut=True)), answer("a")],
    ),
    "5: arguments that are no Unicode": (
        [user(), model(call("a", '{"x": "\ud800"}')), answer("a")],
        "the arguments of call a are not a JSON object",
        [user(), model(ToolCall(call_id="a", name="tool", arguments="{}", cut=True)), answer("a")],
    ),
    "6: an empty message": ([user(), model()], "message 1 (assistant) is empty", [user()]),
    "6: an empty text": (
        [user(), model(Text(text=""), Text(text="x"))],
        "message 1 holds an empty or unsigned Text",
        [user(), model(Text(text="x"))],
    ),
    "6: unsigned reasoning": (
        [user(), model(Reasoning(text="Hm"), Text(text="x"))],
        "message 1 holds an empty or unsigned Reasoning",
        [user(), model(Text(text="x"))],
    ),
    "6: reasoning whose signature is null": (
        [user(), model(Reasoning(text="Hm", signature=Raw(b"null")), Text(text="x"))],
        "message 1 holds an empty or unsigned Reasoning",
        [user(), model(Text(text="x"))],
    ),
    "6: nothing but unsigned reasoning": (
        [user(), model(Reasoning(text="Hm"))],
        "message 1 (assistant) is empty",
        [user()],
    ),
    "7: a name that no tool has": (
        [user(), model(named("functions.weather: Bern")), named_answer("functions.weather: Bern")],
        "the name of call a is none that a tool can have",
        [user(), model(named("functions_weather__Bern")), named_answer("functions_weather__Bern")],
    ),
    "7: no name": (
        [user(), model(named("")), named_answer("")],
        "the name of call a is none that a tool can have",
        [user(), model(named("unnamed")), named_answer("unnamed")],
    ),
    "7: a name without end": (
        [user(), model(named("x" * 1_000)), named_answer("x" * 1_000)],
        "the name of call a is none that a tool can have",
        [user(), model(named("x" * 64)), named_answer("x" * 64)],
    ),
    "7: a result with another name": (
        [user(), model(call("a")), named_answer("")],
        "message 2 has not the name of its call",
        [user(), model(call("a")), answer("a")],
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_a_history_that_a_provider_accepts_has_no_problems_and_is_not_touched(name: str) -> None:
    assert problems(VALID[name]) == []
    assert all(a is b for a, b in zip(make_valid(VALID[name]), VALID[name], strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_history_that_breaks_a_rule_is_found_out(name: str) -> None:
    broken, said, _ = BROKEN[name]
    assert said in problems(broken)


@pytest.mark.parametrize("name", BROKEN)
def test_a_history_that_breaks_a_rule_is_made_into_the_nearest_that_does_not(name: str) -> None:
    broken, _, mended = BROKEN[name]
    assert problems(mended) == []
    assert make_valid(broken) == mended


def test_a_real_result_beats_a_synthetic_one_wherever_it_stands() -> None:
    synthetic = answer("a", "cancelled", Synthetic.CANCELLED)
    for results in ([synthetic, answer("a", "real")], [answer("a", "real"), synthetic]):
        assert make_valid([user(), model(call("a")), *results])[2] == answer("a", "real")


def test_of_two_real_results_the_earlier_one_counts() -> None:
    assert make_valid([user(), model(call("a")), answer("a", "1"), answer("a", "2")])[2] == answer("a", "1")


def test_a_missing_result_is_dated_like_its_call_so_that_prompt_caches_stay_warm() -> None:
    asked = Message(id="r", role=Role.ASSISTANT, parts=(call("a"),), created_at=17)
    assert make_valid([user(), asked]) == make_valid([user(), asked])
    assert make_valid([user(), asked])[2].created_at == 17


# --- any history -------------------------------------------------------------------------------------

IDS = st.sampled_from("abcd")
RESULTS = st.builds(
    ToolResult,
    call_id=IDS,
    name=st.sampled_from(("tool", "tool", "")),
    content=st.sampled_from(("", "1", "2")),
    synthetic=st.sampled_from((None, *Synthetic)),
)
NO_RESULTS: st.SearchStrategy[Part] = st.one_of(
    st.sampled_from((Text(text=""), Text(text="x"), Reasoning(text="Hm"), Reasoning(signature=SIGNATURE))),
    st.just(File(media_type="image/png", uri="blob:1")),
    st.builds(
        ToolCall,
        call_id=IDS,
        name=st.sampled_from(("tool", "tool", "a.b")),
        arguments=st.sampled_from(("{}", "", "[1]", '{"a":1}')),
    ),
)
PARTS: st.SearchStrategy[Part] = st.one_of(NO_RESULTS, RESULTS)


def messages(parts: st.SearchStrategy[tuple[Part, ...]], *roles: Role) -> st.SearchStrategy[Message]:
    ids = st.integers(0, 99).map(lambda n: f"m{n}")
    return st.builds(Message, id=ids, role=st.sampled_from(roles), parts=parts, created_at=st.integers(0, 9))


# Sensible roles for most parts, so that histories come near to valid ones; anything anywhere for the rest.
HISTORIES = st.lists(
    st.one_of(
        messages(st.lists(PARTS, max_size=4).map(tuple), *Role),
        messages(st.tuples(RESULTS), Role.TOOL),
        messages(st.lists(NO_RESULTS, max_size=4).map(tuple), Role.ASSISTANT),
    ),
    max_size=8,
)


def every_history(check: Callable[[list[Message]], None]) -> Callable[[], None]:
    return settings(max_examples=150, deadline=None)(given(HISTORIES)(check))


@every_history
def test_whatever_comes_in_what_comes_out_is_valid(source: list[Message]) -> None:
    assert problems(make_valid(source)) == []


@every_history
def test_making_valid_what_is_valid_changes_nothing_not_even_the_objects(source: list[Message]) -> None:
    once = make_valid(source)
    twice = make_valid(once)
    assert len(once) == len(twice)
    assert all(a is b for a, b in zip(once, twice, strict=True))


@every_history
def test_a_history_is_left_alone_exactly_if_it_has_no_problems(source: list[Message]) -> None:
    mended = make_valid(source)
    same = len(mended) == len(source) and all(a is b for a, b in zip(mended, source, strict=True))
    assert same == (problems(source) == [])


@every_history
def test_the_same_history_is_always_mended_the_same_way(source: list[Message]) -> None:
    assert make_valid(source) == make_valid(list(source))


@every_history
def test_nothing_is_invented_but_missing_results(source: list[Message]) -> None:
    results = [part for message in source for part in message.parts if isinstance(part, ToolResult)]
    others = {id(part) for message in source for part in message.parts}
    for message in make_valid(source):
        if message.role is Role.TOOL:
            (result,) = message.parts
            assert isinstance(result, ToolResult)
            as_called = [replace(each, name=result.name) for each in results]
            assert result in as_called or result == replace(repaired(result.call_id), name=result.name)
            continue
        assert message.id in {other.id for other in source}
        for part in message.parts:
            assert id(part) in others or isinstance(part, ToolCall)


@every_history
def test_results_are_missing_only_if_they_are(source: list[Message]) -> None:
    answered = _results(source)
    for result in _results(make_valid(source)):
        if result == replace(repaired(result.call_id), name=result.name):
            assert all(r.call_id != result.call_id or replace(r, name=result.name) == result for r in answered)


@every_history
def test_a_call_that_has_a_real_result_keeps_it(source: list[Message]) -> None:
    real = {result.call_id for result in _results(source) if result.synthetic is None}
    for result in _results(make_valid(source)):
        assert (result.synthetic is None) == (result.call_id in real)


@every_history
def test_what_a_user_said_is_never_lost_or_moved(source: list[Message]) -> None:
    def said(history: Sequence[Message]) -> list[str]:
        return [message.text for message in history if message.role is Role.USER and message.text]

    assert said(make_valid(source)) == said(source)


def _results(history: Sequence[Message]) -> list[ToolResult]:
    return [part for message in history for part in message.parts if isinstance(part, ToolResult)]
