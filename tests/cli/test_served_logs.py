"""What `holdfast serve` writes where its standard error is a log: who asked, who decided what, and no token."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from typing import Any, Self

import pytest

from tests.cli.conftest import APP, Desk
from tests.support.waiting import until

SECRET = "hf_tok_0123456789abcdef_" + "s" * 43


def ask(
    url: str, token: str | None, body: dict[str, Any] | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, method="GET" if body is None else "POST", headers=headers)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(request, data, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            error.read()
            return error.code, {}


class Served:
    """A server whose standard output and error are files, as a service's are."""

    def __init__(self, desk: Desk) -> None:
        self._log = desk.folder / "log"
        with self._log.open("w") as log:
            self._process = desk.start("serve", APP, "--port", "0", stdout=log, stderr=log)
        self.url = ""

    @property
    def said(self) -> str:
        return self._log.read_text()

    async def __aenter__(self) -> Self:
        await until(lambda: "for a browser" in self.said)
        found = re.search(r"listening on (http://\S+)", self.said)
        assert found, self.said
        self.url = found[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, 30)


@pytest.fixture
def logging_desk(desk: Desk) -> Desk:
    desk.environ |= {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_ACCESS_LOG": "true", "HOLDFAST_LOG_LEVEL": "debug"}
    return desk


async def test_requests_and_decisions_are_lines_and_no_token_is_in_any(logging_desk: Desk) -> None:
    async with Served(logging_desk) as served:
        url, token = served.url, (logging_desk.folder / ".holdfast" / "token").read_text().strip()
        chat_id = ask(f"{url}/api/chats", token, {"agent": "pays", "message": "pay"})[1]["id"]
        ask(f"{url}/api/chats/{chat_id}/turn?wait_s=30&secret={SECRET}", token)
        (call,) = ask(f"{url}/api/chats/{chat_id}/calls", token)[1]["calls"]
        assert ask(f"{url}/api/chats/{chat_id}/calls/{call['call_id']}/approve", token, {})[0] == 200
        for path in (f"/api/agents?token={token}", f"/api/chats?token={SECRET}", "/api/chats/a%0d%0afake%1b[31m"):
            assert ask(url + path, SECRET)[0] == 401
    assert token not in served.said
    assert "s" * 43 not in served.said
    assert "\x1b" not in served.said
    lines = [json.loads(line) for line in served.said.splitlines() if line.startswith("{")]
    asked = [line for line in lines if line["action"] == "http.request"]
    (approve,) = [line for line in asked if line["route"].endswith("/approve")]
    assert (approve["method"], approve["status"], approve["chat"]) == ("POST", 200, chat_id)
    assert approve["principal"] == "admin"
    assert approve["route"] == "/api/chats/{chat_id}/calls/{call_id}/approve"
    assert approve["ms"] > 0
    assert approve["bytes"] > 0
    assert {line["client"] for line in asked} == {"127.0.0.1"}, "a client's own word is none"
    (approved,) = [line for line in lines if line["action"] == "audit.approved"]
    assert (approved["chat"], approved["call"], approved["client"]) == (chat_id, call["call_id"], "127.0.0.1")
    refused = [line for line in lines if line["action"] == "audit.refused"]
    assert {(line["reason"], line["status"]) for line in refused} >= {("unauthorized", 401)}
    assert any("\r\n" in line["path"] for line in refused), "as JSON has it: one line"


async def test_as_text_no_value_of_a_client_begins_a_line(desk: Desk) -> None:
    desk.environ["HOLDFAST_ACCESS_LOG"] = "true"
    async with Served(desk) as served:
        ask(f"{served.url}/api/chats/a%0d%0a12:00:00%20info%20audit.approved:%20fake", None)
    assert "fake" in served.said
    assert not [line for line in re.split(r"[\r\n]", served.said) if line.startswith("12:00:00 info audit.approved")]


async def test_a_server_whose_standard_error_is_no_terminal_shows_no_link(desk: Desk) -> None:
    async with Served(desk) as served:
        pass
    assert (desk.folder / ".holdfast" / "token").read_text().strip() not in served.said
    assert "`holdfast login` makes a link for a browser" in served.said
    assert "login#" not in served.said
