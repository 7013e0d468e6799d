"""A receiver that is down, and then hangs, while the server is killed with -9 and started again, on both stores."""

from pathlib import Path

import httpx2 as httpx

from tests.support.behind import sql
from tests.support.receiver import REACH, Receiver, Reply
from tests.support.servers import created, ended, server
from tests.support.waiting import until

SETTINGS = {"HOLDFAST_WEBHOOK_REACH": REACH[0]}


def hours_pass(url: str) -> None:
    """While no server lives: what waits is due."""
    sql(url, "UPDATE deliveries SET next_at = 0 WHERE state = 'pending'")


async def turn_ends(client: httpx.AsyncClient) -> str:
    chat_id = await created(client, "echo", "hello")
    await ended(client, chat_id)
    return chat_id


async def test_each_event_is_delivered_once_under_one_id_whoever_is_down_or_killed(
    store_url: str, tmp_path: Path
) -> None:
    receiver = Receiver(Reply(hangs=True))
    await receiver.start()
    await receiver.stop()
    with server(store_url, tmp_path / "home", settings=SETTINGS) as first:
        async with first.client() as client:
            made = (await client.post("/api/webhooks", json={"name": "ops", "url": receiver.url})).json()
            chats = [await turn_ends(client) for _ in range(3)]
            untried = "SELECT count(*) FROM deliveries WHERE attempts = 0"
            await until(lambda: sql(store_url, untried) == [(0,)])
        first.kill()
    ids = {notice_id for (notice_id,) in sql(store_url, "SELECT notice_id FROM deliveries")}
    assert len(ids) == 3
    hours_pass(store_url)
    await receiver.start()
    with server(store_url, tmp_path / "home", settings=SETTINGS) as second:
        await receiver.until(lambda: set(receiver.ids) == ids)
        second.kill()  # in the middle of each attempt: the receiver has it, and we do not know
    hours_pass(store_url)
    receiver.usual = Reply()
    tried = len(receiver.got)
    with server(store_url, tmp_path / "home", settings=SETTINGS) as third:
        async with third.client() as client:
            chats.append(await turn_ends(client))
            await receiver.until(lambda: len(receiver.got) == tried + 4)
            left = "SELECT count(*) FROM deliveries WHERE state <> 'delivered'"
            await until(lambda: sql(store_url, left) == [(0,)])
    await receiver.stop()
    taken = receiver.got[tried:]
    assert sorted(received.event["data"]["chat_id"] for received in taken) == sorted(chats)
    assert ids < {received.id for received in taken}
    assert len({received.id for received in taken}) == 4, "each event once, once it is taken"
    bodies = {(received.id, received.body) for received in receiver.got}
    assert len(bodies) == 4, "and what came more than once came under the same id, byte for byte"
    assert all(received.is_signed_with(made["secret"]) for received in receiver.got)
