"""What no reader can reach any more may go, some rows at a time, and nobody notices."""

import random
import re
from typing import Any

import pytest
from msgspec.structs import asdict

from holdfast.config import Retention
from holdfast.core import commands as cmd
from holdfast.core.codec import encode
from holdfast.core.records import Failure, NewChat, Phase, Role, State
from holdfast.errors import RefusedError
from holdfast.store import retention
from holdfast.store.contract import Store
from holdfast.store.cursor import Cursor
from holdfast.store.records import DeltaBatch
from holdfast.store.retention import LEFTOVERS, PrunedKind, Pruning, cutoffs_of
from holdfast.system.clock import FakeClock
from tests.store.test_growth import copy_rows
from tests.support.behind import sql
from tests.support.chats import Hand, assistant, call, history, new_chat, texts, user

DAY_MS = retention.DAY_MS
EVERYTHING = Retention(attempts_days=0, calls_days=0, compactions_days=0, archived_chats_days=0)


async def prune(
    store: Store, policy: Retention = EVERYTHING, *, later_ms: int = 1, dry_run: bool = False
) -> dict[PrunedKind, int]:
    """Rows that went, of the kinds of which any did."""
    pruning = Pruning(store, cutoffs_of(policy, store.now_ms() + later_ms), dry_run=dry_run)
    while await pruning.run_once():
        pass
    return {kind: amount.rows for kind, amount in pruning.freed.items() if amount.rows}


def count(url: str, table: str) -> int:
    return int(sql(url, f"SELECT count(*) FROM {table}")[0][0])


def words(hand: Hand, attempt: int, *bodies: str, first_k: int = 0) -> DeltaBatch:
    encoded = tuple(f'{{"text":"{body}"}}'.encode() for body in bodies)
    return DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=first_k, bodies=encoded)


async def lost_attempt(store: Store, hand: Hand) -> int:
    """Streamed, then failed: its deltas stay."""
    attempt = hand.attempt()
    assert await store.add_deltas([words(hand, attempt, "never", "mind")]) == ()
    await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
    return attempt


async def test_by_default_everything_is_kept(store: Store, store_url: str, clock: FakeClock) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    await lost_attempt(store, hand)
    await hand.respond(call("k1"))
    await hand.finish("k1")
    await hand.end_turn()
    clock.advance(10_000 * DAY_MS)
    assert not Retention().is_set
    assert await prune(store, Retention()) == {}
    assert (count(store_url, "deltas"), count(store_url, "calls")) == (2, 1)


