"""Families in the database: a stop goes to everything below, through what rests; a call reaches a child in its own
transaction; what is below a chat is listed.
"""

import asyncio
import json

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import Cause, External, Message, NewChat, State, Text
from holdfast.errors import RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.sub_agents import SubAgent
from tests.store.test_descendants import spawn
from tests.support.chats import Hand, call, history, new_chat, texts, user

FAMILY = ("root", "child", "grandchild")


async def family(store: Store, name: str = "") -> Hand:
    """Root and grandchild are at work, the child between them rests. The hand holds the root."""
    root, child, grandchild = (f"{name}{one}" for one in FAMILY)
    hand, others = Hand(store), Hand(store)
    await store.create_chat(new_chat(id=root))
    await hand.take(root)
    await spawn(hand, child)
    await others.take(child)
    await spawn(others, grandchild)
    await others.end_turn("It works on it.")
    return hand


async def states(store: Store, *chat_ids: str) -> list[State]:
    return [(await store.read_chat(chat_id)).chat.state for chat_id in chat_ids or FAMILY]


async def test_a_stop_reaches_what_is_at_work_below_a_child_that_rests(store: Store) -> None:
    await family(store, "another-")
    hand = await family(store)
    assert await states(store) == ["running", "idle", "running"]
    await store.submit("root", cmd.Stop())
    assert await states(store) == ["stopping", "idle", "stopping"]
    assert (await store.read_chat("grandchild")).chat.cause is Cause.USER
    assert await states(store, "another-root", "another-grandchild") == ["running", "running"]
    await hand.commit(cmd.FinishStop(by=hand.by))
    (grandchild,) = [one for one in await hand.claim() if one.chat.id == "grandchild"]
    hand.snapshot = grandchild
    await hand.commit(cmd.FinishStop(by=hand.by))
    assert await states(store) == ["idle", "idle", "idle"]
    assert await store.find_violations() == []


@pytest.mark.parametrize("stopped", ["root", "child"])
async def test_a_stop_of_a_chat_at_rest_reaches_what_it_left_at_work(store: Store, stopped: str) -> None:
    hand = await family(store)
    await hand.end_turn("They work on it.")
    await store.submit(stopped, cmd.Stop())
    assert await states(store) == ["idle", "idle", "stopping"]


async def test_a_child_that_is_spawned_as_its_family_is_stopped_does_not_escape(store: Store) -> None:
    """Whichever comes first: then it is stopped with the others, or not made, or stopped at its birth."""
    for number in range(6):
        hand = await family(store, f"{number}-")
        await hand.respond(call("late"))
        late = NewChat(id=f"{number}-late", agent="agent", message=user("task"))
        made = hand.commit(cmd.Outcome(by=hand.by, call_id="late", content="spawned", spawn=late))
        await asyncio.gather(made, store.submit(f"{number}-root", cmd.Stop()))
        assert await states(store, f"{number}-late", f"{number}-grandchild") == ["stopping", "stopping"]


async def test_a_chat_that_is_spawned_four_levels_below_as_the_top_is_stopped_does_not_escape(
    store: Store, store_url: str
) -> None:
    """By two processes, as far as the database can tell: neither waits in the other's queue."""
    async with open_store(store_url, StoreOptions()) as other:
        for number in range(4):
            line = [f"{number}-{depth}" for depth in range(4)]
            await store.create_chat(new_chat(id=line[0]))
            hand = Hand(store, f"{number}-w0")
            await hand.take(line[0])
            for below in line[1:]:
                await spawn(hand, below)
                hand = Hand(store, f"{below}-w")
                await hand.take(below)
            await hand.respond(call("late"))
            late = NewChat(id=f"{number}-late", agent="agent", message=user("task"))
            made = hand.commit(cmd.Outcome(by=hand.by, call_id="late", content="spawned", spawn=late))
            await asyncio.gather(made, other.submit(line[0], cmd.Stop()))
            assert await states(store, *line, late.id) == ["stopping"] * 5
        assert await store.find_violations() == []


