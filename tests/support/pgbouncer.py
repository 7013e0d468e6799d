"""A real pgbouncer in transaction mode in front of a test's PostgreSQL server, where one is installed."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.distribution import find
from tests.support.ports import free_port
from tests.support.postgres import OWNER, PostgresServer

START_TIMEOUT_S = 10.0


class PgBouncer:
    """`with PgBouncer(server) as pooler: url = pooler.url(database_url)`. Two server connections for everybody."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._folder = Path(tempfile.mkdtemp(prefix="hfpgb-", dir="/tmp"))
        self._folder.chmod(0o755)  # as root it becomes `nobody`
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def __enter__(self) -> Self:
        program = find("pgbouncer")
        assert program is not None
        (self._folder / "users").write_text(f'"{OWNER}" ""\n')
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(
            f"""
[databases]
* = host={self._server.host} port={self._server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self._folder}/users
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""
        )
        become = ["-u", "nobody"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [program, "-q", *become, str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self._process.kill()
                raise RuntimeError(f"pgbouncer did not start: {self._process.communicate()[1].decode()}")
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def url(self, database_url: str) -> str:
        """The database of a direct URL, through the pooler."""
        return database_url.replace(f":{self._server.port}/", f":{self.port}/")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        shutil.rmtree(self._folder)
