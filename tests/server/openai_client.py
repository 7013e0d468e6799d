"""A live server with scripted agents, and the official `openai` client for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.postgres import PostgresServer
from tests.support.programs import Program


class LiveServer:
    def __init__(self, program: Program, url: str, home: Path) -> None:
        self.program = program
        self.url = url
        self.token = (home / "token").read_text().strip()

    def client(self, token: str | None = None, **options: object) -> OpenAI:
        options = {"max_retries": 0, "timeout": 60.0, **options}
        return OpenAI(base_url=f"{self.url}/v1", api_key=token or self.token, **options)  # type: ignore[arg-type]

    def kill(self) -> None:
        self.program.process.kill()
        self.program.process.wait(30)


@contextmanager
def live_server(store_url: str, home: Path, *options: str) -> Iterator[LiveServer]:
    """On a port that the kernel chooses: one that was free a moment ago may be somebody else's by now."""
    with Program("tests.server.openai_program", store_url, str(home), *options) as program:
        words = program.hear()
        assert words.startswith("listening on "), words
        yield LiveServer(program, words.removeprefix("listening on "), home)


@contextmanager
def fresh_database(kind: str, home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """For the tests of a whole module."""
    if kind == "sqlite":
        yield f"sqlite:///{home}/holdfast.db"
        return
    cluster: PostgresServer = request.getfixturevalue("postgres_cluster")
    cluster.start()
    url = cluster.create_database()
    try:
        yield url
    finally:
        cluster.drop_database(url)


def chats(client: OpenAI) -> list[dict[str, Any]]:
    """As the native API shows them, newest first."""
    found = client.get("../api/chats?limit=500", cast_to=dict[str, Any])
    return list(found["chats"])


def weather(city: str) -> str:
    return f"rain in {city}"
