"""A chat's history as a runner reads it: that of its snapshot, or it says that the chat has moved on."""

from collections.abc import Sequence

import pytest

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.records import Message, Replay, Role, Snapshot, ToolResult
from holdfast.store.contract import Store
from holdfast.worker.history_cache import HistoryCache, HistoryRoom, Moved
from tests.support.behind import sql
from tests.support.chats import Hand, call, new_chat, texts, user


async def talk(store: Store) -> Hand:
    """Two turns are over; the third one has begun."""
    hand = Hand(store)
    await store.create_chat(new_chat("one", id="talk"))
    for question in ("two", "three"):
        await hand.take("talk")
        await hand.end_turn(f"before {question}")
        await store.submit("talk", cmd.Send(message=user(question)))
    await hand.take("talk")
    return hand


async def edit(store: Store, pos: int) -> Snapshot:
    await store.submit("talk", cmd.Edit(pos=pos, role=Role.USER, epoch=0, message=user("anew")))
    return await store.read_chat("talk")


async def test_a_history_that_an_edit_has_cut_since_the_snapshot_is_not_taken_for_that_of_the_snapshot(
    store: Store,
) -> None:
    hand = await talk(store)
    past = HistoryCache(store, "talk", limit=100)
    after = await edit(store, pos=2)
    with pytest.raises(Moved):
        await past.window(hand.held, fixed=0)
    with pytest.raises(Moved):
        await past.messages(hand.held)
    assert texts(await past.messages(after)) == ["one", "before two"], "the rest comes when the old turn has ended"


async def test_the_result_of_an_open_call_is_missing_and_nobody_moved(store: Store) -> None:
    hand = await talk(store)
    await hand.respond(call("slow"), call("quick"), replay=Replay.PURE)
    await hand.finish("quick", "first")
    past = HistoryCache(store, "talk", limit=100)
    assert texts(await past.messages(hand.held))[:5] == ["one", "before two", "two", "before three", "three"]


async def test_what_a_request_shows_stays_as_it_is_while_the_chat_goes_on(store: Store) -> None:
    """It is not copied: a request shows the lists that its runner goes on with."""
    hand = await talk(store)
    room = HistoryRoom(1 << 20)
    past = room.take(store, "talk", 2)
    first = await past.messages(hand.held)
    said = ["one", "before two", "two", "before three", "three"]
    assert texts(first) == said
    await hand.end_turn("more")
    await store.submit("talk", cmd.Send(message=user("four")))
    await hand.take("talk")
    assert texts(await past.messages(hand.held)) == [*said, "more", "four"]
    past.begin_at(4, "in short")
    assert texts(await past.messages(hand.held))[1:] == ["three", "more", "four"]
    room.leave(past)
    past.give_up_older()
    assert texts(first) == said


async def test_results_that_are_shortened_later_stay_as_they_were_counted(store: Store) -> None:
    hand = await talk(store)
    past = HistoryCache(store, "talk", limit=100)
    past.fit_results(100)
    await hand.respond(call("first"), call("second"), replay=Replay.PURE)
    await hand.finish("first", "long " * 200)
    before = await past.window(hand.held, 0)
    sizes = list(before.sizes)
    await hand.finish("second", "long " * 200)
    assert len(contents((await past.window(hand.held, 0)).messages)[0]) < 600
    assert (contents(before.messages), list(before.sizes)) == (["long " * 200], sizes)


def contents(messages: Sequence[Message]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]


# --- what is kept in memory -----------------------------------------------------------------------------------------


def reword(store_url: str) -> None:
    """The first message, behind everybody's back: who reads it again sees that."""
    sql(store_url, "UPDATE journal SET body = replace(body, 'one', 'reworded') WHERE chat_id = 'talk' AND pos = 0")


@pytest.mark.parametrize(("bytes_max", "first"), [(1 << 20, "one"), (0, "reworded"), (2_000, "reworded")])
async def test_messages_past_the_limit_are_kept_while_they_fit_into_the_room(
    store: Store, store_url: str, bytes_max: int, first: str
) -> None:
    hand = await talk(store)
    room = HistoryRoom(bytes_max)
    past = room.take(store, "talk", 2)
    assert texts(await past.messages(hand.held)) == ["one", "before two", "two", "before three", "three"]
    assert past.size == 2
    assert (room.bytes > 0) == (first == "one")
    reword(store_url)
    assert texts(await past.messages(hand.held))[0] == first
    assert (await past.window(hand.held, 0)).messages[0].text == first


