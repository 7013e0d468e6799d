"""Forks copy what was said, as bytes, in one transaction; deleted chats are really gone."""

import asyncio
import itertools
import subprocess
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.history import problems
from holdfast.core.journal import ChatCreated
from holdfast.core.records import External, Failure, Phase, State, Synthetic, ToolResult
from holdfast.errors import KeyReused, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import DeltaBatch, HistoryRow, Key, StoreOptions
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.vacuum import vacuum
from holdfast.system.clock import FakeClock
from tests.support import invariants
from tests.support.behind import sql
from tests.support.chats import Hand, call, history, journal, new_chat, texts, told, user
from tests.support.waiting import until

TABLES = ("journal", "deltas", "calls", "queue", "compactions")


async def a_long_chat(store: Store) -> Hand:
    """Three turns, two with tools, a compaction over the first, at rest; its hand is still there."""
    hand = Hand(store)
    await store.create_chat(new_chat("first question", id="c1", owner="ada"))
    await hand.take("c1")
    await hand.respond("let me see", call("k1"), call("k2"))
    await hand.finish("k2", "two")
    await hand.finish("k1", "one")
    await hand.end_turn("first answer")
    await store.submit("c1", cmd.Compact())
    await hand.take("c1")
    await hand.commit(cmd.FinishCompaction(by=hand.by, upto=5, summary="what came first"), cmd.FinishTurn(by=hand.by))
    await store.submit("c1", cmd.Send(message=user("second question")))
    await hand.take("c1")
    await hand.respond("looking again", call("k3"))
    await hand.finish("k3", "three")
    await hand.respond("and again", call("k4"), call("k5"))
    await hand.finish("k4", "four")
    await hand.finish("k5", "five")
    await hand.end_turn("second answer")
    await store.submit("c1", cmd.Send(message=user("third question")))
    await hand.take("c1")
    await hand.end_turn("third answer")
    return hand


async def check(store: Store, chat_id: str) -> None:
    """Everything that is always true of a chat."""
    live = [lease.worker for lease in await store.list_workers()]
    entries = list(enumerate(await journal(store, chat_id), start=1))
    snapshot = await store.read_chat(chat_id)
    assert invariants.everything(snapshot, await history(store, chat_id), entries, live) == []


def group_end(rows: list[HistoryRow], pos: int) -> int:
    """The first position behind the group that `pos` is in: a response and its results stay together."""
    return next((row.pos for row in rows if row.pos > pos and row.role != "tool"), len(rows))


async def test_a_fork_at_any_position_is_the_history_up_to_there_byte_for_byte(store: Store) -> None:
    hand = await a_long_chat(store)
    source = await store.read_history("c1")
    before, said_before = await store.read_chat("c1"), await told(store, "c1")
    assert len(source) == 14
    for upto in range(len(source)):
        fork_id = f"fork{upto}"
        answer = await store.fork_chat("c1", fork_id, upto=upto)
        end = group_end(source, upto)
        assert (answer.chat_id, answer.state) == (fork_id, State.IDLE)
        copied = await store.read_history(fork_id)
        assert [(row.pos, row.role, row.message_id, row.body) for row in copied] == [
            (row.pos, row.role, row.message_id, row.body) for row in source[:end]
        ]
        assert problems(await history(store, fork_id)) == []
        chat = (await store.read_chat(fork_id)).chat
        assert (chat.forked_from, chat.forked_at, chat.length) == ("c1", end, end)
        assert (chat.owner, chat.agent, chat.parent_id) == ("ada", "agent", None)
        assert chat.seq == 1 + end == answer.seq
        created = (await journal(store, fork_id))[0]
        assert isinstance(created, ChatCreated)
        assert created.forked_from == "c1"
        compaction = await store.read_compaction(fork_id)
        assert (compaction.summary if compaction else None) == ("what came first" if end >= 5 else None)
        await check(store, fork_id)
    assert await store.read_chat("c1") == before
    assert await told(store, "c1") == said_before
    hand.close()


