"""SQLite across boots of a machine and lives of a container: another boot id, another folder for temporary files.

The boot id is really another one, mounted over that of the machine. A lease is so long that who waits for its end
comes too late for the test.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.system.clock import boot_id
from tests.long.crew import CALM_S, Crew, create, registered, renewed, rest, taken_over
from tests.long.crew import fences as fences_of
from tests.support.tallies import Figures
from tests.support.waiting import until

FIRST, SECOND = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
pytestmark = pytest.mark.timeout(170)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew(f"sqlite:///{tmp_path}/holdfast.db", tmp_path, ttl_s=10 * CALM_S) as crew:
        yield crew


@pytest.fixture
async def app(crew: Crew) -> AsyncIterator[App]:
    async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
        yield app


@pytest.fixture(params=["reboot", "container"])
def boots(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A new container has the boot id of the machine, as the last one had."""
    return (FIRST, SECOND) if request.param == "reboot" else (boot_id(), boot_id())


async def test_a_worker_that_stopped_cleanly_starts_at_once_after_a_reboot(
    crew: Crew, app: App, boots: tuple[str, str]
) -> None:
    first = crew.launch(boot=boots[0], elsewhere=True)
    await registered(crew.url, [first])
    await rest(app, await create(app, "payer", 1))
    assert first.stop() == 0
    second = crew.launch(boot=boots[1], elsewhere=True)
    await rest(app, await create(app, "payer", 1))
    assert second.stop() == 0, crew.words()


async def test_the_chats_of_a_killed_worker_are_taken_over_at_once_after_a_reboot(
    crew: Crew, app: App, boots: tuple[str, str], figures: Figures
) -> None:
    first = crew.launch(boot=boots[0], elsewhere=True)
    chat_ids = await create(app, "checker", 3)
    await crew.at_the_gate(3, first.life)
    before = await fences_of(app, chat_ids)
    first.kill()
    second = crew.launch(boot=boots[1], elsewhere=True)
    took_s = await taken_over(app, chat_ids, before)
    figures(f"takeover, from the start of the process, lease {crew.ttl_s:g} s", took_s, "s")
    crew.open_gate()
    await rest(app, chat_ids)
    assert second.stop() == 0, crew.words()


async def test_a_file_that_a_worker_of_another_machine_keeps_renewing_in_is_refused(tmp_path: Path) -> None:
    with Crew(f"sqlite:///{tmp_path}/holdfast.db", tmp_path, ttl_s=5.0) as crew:
        async with App(crew.url, [], lease_ttl_s=crew.ttl_s) as app:
            holder = crew.launch(boot=FIRST, elsewhere=True)
            workers = await registered(crew.url, [holder])
            chat_ids = await create(app, "gated", 1)
            await crew.at_the_gate(1)
            stranger = crew.launch(boot=SECOND, elsewhere=True)
            await until(lambda: stranger.process.poll() is not None, CALM_S)
            assert stranger.process.returncode != 0
            assert "another machine" in crew.words()
            await renewed(crew.url, workers.values(), times=2)
            crew.open_gate()
            await rest(app, chat_ids)
            assert set((await fences_of(app, chat_ids)).values()) == {1}
            assert holder.stop() == 0
