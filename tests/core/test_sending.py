"""What becomes of a message: queued, steering, interrupting; in every state of the chat."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.apply import apply, create
from holdfast.core.change import Change
from holdfast.core.journal import MessageAdded, MessageQueued, TurnEnded, TurnStarted
from holdfast.core.limits import Limits
from holdfast.core.records import Cause, File, Message, NewChat, Role, SendMode, Synthetic, Text, ToolCall
from holdfast.errors import InvalidInput
from tests.support.situations import answered, archived, failed, model_next, said, stopped, waiting, waiting_for_one
from tests.support.story import START, Story, asks_for, assistant, user

MODES: tuple[SendMode, ...] = ("queue", "interrupt", "steer")


# --- a new chat -------------------------------------------------------------------------------------


def test_a_chat_created_without_a_message_is_idle_and_owes_nothing() -> None:
    story = Story(None)
    assert (story.state, story.phase, story.chat.turn, story.chat.wake_at) == ("idle", "rest", 0, None)


def test_a_chat_created_with_a_message_runs_and_calls_a_worker_at_once() -> None:
    story = Story("m1")
    assert (story.state, story.phase, story.chat.turn) == ("running", "model", 1)
    assert story.chat.wake_at == START
    assert story.ids == ["m1"]


@pytest.mark.parametrize(
    "message",
    [
        assistant("m1"),
        Message(id="m1", role=Role.USER, parts=()),
        Message(id="m1", role=Role.USER, parts=(Text(text=""),)),
        Message(id="m1", role=Role.USER, parts=asks_for("a")),
    ],
)
def test_a_chat_is_not_created_with_a_message_that_no_user_sends(message: Message) -> None:
    with pytest.raises(InvalidInput, match="message: "):
        create(NewChat(id="chat", agent="agent", message=message), START)


# --- idle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_message_to_an_idle_chat_starts_a_turn_whatever_its_mode(mode: SendMode) -> None:
    story = answered()
    story.sends("m2", mode)
    assert (story.state, story.phase, story.chat.turn) == ("running", "model", 2)
    assert story.ids == ["m1", "said", "m2"]
    assert story.chat.wake_at == story.now


def test_a_message_to_an_archived_chat_takes_it_out_of_the_archive() -> None:
    story = archived()
    story.sends("m2")
    assert not story.chat.archived


def test_a_new_turn_counts_its_steps_and_tokens_from_zero() -> None:
    story = Story().claimed()
    story.does(cmd.Respond(by=story.by, message=assistant("r1"), attempt=story.next_attempt(), tokens=7))
    assert (story.chat.step, story.chat.turn_tokens) == (1, 7)
    story.finishes()
    story.sends("m2")
    assert (story.chat.step, story.chat.turn_tokens) == (0, 0)


# --- running ----------------------------------------------------------------------------------------


def test_a_message_to_a_running_chat_is_queued_and_starts_the_next_turn() -> None:
    story = model_next()
    story.sends("m2")
    assert (story.state, story.queue, story.ids) == ("running", ["m2"], ["m1"])
    story.says().finishes()
    assert (story.state, story.queue, story.ids) == ("running", [], ["m1", "said", "m2"])
    assert story.chat.worker == "w1"


def test_queued_messages_are_taken_one_turn_each_in_the_order_they_came() -> None:
    story = model_next()
    for message_id in ("m2", "m3"):
        story.sends(message_id)
    story.says("r1").finishes().says("r2").finishes().says("r3").finishes()
    assert story.ids == ["m1", "r1", "m2", "r2", "m3", "r3"]
    assert [entry.turn for entry in story.tells(TurnStarted) if isinstance(entry, TurnStarted)] == [1, 2, 3]


def test_an_interrupting_message_goes_first_and_stops_what_runs_as_superseded() -> None:
    story = model_next()
    story.sends("m2")
    epoch = story.chat.epoch
    story.sends("i1", "interrupt")
    assert (story.state, story.chat.cause, story.queue) == ("stopping", Cause.SUPERSEDED, ["i1", "m2"])
    assert story.chat.epoch == epoch + 1
    story.finishes_stop()
    assert (story.state, story.ids, story.queue) == ("running", ["m1", "i1"], ["m2"])


def test_a_response_that_comes_after_an_interruption_is_refused() -> None:
    story = model_next()
    response = story.response(assistant("late"))
    story.sends("i1", "interrupt")
    story.refuses(response, reason="stale_epoch")


def test_a_steering_message_joins_when_the_response_is_complete() -> None:
    story = model_next()
    story.sends("s1", "steer")
    assert story.queue == ["s1"]
    story.says("r1")
    assert (story.ids, story.queue, story.phase) == (["m1", "r1", "s1"], [], "model")
    assert story.chat.turn == 1


def test_a_steering_message_never_comes_between_a_call_and_its_result() -> None:
    story = model_next().calls("a", "b", start=True)
    story.sends("s1", "steer")
    story.returns("b")
    assert story.queue == ["s1"]
    story.returns("a")
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result", "s1"]
    assert (story.phase, story.queue) == ("model", [])


def test_a_steering_message_overtakes_queued_ones_and_leaves_them_in_the_queue() -> None:
    story = model_next()
    story.sends("q1")
    story.sends("s1", "steer")
    story.sends("s2", "steer")
    story.says("r1")
    assert (story.ids, story.queue) == (["m1", "r1", "s1", "s2"], ["q1"])


def test_a_steering_message_that_comes_when_all_is_said_starts_the_next_turn() -> None:
    story = said()
    story.sends("s1", "steer")
    story.finishes()
    assert (story.ids, story.chat.turn) == (["m1", "said", "s1"], 2)


# --- stopping ---------------------------------------------------------------------------------------


def test_a_message_to_a_stopping_chat_is_queued_and_taken_when_the_stop_is_done() -> None:
    story = stopped(model_next)
    story.sends("m2")
    assert (story.state, story.chat.cause, story.queue) == ("stopping", Cause.USER, ["m2"])
    story.finishes_stop()
    assert (story.state, story.ids) == ("running", ["m1", "m2"])


def test_an_interrupting_message_to_a_stopping_chat_goes_first() -> None:
    story = stopped(model_next)
    story.sends("m2")
    story.sends("i1", "interrupt")
    assert (story.state, story.queue) == ("stopping", ["i1", "m2"])


def test_a_steering_message_to_a_stopping_chat_is_queued_like_any_other() -> None:
    story = stopped(model_next)
    story.sends("m2")
    story.sends("s1", "steer")
    assert (story.state, story.queue) == ("stopping", ["m2", "s1"])


# --- waiting ----------------------------------------------------------------------------------------


def test_a_message_to_a_waiting_chat_is_queued_until_the_turn_is_over() -> None:
    story = waiting()
    story.sends("m2")
    assert (story.state, story.queue) == ("waiting", ["m2"])


@pytest.mark.parametrize("mode", ["queue", "steer"])
def test_a_message_answers_an_open_question_and_the_chat_runs_again(mode: SendMode) -> None:
    story = waiting_for_one("question")
    story.sends("m2", mode, text="Bern")
    assert (story.state, story.phase, story.queue) == ("running", "model", [])
    assert story.result("a").content == "Bern"
    assert story.result("a").synthetic is None
    assert story.ids == ["m1", "calls-a", "a.result"]


def test_a_message_answers_the_question_and_the_chat_waits_on_for_the_approval() -> None:
    story = waiting(external="question")
    story.sends("m2", text="Bern")
    assert (story.state, story.call("b").state, story.call("a").state) == ("waiting", "done", "asking")


def test_a_message_that_comes_after_the_time_to_answer_a_question_is_a_message() -> None:
    """Nobody has yet said that the time is over; silence was the answer all the same."""
    story = waiting_for_one("question", expires_in_ms=1_000).later(1_000)
    story.sends("m2", text="Bern")
    assert (story.state, story.queue, story.call("a").state) == ("waiting", ["m2"], "external")
    story.claimed("w2")
    assert story.is_synthetic("a", Synthetic.EXPIRED)
    assert (story.state, story.queue) == ("running", ["m2"])


def test_a_file_that_answers_a_question_is_named_in_the_answer() -> None:
    story = waiting_for_one("question")
    parts = (Text(text="Here."), File(media_type="image/png", uri="blob:1"))
    story.does(cmd.Send(message=Message(id="m2", role=Role.USER, parts=parts)))
    assert story.result("a").content == "Here.\n[image/png: blob:1]"


def test_an_interrupting_message_answers_open_calls_synthetically_and_starts_its_turn() -> None:
    story = waiting(queued=True)
    story.sends("i1", "interrupt")
    assert (story.state, story.phase, story.queue) == ("running", "model", ["q1"])
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result", "i1"]
    assert story.is_synthetic("a", Synthetic.CANCELLED)
    assert story.result("a").content.startswith("Never ran")
    assert story.result("b").content.startswith("Not answered")
    (ended,) = story.tells(TurnEnded)
    assert isinstance(ended, TurnEnded)
    assert (ended.turn, ended.cause) == (1, Cause.SUPERSEDED)


def test_a_steering_message_to_a_waiting_chat_joins_when_the_calls_are_answered() -> None:
    story = waiting_for_one("client")
    story.sends("s1", "steer")
    assert story.queue == ["s1"]
    story.does(cmd.Submit(call_id="a", content="ok"))
    assert (story.ids, story.queue) == (["m1", "calls-a", "a.result", "s1"], [])


# --- failed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_message_to_a_failed_chat_clears_the_error_and_starts_a_turn(mode: SendMode) -> None:
    story = failed()
    story.sends("m2", mode)
    assert (story.state, story.chat.error, story.chat.cause, story.ids) == ("running", None, None, ["m1", "m2"])


@pytest.mark.parametrize("mode", MODES)
def test_a_message_to_a_failed_chat_with_a_queue_waits_behind_it(mode: SendMode) -> None:
    story = failed(queued=True)
    story.sends("m2", mode)
    assert (story.state, story.ids, story.queue) == ("running", ["m1", "q1"], ["q2", "m2"])


# --- what nobody may send ---------------------------------------------------------------------------


@pytest.mark.parametrize("telling", [answered, model_next, lambda: stopped(model_next), waiting, failed])
@pytest.mark.parametrize("mode", MODES)
def test_only_messages_that_a_user_could_send_are_taken(telling: type[Story], mode: SendMode) -> None:
    story = telling()
    for parts in ((), (Text(text=""),), (ToolCall(call_id="x", name="t"),)):
        story.refuses(
            cmd.Send(message=Message(id="m", role=Role.USER, parts=parts), mode=mode), reason="wrong_message"
        )
    story.refuses(cmd.Send(message=assistant("m"), mode=mode), reason="wrong_message")


def test_a_message_that_is_queued_already_is_not_queued_twice() -> None:
    story = model_next()
    story.sends("m2")
    story.refuses(cmd.Send(message=user("m2")), reason="wrong_message")


def test_a_full_queue_takes_no_more_and_says_what_to_do() -> None:
    story = Story(limits=Limits(queue_messages_max=2))
    story.sends("m2")
    story.sends("m3")
    refused = story.refuses(cmd.Send(message=user("m4")), reason="limit")
    assert "2 queued messages, which is the limit" in refused.message
    assert "clear_queue" in refused.message


def test_a_queue_is_bounded_in_bytes_too() -> None:
    story = Story(limits=Limits(queue_bytes_max=1_000))
    story.sends("m2", text="x" * 400)
    refused = story.refuses(cmd.Send(message=user("m3", "x" * 600)), reason="limit")
    assert "the limit is 1,000" in refused.message
    story.sends("m4", text="x" * 100)


def test_a_queued_message_is_kept_byte_for_byte_and_never_decoded_on_its_way() -> None:
    """Newer code may have queued it: what it holds is none of our business."""
    story = model_next().says()
    story.sends("m2")
    body = b'{"id":"m2","role":"user","parts":[{"kind":"hologram","of":"kelp"}]}'
    queued = replace(story.snapshot.queue[0], body=Raw(body))
    change = apply(replace(story.snapshot, queue=(queued,)), cmd.FinishTurn(by=story.by), story.now)
    assert isinstance(change, Change)
    entry = change.lines[-1].entry
    assert isinstance(entry, MessageAdded)
    assert bytes(entry.raw) == body


def test_the_journal_tells_of_a_queued_message_and_again_when_it_enters() -> None:
    story = said()
    story.sends("m2")
    story.finishes()
    assert [type(entry) for entry in story.journal[-4:]] == [MessageQueued, TurnEnded, TurnStarted, MessageAdded]
