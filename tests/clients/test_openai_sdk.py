"""The official SDK, as it is in our own environment; `make long` has the other clients, and the server's death."""

import sys
from pathlib import Path

import pytest

from tests.clients.cases import CASES
from tests.clients.clients import CLIENTS, Client
from tests.clients.install import HERE
from tests.clients.matrix import drive, expected

QUICK = [client for client in CLIENTS if client.install == "openai-3"]


@pytest.mark.parametrize("client", QUICK, ids=lambda client: client.name)
def test_the_official_sdk_gets_what_it_asks_for(client: Client, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "python" / client.program)]
    cases = [case for case in CASES if case.signal is None or case.name == "deploy"]
    cells = drive(client, command, tmp_path, cases)
    bad = {name: cell.reason for name, cell in cells.items() if not expected(client, name, cell).is_good}
    assert bad == {}