async def test_a_fork_without_a_position_has_the_whole_history_and_lives_on_its_own(store: Store) -> None:
    hand = await a_long_chat(store)
    await store.fork_chat("c1", "c2", owner="bob")
    await store.submit("c2", cmd.Send(message=user("another way")))
    await hand.take("c2")
    await hand.respond("trying", call("k6"))
    await hand.finish("k6", "in the fork")
    await hand.end_turn("done")
    assert (await store.read_chat("c2")).chat.owner == "bob"
    assert texts(await history(store, "c2"))[-4:] == ["another way", "trying", "in the fork", "done"]
    assert texts(await history(store, "c1"))[-1] == "third answer"
    assert len(await history(store, "c1")) == 14
    await store.fork_chat("c2", "c3", upto=0)
    assert texts(await history(store, "c3")) == ["first question"]
    assert (await store.read_chat("c3")).chat.forked_from == "c2"
    for chat_id in ("c1", "c2", "c3"):
        await check(store, chat_id)
    hand.close()


async def test_open_calls_are_not_carried_over_and_approvals_never(store: Store, clock: FakeClock) -> None:
    """One call is done, one runs, one is asked about, one approved, one outside: the fork has one real result."""
    hand = Hand(store)
    await store.create_chat(new_chat("go", id="c1"))
    await hand.take("c1")
    names = ("done", "started", "asking", "approved", "outside")
    await hand.respond("working", *(call(f"k-{name}") for name in names), start=False)
    await hand.commit(
        cmd.StartCalls(by=hand.by, call_ids=("k-done", "k-started")),
        cmd.AskApproval(by=hand.by, call_id="k-asking", question="May I?"),
        cmd.AskApproval(by=hand.by, call_id="k-approved", question="May I?"),
        cmd.Delegate(by=hand.by, call_id="k-outside", external=External.CLIENT),
    )
    await hand.finish("k-done", "a real result")
    await store.submit("c1", cmd.Approve(call_id="k-approved", by="ada"))
    await store.submit("c1", cmd.Send(message=user("queued, not said")))
    before, said_before = await store.read_chat("c1"), await told(store, "c1")
    for upto in (None, 1, 2, 3):
        fork_id = f"fork{upto}"
        await store.fork_chat("c1", fork_id, upto=upto)
        messages = await history(store, fork_id)
        assert problems(messages) == []
        results = [message.parts[0] for message in messages[2:]]
        assert [result.call_id for result in results if isinstance(result, ToolResult)] == [
            f"k-{name}" for name in names
        ]
        synthetic = [result.synthetic for result in results if isinstance(result, ToolResult)]
        assert synthetic == [None, *[Synthetic.NOT_CARRIED_OVER] * 4]
        assert texts(messages)[2] == "a real result"
        assert texts(messages)[3].startswith("Not carried over")
        snapshot = await store.read_chat(fork_id)
        assert (snapshot.chat.state, snapshot.chat.phase, snapshot.chat.batch) == (State.IDLE, Phase.REST, None)
        assert (snapshot.calls, snapshot.queue) == ((), ())
        assert sql_count(store, fork_id) == {"calls": 0, "queue": 0}
        await check(store, fork_id)
    await store.fork_chat("c1", "early", upto=0)
    assert texts(await history(store, "early")) == ["go"]
    assert await store.read_chat("c1") == before
    assert await told(store, "c1") == said_before
    await hand.finish("k-started", "still mine")
    hand.close()


def sql_count(store: Store, chat_id: str) -> dict[str, int]:
    if not isinstance(store, SqliteStore):
        return {"calls": 0, "queue": 0}
    url = f"sqlite:///{store.path}"
    return {
        table: sql(url, f"SELECT count(*) FROM {table} WHERE chat_id = ?", (chat_id,))[0][0]
        for table in ("calls", "queue")
    }


async def in_state(store: Store, state: State) -> Hand:
    """Chat `c1` in a state, with one answered turn behind it."""
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    await hand.take("c1")
    await hand.end_turn("hi")
    if state is State.IDLE:
        return hand
    await store.submit("c1", cmd.Send(message=user("more")))
    await hand.take("c1")
    if state is State.STOPPING:
        await hand.respond("trying", call("k1"))
        await store.submit("c1", cmd.Stop())
    elif state is State.WAITING:
        await hand.park_for_client("k1", expires_at=1 << 50)
    elif state is State.FAILED:
        await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="boom", message="it broke")))
    return hand