async def test_each_kind_goes_at_its_age_and_a_dry_run_says_so_and_changes_nothing(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    for n in range(2):
        await lost_attempt(store, hand)
        await hand.respond(call(f"k{n}"))
        await hand.finish(f"k{n}")
        clock.advance(10 * DAY_MS)
    await hand.end_turn()
    policy = Retention(attempts_days=15, calls_days=5)
    expected = {"attempts": 2, "calls": 2}
    assert await prune(store, policy, dry_run=True) == expected
    assert (count(store_url, "deltas"), count(store_url, "calls")) == (4, 2)
    assert await prune(store, policy) == expected
    assert (count(store_url, "deltas"), count(store_url, "calls")) == (2, 0)
    assert await prune(store, policy) == {}


async def test_what_a_chat_at_work_still_needs_is_never_touched(store: Store, store_url: str) -> None:
    """The calls of its batch, the text of the open attempt, and that of a lost worker until it is replaced."""
    first, second = Hand(store), Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await first.take("c1")
    await first.respond(call("k1"), call("k2"))
    await first.finish("k1")
    assert await prune(store) == {}
    await first.finish("k2")
    assert await store.add_deltas([words(first, first.attempt(), "half an")]) == ()
    await store.submit("c1", cmd.Send(message=user("next")))
    await store.submit("c1", cmd.Stop())
    await first.dies()
    assert await prune(store) == {}, "a successor commits this text"
    await second.take("c1")
    page = await store.read_journal("c1", Cursor(seq=second.held.chat.seq))
    assert [item.body for item in page.items] == [b'{"text":"half an"}']
    await second.commit(cmd.FinishStop(by=second.by))
    assert await store.add_deltas([words(second, second.attempt(), "all", "new")]) == ()
    assert await prune(store) == {"attempts": 1}, "that of the first worker"
    second.attempts -= 1
    await second.end_turn("all new")
    assert await prune(store) == {"calls": 2}
    assert count(store_url, "deltas") == 0


async def test_a_reader_whose_place_is_in_text_that_was_pruned_reads_on_as_if_it_were_there(store: Store) -> None:
    """Promise 10: the failed attempt and the message, once, and nothing of what it has seen already."""
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    attempt = hand.attempt()
    assert await store.add_deltas([words(hand, attempt, "one", "two", "three")]) == ()
    pages = [await store.read_journal("c1", limit=limit) for limit in (5, 6, 7)]
    places = [page.cursor for page in pages if page.items[-1].attempt == attempt]
    assert len(places) >= 2
    await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
    await hand.end_turn("that is all")
    before = [await store.read_journal("c1", place) for place in places]
    assert await prune(store) == {"attempts": 3}
    after = [await store.read_journal("c1", place) for place in places]
    assert [page.items for page in after] == [page.items for page in before]
    assert all(item.seq is not None for page in after for item in page.items)
    assert "that is all" in after[0].items[-2].body.decode() + after[0].items[-1].body.decode()


async def test_of_the_summaries_the_newest_stays_and_an_edit_or_fork_before_it_works(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("m0", id="c1"))
    await hand.take("c1")
    await hand.end_turn("a0")
    for n, upto in ((1, 2), (2, 4), (3, 6)):
        await store.submit("c1", cmd.Send(message=user(f"m{n}")))
        await hand.take("c1")
        await hand.end_turn(f"a{n}")
        await store.submit("c1", cmd.Compact())
        await hand.take("c1")
        await hand.commit(cmd.FinishCompaction(by=hand.by, upto=upto, summary=f"s{n}"), cmd.FinishTurn(by=hand.by))
        clock.advance(10 * DAY_MS)
    summaries = [one.summary for one in await store.read_compactions("c1", start=0, end=100)]
    assert summaries == ["s1", "s2", "s3"]
    # Behind `start`, up to `end`: who reads one stretch after the other sees each once. Of too many, the last ones.
    assert [one.upto for one in await store.read_compactions("c1", start=2, end=4)] == [4]
    assert [one.upto for one in await store.read_compactions("c1", start=0, end=100, limit=2)] == [4, 6]
    # The first is covered for twenty days, the second for ten.
    assert await prune(store, Retention(compactions_days=15)) == {"compactions": 1}
    assert await prune(store, Retention(compactions_days=5)) == {"compactions": 1}
    newest = await store.read_compaction("c1")
    assert newest is not None
    assert (newest.upto, newest.summary) == (6, "s3")
    await store.fork_chat("c1", "early", upto=3)
    assert await store.read_compaction("early") is None
    assert texts(await history(store, "early")) == ["m0", "a0", "m1", "a1"]
    epoch = (await store.read_chat("c1")).chat.epoch
    await store.submit("c1", cmd.Edit(pos=2, role=Role.USER, epoch=epoch, message=user("again")))
    assert await store.read_compaction("c1") is None
    assert texts(await history(store, "c1")) == ["m0", "a0", "again"]


async def test_a_slice_is_bounded_in_rows_and_in_bytes(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(store)
    for n in range(3):
        await store.create_chat(new_chat("hello", id=f"c{n}"))
    claimed = await hand.claim()
    for snapshot in claimed:
        hand.snapshot = snapshot
        attempt = hand.attempt()
        for k in range(4):
            assert await store.add_deltas([words(hand, attempt, *["x" * 100_000] * 3, first_k=3 * k)]) == ()
        await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
    ids, before = [snapshot.chat.id for snapshot in claimed], store.now_ms() + 1
    dropped = await store.drop_leftovers("attempts", ids, before)
    assert retention.BYTES_MAX <= dropped.bytes < retention.BYTES_MAX + 101_000
    assert count(store_url, "deltas") == 36 - dropped.rows
    assert (await store.drop_leftovers("attempts", ids, before, dry_run=True)).rows == 36 - dropped.rows
    assert await prune(store) == {"attempts": 36 - dropped.rows}


async def test_a_walk_comes_to_every_chat_however_many_there_are(store: Store, store_url: str) -> None:
    hand = Hand(store)
    for id in ("a", "z"):
        await store.create_chat(new_chat("hello", id=id))
        await hand.take(id)
        await lost_attempt(store, hand)
        await hand.end_turn()
    copy_rows(store_url, "a", retention.LOOKED_AT_MAX)
    pruning = Pruning(store, cutoffs_of(EVERYTHING, store.now_ms() + 1))
    while await pruning.run_once():
        pass
    assert (pruning.chats_seen, pruning.freed["attempts"].rows) == (retention.LOOKED_AT_MAX + 2, 4)


# --- archived chats ---------------------------------------------------------------------------------------------


async def archived(store: Store, id: str, **more: Any) -> None:
    await store.create_chat(NewChat(id=id, agent="agent", **more))
    await store.submit(id, cmd.Archive())


async def test_archived_chats_go_when_nothing_happened_in_their_family_for_so_long(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="top"))
    await hand.take("top")
    await hand.respond(call("k"))
    spawned = cmd.Outcome(by=hand.by, call_id="k", content="made", spawn=new_chat(None, id="below"))
    await hand.commit(spawned)
    await hand.end_turn()
    await store.submit("top", cmd.Archive())
    await store.create_chat(new_chat(None, id="used"))
    await archived(store, "old")
    clock.advance(10 * DAY_MS)
    await store.submit("below", cmd.Rename(title="somebody looks after it"))
    await archived(store, "young")
    policy = Retention(archived_chats_days=5)
    assert await prune(store, policy, dry_run=True) == {"archived_chats": 1}
    assert await prune(store, policy) == {"archived_chats": 1}
    assert sorted(line.id for line in await store.list_chats()) == ["below", "top", "used", "young"]
    clock.advance(10 * DAY_MS)
    assert await prune(store, policy) == {"archived_chats": 3}
    assert [line.id for line in await store.list_chats()] == ["used"]
    assert await prune(store, policy) == {}


async def test_an_archived_chat_that_somebody_uses_again_in_that_moment_is_not_deleted(
    store: Store, clock: FakeClock
) -> None:
    """Between the look and the deletion."""
    await archived(store, "c1")
    clock.advance(10 * DAY_MS)
    before = store.now_ms() - DAY_MS
    assert await store.next_expired(before, "") == [("c1", 1)]
    await store.submit("c1", cmd.Archive(archived=False))
    with pytest.raises(RefusedError, match="in use again"):
        await store.delete_chat("c1", children="include", archived_before=before)
    await store.submit("c1", cmd.Archive())
    with pytest.raises(RefusedError, match="in use again"):
        await store.delete_chat("c1", children="include", archived_before=before)
    assert (await store.read_chat("c1")).chat.state is State.IDLE


# --- random lives -----------------------------------------------------------------------------------------------


class Twins:
    """Two chats that live the same life, of which one is pruned in between. What readers see of them is the same."""

    IDS = ("kept", "trim")  # as long as each other, so that ids in texts can be swapped

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.dice = random.Random(seed)
        self.hands: dict[str, Hand] = {}
        self.readers: list[dict[str, str]] = []
        self.n = 0
        self.forks = 0
        self.pruned = 0
        self.edited = False  # an edit may bring back a summary that a later one covered, where it is still there

    async def live(self, steps: int) -> None:
        for id in self.IDS:
            await self.store.create_chat(NewChat(id=id, agent=id, message=user("m", id="first")))
        for _ in range(steps):
            self.n += 1
            await self._step()
            if self.dice.random() < 0.5:
                await self._prune()
            await self._compare()

    async def _step(self) -> None:
        snapshot = await self.store.read_chat("kept")
        state = snapshot.chat.state
        choices = ["read"]
        if state in (State.RUNNING, State.STOPPING):
            choices += ["work"] * 6 + ["die", "stop", "queue"]
        elif state is State.FAILED:
            choices += ["retry", "edit", "fork"]
        else:
            choices += ["send"] * 3 + ["edit", "fork", "compact"]
        choice, draw = self.dice.choice(choices), self.dice.random()
        for id in self.IDS:
            self.dice_of_step = random.Random(draw)
            await getattr(self, f"_{choice}")(id)

    async def _read(self, id: str) -> None:
        """A reader comes, and stays where it is."""
        limit = self.dice_of_step.choice((1, 5, 100))
        if id == "kept":
            self.readers.append({})
        self.readers[-1][id] = (await self.store.read_journal(id, limit=limit)).cursor

    async def _send(self, id: str) -> None:
        await self.store.submit(id, cmd.Send(message=user("m", id=f"m{self.n}")))

    _queue = _send

    async def _edit(self, id: str) -> None:
        rows = [row for row in await self.store.read_history(id) if row.role is Role.USER]
        row = self.dice_of_step.choice(rows)
        epoch = (await self.store.read_chat(id)).chat.epoch
        edit = cmd.Edit(pos=row.pos, role=row.role, epoch=epoch, message=user("e", id=f"e{self.n}"))
        await self.store.submit(id, edit)
        self.edited = True

    async def _fork(self, id: str) -> None:
        length = (await self.store.read_chat(id)).chat.length
        await self.store.fork_chat(id, f"{id}-{self.n}", upto=self.dice_of_step.randrange(length))
        self.forks += id == "trim"

    async def _compact(self, id: str) -> None:
        await self.store.submit(id, cmd.Compact())

    async def _retry(self, id: str) -> None:
        await self.store.submit(id, cmd.Retry())

    async def _stop(self, id: str) -> None:
        if (await self.store.read_chat(id)).chat.state is State.RUNNING:
            await self.store.submit(id, cmd.Stop())

    async def _die(self, id: str) -> None:
        if id in self.hands:
            await self.hands.pop(id).dies()

    async def _held(self, id: str) -> Hand:
        if id not in self.hands:
            self.hands[id] = Hand(self.store)
        hand = self.hands[id]
        seen = await self.store.read_chat(id)
        if seen.chat.worker != hand.name:
            (hand.snapshot,) = await hand.claim(id)
            hand.attempts = 0
        else:
            hand.snapshot = seen
        return hand

    async def _work(self, id: str) -> None:
        hand = await self._held(id)
        chat = hand.held.chat
        if chat.state is State.STOPPING:
            await self._finish_stop(hand)
        elif chat.compact and chat.phase is Phase.REST:
            upto = 2 * self.dice_of_step.randrange(1, 3)
            made = cmd.FinishCompaction(by=hand.by, upto=upto, summary="in short")
            rows = await self.store.read_history(id)
            fits = upto < len(rows) and rows[upto].role is Role.USER
            done = made if fits else cmd.FinishCompaction(by=hand.by, error="not now")
            await hand.commit(done, cmd.FinishTurn(by=hand.by))
        elif chat.phase is Phase.CALLS:
            for open_call in hand.held.open_calls:
                await hand.finish(open_call.id, "result")
        elif chat.phase is Phase.REST:
            await hand.commit(cmd.FinishTurn(by=hand.by))
        else:
            await self._ask(hand)

    async def _finish_stop(self, hand: Hand) -> None:
        """As a successor does: from what was streamed."""
        chat = hand.held.chat
        page = await self.store.read_journal(chat.id, Cursor(seq=chat.seq))
        last = max((item.attempt or 0 for item in page.items), default=None)
        partial = assistant(*[item.body.decode() for item in page.items if item.attempt == last], id=f"p{self.n}")
        await hand.commit(
            cmd.FinishStop(by=hand.by, partial=partial if last else None, attempt=last, length=chat.length)
        )

    async def _ask(self, hand: Hand) -> None:
        what = self.dice_of_step.choice(("lost", "streamed", "calls", "ends", "fails"))
        attempt = hand.attempt()
        assert await self.store.add_deltas([words(hand, attempt, "so", "far")]) == ()
        if what == "lost":
            await hand.commit(cmd.AttemptLost(by=hand.by, attempt=attempt, model="m", error="no"))
        elif what == "fails":
            await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="model", message="no")))
        elif what != "streamed":
            hand.attempts -= 1
            parts = [call(f"k{self.n}", arguments='{"a":1}')] if what == "calls" else ["that is all"]
            await hand.respond(*parts, id=f"a{self.n}")

    async def _prune(self) -> None:
        for kind in LEFTOVERS:
            self.pruned += (await self.store.drop_leftovers(kind, ["trim"], self.store.now_ms() + 1)).rows

    async def _compare(self) -> None:
        assert await self._seen("trim") == await self._seen("kept")
        assert await self.store.find_violations() == []
        assert await self.store.find_torn() == []

    async def _seen(self, id: str) -> object:
        snapshot = await self.store.read_chat(id)
        numbers = {name: value for name, value in asdict(snapshot.chat).items() if name not in UNLIKE}
        found = await self.store.read_history(id)
        rows = [(row.pos, row.seq, row.role, row.message_id, row.body.decode()) for row in found]
        compaction = None if self.edited else await self.store.read_compaction(id)
        pages = [await self.store.read_journal(id, reader[id], limit=1_000) for reader in [{id: ""}, *self.readers]]
        items = [[(item.seq, item.attempt, item.k, item.body.decode()) for item in page.items] for page in pages]
        forks = [await self._forked(f"{id}-{n}") for n in range(1, self.n + 1)] if self.forks else []
        return same(id, (numbers, snapshot.calls, snapshot.queue, rows, compaction, items, forks))

    async def _forked(self, id: str) -> object:
        return [row.body.decode() for row in await self.store.read_history(id)]


# Drawn by chance, or the name of a chat or of a worker.
UNLIKE = {"id", "agent", "worker", "stamp", "claim_stamp", "line_stamp", "life", "commit_id", "silent"}


def same(id: str, seen: object) -> str:
    """But for its name, and those of the workers that the journal tells of."""
    return re.sub(r"worker-\d+", "worker", encode(seen).decode().replace(id, "twin"))


@pytest.mark.parametrize("seed", range(4))
async def test_a_life_that_is_pruned_at_random_moments_looks_like_one_that_is_not(store: Store, seed: int) -> None:
    twins = Twins(store, seed)
    await twins.live(30)
    assert twins.pruned, "nothing was ever left behind: this shows nothing"
