"""The bytes of files in the database: once, with the chats that name them, and gone with the last of these."""

import asyncio
import base64
import json
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.kept_files import SCHEME, Content, digest_of, kept_in
from holdfast.core.limits import Limits
from holdfast.core.records import File, Message, Role, Text
from holdfast.errors import InvalidInput, KeyReused, LimitReached, NotFound, RefusedError, StoreError
from holdfast.store import kept_files, open_store
from holdfast.store.contract import Store
from holdfast.store.export_lines import HEAPS
from holdfast.store.postgres import sql
from holdfast.store.records import Key, StoreOptions
from holdfast.store.transfers import Slot
from holdfast.system.clock import FakeClock
from holdfast.transfer import delete_owner, export_chat, import_chat
from tests.store.test_crafted_imports import written
from tests.support import behind
from tests.support.chats import assistant, new_chat, unique
from tests.support.waiting import until

BYTES = bytes(range(256)) * 40
OTHER = bytes(reversed(range(256))) * 40


def image(data: bytes = BYTES) -> File:
    return File(media_type="image/png", uri=f"data:image/png;base64,{base64.b64encode(data).decode()}", name="a.png")


def named(data: bytes = BYTES) -> File:
    return File(media_type="image/png", uri=SCHEME + digest_of(data), name="a.png", size_bytes=len(data))


def saying(*files: File) -> Message:
    return Message(id=unique("user"), role=Role.USER, parts=(Text(text="see"), *files))


async def created(store: Store, *files: File, owner: str = "") -> str:
    new = replace(new_chat(owner=owner), message=saying(*files))
    return (await store.create_chat(new)).chat_id


async def rested(store: Store, *files: File, owner: str = "") -> str:
    """At rest, so that it can be deleted and exported."""
    new = replace(new_chat(None, owner=owner), past=(saying(*files), assistant("I see.")))
    return (await store.create_chat(new)).chat_id


def kept(store_url: str) -> dict[str, int]:
    """How many rows there are of bytes, uses and notes."""
    tables = ("files", "file_uses", "unused_files")
    return {table: behind.sql(store_url, f"SELECT count(*) FROM {table}")[0][0] for table in tables}


async def messages(store: Store, chat_id: str) -> list[Message]:
    entries = [decode_entry(row.body) for row in await store.read_history(chat_id)]
    return [entry.message for entry in entries if isinstance(entry, MessageAdded)]


async def test_a_file_is_stored_once_however_often_it_is_sent(store: Store, store_url: str) -> None:
    first = await created(store, image(), image())
    await store.submit(first, cmd.Send(message=saying(image())))
    second = await created(store, image())
    assert kept(store_url) == {"files": 1, "file_uses": 2, "unused_files": 0}
    for chat_id in (first, second):
        (found, *_) = await messages(store, chat_id)
        assert kept_in((found,)) == {digest_of(BYTES)}
        assert await store.read_file(chat_id, digest_of(BYTES)) == BYTES
        (back,) = await store.whole_messages(chat_id, [found])
        assert [part.uri for part in back.parts if isinstance(part, File)] == [image().uri] * (len(back.parts) - 1)
    assert len((await store.read_history(first))[0].body) < 1_000


async def test_bytes_that_only_another_chat_names_are_not_there(store: Store) -> None:
    await created(store, image())
    other = await created(store)
    with pytest.raises(NotFound):
        await store.read_file(other, digest_of(BYTES))
    with pytest.raises(InvalidInput, match="does not hold"):
        await store.submit(other, cmd.Send(message=saying(named())))
    with pytest.raises(InvalidInput, match="does not hold"):
        await created(store, named())
    (message,) = await store.whole_messages(other, [saying(named())])
    assert any(isinstance(part, Text) and "not kept any more" in part.text for part in message.parts)


async def test_bytes_that_were_just_shown_in_one_chat_are_not_shown_in_another(store: Store) -> None:
    mine = await created(store, image(), owner="ann")
    (shown,) = await store.whole_messages(mine, [saying(named())])
    assert image() in [replace(part, size_bytes=None) for part in shown.parts if isinstance(part, File)]
    (message,) = await store.whole_messages(await created(store, owner="bob"), [saying(named())])
    assert not any(isinstance(part, File) for part in message.parts)


async def test_what_many_read_at_the_same_time_is_remembered_once(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "REMEMBERED_BYTES", 3 * len(BYTES))
    chat_id = await created(store, image(), image(OTHER))
    shown = [saying(named())]
    await asyncio.gather(*(store.whole_messages(chat_id, shown) for _ in range(8)))
    await store.whole_messages(chat_id, [saying(named(OTHER))])
    behind.sql(store_url, "UPDATE files SET data = 'x'")
    for data in (BYTES, OTHER):
        (message,) = await store.whole_messages(chat_id, [saying(named(data))])
        assert image(data).uri in [part.uri for part in message.parts if isinstance(part, File)]


