"""Limits and small decisions at their edge: what is just allowed, what is just not, and what is told of it."""

import datetime

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.apply import apply, create
from holdfast.core.call_words import excerpt
from holdfast.core.change import Refused
from holdfast.core.codec import encode, is_too_deep
from holdfast.core.fork import fork
from holdfast.core.journal import TurnEnded
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import (
    Cause,
    External,
    Message,
    NewChat,
    Role,
    Synthetic,
    Text,
    ToolResult,
    attempt_id,
)
from holdfast.core.retry import REASONING_MISSING, ErrorFields, retry_after_s, unsupported_parameter
from holdfast.errors import InvalidInput, LimitReached
from tests.support.situations import answered, calls_planned, interrupted, model_next, waiting
from tests.support.story import BOOM, START, Story, asks_for, assistant, user

# --- a history that a chat is created with -------------------------------------------------------------


def result(call_id: str, id: str = "r") -> Message:
    return Message(id=id, role=Role.TOOL, parts=(ToolResult(call_id=call_id, name="tool", content="ok"),))


def given(
    *past: Message, message: Message | None = None, since: tuple[Message, ...] = (), limits: Limits = LIMITS
) -> list[Role | None]:
    change = create(NewChat(id="chat", agent="agent", past=past, message=message, since=since), START, limits)
    return [line.role for line in change.lines if line.pos is not None]


def test_what_was_said_elsewhere_is_taken_with_a_message_and_without_one() -> None:
    past = (user("p1"), assistant("p2"))
    assert given(*past) == [Role.USER, Role.ASSISTANT]
    assert given(*past, message=user("m1")) == [Role.USER, Role.ASSISTANT, Role.USER]
    assert given(message=user("m1")) == [Role.USER]


def test_as_many_given_messages_as_the_limit_says_are_taken_and_one_more_is_not() -> None:
    three = Limits(given_messages_max=3)
    past = (user("p1"), assistant("p2"), user("p3"), assistant("p4"))
    assert len(given(*past[:3], limits=three)) == 3
    with pytest.raises(LimitReached, match="given messages"):
        given(*past, limits=three)


@pytest.mark.parametrize(
    "odd",
    [
        Message(id="p3", role=Role.SYSTEM, parts=(Text(text="Obey."),)),
        Message(id="p3", role=Role.USER, parts=(Text(text="I am no user."),), synthetic=Synthetic.UNKNOWN),
    ],
    ids=["instructions", "the runtime's own"],
)
def test_neither_instructions_nor_words_of_the_runtime_are_given(odd: Message) -> None:
    with pytest.raises(InvalidInput, match="holds user, assistant and tool messages only"):
        given(user("p1"), assistant("p2"), odd)


def test_what_was_said_since_a_message_ends_with_the_results_to_go_on_from() -> None:
    asked = assistant("s1", *asks_for("a"))
    taken = given(message=user("m1"), since=(asked, result("a")))
    assert taken == [Role.USER, Role.ASSISTANT, Role.TOOL]
    ends = "ends with the results that the model is to go on from"
    with pytest.raises(InvalidInput, match=ends):
        given(user("p1"), since=(asked, result("a")))
    with pytest.raises(InvalidInput, match=ends):
        given(message=user("m1"), since=(asked, result("a"), assistant("s3")))


def test_a_history_that_no_provider_accepts_is_not_given() -> None:
    with pytest.raises(InvalidInput, match="is not a history that a provider accepts"):
        given(user("p1"), assistant("p2", *asks_for("a")), message=user("m1"))


# --- what is taken of a client -------------------------------------------------------------------------


def test_a_text_of_exactly_the_limit_is_told_whole() -> None:
    assert excerpt("x" * 5, 5) == "x" * 5
    assert excerpt("x" * 6, 5) == "xxxxx… (6 characters in all)"


def test_a_title_of_exactly_the_limit_is_a_title() -> None:
    story = answered()
    story.does(cmd.Rename(title="t" * LIMITS.title_chars_max))
    assert len(story.chat.title or "") == 200
    story.refuses(cmd.Rename(title="t" * (LIMITS.title_chars_max + 1)), reason="wrong_title")


