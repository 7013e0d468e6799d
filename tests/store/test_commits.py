"""A runner's commits: fenced, all or nothing, safe to repeat, never lost between two writers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.core import commands as cmd
from holdfast.core.history import problems
from holdfast.core.records import Cause, Phase, Replay, State
from holdfast.errors import NotFound, OwnershipLost, RefusedError, StaleWriter
from holdfast.store.contract import Store
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, assistant, call, history, journal, new_chat, texts, told, unique, user
from tests.support.leases import silence


@pytest.fixture
async def hand(store: Store) -> AsyncIterator[Hand]:
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    yield hand
    hand.close()


async def test_a_response_with_calls_and_their_results_become_history(store: Store, hand: Hand) -> None:
    await hand.respond("let me see", call("k1"), call("k2"))
    assert (await hand.finish("k2", "second")).chat.phase is Phase.CALLS
    assert (await hand.finish("k1", "first")).chat.phase is Phase.MODEL
    messages = await history(store, "c1")
    assert texts(messages) == ["hello", "let me see", "first", "second"]
    assert problems(messages) == []
    after = await hand.end_turn("done")
    assert (after.chat.state, after.chat.worker, after.chat.wake_at) == (State.IDLE, None, None)
    assert after == await store.read_chat("c1")


async def test_the_returned_snapshot_is_what_the_store_holds(store: Store, hand: Hand) -> None:
    assert await hand.respond("a", call("k1"), call("k2"), start=False) == await store.read_chat("c1")
    assert await hand.commit(cmd.StartCalls(by=hand.by, call_ids=("k1", "k2"))) == await store.read_chat("c1")
    assert await hand.finish("k1") == await store.read_chat("c1")


async def test_the_same_commit_again_is_answered_as_done(store: Store, hand: Hand) -> None:
    before = hand.held
    command = hand.response("let me see", call("k1"))
    first = await store.commit(before, [command], "x1")
    assert await store.commit(before, [command], "x1") == first
    assert texts(await history(store, "c1")) == ["hello", "let me see"]


async def test_a_commit_of_several_events_is_all_or_nothing(store: Store, hand: Hand) -> None:
    await hand.respond("let me see", call("k1"), call("k2"))
    before = await store.read_chat("c1")
    with pytest.raises(RefusedError, match="not one of"):
        await hand.commit(
            cmd.Outcome(by=hand.by, call_id="k1", content="x"), cmd.Outcome(by=hand.by, call_id="nope", content="y")
        )
    assert await store.read_chat("c1") == before


async def test_a_message_queued_meanwhile_does_not_disturb_a_commit(store: Store, hand: Hand) -> None:
    await store.submit("c1", cmd.Send(message=user("next")))
    after = await hand.end_turn("done")
    assert after.chat.state is State.RUNNING, "the queued message starts the next turn, under the same runner"
    assert after.chat.worker == hand.name
    assert texts(await history(store, "c1")) == ["hello", "done", "next"]


async def test_a_steering_message_joins_before_the_turn_can_finish(store: Store, hand: Hand) -> None:
    await store.submit("c1", cmd.Send(message=user("no, like this"), mode="steer"))
    with pytest.raises(RefusedError, match="still owes"):
        await hand.end_turn("done")
    await hand.respond("done")
    assert texts(await history(store, "c1")) == ["hello", "done", "no, like this"]


async def test_a_stop_arrives_between_two_commits(store: Store, hand: Hand) -> None:
    await store.submit("c1", cmd.Stop())
    with pytest.raises(RefusedError, match="while the chat is stopping"):
        await hand.respond("too late")
    hand.snapshot = await store.read_chat("c1")
    partial = assistant("half an ans")
    after = await hand.commit(
        cmd.FinishStop(by=hand.by, partial=partial, attempt=hand.attempt(), length=hand.held.chat.length)
    )
    assert (after.chat.state, after.chat.cause) == (State.IDLE, Cause.USER)
    assert texts(await history(store, "c1")) == ["hello", "half an ans"]


async def test_what_a_call_said_last_does_not_keep_its_outcome_from_a_chat_that_was_interrupted(
    store: Store, hand: Hand
) -> None:
    """They are one commit, made for the epoch that the message ended."""
    await hand.respond("let me see", call("k1"))
    before, by = hand.held, hand.by
    await store.submit("c1", cmd.Send(message=user("something else"), mode="interrupt"))
    said = cmd.Note(by=by, topic="progress", text="sending", call_id="k1")
    after = await store.commit(before, [said, cmd.Outcome(by=by, call_id="k1", content="sent 10 EUR")], unique("x"))
    assert after.chat.state is State.STOPPING
    assert texts(await history(store, "c1")) == ["hello", "let me see", "sent 10 EUR"]
    assert "sending" in await told(store, "c1")


async def test_a_stale_fence_is_refused_and_writes_nothing(store: Store, hand: Hand, clock: FakeClock) -> None:
    late = hand.response("too late")
    assert await silence(store, clock) == {hand.name: 1}
    successor = Hand(store)
    await successor.take("c1")
    before = await store.read_chat("c1")
    with pytest.raises(StaleWriter, match="fence 2"):
        await store.commit(hand.held, [late], "late")
    assert await store.read_chat("c1") == before
    await successor.end_turn("mine")
    with pytest.raises(OwnershipLost):
        await store.commit(hand.held, [late], "late")
    assert texts(await history(store, "c1")) == ["hello", "mine"]
    successor.close()


async def test_a_stale_writer_is_refused_even_before_anyone_else_claims(
    store: Store, hand: Hand, clock: FakeClock
) -> None:
    late = hand.response("too late")
    await silence(store, clock)
    with pytest.raises(StaleWriter, match="held by no worker"):
        await store.commit(hand.held, [late], "late")


async def test_an_edit_makes_the_old_epoch_stale(store: Store, hand: Hand) -> None:
    late = hand.response("answer to the old question")
    spot = await store.locate_message("c1", (await history(store, "c1"))[0].id)
    await store.submit("c1", cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=user("new question")))
    with pytest.raises(StaleWriter, match="epoch is 1"):
        await store.commit(hand.held, [late], "late")
    hand.snapshot = await store.read_chat("c1")
    await hand.commit(cmd.FinishStop(by=hand.by, partial=assistant("old"), attempt=hand.attempt(), length=1))
    assert texts(await history(store, "c1")) == ["new question"]
    assert hand.held.chat.state is State.RUNNING


async def test_an_outcome_after_an_edit_goes_to_the_journal_not_into_history(store: Store, hand: Hand) -> None:
    await hand.respond("paying", call("pay"))
    spot = await store.locate_message("c1", (await history(store, "c1"))[0].id)
    await store.submit("c1", cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=user("never mind")))
    await hand.finish("pay", "paid 100")
    assert await history(store, "c1") == []
    assert "paid 100" in await told(store, "c1")
    await hand.commit(cmd.FinishStop(by=hand.by))
    assert texts(await history(store, "c1")) == ["never mind"]


async def test_concurrent_client_calls_and_commits_are_all_kept(store: Store, hand: Hand) -> None:
    async def work() -> None:
        for n in range(20):
            await hand.respond(f"step {n}", call(f"k{n}"))
            await hand.finish(f"k{n}", f"result {n}")

    async def queue() -> None:
        for n in range(20):
            await store.submit("c1", cmd.Send(message=user(f"queued {n}")))

    await asyncio.gather(work(), queue())
    assert len((await store.read_chat("c1")).queue) == 20
    messages = await history(store, "c1")
    assert problems(messages) == []
    assert texts(messages)[1:] == [text for n in range(20) for text in (f"step {n}", f"result {n}")]
    entries = await journal(store, "c1")
    assert len(entries) == (await store.read_chat("c1")).chat.seq


async def test_cancelling_the_waiter_never_cancels_a_change_already_taken(store: Store, hand: Hand) -> None:
    """Whatever instant the waiter is cancelled at, the commit is either wholly there or can still be made."""
    for n in range(30):
        command = hand.response(f"step {n}", call(f"k{n}"))
        commit_id = unique("commit")
        task = asyncio.ensure_future(store.commit(hand.held, [command], commit_id))
        for _ in range(n % 6):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        hand.snapshot = await store.commit(hand.held, [command], commit_id)
        await hand.finish(f"k{n}")
    assert len(await history(store, "c1")) == 61


async def test_a_commit_for_a_deleted_chat_says_so(store: Store, hand: Hand) -> None:
    snapshot = await hand.end_turn("done")
    await store.delete_chat("c1")
    with pytest.raises(NotFound):
        await store.commit(snapshot, [cmd.Note(by=hand.by, topic="t")], "x")


async def test_a_pure_call_runs_again_and_an_unsafe_one_never(store: Store, hand: Hand, clock: FakeClock) -> None:
    await hand.commit(
        cmd.Respond(
            by=hand.by,
            message=assistant(call("read"), call("pay")),
            attempt=hand.response("x").attempt,
            plans=(
                cmd.PlannedCall(id="read", replay=Replay.PURE, start=True),
                cmd.PlannedCall(id="pay", replay=Replay.UNSAFE, start=True),
            ),
        )
    )
    await silence(store, clock)
    successor = Hand(store)
    snapshot = await successor.take("c1")
    assert [(c.id, c.state) for c in snapshot.calls] == [("read", "planned"), ("pay", "unknown")]
    await successor.commit(cmd.StartCalls(by=successor.by, call_ids=("read",)))
    await successor.finish("read", "contents")
    messages = await history(store, "c1")
    assert problems(messages) == []
    assert texts(messages)[2] == "contents"
    assert texts(messages)[3].startswith("Outcome unknown: tool was started")
    successor.close()
