"""What a person meets at the terminal when something else is wrong: the database, the key, the other end of a pipe."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import APP, Desk
from tests.support.postgres import PostgresServer


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.timeout(120)
def test_a_database_that_goes_away_in_mid_turn_is_waited_for(desk: Desk, own_server: PostgresServer) -> None:
    url = own_server.create_database()
    asked = desk.start("run", "hello", "--app", APP, "--agent", "gated", "--database", url)
    try:
        assert asked.stdout is not None
        assert asked.stderr is not None
        assert asked.stdout.readline() == "One moment.\n"
        own_server.stop()
        while "waiting for it" not in (said := asked.stderr.readline()):
            assert said, "it ended"
        own_server.start()
        desk.open_the_gate()
        out, err = asked.communicate(timeout=60)
    finally:
        asked.kill()
        asked.wait()
    assert (asked.returncode, out) == (0, "You said: hello\n"), err