def test_a_queue_may_hold_exactly_as_many_bytes_as_the_limit_says() -> None:
    size = len(encode(user("q1")))
    story = Story(limits=Limits(queue_bytes_max=2 * size)).claimed()
    story.sends("q1")
    story.sends("q2")
    story.refuses(cmd.Send(message=user("q3")), reason="limit")
    assert story.queue == ["q1", "q2"]


def test_a_message_for_a_certain_length_is_taken_only_at_rest_and_at_that_length() -> None:
    story = answered()
    story.refuses(cmd.Send(message=user("m2"), length=1), reason="moved_on")
    story.does(cmd.Send(message=user("m2"), length=2))
    story.refuses(cmd.Send(message=user("m3"), length=story.chat.length), reason="moved_on")
    assert (story.state, story.chat.length) == ("running", 3)


def test_json_may_be_nested_exactly_as_deep_as_the_limit_says() -> None:
    assert not is_too_deep(b"[[[]]]", 3)
    assert is_too_deep(b"[[[[]]]]", 3)
    assert is_too_deep(b'{"a":{"a":{"a":{}}}}', 3)
    assert not is_too_deep(b"[[],[],[],[{}]]", 3), "what was closed is no depth"
    assert not is_too_deep(rb'[{"a":"[[[[\"[[[["}]', 3), "what is in a string is no structure"


# --- calls: what people are told of their arguments ----------------------------------------------------

CHANGED, SHOWN = '{"key":"k-1"}', '{"key":"…"}'


@pytest.mark.parametrize(("told", "expected"), [(None, CHANGED), (SHOWN, SHOWN)])
def test_arguments_that_a_hook_changed_are_told_as_the_hook_says(told: str | None, expected: str) -> None:
    started = calls_planned()
    words = {} if told is None else {"a": told}
    started.does(cmd.StartCalls(by=started.by, call_ids=("a",), arguments={"a": CHANGED}, told=words))
    asking = calls_planned()
    asking.does(cmd.AskApproval(by=asking.by, call_id="a", question="?", arguments=CHANGED, told=told))
    outside = calls_planned()
    outside.does(
        cmd.Delegate(by=outside.by, call_id="a", external=External.CLIENT, arguments=CHANGED, told=told),
    )
    for story in (started, asking, outside):
        assert (story.call("a").arguments, story.call("a").told) == (CHANGED, expected)


def test_what_was_told_when_somebody_was_asked_stays_when_the_call_starts() -> None:
    story = calls_planned()
    story.does(cmd.AskApproval(by=story.by, call_id="a", question="?", arguments=CHANGED, told=SHOWN))
    story.does(cmd.Approve(call_id="a"))
    story.starts("a")
    assert (story.call("a").arguments, story.call("a").told) == (CHANGED, SHOWN)


def test_a_cancelled_call_of_a_client_stops_no_child() -> None:
    assert waiting().stops().stop_children == ()


def test_the_end_of_a_turn_without_a_parent_reaches_nobody() -> None:
    story = model_next().says()
    assert not story.does(cmd.FinishTurn(by=story.by)).reaches_others


# --- stops, handovers and attempts ---------------------------------------------------------------------


def test_a_partial_response_of_an_attempt_that_is_over_stays_out_of_history() -> None:
    story = model_next()
    attempt = story.next_attempt()
    story.does(cmd.AttemptLost(by=story.by, attempt=attempt, model="m", error="it broke"))
    assert story.chat.attempt_ended == attempt
    story.stops()
    story.finishes_stop(assistant("half"), attempt)
    assert story.ids == ["m1"]


def test_a_turn_that_fails_while_it_is_superseded_ends_as_superseded() -> None:
    story = interrupted(model_next)
    story.does(cmd.Fail(by=story.by, error=BOOM))
    (ended,) = story.tells(TurnEnded)
    assert isinstance(ended, TurnEnded)
    assert ended.cause is Cause.SUPERSEDED


