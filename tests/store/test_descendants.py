"""What chats below a root ask is told at the root, in the transaction that asks or answers; how many they are."""

import asyncio
from copy import copy
from typing import Any

import psycopg

from holdfast.core import commands as cmd
from holdfast.core.journal import CallChanged, DescendantAnswered, DescendantAsking
from holdfast.core.limits import Limits
from holdfast.core.records import External, NewChat, State
from holdfast.errors import RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.behind import sql
from tests.support.chats import Hand, call, journal, new_chat, user


async def spawn(hand: Hand, child_id: str, agent: str = "agent") -> None:
    await hand.respond(call(f"{child_id}-call"))
    child = NewChat(id=child_id, agent=agent, message=user("task"))
    await hand.commit(cmd.Outcome(by=hand.by, call_id=f"{child_id}-call", content=child_id, spawn=child))


async def family(store: Store) -> Hand:
    """Root, child, grandchild; the hand holds the last, which is about to ask."""
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    await spawn(hand, "child")
    await hand.take("child")
    await spawn(hand, "grandchild")
    await hand.take("grandchild")
    await hand.respond(call("pay", "pay", '{"amount": 5}'), start=False)
    return hand


async def ask(hand: Hand, call_id: str = "pay", expires_at: int | None = None) -> None:
    asking = cmd.AskApproval(by=hand.by, call_id=call_id, question="Pay?", expires_at=expires_at)
    await hand.commit(asking, cmd.Park(by=hand.by))


async def told(store: Store, chat_id: str = "root") -> list[Any]:
    return [e for e in await journal(store, chat_id) if isinstance(e, DescendantAsking | DescendantAnswered)]


async def test_a_question_below_shows_at_the_root_until_it_is_answered(store: Store) -> None:
    hand = await family(store)
    await ask(hand)
    (asking,) = await told(store)
    assert (asking.chat_id, asking.call_id, asking.name, asking.question) == ("grandchild", "pay", "pay", "Pay?")
    assert (asking.agent, asking.state, asking.arguments) == ("agent", "asking", '{"amount": 5}')
    for chat_id in ("root", "child", "grandchild"):
        (found,) = await store.open_calls(chat_id)
        assert (found.chat_id, found.call_id, found.kind, found.question) == ("grandchild", "pay", "approval", "Pay?")
        assert found.arguments == '{"amount": 5}'
    await store.submit("grandchild", cmd.Approve(call_id="pay", by="ann"))
    assert [entry.state for entry in await told(store)] == ["asking", "approved"]
    assert (await told(store))[-1].by == "ann"
    assert await store.open_calls("root") == []
    assert await told(store, "child") == [], "only the top is told"


async def test_readers_of_the_root_are_rung(store: Store) -> None:
    hand = await family(store)
    with store.bell.listen("root") as listener:
        await ask(hand)
        assert await listener.wait(5)


async def test_an_approval_below_that_a_claim_finds_expired_is_told_at_the_root(
    store: Store, clock: FakeClock
) -> None:
    hand = await family(store)
    await ask(hand, expires_at=clock.wall_ms() + 1_000)
    clock.advance(1_000)
    await hand.take("grandchild")
    assert [entry.state for entry in await told(store)] == ["asking", "denied"]
    assert (await store.read_chat("root")).chat.version > 0


async def test_a_lost_call_below_that_a_person_is_asked_about_is_told_at_the_root_with_the_claim(
    store: Store,
) -> None:
    hand = await family(store)
    await hand.commit(cmd.Refuse(by=hand.by, call_id="pay", content="not now"))
    message = hand.response(call("send", "send"), start=True)
    plan = cmd.PlannedCall(id="send", on_unknown="ask", start=True)
    await hand.commit(cmd.Respond(by=hand.by, message=message.message, attempt=message.attempt, plans=(plan,)))
    await hand.dies()
    successor = Hand(store)
    claimed = {snapshot.chat.id for snapshot in await successor.claim()}
    assert claimed == {"root", "child", "grandchild"}
    (asking,) = await told(store)
    assert (asking.call_id, asking.external) == ("send", External.QUESTION)
    assert (asking.question or "").startswith("Outcome unknown: send was started at ")
    assert [found.kind for found in await store.open_calls("root")] == ["question"]


