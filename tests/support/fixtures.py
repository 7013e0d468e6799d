"""Fixtures: PostgreSQL, and stores that stop answering. `tests/conftest.py` names this module in `pytest_plugins`.

Every pytest process has its own server, made when the first test asks for it; with pytest-xdist that is one
per worker. A test may therefore stop or kill it; the next test finds it running again.
"""

import asyncio
import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.store import open_store
from tests.support.postgres import PostgresServer, database_name
from tests.support.proxy import TcpProxy


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresServer]:
    """The server of this pytest process; tests ask for `postgres_server`."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_server(postgres_cluster: PostgresServer) -> PostgresServer:
    """The server of this pytest process, running."""
    postgres_cluster.start()  # does nothing unless the last test left it stopped
    return postgres_cluster


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables and nothing in them: to copy it takes a third of the time that it takes to make them."""
    path = tmp_path_factory.mktemp("template") / "holdfast.db"
    asyncio.run(_make_tables(f"sqlite:///{path}"))
    return path


async def _make_tables(url: str) -> None:
    async with open_store(url):
        pass


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresServer) -> str:
    """The name of a database with our tables and nothing in them: to make them anew takes longer than most tests."""
    postgres_cluster.start()
    url = postgres_cluster.create_database()
    asyncio.run(_make_tables(url))
    return database_name(url)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """A database for this test alone: with our tables and nothing in them, or nothing at all (`bare_database`)."""
    bare = request.node.get_closest_marker("bare_database") is not None
    url = postgres_server.create_database(
        template="template0" if bare else request.getfixturevalue("postgres_template")
    )
    yield url
    postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture
def postgres_proxy(postgres_server: PostgresServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server; `postgres_proxy_url` leads through it."""
    with TcpProxy(postgres_server.host, postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def postgres_proxy_url(postgres_url: str, postgres_server: PostgresServer, postgres_proxy: TcpProxy) -> str:
    """The database of `postgres_url`, through `postgres_proxy`."""
    return postgres_url.replace(f":{postgres_server.port}/", f":{postgres_proxy.port}/")


class FailingStore(NamedTuple):
    """`with outage():` nothing can be written through `url`. What a test looks at, it reads through `steady_url`.
    `deadline_s`: short for an outage, and enough to connect on a busy machine.
    """

    url: str
    steady_url: str
    outage: Callable[[], AbstractContextManager[None]]
    deadline_s: float = 2.0


@pytest.fixture(params=["sqlite", "postgres"])
def failing_store(request: pytest.FixtureRequest, tmp_path: Path) -> FailingStore:
    if request.param == "sqlite":
        path = f"{tmp_path}/holdfast.db"

        @contextmanager
        def locked() -> Iterator[None]:
            with Path(f"{path}.lock").open() as file:  # another process in a long write transaction looks like this
                fcntl.flock(file, fcntl.LOCK_EX)
                yield

        return FailingStore(f"sqlite:///{path}", f"sqlite:///{path}", locked)
    url: str = request.getfixturevalue("postgres_proxy_url")
    proxy: TcpProxy = request.getfixturevalue("postgres_proxy")

    @contextmanager
    def silent() -> Iterator[None]:
        proxy.swallow()
        yield
        proxy.forward()

    return FailingStore(url, request.getfixturevalue("postgres_url"), silent)