@pytest.mark.parametrize("state", State)
async def test_a_chat_can_be_forked_in_any_state_and_goes_on_itself(store: Store, state: State) -> None:
    hand = await in_state(store, state)
    before = await store.read_chat("c1")
    assert before.chat.state is state
    await store.fork_chat("c1", "c2")
    assert await store.read_chat("c1") == before
    fork = (await store.read_chat("c2")).chat
    assert (fork.state, fork.worker, fork.wake_at, fork.error) == (State.IDLE, None, None, None)
    assert (fork.fence, fork.epoch, fork.turn, fork.cause) == (before.chat.fence, 0, 0, None)
    assert texts(await history(store, "c2"))[:2] == ["hello", "hi"]
    await check(store, "c1")
    await check(store, "c2")
    await store.submit("c2", cmd.Send(message=user("go on")))
    await hand.take("c2")
    await hand.end_turn("sure")
    assert await store.find_violations() == []
    hand.close()


async def test_a_fork_has_what_is_history_now_and_not_what_an_edit_cut_away(store: Store) -> None:
    hand = await a_long_chat(store)
    spot = next(row for row in await store.read_history("c1") if b"second question" in row.body)
    located = await store.locate_message("c1", spot.message_id)
    edit = cmd.Edit(pos=located.pos, role=located.role, epoch=located.epoch, message=user("second, rather"))
    await store.submit("c1", edit)
    await hand.take("c1")
    await hand.end_turn("better")
    await store.fork_chat("c1", "c2")
    assert texts(await history(store, "c2"))[4:] == ["first answer", "second, rather", "better"]
    assert "second question" not in await told(store, "c2")
    await check(store, "c2")
    hand.close()


async def test_a_fork_with_the_same_key_happens_once(store: Store) -> None:
    hand = await in_state(store, State.IDLE)
    key = Key(principal="ada", key="k1")
    first = await store.fork_chat("c1", "c2", upto=0, key=key)
    assert await store.fork_chat("c1", "c2", upto=0, key=key) == first
    with pytest.raises(KeyReused):
        await store.fork_chat("c1", "c3", upto=0, key=key)
    assert sorted(line.id for line in await store.list_chats()) == ["c1", "c2"]
    hand.close()


async def test_concurrent_forks_onto_one_name_happen_once(store: Store) -> None:
    hand = await in_state(store, State.IDLE)
    forks = (store.fork_chat("c1", "c2", upto=upto) for upto in itertools.islice(itertools.cycle((0, 1)), 10))
    outcomes = await asyncio.gather(*forks, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert len(refused) == 9
    assert all("there is a chat 'c2' already" in str(error) for error in refused)
    await check(store, "c2")
    hand.close()


@pytest.mark.parametrize("upto", [-1, 2, 10_000_000_000])
async def test_a_position_that_does_not_exist_is_named(store: Store, upto: int) -> None:
    hand = await in_state(store, State.IDLE)
    with pytest.raises(NotFound, match=str(upto)):
        await store.fork_chat("c1", "c2", upto=upto)
    with pytest.raises(NotFound, match="'nope'"):
        await store.fork_chat("nope", "c2")
    with pytest.raises(RefusedError, match="already"):
        await store.fork_chat("c1", "c1")
    assert [line.id for line in await store.list_chats()] == ["c1"]
    hand.close()


# --- delete -------------------------------------------------------------------------------------------------------


def rows_of(url: str, chat_id: str) -> dict[str, int]:
    counts = {
        table: sql(url, f"SELECT count(*) FROM {table} WHERE chat_id = ?", (chat_id,))[0][0] for table in TABLES
    }
    counts["chats"] = sql(url, "SELECT count(*) FROM chats WHERE id = ?", (chat_id,))[0][0]
    return {table: count for table, count in counts.items() if count}


@pytest.mark.parametrize("state", State)
async def test_a_chat_is_deleted_only_at_rest(store: Store, store_url: str, state: State) -> None:
    hand = await in_state(store, state)
    before = await store.read_chat("c1")
    if state in (State.IDLE, State.FAILED):
        assert await store.delete_chat("c1") == ("c1",)
        assert rows_of(store_url, "c1") == {}
        with pytest.raises(NotFound):
            await store.read_chat("c1")
    else:
        with pytest.raises(RefusedError, match=f"delete refused while the chat is {state}") as caught:
            await store.delete_chat("c1")
        assert caught.value.state == state
        assert await store.read_chat("c1") == before
        assert len(await history(store, "c1")) >= 2
    hand.close()


async def test_nothing_of_a_deleted_chat_is_left_in_any_table_and_others_are_whole(
    store: Store, store_url: str
) -> None:
    hand = await a_long_chat(store)
    await store.fork_chat("c1", "kept")
    await store.submit("c1", cmd.Send(message=user("and more")))
    await hand.take("c1")
    batch = DeltaBatch(chat=hand.held.chat, attempt=hand.attempt(), first_k=0, bodies=(b"{}",))
    assert await store.add_deltas([batch]) == ()
    await hand.respond("trying", call("k9"))
    await store.submit("c1", cmd.Send(message=user("queued")))
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="boom", message="it broke")))
    assert set(rows_of(store_url, "c1")) == {"chats", *TABLES}
    kept = await store.read_history("kept")
    assert await store.delete_chat("c1") == ("c1",)
    assert rows_of(store_url, "c1") == {}
    assert await store.read_history("kept") == kept
    await check(store, "kept")
    with pytest.raises(NotFound):
        await store.delete_chat("c1")
    hand.close()


