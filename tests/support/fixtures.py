"""Fixtures for tests on PostgreSQL. `tests/conftest.py` names this module in `pytest_plugins`.

Every pytest process has its own server, made when the first test asks for it; with pytest-xdist that is one
per worker. A test may therefore stop or kill it; the next test finds it running again.
"""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer
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


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database for this test alone."""
    url = postgres_server.create_database()
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
