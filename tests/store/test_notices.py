"""Notices: in the transaction of what happened or not at all, one for each endpoint that hears of it, and thin."""

import asyncio

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.notices import Notice
from holdfast.core.records import Cause, External, Failure, State
from holdfast.store.contract import Store
from tests.support.chats import Hand, call, new_chat, unique
from tests.support.kept import asking
from tests.support.notices import hook, kinds_told, tell, told


async def begun(store: Store, owner: str = "ada", hand: Hand | None = None) -> Hand:
    """A chat that a worker has just taken."""
    hand = hand or Hand(store)
    chat_id = unique("chat")
    await store.create_chat(new_chat(id=chat_id, owner=owner))
    await hand.take(chat_id)
    return hand


async def test_a_turn_that_ends_is_told_to_each_endpoint_that_hears_of_its_owner(
    store: Store, store_url: str
) -> None:
    hook(store_url, "all")
    hook(store_url, "hers", owner="ada")
    hook(store_url, "his", owner="bob")
    hook(store_url, "nobodys", owner="")
    hook(store_url, "off", state="disabled")
    hand = await begun(store)
    await hand.end_turn("a secret plan")
    ((notice_id, kind, data),) = told(store_url, "hers")
    chat = hand.held.chat
    assert kind == "turn.ended"
    assert data == {
        "chat_id": chat.id,
        "agent": "agent",
        "owner": "ada",
        "seq": chat.seq,
        "turn": 1,
        "state": "idle",
    }
    assert told(store_url, "all") == [(notice_id, kind, data)], "one event has one id, whoever is told"
    assert [told(store_url, other) for other in ("his", "nobodys", "off")] == [[], [], []]


async def test_without_an_endpoint_nothing_is_written_and_an_endpoint_made_later_hears_of_what_follows(
    store: Store, store_url: str
) -> None:
    await (await begun(store)).end_turn()
    hook(store_url, "late")
    await (await begun(store)).end_turn()
    assert kinds_told(store_url, "late") == ["turn.ended"]


async def test_a_step_tells_nothing(store: Store, store_url: str) -> None:
    hook(store_url, "all")
    hand = await begun(store)
    await hand.respond("I look", call("k1"))
    await hand.finish("k1")
    assert told(store_url, "all") == []


async def test_an_endpoint_that_chose_kinds_hears_of_no_other(store: Store, store_url: str) -> None:
    hook(store_url, "failures", kinds=("turn.failed", "budget.reached"))
    hook(store_url, "ends", kinds=("turn.ended",))
    await (await begun(store)).end_turn()
    failing = await begun(store)
    error = Failure(code="provider", message="the prompt was: my diary")
    await failing.commit(cmd.Fail(by=failing.by, error=error))
    cut = await begun(store)
    await cut.commit(cut.response("so far"), cmd.FinishTurn(by=cut.by, cause=Cause.BUDGET, detail="200 steps"))
    assert kinds_told(store_url, "failures") == ["turn.failed", "budget.reached"]
    assert kinds_told(store_url, "ends") == ["turn.ended", "turn.ended"]
    (_, _, failed), (_, _, budget) = told(store_url, "failures")
    assert (failed["error"], failed["state"]) == ("provider", "failed")
    assert "diary" not in str(failed)
    assert budget["chat_id"] == cut.held.chat.id
    assert told(store_url, "ends")[1][2]["cause"] == "budget"


async def test_a_chat_that_waits_for_a_person_names_the_calls_and_not_their_arguments(
    store: Store, store_url: str
) -> None:
    hook(store_url, "all")
    chat_id, call_id = await asking(store)
    asked = (await store.read_chat(chat_id)).call(call_id)
    assert asked is not None
    ((_, kind, data),) = told(store_url, "all")
    assert (kind, data["chat_id"]) == ("turn.waiting", chat_id)
    assert data["calls"] == [{"call_id": call_id, "tool": "pay", "kind": "approval", "digest": asked.digest}]
    await store.submit(chat_id, cmd.Stop())
    assert kinds_told(store_url, "all") == ["turn.waiting", "turn.ended"]
    assert told(store_url, "all")[1][2]["cause"] == "user"


