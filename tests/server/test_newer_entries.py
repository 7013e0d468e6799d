"""In a rolling deploy an older server reads what newer code wrote: lines of the journal that it has no word for.

The folds pass over them, too: tests/core/test_fold.py, tests/javascript/test_fold_parity.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from tests.server.openai_client import LiveServer, chats, fresh_database, live_server
from tests.support.behind import sql

NEWER = '{"kind":"hologram",'


class Deploy:
    def __init__(self, url: str, server: LiveServer) -> None:
        self.url = url
        self.server = server

    def write_newer(self, chat_id: str, *kinds: str) -> None:
        """These lines of a chat are of a kind that no server knows."""
        for kind in kinds:
            values = (f'{{"kind":"{kind}",', NEWER, chat_id)
            sql(self.url, "UPDATE journal SET body = replace(body, ?, ?) WHERE chat_id = ?", values)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def deploy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    home: Path = tmp_path_factory.mktemp("home")
    with fresh_database(request.param, home, request) as url, live_server(url, home) as server:
        yield Deploy(url, server)


@pytest.fixture
def client(deploy: Deploy) -> Iterator[OpenAI]:
    with deploy.server.client() as client:
        yield client


def test_a_response_is_told_and_gone_on_from_over_lines_of_newer_code(deploy: Deploy, client: OpenAI) -> None:
    first = client.responses.create(model="candid", input="one")
    deploy.write_newer(chats(client)[0]["id"], "turn.started")
    assert client.responses.retrieve(first.id).output_text == first.output_text
    streamed = list(client.responses.retrieve(first.id, stream=True))
    assert streamed[-1].type == "response.completed"
    given: Any = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "two"},
    ]
    second = client.responses.create(model="candid", input=given)
    assert json.loads(second.output_text)["messages"][2] == ["assistant", first.output_text]


def test_an_approval_lets_a_turn_go_on_over_lines_of_newer_code(deploy: Deploy, client: OpenAI) -> None:
    first = client.responses.create(model="payer", input="Pay!")
    (asked,) = first.output
    assert asked.type == "mcp_approval_request"
    deploy.write_newer(chats(client)[0]["id"], "turn.started", "turn.waiting")
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    second = client.responses.create(model="payer", previous_response_id=first.id, input=[answer])
    assert second.output_text == "paid 7"


def test_a_reader_gets_html_over_lines_of_newer_code(deploy: Deploy, client: OpenAI) -> None:
    client.responses.create(model="echo", input="one")
    chat_id = chats(client)[0]["id"]
    deploy.write_newer(chat_id, "turn.started")
    headers = {"Authorization": f"Bearer {deploy.server.token}"}
    url = f"{deploy.server.url}/api/chats/{chat_id}/events?render=html"
    told = httpx.get(url, headers=headers, timeout=60.0, trust_env=False)
    assert told.status_code == 200
    assert "event: hologram" in told.text
    assert "event: html" in told.text
    assert "event: end" in told.text
