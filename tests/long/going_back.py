"""Ways in which a database goes back in time under the workers that use it: `mark` is the moment that stays, and
`go_back` makes it the present again.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import apsw

from tests.support.postgres import PostgresServer
from tests.support.programs import ROOT
from tests.support.standby import Standby, pair_url


class Rewind(Protocol):
    url: str

    def mark(self) -> None: ...
    def go_back(self) -> None: ...


class FileRestored:
    """SQLite: a backup that was taken online, put back as the file's content while the workers have it open."""

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "holdfast.db")
        self.backup = str(folder / "backup.db")
        self.url = f"sqlite:///{self._file}"

    def mark(self) -> None:
        assert holdfast("backup", self.backup, "--database", self.url) == 0

    def go_back(self) -> None:
        _copy(self.backup, self._file)


def _copy(source: str, target: str) -> None:
    one, other = apsw.Connection(source), apsw.Connection(target)
    other.set_busy_timeout(30_000)
    with other.backup("main", one, "main") as backup:
        while not backup.done:
            backup.step(-1)
    other.close()
    one.close()


class BackupRestored:
    """PostgreSQL: a base backup, started on the same port. Same system, same timeline, an earlier end."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.create_database()

    def mark(self) -> None:
        self._backup = self._server.back_up()

    def go_back(self) -> None:
        self._server.restore(self._backup)


class StandbyPromoted:
    """PostgreSQL: an asynchronous standby that lagged behind when its primary was lost."""

    def __init__(self, primary: PostgresServer, standby: Standby, database: str) -> None:
        self._primary = primary
        self._standby = standby
        self.url = pair_url(primary, standby, database)

    def mark(self) -> None:
        self._standby.wait_until_it_caught_up()
        self._standby.hold_back()

    def go_back(self) -> None:
        self._primary.kill9()
        self._standby.promote()


def holdfast(*arguments: str) -> int:
    """The command, as a person gives it; its exit code."""
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], cwd=ROOT, timeout=120, check=False)
    return done.returncode


@contextmanager
def rewinding(how: str, folder: Path) -> Iterator[Rewind]:
    if how == "file":
        yield FileRestored(folder)
        return
    with PostgresServer() as server:
        if how == "backup":
            yield BackupRestored(server)
            return
        database = server.create_database().rpartition("/")[2]
        with Standby(server) as standby:
            standby.wait_until_it_follows()
            yield StandbyPromoted(server, standby, database)
