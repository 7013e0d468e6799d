"""Chats as files: out of one store, into another, and back."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core import commands as cmd
from holdfast.core.journal import Traced
from holdfast.core.records import External, NewChat, Role, State
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.remnants import Slice
from holdfast.transfer import delete_owner, export_chat, export_owner, import_chat, read_import
from tests.crash.slicer import a_large_chat
from tests.support.aftermath import find_faults
from tests.support.chats import Hand, call, history, new_chat, texts, user


async def lived(store: Store) -> list[str]:
    """Chats that are idle, failed, archived, edited, waiting with a queue, and one with a compaction."""
    hand = Hand(store)
    await store.create_chat(new_chat('Grüße \U0001f600 "quoted"', id="idle", owner="acme"))
    await hand.take("idle")
    await hand.respond(call("k1"), start=True)
    await hand.finish("k1", "result\nof two lines")
    await hand.end_turn("done")
    await store.create_chat(new_chat(id="waits", owner="acme"))
    await hand.take("waits")
    await hand.park_for_client("k2", expires_at=None)
    await store.submit("waits", cmd.Send(message=user("queued")))
    await store.create_chat(new_chat(id="edited", owner="acme"))
    await hand.take("edited")
    await hand.end_turn("first")
    await store.submit("edited", cmd.Edit(message=user("other words"), pos=0, role=Role.USER, epoch=0))
    await hand.take("edited")
    await hand.end_turn("second")
    await store.create_chat(new_chat(None, id="empty", owner="acme"))
    await store.submit("empty", cmd.Archive())
    hand.close()
    return ["idle", "waits", "edited", "empty"]


async def test_a_chat_goes_from_sqlite_to_postgresql_and_back_as_the_same_bytes_and_goes_on(
    postgres_url: str, tmp_path: Path
) -> None:
    async with open_store(f"sqlite:///{tmp_path}/one.db") as first, open_store(postgres_url) as second:
        ids = await lived(first)
        async with open_store(f"sqlite:///{tmp_path}/three.db") as third:
            for chat_id in ids:
                files = [tmp_path / f"{chat_id}-{n}.jsonl" for n in range(3)]
                await export_chat(first, chat_id, files[0])
                await import_chat(second, files[0])
                await export_chat(second, chat_id, files[1])
                await import_chat(third, files[1])
                await export_chat(third, chat_id, files[2])
                assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()
            for store in (second, third):
                assert await find_faults(store) == []
                await goes_on(store)


async def goes_on(store: Store) -> None:
    hand = Hand(store)
    before = texts(await history(store, "idle"))
    await store.submit("idle", cmd.Send(message=user("go on")))
    await hand.take("idle")
    await hand.end_turn("went on")
    assert texts(await history(store, "idle")) == [*before, "go on", "went on"]
    await store.submit("waits", cmd.Submit(call_id="k2", content="from there"))
    await hand.take("waits")
    await hand.end_turn("thanks")
    assert (await store.read_chat("waits")).chat.state is State.RUNNING, "with the message that was queued"
    hand.close()


async def test_a_chat_that_is_there_is_not_replaced_and_comes_in_beside_under_a_new_id(
    store: Store, tmp_path: Path
) -> None:
    await lived(store)
    file = tmp_path / "idle.jsonl"
    await export_chat(store, "idle", file)
    with pytest.raises(RefusedError, match="there is a chat 'idle' already"):
        await import_chat(store, file)
    done = await import_chat(store, file, new_ids=True, owner="bob")
    copy = (await store.read_chat(done.chat_id)).chat
    assert (done.chats, copy.owner) == (1, "bob")
    assert texts(await history(store, done.chat_id)) == texts(await history(store, "idle"))
    assert copy.life != (await store.read_chat("idle")).chat.life
    assert await find_faults(store) == []


async def test_a_chat_comes_with_all_that_was_spawned_below_it(store: Store, tmp_path: Path) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="root", owner="acme"))
    await hand.take("root")
    await hand.respond(call("ask"), start=False)
    child = NewChat(id="child", agent="agent", owner="acme", message=user("help"))
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="ask", external=External.CHILD, spawn=child), cmd.Park(by=hand.by)
    )
    await hand.take("child")
    await hand.park_for_client("k9")
    file = tmp_path / "root.jsonl"
    with pytest.raises(RefusedError, match="belongs to another: export the chat 'root'"):
        await export_chat(store, "child", file)
    await export_chat(store, "root", file)
    done = await import_chat(store, file, new_ids=True)
    assert done.chats == 2
    (asked,) = await store.open_calls(done.chat_id)
    below = (await store.read_chat(asked.chat_id)).chat
    assert (below.parent_id, below.root_id) == (done.chat_id, done.chat_id)
    assert asked.chat_id != "child"
    assert await find_faults(store) == []
    await store.submit(asked.chat_id, cmd.Submit(call_id="k9", content="there"))
    await hand.take(asked.chat_id)
    await hand.end_turn("helped")
    await hand.take(done.chat_id)
    hand.close()


async def test_a_large_chat_comes_in_slices(store: Store, tmp_path: Path) -> None:
    await store.create_chat(a_large_chat())
    store.large_chats.slice = Slice(rows=3, bytes=200)
    await export_chat(store, "large", tmp_path / "large.jsonl")
    await store.delete_chat("large")
    await import_chat(store, tmp_path / "large.jsonl")
    assert texts(await history(store, "large")) == [f"message {n}" for n in range(22)]


async def test_what_only_operators_are_told_is_left_out_for_others(store: Store) -> None:
    """Tracebacks, and the secrets that a hook put into arguments. The lines stay, and the file is a whole one."""
    hand = Hand(store)
    await store.create_chat(new_chat(id="c1"))
    await hand.take("c1")
    await hand.respond(call("k1"), start=False)
    trace = Traced(source="hook", name="vault", error="KeyError", text="Traceback: hunter2")
    held, told = '{"key":"hunter2"}', '{"key":"[secret]"}'
    asking = cmd.AskApproval(by=hand.by, call_id="k1", question="may I?", arguments=held, told=told)
    await hand.commit(cmd.Note(by=hand.by, topic="trace", trace=trace), asking, cmd.Park(by=hand.by))
    for_operators, for_others = [
        [line async for line in (await store.transfers.export("c1", for_operators=whom)).lines()]
        for whom in (True, False)
    ]
    assert b"".join(for_operators).count(b"hunter2") == 2
    assert b"hunter2" not in b"".join(for_others)
    assert b"[secret]" in b"".join(for_others)
    assert [line[:16] for line in for_operators] == [line[:16] for line in for_others]
    done = await read_import(store, io.BytesIO(b"".join(for_others)), new_ids=True)
    (asked,) = await store.open_calls(done.chat_id)
    assert asked.arguments == told
    hand.close()


async def test_a_chat_that_runs_is_not_exported(store: Store, tmp_path: Path) -> None:
    await store.create_chat(new_chat(id="c1"))
    with pytest.raises(RefusedError, match="is running: stop it, or wait until it rests"):
        await export_chat(store, "c1", tmp_path / "c1.jsonl")
    assert list(tmp_path.glob("*.jsonl")) == []
    with pytest.raises(NotFound):
        await export_chat(store, "nowhere", tmp_path / "c1.jsonl")


BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "cut off": (lambda lines: lines[:-1], "has no end"),
    "cut in a line": (lambda lines: [*lines[:-1], lines[-1][:-5]], "is cut off"),
    "without a line": (lambda lines: [*lines[:3], *lines[4:]], "is next"),
    "changed": (lambda lines: [line.replace(b"hello", b"hullo") for line in lines], "tells of other lines"),
    "no JSON": (lambda lines: [b"PK\x03\x04\n", *lines], "is no JSON"),
    "another format": (lambda lines: [lines[0].replace(b'"format":1', b'"format":9'), *lines[1:]], "of an export"),
    "empty": (lambda lines: [], "has no end"),
    "twice": (lambda lines: lines * 2, "comes behind the end"),
    "no chat": (lambda lines: [lines[0], *lines[2:]], "is of a kind that no export has there"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_file_that_is_no_whole_export_is_refused_and_leaves_nothing(
    store: Store, tmp_path: Path, kind: str
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="c1"))
    await hand.take("c1")
    await hand.end_turn("done")
    file = tmp_path / "c1.jsonl"
    await export_chat(store, "c1", file)
    await store.delete_chat("c1")
    change, words = BROKEN[kind]
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    with pytest.raises(InvalidInput, match=words):
        await import_chat(store, file)
    assert await store.list_chats() == []
    assert await store.large_chats.read_remnants() == []
    await store.create_chat(new_chat(id="c1"))
    hand.close()


async def test_an_owner_is_listed_exported_and_deleted_with_nothing_left(store: Store, tmp_path: Path) -> None:
    await lived(store)
    await store.create_chat(new_chat(None, id="bobs", owner="bob"))
    await store.create_chat(new_chat(None, id="ownerless"))
    assert await store.transfers.owners(None, 10) == [("", 1), ("acme", 4), ("bob", 1)]
    assert await store.transfers.owners("acme", 10) == [("bob", 1)]
    assert await export_owner(store, "acme", tmp_path / "acme") == 4
    assert sorted(path.name for path in (tmp_path / "acme").iterdir()) == [
        "edited.jsonl",
        "empty.jsonl",
        "idle.jsonl",
        "waits.jsonl",
    ]
    with pytest.raises(RefusedError, match="'waits'"):
        await delete_owner(store, "acme")
    assert len(await store.list_chats()) == 6, "nothing was deleted"
    told: list[int] = []
    done = await delete_owner(store, "acme", stop=True, told=told.append)
    assert (done.chats, done.stopped, told[-1]) == (4, 1, 4)
    assert {line.id for line in await store.list_chats()} == {"bobs", "ownerless"}
    again = await delete_owner(store, "acme")
    assert again.chats == 0
    for file in sorted((tmp_path / "acme").iterdir()):
        await import_chat(store, file)
    assert await store.transfers.owners(None, 10) == [("", 1), ("acme", 4), ("bob", 1)]
