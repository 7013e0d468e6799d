"""Promise 7 over time: who holds a chat renews its lease and says that it drives it."""

import msgspec

from holdfast.store.contract import Store
from holdfast.store.undriven_chats import DRIVEN_MAX, find_undriven, published
from tests.support.chats import Hand, new_chat


async def test_a_chat_that_its_living_worker_does_not_drive_is_told(store: Store) -> None:
    for n in range(2):
        await store.create_chat(new_chat("hello", id=f"c{n}"))
    driving, silent = Hand(store), Hand(store)
    (first,) = await driving.claim(limit=1)
    await silent.claim()
    stamps = [first.chat.claim_stamp]

    async def renew(_: float) -> None:
        driving.line.renew(driving.name, msgspec.Raw(msgspec.json.encode({"driven": published(stamps)})))

    assert await find_undriven(store, renew) == []
    stamps.clear()
    assert await find_undriven(store, renew) == ["c0"], "who does not renew has said nothing"


async def test_while_nobody_holds_a_chat_nobody_waits(store: Store) -> None:
    Hand(store)

    async def never(_: float) -> None:
        raise AssertionError("waited")

    assert await find_undriven(store, never) == []


def test_what_a_worker_publishes_is_bounded() -> None:
    assert published([1 << 40 | 7, 3]) == [3, 7]
    assert published(range(DRIVEN_MAX + 1)) is None