async def a_family(store: Store) -> Hand:
    """Parent, child and grandchild, all at rest, and a stranger."""
    for new in (
        new_chat(None, id="parent"),
        replace(new_chat(None, id="child"), parent_id="parent", parent_call="k1", depth=1),
        replace(new_chat(None, id="other-child"), parent_id="parent", parent_call="k2", depth=1),
        replace(new_chat(None, id="grandchild"), parent_id="child", parent_call="k3", depth=2),
        new_chat(None, id="stranger"),
    ):
        await store.create_chat(new)
    return Hand(store)


async def test_a_chat_with_spawned_chats_is_deleted_with_them_or_not_at_all(store: Store, store_url: str) -> None:
    hand = await a_family(store)
    with pytest.raises(RefusedError, match="has 3 spawned chats: delete them too") as caught:
        await store.delete_chat("parent")
    assert caught.value.reason == "children"
    assert len(await store.list_chats()) == 5
    deleted = await store.delete_chat("parent", children="include")
    assert sorted(deleted) == ["child", "grandchild", "other-child", "parent"]
    assert [line.id for line in await store.list_chats()] == ["stranger"]
    for chat_id in deleted:
        assert rows_of(store_url, chat_id) == {}
    hand.close()


async def test_a_spawned_chat_at_work_keeps_the_whole_family_from_being_deleted(store: Store) -> None:
    hand = await a_family(store)
    await store.submit("grandchild", cmd.Send(message=user("work")))
    with pytest.raises(RefusedError, match="delete refused while the chat is running"):
        await store.delete_chat("parent", children="include")
    assert len(await store.list_chats()) == 5
    for line in await store.list_chats():
        await check(store, line.id)
    hand.close()