async def test_a_chat_that_waits_for_the_clock_tells_nobody(store: Store, store_url: str) -> None:
    hook(store_url, "all")
    hand = await begun(store)
    await hand.respond(call("k1"), start=False)
    timer = cmd.Delegate(by=hand.by, call_id="k1", external=External.TIMER, expires_at=1 << 50)
    await hand.commit(timer, cmd.Park(by=hand.by))
    assert told(store_url, "all") == []


async def test_the_end_of_a_sub_agent_is_its_parents_business(store: Store, store_url: str) -> None:
    hook(store_url, "all")
    hand = await begun(store)
    await hand.respond(call("k1"), start=False)
    child = replace(
        new_chat(id=unique("child"), agent="other", owner="ada"),
        parent_id=hand.held.chat.id,
        parent_call="k1",
        root_id=hand.held.chat.id,
        depth=1,
    )
    spawn = cmd.Delegate(by=hand.by, call_id="k1", external=External.CHILD, spawn=child)
    await hand.commit(spawn, cmd.Park(by=hand.by))
    below = Hand(store)
    below.snapshot = (await below.claim("other"))[0]
    await below.end_turn("here you are")
    assert told(store_url, "all") == []
    await hand.take(hand.held.chat.id)
    await hand.end_turn()
    assert kinds_told(store_url, "all") == ["turn.ended"]


@pytest.mark.parametrize("point", ["write.queue.after", "commit.before"])
async def test_what_was_not_committed_is_not_told_and_what_is_repeated_is_told_once(
    store: Store, store_url: str, point: str
) -> None:
    hook(store_url, "all")
    hand = await begun(store)
    last = (hand.response("done"), cmd.FinishTurn(by=hand.by))

    def fail() -> None:
        raise RuntimeError("the power went")

    faults.arm(point, fail)
    before = hand.held
    with pytest.raises(RuntimeError, match="the power went"):
        await store.commit(before, last, "the-commit")
    assert told(store_url, "all") == []
    for _ in range(2):
        after = await store.commit(before, last, "the-commit")
        assert after.chat.state is State.IDLE
    assert kinds_told(store_url, "all") == ["turn.ended"]


async def test_chats_that_end_together_are_told_of_one_by_one(store: Store, store_url: str) -> None:
    """On PostgreSQL they share a statement."""
    hook(store_url, "all")
    hands = [await begun(store, hand=Hand(store)) for _ in range(12)]
    await asyncio.gather(*[hand.end_turn() for hand in hands])
    found = told(store_url, "all")
    assert sorted(data["chat_id"] for _, _, data in found) == sorted(hand.held.chat.id for hand in hands)
    assert len({notice_id for notice_id, _, _ in found}) == 12


async def test_a_turn_that_ends_with_a_queue_is_told_though_the_chat_goes_on(store: Store, store_url: str) -> None:
    hook(store_url, "all")
    hand = await begun(store)
    await store.submit(hand.held.chat.id, cmd.Send(message=new_chat("next").message))  # type: ignore[arg-type]
    hand.snapshot = await store.read_chat(hand.held.chat.id)
    await hand.end_turn()
    ((_, kind, data),) = told(store_url, "all")
    assert (kind, data["turn"], data["state"]) == ("turn.ended", 1, "running")


async def test_another_transaction_tells_through_the_same_door(store: Store, store_url: str) -> None:
    hook(store_url, "all")
    hook(store_url, "his", owner="bob", kinds=("schedule.paused",))
    paused = Notice(kind="schedule.paused", owner="bob", at=5, data=Raw(b'{"schedule_id":"sch_1"}'))
    await tell(store, paused)
    assert [(kind, data) for _, kind, data in told(store_url, "his")] == [
        ("schedule.paused", {"schedule_id": "sch_1"})
    ]
    assert told(store_url, "all") == told(store_url, "his")