async def test_what_a_chat_holds_it_may_be_sent_by_its_name(store: Store, store_url: str) -> None:
    chat_id = await created(store, image())
    await store.submit(chat_id, cmd.Send(message=saying(named(), image(OTHER))))
    assert kept(store_url) == {"files": 2, "file_uses": 2, "unused_files": 0}


async def test_a_write_that_is_refused_keeps_no_bytes(store: Store, store_url: str) -> None:
    with pytest.raises(NotFound):
        await store.submit("no-such-chat", cmd.Send(message=saying(image())))
    chat_id = await created(store)
    with pytest.raises(InvalidInput):
        await store.submit(chat_id, cmd.Send(message=saying(image(), named(OTHER))))
    with pytest.raises(RefusedError):
        await store.submit(chat_id, cmd.Submit(call_id="none", content="", files=(image(),)))
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_a_key_is_for_the_bytes_as_they_were_sent(store: Store, store_url: str) -> None:
    chat_id, key = await created(store), Key(principal="ann", key="one")
    sent = cmd.Send(message=saying(image()))
    first = await store.submit(chat_id, sent, key)
    assert await store.submit(chat_id, sent, key) == first
    with pytest.raises(KeyReused):
        await store.submit(chat_id, replace(sent, message=replace(sent.message, parts=(image(OTHER),))), key)
    assert kept(store_url) == {"files": 1, "file_uses": 1, "unused_files": 0}


async def test_a_chat_has_so_many_bytes_of_files_and_no_more(store_url: str, clock: FakeClock) -> None:
    limits = Limits(chat_files_bytes_max=len(BYTES) + 10)
    async with open_store(store_url, StoreOptions(clock=clock, limits=limits)) as store:
        chat_id = await created(store, image())
        await store.submit(chat_id, cmd.Send(message=saying(image())))
        with pytest.raises(LimitReached, match="files of a chat"):
            await store.submit(chat_id, cmd.Send(message=saying(image(OTHER))))
        with pytest.raises(LimitReached, match="files of a chat"):
            await store.files.keep_all(chat_id, [image(OTHER)])
        await created(store, image(OTHER))
        assert kept(store_url) == {"files": 2, "file_uses": 2, "unused_files": 0}


async def test_bytes_go_with_the_last_chat_that_names_them(store: Store, store_url: str) -> None:
    first, second = await rested(store, image(), image(OTHER)), await rested(store, image())
    await store.delete_chat(first)
    assert kept(store_url) == {"files": 1, "file_uses": 1, "unused_files": 0}
    assert await store.read_file(second, digest_of(BYTES)) == BYTES
    await store.delete_chat(second)
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_an_owner_s_bytes_go_with_the_owner(store: Store, store_url: str) -> None:
    await rested(store, image(), owner="ada")
    bobs = await rested(store, image(OTHER), owner="bob")
    await delete_owner(store, "ada")
    assert kept(store_url) == {"files": 1, "file_uses": 1, "unused_files": 0}
    assert await store.read_file(bobs, digest_of(OTHER)) == OTHER


async def test_a_fork_has_the_files_of_its_source_and_outlives_it(store: Store, store_url: str) -> None:
    source = await rested(store, image())
    await store.fork_chat(source, "fork")
    await store.delete_chat(source)
    assert await store.read_file("fork", digest_of(BYTES)) == BYTES
    await store.delete_chat("fork")
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_what_is_deleted_and_sent_at_the_same_time_is_there_for_who_sent_it(store: Store) -> None:
    """On PostgreSQL these run side by side: whichever is first, the bytes are there once both are done."""
    for _ in range(15):
        old = await rested(store, image())
        _, new, fork = await asyncio.gather(
            store.delete_chat(old),
            rested(store, image()),
            store.fork_chat(old, unique("fork")),
            return_exceptions=True,
        )
        holders = [new] if isinstance(fork, BaseException) else [new, fork.chat_id]
        for chat_id in holders:
            assert isinstance(chat_id, str), chat_id
            assert await store.read_file(chat_id, digest_of(BYTES)) == BYTES
            await store.delete_chat(chat_id)