async def test_what_a_hook_made_of_a_call_is_what_people_are_shown_without_its_secrets(store: Store) -> None:
    """Whoever approves a call approves what will run."""
    hand = await family(store)
    raw, clean = '{"amount": 7, "key": "sk-1"}', '{"amount": 7, "key": "[KEY]"}'
    asking = cmd.AskApproval(by=hand.by, call_id="pay", question="Pay?", arguments=raw, told=clean)
    await hand.commit(asking, cmd.Park(by=hand.by))
    assert [entry.arguments for entry in await told(store)] == [clean]
    assert [entry.arguments for entry in await journal(store, "grandchild") if isinstance(entry, CallChanged)] == [
        clean
    ]
    for chat_id in ("root", "grandchild"):
        assert [found.arguments for found in await store.open_calls(chat_id)] == [clean]
    await store.submit("grandchild", cmd.Approve(call_id="pay"))
    await hand.take("grandchild")
    assert hand.held.calls[0].arguments == raw, "which runs"


async def test_what_a_hook_made_of_a_lost_call_is_shown_without_its_secrets_too(store: Store) -> None:
    hand = await family(store)
    await hand.commit(cmd.Refuse(by=hand.by, call_id="pay", content="not now"))
    response = hand.response(call("send", "send"))
    plan = cmd.PlannedCall(id="send", on_unknown="ask")
    await hand.commit(cmd.Respond(by=hand.by, message=response.message, attempt=response.attempt, plans=(plan,)))
    raw, clean = {"send": '{"key": "sk-1"}'}, {"send": '{"key": "[KEY]"}'}
    await hand.commit(cmd.StartCalls(by=hand.by, call_ids=("send",), arguments=raw, told=clean))
    await hand.commit(cmd.Outcome(by=hand.by, call_id="send", content="It hung up.", error=True, unknown=True))
    assert [entry.arguments for entry in await told(store)] == list(clean.values())
    assert [found.arguments for found in await store.open_calls("root")] == list(clean.values())


async def test_chats_claimed_together_with_their_root_are_handed_over_as_they_are(store: Store) -> None:
    """Their claims tell the root something, which may be among the claimed: none of them is stale or lost."""
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    for n in range(3):
        await spawn(hand, f"child{n}")
    claimed = {snapshot.chat.id: snapshot for snapshot in await hand.claim()}
    for n in range(3):
        hand.snapshot = claimed[f"child{n}"]
        message = hand.response(call(f"send{n}", "send"), start=True)
        plan = cmd.PlannedCall(id=f"send{n}", on_unknown="ask", start=True)
        await hand.commit(cmd.Respond(by=hand.by, message=message.message, attempt=message.attempt, plans=(plan,)))
    await hand.dies()
    successor = Hand(store)
    taken = await successor.claim()
    assert sorted(snapshot.chat.id for snapshot in taken) == ["child0", "child1", "child2", "root"]
    for snapshot in taken:
        assert snapshot == await store.read_chat(snapshot.chat.id)
    assert sorted(entry.call_id for entry in await told(store)) == ["send0", "send1", "send2"]


async def test_many_who_ask_and_are_answered_and_stopped_at_once_wait_for_nobody_forever(store: Store) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    for n in range(8):
        await spawn(hand, f"child{n}")
    children = {snapshot.chat.id: snapshot for snapshot in await hand.claim()}

    async def live(chat_id: str) -> None:
        mine = copy(hand)
        mine.snapshot = children[chat_id]
        await mine.respond(call(f"{chat_id}-ask"), start=False)
        await ask(mine, f"{chat_id}-ask")
        await store.submit(chat_id, cmd.Approve(call_id=f"{chat_id}-ask"))

    await asyncio.gather(*(live(chat_id) for chat_id in children))
    entries = await told(store)
    assert len(entries) == 16
    for chat_id in children:
        assert [e.state for e in entries if e.chat_id == chat_id] == ["asking", "approved"]
    await asyncio.gather(store.submit("root", cmd.Stop()), *(store.submit(id, cmd.Stop()) for id in children))
    assert {(await store.read_chat(id)).chat.state for id in children} == {State.STOPPING}


