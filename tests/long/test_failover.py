"""A synchronous standby takes over under load: the primary is killed, and the workers find the other by their URL."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.core.records import Message
from holdfast.errors import NotFound, StoreError
from tests.long.crew import CALM_S, Crew, doctor, registered, renewed, rest
from tests.support.chats import new_chat, user
from tests.support.postgres import PostgresServer
from tests.support.standby import Standby, pair_url
from tests.support.tallies import Figures
from tests.support.waiting import until

CLIENTS = 8
PAUSE_S = 0.1  # of a client, after each call
SAME_REQUESTS_MAX = 3
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, Standby]]:
    with PostgresServer() as primary, Standby(primary) as standby:
        standby.make_synchronous()
        yield primary, standby


class Load:
    """Clients that create chats and send to them, and remember what was acknowledged and what was not."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._over = asyncio.Event()
        self.acknowledged: dict[str, list[Message]] = {}
        self.calls = 0
        self.failed = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    def end(self) -> None:
        self._over.set()

    async def _client(self) -> None:
        while not self._over.is_set():
            new = new_chat(agent="payer")
            assert new.message is not None
            try:
                await self._app.store.create_chat(new)
                self._acknowledge(new.id, new.message)
                again = user("and again")
                await self._app.chat(new.id).send(again)
                self._acknowledge(new.id, again)
            except StoreError:  # it may have been written or not: nobody was told that it was
                self.failed += 1
            await asyncio.sleep(PAUSE_S)

    def _acknowledge(self, chat_id: str, message: Message) -> None:
        self.acknowledged.setdefault(chat_id, []).append(message)
        self.calls += 1


async def test_nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over_under_load(
    pair: tuple[PostgresServer, Standby], tmp_path: Path, figures: Figures
) -> None:
    primary, standby = pair
    url = pair_url(primary, standby, primary.create_database().rpartition("/")[2])
    with Crew(url, tmp_path) as crew:
        members = [crew.launch() for _ in range(3)]
        async with App(url, [], lease_ttl_s=crew.ttl_s) as app:
            await registered(url, members)
            load = Load(app)
            running = asyncio.create_task(load.run())
            await until(lambda: load.calls >= 100 and len(crew.entered()) >= 50, CALM_S)
            await asyncio.to_thread(primary.kill9)
            at_the_kill = load.calls
            await asyncio.to_thread(standby.promote)
            await until(lambda: load.calls >= at_the_kill + 50, CALM_S)
            load.end()
            await running
            took_s = await rest(app, load.acknowledged)
            asked = crew.asked()
            await renewed(url, (await registered(url, members)).values(), times=2)

            assert await lost(app, load.acknowledged) == []
            assert {call_id: count for call_id, count in crew.entered().items() if count > 1} == {}
            assert crew.asked() == asked, "a model is asked though every chat rests"
            same = Counter(tuple(line.ids) for line in crew.evidence() if line.what == "asked")
            assert max(same.values()) <= SAME_REQUESTS_MAX
            figures("acknowledged calls, before and after the primary was killed", f"{at_the_kill}, {load.calls}")
            figures("calls of clients that failed, all of them told", load.failed)
            figures("model requests, and those among them that repeat another", f"{asked}, {asked - len(same)}")
            figures("all chats at rest, from the end of the load", took_s, "s")
        _, found = doctor(url, tmp_path)
        assert [finding for findings in found.values() for finding in findings if finding["what"] == "chat"] == []
        assert [member.stop() for member in members] == [0, 0, 0]


async def lost(app: App, acknowledged: dict[str, list[Message]]) -> list[str]:
    found = []
    for chat_id, messages in acknowledged.items():
        try:
            there = {message.id for message in await app.chat(chat_id).messages()}
        except NotFound:
            there = set()
        found += [f"{message.id} of {chat_id}" for message in messages if message.id not in there]
    return found