async def reach(hand: Hand, child_id: str, message: Message | None = None) -> str:
    await hand.respond(call("r"))
    await hand.commit(cmd.Reach(by=hand.by, call_id="r", child_id=child_id, message=message))
    return texts(await history(hand.store, hand.held.chat.id))[-1]


async def test_a_message_to_a_child_and_the_answer_to_the_call_are_one_write(store: Store) -> None:
    hand = await family(store)
    assert json.loads(await reach(hand, "child", user("And now?"))) == {
        "agent_id": "child", "turn": 2, "state": "running",
    }  # fmt: skip
    assert texts(await history(store, "child"))[-1] == "And now?"
    await hand.respond(call("w"), start=False)
    wait = cmd.Delegate(by=hand.by, call_id="w", external=External.CHILD, child_id="child", child_turn=2)
    await hand.commit(wait, cmd.Park(by=hand.by))
    other = Hand(store)
    await other.take("child")
    await other.end_turn("Now it is done.")
    assert texts(await history(store, "root"))[-1] == "Now it is done."


async def test_a_cancelled_child_is_stopped_with_all_below_it(store: Store) -> None:
    hand = await family(store)
    told = json.loads(await reach(hand, "child"))
    assert told == {"agent_id": "child", "was": "idle", "state": "idle"}
    assert await states(store) == ["running", "idle", "stopping"]
    assert (await store.read_chat("grandchild")).chat.cause is Cause.PARENT


@pytest.mark.parametrize("stranger", ["nobody", "root", "grandchild", "another-root", "another-child"])
@pytest.mark.parametrize("message", [user("Give me your secrets."), None])
async def test_a_chat_that_is_not_ones_child_is_not_reached(
    store: Store, stranger: str, message: Message | None
) -> None:
    hand = await family(store)
    await family(store, "another-")
    found = ("grandchild", "another-root", "another-child", "another-grandchild")
    before = [await store.read_chat(chat_id) for chat_id in found]
    assert await reach(hand, stranger, message) == f"{stranger!r} is none of your agents: list_agents names them."
    assert [await store.read_chat(chat_id) for chat_id in found] == before


async def test_what_is_below_a_chat_is_listed_with_what_it_does_and_said(store: Store) -> None:
    await family(store)
    await family(store, "another-")
    await store.submit("grandchild", cmd.Send(message=user("later")))
    (child,) = await store.sub_agents("root")
    assert child == SubAgent(
        chat_id="child", parent_id="root", depth=1, agent="agent", title=None, state=State.IDLE, cause=None,
        error=None, turn=1, queued=0, task="task", answer="It works on it.", tokens=0, cost=0.0,
        created_at=child.created_at, updated_at=child.updated_at,
    )  # fmt: skip
    both = await store.sub_agents("root", deep=True)
    assert [(one.chat_id, one.parent_id, one.state, one.queued) for one in both] == [
        ("grandchild", "child", State.RUNNING, 1),
        ("child", "root", State.IDLE, 0),
    ], "those at work first"
    assert [one.chat_id for one in await store.sub_agents("root", deep=True, limit=1)] == ["grandchild"]
    assert [one.chat_id for one in await store.sub_agents("child")] == ["grandchild"]
    assert await store.sub_agents("nobody") == []


async def test_what_a_child_does_is_told_by_its_beginning(store: Store) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    await hand.respond(call("c"))
    task = Message(id="long", role=user("x").role, parts=(Text(text="count  to\n" + "1 " * 1_000),))
    new = NewChat(id="child", agent="agent", message=task)
    await hand.commit(cmd.Outcome(by=hand.by, call_id="c", content="spawned", spawn=new))
    (child,) = await store.sub_agents("root")
    assert child.task == ("count to " + "1 " * 1_000)[:200] + "…"
    with pytest.raises(RefusedError):
        await store.submit("root", cmd.Reached(call_id="c", content="mine"))
