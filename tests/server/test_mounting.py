"""The API inside another program, as docs/how-to/http.md shows it."""

import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast import App
from holdfast.server.http import http_app
from tests.support.servers import created, ended

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "http.md"


async def test_the_program_of_the_page_serves_chats_under_its_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)  # noqa: S102  our own page
    program = names["program"]
    assert not (tmp_path / ".holdfast").exists(), "who imports it writes nothing"
    transport = httpx.ASGITransport(app=program)
    async with (
        program.router.lifespan_context(program),
        httpx.AsyncClient(transport=transport, base_url="http://localhost/agents") as client,
    ):
        token = (tmp_path / ".holdfast" / "token").read_text().strip()
        client.headers["Authorization"] = f"Bearer {token}"
        assert (await client.get("/health")).json()["status"] == "ok"
        chat_id = await created(client, "echo", "hello")
        assert (await ended(client, chat_id))["state"] == "idle"
        bare = await client.get("/api/chats", headers={"Authorization": ""})
        assert (bare.status_code, bare.json()["code"]) == (401, "unauthorized")
        assert (await client.get("/")).status_code == 200


async def test_a_program_that_forgot_to_open_the_app_is_told_so(tmp_path: Path) -> None:

    api = http_app(App(f"sqlite:///{tmp_path}/x.db", home=str(tmp_path)), token="t" * 32)
    transport = httpx.ASGITransport(app=api)
    headers = {"Authorization": "Bearer " + "t" * 32}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        answer = await client.get("/api/chats")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_closed")