async def test_a_full_room_is_made_free_by_the_chat_that_asked_longest_ago(store: Store, store_url: str) -> None:
    hand = await talk(store)
    await store.fork_chat("talk", "other")
    await store.submit("other", cmd.Send(message=user("go on")))
    room = HistoryRoom(3 * 1_100)
    past = room.take(store, "talk", 2)
    await past.messages(hand.held)
    held = room.bytes
    assert 0 < held <= room.bytes_max
    other = room.take(store, "other", 3)
    await other.messages(await store.read_chat("other"))
    assert room.bytes <= room.bytes_max
    reword(store_url)
    assert texts(await past.messages(hand.held))[0] == "reworded", "it gave up its own"


async def after_a_turn(store: Store, hand: Hand) -> HistoryRoom:
    """A runner has ended the turn of `talk`, and its worker keeps what it knew."""
    room = HistoryRoom(1 << 20)
    past = room.take(store, "talk", 2)
    await past.messages(hand.held)
    await hand.end_turn("kept")
    await past.messages(hand.held)
    room.put_away(past)
    assert room.bytes > 0
    return room


async def resumed(store: Store, room: HistoryRoom) -> list[str]:
    snapshot = await store.read_chat("talk")
    return texts(await room.take(store, "talk", 2).messages(snapshot))


async def test_a_chat_that_comes_back_is_not_read_again(store: Store, store_url: str) -> None:
    room = await after_a_turn(store, await talk(store))
    await store.submit("talk", cmd.Send(message=user("four")))
    reword(store_url)
    assert await resumed(store, room) == ["one", "before two", "two", "before three", "three", "kept", "four"]


async def test_a_chat_that_another_worker_went_on_with_is_read_from_there(store: Store) -> None:
    room = await after_a_turn(store, await talk(store))
    other = Hand(store)
    await store.submit("talk", cmd.Send(message=user("four")))
    await other.take("talk")
    await other.end_turn("elsewhere")
    assert (await resumed(store, room))[-3:] == ["kept", "four", "elsewhere"]


async def test_a_chat_that_was_edited_meanwhile_is_read_anew(store: Store) -> None:
    room = await after_a_turn(store, await talk(store))
    await edit(store, pos=2)
    assert await resumed(store, room) == ["one", "before two", "anew"]


async def test_a_chat_that_was_made_anew_under_its_id_is_another_one(store: Store) -> None:
    room = await after_a_turn(store, await talk(store))
    await store.delete_chat("talk")
    await store.create_chat(new_chat("not that one", id="talk"))
    other = Hand(store)
    for n in range(4):
        await other.take("talk")
        await other.end_turn(f"new {n}")
        await store.submit("talk", cmd.Send(message=user(f"more {n}")))
    said = await resumed(store, room)
    assert (said[0], "kept" in said) == ("not that one", False)


async def test_what_a_runner_commits_first_does_not_vouch_for_what_another_chat_said_before_it(store: Store) -> None:
    room = await after_a_turn(store, await talk(store))
    await store.delete_chat("talk")
    await store.create_chat(new_chat("not that one", id="talk"))
    other = Hand(store)
    for n in range(2):
        await other.take("talk")
        await other.end_turn(f"new {n}")
        await store.submit("talk", cmd.Send(message=user(f"more {n}")))
    await other.take("talk")
    await other.respond("looking", call("k1"))
    past = room.take(store, "talk", 2)
    await other.finish("k1", "found")
    result = (await store.read_history("talk"))[-1]
    past.learn(other.held, {result.pos: decode_entry(result.body).message})  # type: ignore[union-attr]
    said = texts(await past.messages(other.held))
    assert (said[0], "kept" in said) == ("not that one", False)


async def test_a_result_that_another_worker_gave_to_the_same_call_is_the_one_that_is_shown(
    store: Store, store_url: str
) -> None:
    """A result has the id of its call, whoever gave it: a database that went back may have another one."""
    hand = await talk(store)
    await hand.respond("looking", call("k1"), call("k2"))
    await hand.finish("k1", "lost with the server")
    room = HistoryRoom(1 << 20)
    past = room.take(store, "talk", 100)
    await past.messages(hand.held)
    room.put_away(past)
    sql(store_url, "UPDATE journal SET body = replace(body, 'lost with the server', 'what is there now')")
    again = room.take(store, "talk", 100)
    assert again is past
    assert contents(await again.messages(hand.held))[0] == "what is there now"


async def test_a_chat_that_was_compacted_meanwhile_begins_with_the_summary(store: Store) -> None:
    room = await after_a_turn(store, await talk(store))
    other = Hand(store)
    await store.submit("talk", cmd.Compact())
    await other.take("talk")
    await other.commit(cmd.FinishCompaction(by=other.by, upto=4, summary="in short"), cmd.FinishTurn(by=other.by))
    said = await resumed(store, room)
    assert "in short" in said[0]
    assert said[1:] == ["three", "kept"]
