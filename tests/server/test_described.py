"""The server driven by its own description: whatever fits it, and whatever does not, is answered as it says."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi import checks

from tests.support.scale import scaled
from tests.support.servers import ServerProcess, server
from tests.upkeep.test_openapi import described

ANSWER_S = 10.0
# What fits the description can still be refused: no such chat, not in this state. And a header or a query that nobody
# described is ignored.
NOT_ASKED = [checks.positive_data_acceptance, checks.negative_data_rejection]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("described")
    with server(f"sqlite:///{folder}/holdfast.db", folder / "home") as running:
        yield running
        assert not [line for line in running.said if "Traceback" in line], running.said


@pytest.fixture(scope="module")
def chat_id(live: ServerProcess) -> str:
    headers = {"Authorization": f"Bearer {live.token}"}
    with httpx.Client(base_url=live.url, headers=headers, trust_env=False) as client:
        made: str = client.post("/api/chats", json={"agent": "echo", "message": "hello"}).json()["id"]
        return made


schema = schemathesis.openapi.from_dict(deepcopy(described()))


@schema.parametrize()
@settings(
    max_examples=scaled(3, 40),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_the_server_answers_as_it_is_described(case: Any, live: ServerProcess, chat_id: str) -> None:
    """Half of the requests are about a chat that is there. A stream that is told to stay would never end."""
    if "chat_id" in (case.path_parameters or {}) and len(case.path_parameters["chat_id"]) % 2 == 0:
        case.path_parameters["chat_id"] = chat_id
    if case.path.endswith("/events"):
        (case.query or {}).pop("follow", None)
    case.call_and_validate(
        base_url=live.url,
        headers={"Authorization": f"Bearer {live.token}"},
        timeout=ANSWER_S,
        excluded_checks=NOT_ASKED,
    )