async def test_a_name_that_is_sent_a_thousand_times_is_shown_as_far_as_there_is_room(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newest first: a worker never holds more than that, however often a short name stands in a chat."""
    monkeypatch.setattr(kept_files, "SHOWN_BYTES_MAX", 3 * len(BYTES) + 10)
    chat_id = await created(store, image(), image(OTHER))
    await store.submit(chat_id, cmd.Send(message=saying(*[named()] * 1_000)))
    first, last = await store.whole_messages(chat_id, [saying(named(OTHER)), saying(*[named()] * 1_000)])
    assert [part.uri for part in last.parts if isinstance(part, File)] == [image().uri] * 3
    texts = [part.text for part in last.parts if isinstance(part, Text)]
    assert (len(texts), "more files than can be shown" in texts[-1]) == (1 + 997, True)
    assert not any(isinstance(part, File) for part in first.parts)


async def test_a_sweep_goes_on_where_whoever_deleted_was_killed(store: Store, store_url: str) -> None:
    chat_id = await rested(store, image())
    await store.large_chats.delete_chat(chat_id, "refuse")
    assert kept(store_url) == {"files": 1, "file_uses": 0, "unused_files": 1}
    await store.sweep()
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_a_runner_keeps_what_a_result_shows_before_it_commits_it(store: Store, store_url: str) -> None:
    chat_id = await created(store)
    files = await store.files.keep_all(chat_id, [image(), File(media_type="image/png", uri="https://example.org/a")])
    assert [file.uri for file in files] == [SCHEME + digest_of(BYTES), "https://example.org/a"]
    assert await store.files.keep_all(chat_id, [image()]) == files[:1]
    assert kept(store_url) == {"files": 1, "file_uses": 1, "unused_files": 0}


async def test_a_runner_names_only_what_its_chat_holds(store: Store, store_url: str) -> None:
    chat_id = await created(store, image())
    assert await store.files.keep_all(chat_id, [named()]) == (named(),)
    await created(store, image(OTHER))
    with pytest.raises(InvalidInput, match="does not hold"):
        await store.files.keep_all(chat_id, [named(OTHER)])


async def test_a_runner_whose_chat_is_deleted_keeps_nothing(store: Store, store_url: str) -> None:
    """Nobody would ever delete it: bytes go with the chat that names them."""
    chat_id = await rested(store)
    await store.delete_chat(chat_id)
    with pytest.raises(NotFound):
        await store.files.keep_all(chat_id, [image()])
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_a_file_moves_its_import_on_and_none_comes_to_one_that_was_given_up(
    store: Store, store_url: str
) -> None:
    content = Content(digest_of(BYTES), BYTES)
    await store.transfers.add(
        Slot("coming", HEAPS["journal"], [(1, 1, 0, None, None, None, "{}")]), "import-1", first=True
    )
    (before,) = await store.large_chats.read_remnants()
    await store.transfers.add_file("coming", content, "import-1")
    (after,) = await store.large_chats.read_remnants()
    assert after.seq > before.seq
    await store.transfers.give_up(["coming"])
    with pytest.raises(StoreError, match="gave it up"):
        await store.transfers.add_file("coming", content, "import-1")
    await store.sweep()
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_an_export_holds_the_bytes_and_an_import_brings_them(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    chat_id, path = await rested(store, image(), image(OTHER)), tmp_path / "chat.jsonl"
    await export_chat(store, chat_id, path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(base64.b64decode(line["data"]) for line in lines if line["kind"] == "file") == sorted(
        (BYTES, OTHER)
    )
    copy = await import_chat(store, path, new_ids=True)
    await store.delete_chat(chat_id)
    assert await store.read_file(copy.chat_id, digest_of(BYTES)) == BYTES
    await store.delete_chat(copy.chat_id)
    back = await import_chat(store, path)
    assert await store.read_file(back.chat_id, digest_of(OTHER)) == OTHER
    assert kept(store_url) == {"files": 2, "file_uses": 2, "unused_files": 0}


@pytest.mark.parametrize("wrong", ["missing", "other bytes", "before its chat"])
async def test_an_import_without_its_files_brings_nothing(
    store: Store, store_url: str, tmp_path: Path, wrong: str
) -> None:
    chat_id, path = await rested(store, image()), tmp_path / "chat.jsonl"
    await export_chat(store, chat_id, path)
    *lines, file, end = [json.loads(line) for line in path.read_bytes().splitlines()]
    await store.delete_chat(chat_id)
    if wrong == "other bytes":
        lines.append(file | {"data": base64.b64encode(OTHER).decode()})
    if wrong == "before its chat":
        lines.insert(2, file)
    with pytest.raises(InvalidInput, match=r"file|bytes|journal"):
        await import_chat(store, written(path, [*lines, end]))
    with pytest.raises(NotFound):
        await store.read_chat(chat_id)
    await store.sweep()
    assert kept(store_url) == {"files": 0, "file_uses": 0, "unused_files": 0}


async def test_bytes_that_somebody_is_just_naming_stay(postgres_url: str) -> None:
    """A transaction that is open has named them: whoever deletes them waits for its end, and then decides anew."""
    async with open_store(postgres_url, StoreOptions()) as store:
        old, digest = await rested(store, image()), digest_of(BYTES)
        with psycopg.connect(postgres_url, connect_timeout=10) as naming:
            naming.execute(sql.FILES.put, (digest, len(BYTES), BYTES))
            naming.execute(sql.FILES.use, ("another", digest, len(BYTES)))
            deleting = asyncio.ensure_future(store.delete_chat(old))
            await until(lambda: waits_for_a_lock(postgres_url) or deleting.done())
            naming.commit()
        await deleting
        assert await store.read_file("another", digest) == BYTES
        assert kept(postgres_url) == {"files": 1, "file_uses": 1, "unused_files": 0}


def waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url, connect_timeout=10) as looking:
        found = looking.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return found.fetchone() is not None
