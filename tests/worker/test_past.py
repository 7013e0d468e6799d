"""A chat's history as a runner reads it: that of its snapshot, or it says that the chat has moved on."""

import pytest

from holdfast.core import events as ev
from holdfast.core.records import Replay, Role, Snapshot
from holdfast.store.base import Store
from holdfast.worker.past import Moved, Past
from tests.support.chats import Hand, call, new_chat, texts, user


async def talk(store: Store) -> Hand:
    """Two turns are over; the third one has begun."""
    hand = Hand(store)
    await store.create_chat(new_chat("one", id="talk"))
    for question in ("two", "three"):
        await hand.take("talk")
        await hand.end_turn(f"before {question}")
        await store.submit("talk", ev.Send(message=user(question)))
    await hand.take("talk")
    return hand


async def edit(store: Store, pos: int) -> Snapshot:
    await store.submit("talk", ev.Edit(pos=pos, role=Role.USER, epoch=0, message=user("anew")))
    return await store.read_chat("talk")


async def test_a_history_that_an_edit_has_cut_since_the_snapshot_is_not_taken_for_that_of_the_snapshot(
    store: Store,
) -> None:
    hand = await talk(store)
    past = Past(store, "talk", limit=100)
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
    past = Past(store, "talk", limit=100)
    assert texts(await past.messages(hand.held))[:5] == ["one", "before two", "two", "before three", "three"]