async def test_the_wait_for_a_child_that_a_claim_finds_expired_stops_the_child(
    store: Store, clock: FakeClock
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    await hand.respond(call("wait"), start=False)
    child = NewChat(id="child", agent="agent", message=user("task"))
    expires_at = clock.wall_ms() + 1_000
    wait = cmd.Delegate(by=hand.by, call_id="wait", external=External.CHILD, spawn=child, expires_at=expires_at)
    await hand.commit(wait, cmd.Park(by=hand.by))
    clock.advance(1_000)
    claimed = {snapshot.chat.id for snapshot in await hand.claim()}
    assert "root" in claimed
    assert (await store.read_chat("child")).chat.state is State.STOPPING


async def test_children_are_counted_by_chat_by_turn_and_by_family(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    await spawn(hand, "old")
    root = hand.held
    await hand.take("old")
    await spawn(hand, "below")
    await hand.end_turn()
    clock.advance(1_000)
    hand.snapshot = await store.read_chat("root")
    assert tuple(await store.count_children(hand.held.chat)) == (0, 1, 1)
    await hand.end_turn()
    clock.advance(1_000)
    await store.submit("root", cmd.Send(message=user("again")))
    await hand.take("root")
    assert tuple(await store.count_children(hand.held.chat)) == (0, 0, 1)
    await spawn(hand, "new")
    assert tuple(await store.count_children(hand.held.chat)) == (1, 1, 2)
    assert tuple(await store.count_children((await store.read_chat("old")).chat)) == (1, 1, 2)
    assert root.chat.root_id is None


async def test_children_of_a_turn_are_counted_though_the_clock_was_set_back(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root"))
    await hand.take("root")
    await spawn(hand, "one")
    clock.step_wall(-3_600_000)
    await spawn(hand, "two")
    assert (await store.count_children(hand.held.chat)).this_turn == 2
    await hand.end_turn()
    await store.submit("root", cmd.Send(message=user("again")))
    await hand.take("root")
    assert (await store.count_children(hand.held.chat)).this_turn == 0


async def test_many_who_spawn_at_once_do_not_go_over_the_limit_of_their_family(store_url: str) -> None:
    """Each of them counted before, and found room."""
    async with open_store(store_url, StoreOptions(limits=Limits(family_open_max=6))) as store:
        hand = Hand(store)
        await store.create_chat(new_chat(id="root"))
        await hand.take("root")
        for n in range(4):
            await spawn(hand, f"child{n}")
        hands = []
        for snapshot in await hand.claim():
            hands.append(copy(hand))
            hands[-1].snapshot = snapshot
            await hands[-1].respond(call(f"{snapshot.chat.id}-below"))

        async def spawn_below(hand: Hand) -> str:
            chat_id = hand.held.chat.id
            child = NewChat(id=f"{chat_id}-child", agent="agent", message=user("task"))
            try:
                await hand.commit(cmd.Outcome(by=hand.by, call_id=f"{chat_id}-below", content="ok", spawn=child))
            except RefusedError as error:
                return error.reason
            return "spawned"

        assert len(hands) == 4
        assert (await store.count_children(hands[0].held.chat)).open_in_family == 4
        done = await asyncio.gather(*map(spawn_below, hands))
        assert sorted(done) == ["family_full", "family_full", "spawned", "spawned"]
        assert (await store.count_children(hands[0].held.chat)).open_in_family == 6
        refused = [hand for hand, how in zip(hands, done, strict=True) if how == "family_full"]
        for hand in refused:
            assert (await store.read_chat(hand.held.chat.id)).calls[0].state == "started", "nothing was written"


async def test_a_claim_that_would_wait_for_a_locked_root_passes_the_chat_over(postgres_url: str) -> None:
    clock = FakeClock()
    async with open_store(postgres_url, StoreOptions(clock=clock)) as store:
        hand = await family(store)
        await ask(hand, expires_at=clock.wall_ms() + 1_000)
        clock.advance(1_000)
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'root' FOR UPDATE")
            assert await hand.claim() == []
            foreign.rollback()
        assert [snapshot.chat.id for snapshot in await hand.claim()] == ["grandchild"]
        hand.close()


async def test_a_root_that_cannot_be_read_keeps_the_question_below_open_and_others_claimable(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hand = await family(store)
    await ask(hand, expires_at=clock.wall_ms() + 1_000)
    await store.create_chat(new_chat(id="other"))
    sql(store_url, "UPDATE chats SET phase = 'dreaming' WHERE id = 'root'")
    clock.advance(1_000)
    assert [snapshot.chat.id for snapshot in await hand.claim()] == ["other"]
    assert (await store.read_chat("grandchild")).chat.state is State.WAITING
    assert store.unreadable >= 1
