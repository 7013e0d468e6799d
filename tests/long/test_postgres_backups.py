"""The steps that docs/operating.md gives for PostgreSQL are the ones that run here, word by word: a dump that is
brought back, and a base backup with the archived WAL, to go back to an instant.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.app import App
from holdfast.errors import NotFound
from tests.long.crew import CALM_S, Crew, create, doctor, rest
from tests.support.postgres import SUPERUSER, PostgresServer
from tests.support.programs import ROOT
from tests.support.tallies import Figures
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)
PLACE = "/var/backups/holdfast"
"""Where the documentation puts backups; the tests put a folder of their own in its place."""


class Steps:
    """The blocks of the documentation, run by a shell as a person would."""

    def __init__(self, folder: Path) -> None:
        text = (ROOT / "docs" / "operating.md").read_text()
        section = text[text.index("**PostgreSQL.** Use its own tools") : text.index("**What a restore means.**")]
        blocks: list[str] = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
        self._blocks = [block.replace(PLACE, str(folder)) for block in blocks]
        self._folder = folder

    def only(self, word: str) -> str:
        """The one block in which it stands."""
        (block,) = [block for block in self._blocks if word in block]
        return block

    def last(self) -> str:
        return self._blocks[-1]

    def run(self, server: PostgresServer, block: str, **variables: str) -> None:
        programs = self._folder / "bin"
        if not programs.exists():
            programs.mkdir()
            (programs / "holdfast").write_text(f"#!/bin/sh\nexec '{sys.executable}' -m holdfast \"$@\"\n")
            (programs / "holdfast").chmod(0o755)
        path = f"{programs}:{server._binaries}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-euc", block],
            env={**os.environ, "PATH": path, "HOME": str(self._folder), **variables},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.fixture
def backups() -> Iterator[Path]:
    """A folder that the server's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="hf-backups-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def steps(backups: Path) -> Steps:
    return Steps(backups)


@pytest.fixture
def server(backups: Path, steps: Steps) -> Iterator[PostgresServer]:
    with PostgresServer(settings=steps.only("archive_command")) as server:
        (backups / "wal").mkdir()
        server._hand_over_tree(backups)
        yield server


@pytest.mark.parametrize("how", ["a dump", "an instant"])
async def test_a_database_goes_back_by_the_documented_commands(
    how: str, server: PostgresServer, steps: Steps, tmp_path: Path, figures: Figures
) -> None:
    url = server.create_database()
    with Crew(url, tmp_path) as crew:
        members = [crew.launch() for _ in range(2)]
        async with App(url, [], lease_ttl_s=crew.ttl_s) as app:
            ending = await create(app, "gated", 4)
            await crew.at_the_gate(4)
            if how == "a dump":
                steps.run(server, steps.only("pg_dump"), URL=url)
                kept: list[str] = []
            else:
                administrator = server.url("postgres", user=SUPERUSER)
                steps.run(server, steps.only("pg_basebackup"), ADMIN_URL=administrator)
                kept = await create(app, "payer", 2)  # what only the WAL has
                await rest(app, kept)
            instant = now(url)
            crew.open_gate("a")
            await rest(app, ending)
            gone = await create(app, "payer", 3)
            await rest(app, gone)
        for member in members:
            member.kill()

        if how == "a dump":
            steps.run(server, steps.only("pg_restore"), URL=url)
        else:
            data = str(server._data)
            server.stop()
            steps.run(server, steps.only("recovery.signal"), PGDATA=data, INSTANT=instant)
            server._hand_over_tree(server._data)  # who runs the tests may not be the server's user
            server.start()
            await until(lambda: takes_writes(url), CALM_S)
            steps.run(server, steps.last(), URL=url)

        heir = crew.launch()
        async with App(url, [], lease_ttl_s=crew.ttl_s) as app:
            took_s = await rest(app, ending + kept)
            assert [await exists(app, chat_id) for chat_id in gone] == [False] * len(gone)
            begun = Counter(line.chat_id for line in crew.evidence() if line.what == "entered")
            assert {begun[chat_id] for chat_id in ending} == {1}, "what was known to be begun was begun again"
        assert "database_went_back" in doctor(url, tmp_path)[1]
        assert heir.stop() == 0
    figures(f"back to {how}: all chats at rest after", took_s, "s")


def now(url: str) -> str:
    with psycopg.connect(url, connect_timeout=30) as connection:
        [(instant,)] = connection.execute("SELECT clock_timestamp()::text").fetchall()
    return str(instant)


def takes_writes(url: str) -> bool:
    with psycopg.connect(url, connect_timeout=30) as connection:
        return connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(False,)]


async def exists(app: App, chat_id: str) -> bool:
    try:
        await app.store.read_chat(chat_id)
    except NotFound:
        return False
    return True
