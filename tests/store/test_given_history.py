"""A chat that begins with a conversation held elsewhere; a message that is only meant for a chat as it was read."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.history import problems
from holdfast.core.journal import AgentNamed, MessageAdded
from holdfast.core.limits import Limits
from holdfast.core.records import Message, NewChat, Role, State, Synthetic, Text, ToolResult, result_message
from holdfast.errors import InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter
from holdfast.store.update_reader import event_of
from tests.support.chats import Hand, assistant, call, history, new_chat, texts, user


def result(call_id: str, content: str = "done") -> Message:
    return result_message(ToolResult(call_id=call_id, name="tool", content=content), 0)


PAST = (
    user("What is kelp?"),
    assistant("A thing. ", call("a"), call("b")),
    result("a"),
    result("b"),
    assistant("So."),
)


async def test_a_chat_begins_with_what_was_said_elsewhere_and_goes_on(store: Store) -> None:
    await store.create_chat(NewChat(id="chat", agent="agent", past=PAST, message=user("And a holdfast?")))
    told = await history(store, "chat")
    assert texts(told) == ["What is kelp?", "A thing. ", "done", "done", "So.", "And a holdfast?"]
    assert problems(told) == []
    hand = Hand(store)
    snapshot = await hand.take("chat")
    assert (snapshot.chat.state, snapshot.chat.turn, snapshot.chat.turn_from) == ("running", 1, 5)
    await hand.end_turn("It holds.")
    assert texts(await history(store, "chat"))[-2:] == ["And a holdfast?", "It holds."]


async def test_a_chat_goes_on_after_results_that_were_brought_along(store: Store) -> None:
    since = (assistant(call("a"), call("b")), result("a", "1"), result("b", "2"))
    await store.create_chat(NewChat(id="chat", agent="agent", message=user("Add."), since=since))
    hand = Hand(store)
    snapshot = await hand.take("chat")
    assert (snapshot.chat.phase, snapshot.chat.turn_from, snapshot.open_calls) == ("model", 0, ())
    await hand.end_turn("3")
    assert [message.role for message in await history(store, "chat")] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


async def test_a_chat_with_a_past_and_no_message_rests(store: Store) -> None:
    answer = await store.create_chat(NewChat(id="chat", agent="agent", past=PAST))
    assert answer.state is State.IDLE
    await store.submit("chat", cmd.Send(message=user("Go on.")))
    assert texts(await history(store, "chat"))[-1] == "Go on."


@pytest.mark.parametrize(
    ("past", "since"),
    [
        ((assistant(call("a")),), ()),  # a call without its result
        ((result("a"),), ()),  # a result without its call
        ((assistant(call("a"), call("b")), result("b"), result("a")), ()),  # in another order
        ((assistant(call("a")), result("a"), assistant(call("a")), result("a")), ()),  # an id twice
        ((assistant(call("a", arguments="[1]")), result("a")), ()),
        ((Message(id="s", role=Role.SYSTEM, parts=(Text(text="Obey."),)),), ()),
        ((replace(user("x"), synthetic=Synthetic.REPAIRED),), ()),
        ((), (assistant("I have said all."),)),  # nothing is left to do for the model
    ],
)
async def test_a_past_that_no_provider_takes_makes_no_chat(
    store: Store, past: tuple[Message, ...], since: tuple[Message, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"^(past|since): "):
        await store.create_chat(NewChat(id="chat", agent="agent", past=past, message=user(), since=since))
    with pytest.raises(NotFound):
        await store.read_chat("chat")


async def test_a_past_has_a_limit(store: Store) -> None:
    past = tuple(user("again") for _ in range(store.options.limits.given_messages_max + 1))
    with pytest.raises(LimitReached, match="given messages"):
        await store.create_chat(NewChat(id="chat", agent="agent", past=past))


async def test_of_two_that_answer_the_same_history_one_is_refused(store: Store) -> None:
    await store.create_chat(new_chat(id="chat"))
    hand = Hand(store)
    await hand.take("chat")
    await hand.end_turn()
    sends = [cmd.Send(message=user(text), length=2) for text in ("one", "two")]
    outcomes = await asyncio.gather(*(store.submit("chat", send) for send in sends), return_exceptions=True)
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert refused.reason == "moved_on"
    snapshot = await store.read_chat("chat")
    assert (len(await history(store, "chat")), snapshot.queue) == (3, ())


async def test_a_stop_that_means_another_turn_stops_nothing(store: Store) -> None:
    await store.create_chat(new_chat(id="chat"))
    with pytest.raises(RefusedError, match="in turn 1, not in turn 2") as caught:
        await store.submit("chat", cmd.Stop(turn=2))
    assert caught.value.reason == "moved_on"
    assert (await store.read_chat("chat")).chat.state is State.RUNNING
    assert (await store.submit("chat", cmd.Stop(turn=1))).state is State.STOPPING


async def test_a_message_for_a_history_of_another_length_is_refused(store: Store) -> None:
    await store.create_chat(new_chat(None, id="chat"))
    with pytest.raises(RefusedError, match="not at rest with 4"):
        await store.submit("chat", cmd.Send(message=user(), length=4))
    assert (await store.submit("chat", cmd.Send(message=user(), length=0))).state is State.RUNNING


# --- given to a chat that has not begun ---------------------------------------------------------------


async def test_before_its_first_turn_a_chat_is_given_messages_and_another_agent(store: Store) -> None:
    await store.create_chat(NewChat(id="chat", agent="agent", past=PAST, title="Kelp"))
    before = await store.read_chat("chat")
    at = (await store.read_journal("chat")).cursor
    await store.submit("chat", cmd.Give(messages=(user("More."), assistant("Yes.")), agent="another", length=5))
    told = [event_of(item).body for item in (await store.read_journal("chat", at)).items]
    assert [type(entry) for entry in told] == [AgentNamed, MessageAdded, MessageAdded], (
        "a reader goes on where it was"
    )
    chat = (await store.read_chat("chat")).chat
    assert (chat.agent, chat.title, chat.length, chat.state, chat.turn) == ("another", "Kelp", 7, State.IDLE, 0)
    assert (chat.life, chat.created_at) == (before.chat.life, before.chat.created_at)
    assert [line.id for line in await store.list_chats(ChatFilter(agent="another"))] == ["chat"]
    assert await store.list_chats(ChatFilter(agent="agent")) == []
    await store.submit("chat", cmd.Send(message=user("Go on.")))
    hand = Hand(store)
    assert await hand.claim("agent") == []
    (hand.snapshot,) = await hand.claim("another")
    await hand.end_turn("So it is.")
    assert texts(await history(store, "chat"))[-4:] == ["More.", "Yes.", "Go on.", "So it is."]
    with pytest.raises(RefusedError, match="has begun") as caught:
        await store.submit("chat", cmd.Give(agent="agent"))
    assert caught.value.reason == "begun"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (cmd.Give(messages=(assistant(call("a")),)), "wrong_message"),
        (cmd.Give(messages=(result("a"),)), "wrong_message"),
        (cmd.Give(messages=(replace(user("x"), synthetic=Synthetic.REPAIRED),)), "wrong_message"),
        (cmd.Give(messages=(Message(id="s", role=Role.SYSTEM, parts=(Text(text="Obey."),)),)), "wrong_message"),
        (cmd.Give(messages=(user("x"),), length=4), "moved_on"),
        (cmd.Give(messages=tuple(user("again") for _ in range(Limits().given_messages_max - 4))), "limit"),
    ],
)
async def test_what_cannot_be_given_leaves_the_chat_as_it_was(store: Store, given: cmd.Give, reason: str) -> None:
    await store.create_chat(NewChat(id="chat", agent="agent", past=PAST))
    before = await store.read_chat("chat")
    with pytest.raises(RefusedError) as caught:
        await store.submit("chat", replace(given, agent="another"))
    assert caught.value.reason == reason
    assert await store.read_chat("chat") == before
    with pytest.raises(InvalidInput, match="agent: is empty"):
        await store.submit("chat", cmd.Give(agent=""))


async def test_of_two_that_give_to_the_same_history_one_is_refused(store: Store) -> None:
    await store.create_chat(NewChat(id="chat", agent="agent", past=PAST))
    gifts = [cmd.Give(messages=(user(text),), length=5) for text in ("one", "two")]
    outcomes = await asyncio.gather(*(store.submit("chat", gift) for gift in gifts), return_exceptions=True)
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert (refused.reason, (await store.read_chat("chat")).chat.length) == ("moved_on", 6)
