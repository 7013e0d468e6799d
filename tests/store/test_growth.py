"""What is written, kept and looked at does not grow with what nobody needs."""

import random

import pytest

from holdfast.core import events as ev
from holdfast.store.base import Store
from tests.support.behind import sql
from tests.support.chats import Hand, call, new_chat, user


def written_bytes(store: Store, url: str) -> int:
    """To the database's log, by everybody, since it was made."""
    if url.startswith("sqlite"):
        return int(store.stats()["wal_pages_written"] or 0) * 4096
    return int(sql(url, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


@pytest.mark.parametrize("kind", ["a chat", "a sub-agent"])
async def test_what_a_turn_writes_does_not_depend_on_the_answer_before_it(
    store: Store, store_url: str, kind: str
) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat("do it", id="parent", agent="parent"))
    (parent,) = await hand.claim("parent")
    for n, length in enumerate((10, 200_000)):
        new = new_chat(None, id=f"c{n}")
        if kind == "a sub-agent":
            hand.snapshot = parent
            await hand.respond(call(f"k{n}"))
            parent = await hand.commit(ev.Outcome(by=hand.by, call_id=f"k{n}", content="made", spawn=new))
        else:
            await store.create_chat(new)
        await store.submit(f"c{n}", ev.Send(message=user()))
        await hand.take(f"c{n}")
        await hand.end_turn(random.Random(1).randbytes(length // 2).hex())
    counts = []
    for n in range(2):
        before = written_bytes(store, store_url)
        await store.submit(f"c{n}", ev.Send(message=user()))
        await hand.take(f"c{n}")
        for k in range(4):
            await hand.respond(call(f"call{k}"))
            await hand.finish(f"call{k}")
        await hand.end_turn("short")
        counts.append(written_bytes(store, store_url) - before)
    short, long = counts[0], counts[1]
    assert long < short + 100_000, counts
    hand.close()
