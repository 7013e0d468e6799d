"""What waits in all chats, and who it is that asks: for an owner, for one chat, for those who see everything."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast import App, __version__
from holdfast.principals import SCOPES
from holdfast.server.http import http_app
from tests.server.test_kept_rules import ADMIN, House
from tests.support.kept import PAY, asking


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    app = App(store_url, home=str(tmp_path / "home"))
    async with app:
        yield House(app, http_app(app, token=ADMIN))


async def listed(client: httpx.AsyncClient, **query: Any) -> list[str]:
    answer = await client.get("/api/calls", params=query)
    assert answer.status_code == 200, answer.text
    return [call["chat_id"] for call in answer.json()["calls"]]


async def test_an_owner_is_told_what_waits_in_its_chats_and_an_operator_of_all(house: House) -> None:
    await asking(house.app.store, PAY, chat_id="a", owner="ada")
    await asking(house.app.store, chat_id="b", owner="bob")
    async with house.client("ada") as ada, house.client(None) as operator:
        assert await listed(ada) == ["a"]
        assert await listed(ada, owner="ada") == ["a"]
        assert (await ada.get("/api/calls", params={"owner": "bob"})).status_code == 403
        assert await listed(operator) == ["b", "a"]
        assert await listed(operator, owner="bob") == ["b"]
        assert await listed(operator, kind="question") == []
        (call,) = (await ada.get("/api/calls")).json()["calls"]
        shown = (await ada.get("/api/chats/a/calls")).json()["calls"][0]
        assert {name: call[name] for name in shown} == shown
        assert (call["owner"], call["title"], call["parent_id"]) == ("ada", None, None)
        page = (await operator.get("/api/calls", params={"limit": 1})).json()
        assert await listed(operator, limit=1, before=page["next"]) == ["a"]
        wrong = await operator.get("/api/calls", params={"before": "nonsense"})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")
    assert [call.chat_id for call in await house.app.open_calls(owner="bob")] == ["b"]


async def test_a_token_for_one_chat_is_told_what_waits_there_alone(house: House) -> None:
    for chat_id in ("a", "b"):
        await asking(house.app.store, chat_id=chat_id, owner="ada")
    async with house.client("ada", chat="a") as limited:
        assert await listed(limited) == ["a"]


async def test_who_asks_is_told_who_it_is_with_any_token(house: House) -> None:
    async with house.client("ada", scopes=frozenset({"work"})) as worker, house.client(None, scopes=SCOPES) as all_of:
        told = (await worker.get("/api/me")).json()
        assert told == {
            "name": "ada's laptop", "owner": "ada", "scopes": ["work"], "operates": False, "chat": None,
            "expires_at": None, "version": __version__,
        }  # fmt: skip
        assert (await worker.get("/api/chats")).status_code == 403
        told = (await all_of.get("/api/me")).json()
        assert (told["owner"], told["operates"], sorted(told["scopes"])) == (None, True, sorted(SCOPES))
        all_of.headers["Authorization"] = "Bearer nonsense"
        assert (await all_of.get("/api/me")).status_code == 401
