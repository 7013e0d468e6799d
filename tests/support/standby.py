"""A standby of a PostgreSQL server: made by `pg_basebackup`, fed by streaming replication, promoted when told to."""

import time
from typing import Literal

from psycopg import sql

from tests.support.postgres import OWNER, START_TIMEOUT_S, PostgresError, PostgresServer

NAME = "standby"


class Standby(PostgresServer):
    """`with Standby(primary) as standby:` follows the primary from its start on. Read-only until `promote`.

    Asynchronous, unless `make_synchronous` is called; after `hold_back` it surely lacks what is committed later.
    """

    def __init__(self, primary: PostgresServer, *, settings: str = "") -> None:
        self._primary = primary
        super().__init__(settings=settings)

    def _create_cluster(self, settings: str) -> None:
        self._copy_of(self._primary, self._data, "--write-recovery-conf")
        follows = f"host={self._primary.host} port={self._primary.port} user=postgres application_name={NAME}"
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write(
                f"unix_socket_directories = '{self._directory}'\nsynchronous_standby_names = ''\n"
                f"wal_retrieve_retry_interval = '100ms'\n{settings}\n"
            )
        with (self._data / "postgresql.auto.conf").open("a") as configuration:
            configuration.write(f"primary_conninfo = '{follows}'\n")

    def _create_roles(self) -> None:
        """It has those of its primary."""

    def promote(self) -> None:
        """Wait until it takes writes. It has what it received before, and begins a timeline of its own."""
        self._administrator().execute("SELECT pg_promote(true, 60)")

    def make_synchronous(self) -> None:
        """From now on the primary acknowledges nothing that the standby has not on its disk."""
        _set(self._primary, "synchronous_standby_names", NAME)
        self.wait_until_it_follows("sync")

    def hold_back(self) -> None:
        """From now on it receives nothing; who commits on an asynchronous primary does not notice."""
        _set(self, "primary_conninfo", "")
        self._wait_for("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def wait_until_it_follows(self, state: Literal["async", "sync"] = "async") -> None:
        """The primary has somebody to send to, and takes it for what the test means it to be."""
        self._wait_for(
            f"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '{NAME}' "
            f"AND state = 'streaming' AND sync_state = '{state}'",
            on=self._primary,
        )

    def wait_until_it_caught_up(self) -> None:
        """It has everything that the primary had written when this was called."""
        [(written,)] = self._primary._administrator().execute("SELECT pg_current_wal_lsn()").fetchall()
        self._wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{written}'")

    def _wait_for(self, condition: str, on: PostgresServer | None = None) -> None:
        server = on or self
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not server._administrator().execute(condition.encode()).fetchall()[0][0]:
            if time.monotonic() > give_up_at:
                raise PostgresError(f"never came true: {condition}", self.log_text())
            time.sleep(0.01)


def _set(server: PostgresServer, name: str, value: str) -> None:
    administrator = server._administrator()
    administrator.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    administrator.execute("SELECT pg_reload_conf()")


def pair_url(primary: PostgresServer, standby: Standby, database: str) -> str:
    """A URL that names both; whichever of them takes writes is the one."""
    hosts = f"{primary.host}:{primary.port},{standby.host}:{standby.port}"
    return f"postgresql://{OWNER}@{hosts}/{database}?target_session_attrs=read-write"