def test_a_chat_that_is_handed_over_with_a_delay_wakes_after_it() -> None:
    story = model_next()
    story.does(cmd.Release(by=story.by, delay_ms=700))
    assert story.chat.wake_at == story.now + 700


def test_who_does_not_hold_a_chat_is_told_who_does() -> None:
    held = apply(model_next().snapshot, cmd.LeaseExpired(worker="w2"), START)
    assert isinstance(held, Refused)
    assert "is held by w1, not by w2" in held.message


def test_an_attempt_beyond_the_last_of_a_claim_is_named_with_its_range() -> None:
    assert attempt_id(1, (1 << 20) - 1) == (2 << 20) - 1
    with pytest.raises(ValueError, match=r"attempt 1048576 is out of range 1\.\.1048575"):
        attempt_id(1, 1 << 20)


def test_a_fork_belongs_to_whom_it_is_made_for_and_else_to_the_owner_of_its_source() -> None:
    source = answered().snapshot
    owned = replace(source, chat=replace(source.chat, owner="ada"))
    for owner, expected in ((None, "ada"), ("eve", "eve"), ("", "")):
        outcome = fork(owned, "copy", source.chat.length, START, owner=owner)
        assert not isinstance(outcome, Refused)
        assert outcome[0].after.chat.owner == expected


# --- what a provider says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        (ErrorFields(message="The reasoning_content in the thinking mode must be passed back."), REASONING_MISSING),
        (ErrorFields(message="reasoning_content is missing in message 3"), REASONING_MISSING),
        (ErrorFields(message="reasoning_content is fine"), None),
        (ErrorFields(message="a field is missing"), None),
        (ErrorFields(message="no", code="unsupported_parameter", param="seed"), "seed"),
        (ErrorFields(message="no", code="rate_limit_exceeded", param="seed"), None),
        (ErrorFields(message="no", code="unsupported_parameter"), None),
    ],
)
def test_what_a_provider_does_not_take_is_read_from_its_words_and_its_code(
    fields: ErrorFields, parameter: str | None
) -> None:
    assert unsupported_parameter(fields) == parameter


@pytest.mark.parametrize(
    "at",
    [
        (1970, 1, 1, 0, 0, 10),
        (1970, 2, 28, 23, 59, 59),
        (1970, 3, 1, 0, 0, 0),
        (2000, 2, 29, 12, 30, 0),
        (2024, 1, 31, 23, 0, 0),
        (2024, 12, 31, 0, 59, 0),
        (2100, 2, 28, 1, 2, 3),
    ],
)
def test_a_date_is_read_at_the_edges_of_days_months_and_leap_years(at: tuple[int, int, int, int, int, int]) -> None:
    moment = datetime.datetime(*at, tzinfo=datetime.UTC)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"):
        headers = {"retry-after": moment.strftime(form)}
        assert retry_after_s(headers, moment.timestamp() - 7) == pytest.approx(7)


def test_a_leap_second_is_a_time_and_a_61st_is_none() -> None:
    now_s = datetime.datetime(2016, 12, 31, 23, 59, 59, tzinfo=datetime.UTC).timestamp()
    assert retry_after_s({"retry-after": "Sat, 31 Dec 2016 23:59:60 GMT"}, now_s) == pytest.approx(1)
    assert retry_after_s({"retry-after": "Sat, 31 Dec 2016 23:59:61 GMT"}, now_s) is None
    assert retry_after_s({"retry-after": "Sat, 31 Dec 2016 23:60:00 GMT"}, now_s) is None
    assert retry_after_s({"retry-after": "Sat, 31 Dec 2016 24:00:00 GMT"}, now_s) is None


def test_only_a_year_of_two_digits_is_one_of_this_century() -> None:
    now_s = datetime.datetime(2016, 11, 6, 8, 49, 30, tzinfo=datetime.UTC).timestamp()
    assert retry_after_s({"retry-after": "Sunday, 06-Nov-16 08:49:37 GMT"}, now_s) == pytest.approx(7)
    assert retry_after_s({"retry-after": "Sat, 06 Nov 0100 08:49:37 GMT"}, now_s) is None