async def test_a_parent_that_waits_for_a_deleted_child_is_told_and_goes_on(store: Store) -> None:
    """The child rests, and its next turn was awaited: without a word, the parent would wait for ever."""
    hand = Hand(store)
    await store.create_chat(new_chat("do it", id="parent"))
    await store.create_chat(replace(new_chat(None, id="child"), parent_id="parent", depth=1))
    await hand.take("parent")
    await hand.respond(call("k1"), start=False)
    waits = cmd.Delegate(by=hand.by, call_id="k1", external=External.CHILD, child_id="child", child_turn=1)
    await hand.commit(waits, cmd.Park(by=hand.by))
    assert (await store.read_chat("parent")).chat.state is State.WAITING
    assert await store.delete_chat("child") == ("child",)
    parent = (await store.read_chat("parent")).chat
    assert (parent.state, parent.worker, parent.wake_at is None) == (State.RUNNING, None, False)
    result = (await history(store, "parent"))[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert result.error
    await check(store, "parent")
    await hand.take("parent")
    hand.close()


async def test_those_who_read_a_chat_that_is_deleted_are_told(store: Store) -> None:
    hand = await in_state(store, State.IDLE)
    end = (await store.read_journal("c1")).cursor
    waiting = [asyncio.ensure_future(store.wait_journal("c1", end, deadline_s=60)) for _ in range(3)]
    await until(lambda: store.bell.waiter_count == 3)
    await store.delete_chat("c1")
    for reader in waiting:
        with pytest.raises(NotFound):
            await asyncio.wait_for(reader, 30)
    with pytest.raises(NotFound):
        await store.read_journal("c1", end)
    assert await store.read_history("c1") == []
    hand.close()


async def test_a_deleted_chat_stays_deleted_for_those_who_repeat_themselves(store: Store) -> None:
    """The key of its creation is remembered: a client that asks again gets the old answer, not a new chat."""
    key, new = Key(principal="ada", key="k1"), new_chat(None, id="c1")
    first = await store.create_chat(new, key)
    await store.delete_chat("c1")
    assert await store.create_chat(new, key) == first
    with pytest.raises(NotFound):
        await store.read_chat("c1")


async def test_an_archived_chat_can_be_brought_back_forked_and_deleted(store: Store, store_url: str) -> None:
    hand = await in_state(store, State.IDLE)
    await store.submit("c1", cmd.Archive())
    assert [line.archived for line in await store.list_chats()] == [True]
    await store.fork_chat("c1", "c2")
    assert not (await store.read_chat("c2")).chat.archived
    await store.submit("c1", cmd.Archive(archived=False))
    assert not (await store.read_chat("c1")).chat.archived
    await store.submit("c1", cmd.Archive())
    await store.delete_chat("c1")
    assert rows_of(store_url, "c1") == {}
    hand.close()


# --- really gone --------------------------------------------------------------------------------------------------


class Secrets:
    """Numbered words that occur nowhere else; each says where it was put."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, where: str, length: int = 60) -> str:
        self.words.append(f"hush-{len(self.words)}-{where}-".ljust(length, "s"))
        return self.words[-1]

    def found_in(self, data: bytes) -> list[str]:
        return [word for word in self.words if word[:40].encode() in data]


async def a_life_full_of_secrets(store: Store, secret: Secrets, chat_id: str, size: int = 37) -> None:
    """Everything a chat can be told, in many sizes, beside two chats that are busy in the same pages."""
    hand = Hand(store)
    new = new_chat(secret("first"), id=chat_id, owner=secret("owner"))
    metadata = Raw(f'{{"note":"{secret("metadata")}"}}'.encode())
    await store.create_chat(replace(new, title=secret("title"), metadata=metadata))
    for n in range(12):
        await store.create_chat(new_chat(f"neighbour {n} " * 20, id=f"{chat_id}-neighbour{n}"))
    snapshots = {snapshot.chat.id: snapshot for snapshot in await hand.claim()}
    hand.snapshot = snapshots[chat_id]
    for n in range(30):
        attempt = hand.attempt()
        bodies = tuple(f'{{"part":"text","text":"{secret("delta", 200)}"}}'.encode() for _ in range(4))
        deltas = DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=bodies)
        assert await store.add_deltas([deltas]) == ()
        response = hand.response(secret("response", 50 + 97 * n), call(f"k{n}", arguments=secret("arguments")))
        await hand.commit(replace(response, attempt=attempt))
        await hand.finish(f"k{n}", secret("result", 400 * n + 40))
    await store.submit(chat_id, cmd.Send(message=user(secret("queued", 300), id="q1")))
    await store.submit(chat_id, cmd.Send(message=user(secret("queued-long", 9_000), id="q2")))
    await store.submit(chat_id, cmd.Send(message=user(secret("withdrawn", 3_000), id="q3")))
    await store.submit(chat_id, cmd.Withdraw(message_id="q3"))
    hand.snapshot = await store.read_chat(chat_id)
    await hand.end_turn(secret("answer"))
    spot = await store.locate_message(chat_id, "q1")
    edit = cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=user(secret("edited", 500)))
    answer = await store.submit(chat_id, edit)
    assert [b"queued-long" in bytes(dropped) for dropped in answer.dropped] == [True]
    hand.snapshot = await store.read_chat(chat_id)
    await hand.commit(cmd.FinishStop(by=hand.by))
    await hand.respond(call("ask"), start=False)
    await hand.commit(cmd.AskApproval(by=hand.by, call_id="ask", question=secret("question")))
    await store.submit(chat_id, cmd.Deny(call_id="ask", words=secret("words"), by=secret("who")))
    hand.snapshot = await store.read_chat(chat_id)
    await hand.end_turn(secret("answer"))
    await store.submit(chat_id, cmd.Compact())
    await hand.take(chat_id)
    await hand.commit(
        cmd.FinishCompaction(by=hand.by, upto=3, summary=secret("summary", 2_000)), cmd.FinishTurn(by=hand.by)
    )
    await store.submit(chat_id, cmd.Send(message=user(secret("last"))))
    await store.submit(chat_id, cmd.Send(message=user(secret("queued-last", 700), id="q9")))
    await hand.take(chat_id)
    await store.submit(chat_id, cmd.Stop(clear_queue=True))
    hand.snapshot = await store.read_chat(chat_id)
    await hand.commit(cmd.FinishStop(by=hand.by, detail=secret("detail")))
    assert hand.held.chat.state is State.IDLE
    for snapshot in snapshots.values():  # the pages around it are written and split again
        if snapshot.chat.id != chat_id:
            hand.snapshot = snapshot
            for n in range(20):
                await hand.commit(cmd.Note(by=hand.by, topic="busy", text="x" * (size * n)))
    hand.close()


@pytest.mark.parametrize("size", range(30, 60, 6))
async def test_of_a_deleted_chat_no_row_no_free_page_and_no_wal_keeps_a_byte_and_a_vacuum_takes_the_rest(
    tmp_path: Path, size: int
) -> None:
    """The rest: copies of cells in the gap of a page, where SQLite left them when it moved rows to the next page. It
    overwrites what is deleted (`secure_delete`), and not what it moves. Whether there are any goes by sizes.
    """
    path, secret = tmp_path / "holdfast.db", Secrets()
    async with open_store(f"sqlite:///{path}", StoreOptions()) as store:
        await a_life_full_of_secrets(store, secret, "c1", size)
        await store.create_chat(new_chat("not a secret: kept-word", id="c2"))
        await store.delete_chat("c1")
    assert [file.name for file in tmp_path.iterdir() if file != path and secret.found_in(file.read_bytes())] == []
    assert secret.found_in(without_gaps(path.read_bytes())) == []
    vacuum(str(path))
    assert secret.found_in(path.read_bytes()) == []
    assert b"kept-word" in path.read_bytes()


def without_gaps(data: bytes) -> bytes:
    """A database without what lies between the pointers and the cells of a page: https://sqlite.org/fileformat.html."""
    size = int.from_bytes(data[16:18], "big")
    kept = bytearray(data)
    for start in range(0, len(data), size):
        head = start + (100 if start == 0 else 0)
        if data[head] in (2, 5, 10, 13):  # the four kinds of pages with cells; whatever else is kept whole
            pointers = head + (12 if data[head] in (2, 5) else 8)
            first = pointers + 2 * int.from_bytes(data[head + 3 : head + 5], "big")
            cells = start + int.from_bytes(data[head + 5 : head + 7], "big")
            kept[first:cells] = bytes(cells - first)
    return bytes(kept)


async def test_the_bytes_are_gone_soon_after_the_delete_while_others_have_the_file_open(tmp_path: Path) -> None:
    """A reader held the WAL when the chat was deleted: the bytes go when it has left, without another write."""
    path, secret = tmp_path / "holdfast.db", Secrets()
    url = f"sqlite:///{path}"
    async with open_store(url, StoreOptions()) as store, open_store(url, StoreOptions()) as other:
        assert isinstance(other, SqliteStore)
        await store.create_chat(new_chat(secret("only"), id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        await hand.end_turn(secret("answer"))
        connection = other._transactor.open_reader()
        connection.execute("BEGIN")
        assert connection.execute("SELECT count(*) FROM chats").fetchone() == (1,)
        await store.delete_chat("c1")
        await until(lambda: store.stats()["checkpoints_busy"])
        assert visible_outside(path, secret)
        connection.execute("ROLLBACK")
        connection.close()
        await until(lambda: not visible_outside(path, secret))
        hand.close()


def visible_outside(path: Path, secret: Secrets) -> list[str]:
    """By another process: a plain `open` and `close` in this one would drop SQLite's locks."""
    files = [file for file in (path, Path(f"{path}-wal")) if file.exists()]
    return secret.found_in(b"".join(_read_elsewhere(file) for file in files))


def _read_elsewhere(file: Path) -> bytes:
    return subprocess.run(["cat", file], stdout=subprocess.PIPE, check=True).stdout


async def test_answers_kept_for_clients_say_nothing_of_a_deleted_chat(store: Store, store_url: str) -> None:
    """What a stop or an edit dropped is in the answer that is kept for seven days: not longer than the chat."""
    secret = Secrets()
    await a_life_full_of_secrets(store, secret, "c1")
    await store.delete_chat("c1")
    answers = "".join(row[0] for row in sql(store_url, "SELECT answer FROM receipts"))
    assert secret.found_in(answers.encode()) == []
