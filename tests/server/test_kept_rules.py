"""Kept rules by the API: kept with an approval, listed and revoked by those who see them, told in audit lines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest

from holdfast import App
from holdfast.principals import OWN_SCOPES
from holdfast.server.http import http_app
from holdfast.store.tokens import NewToken
from tests.support.kept import PAY, asking, keep

ADMIN = "admin-token-of-this-test"


class House(NamedTuple):
    app: App
    api: Any

    @asynccontextmanager
    async def client(self, owner: str | None = "ada", **token: Any) -> AsyncIterator[httpx.AsyncClient]:
        new = NewToken(name=f"{owner}'s laptop", owner=owner, **token)
        headers = {"Authorization": f"Bearer {(await self.app.store.tokens.create(new))[1]}"}
        transport = httpx.ASGITransport(app=self.api)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=30.0
        ) as client:
            yield client


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    app = App(store_url, home=str(tmp_path / "home"))
    async with app:
        yield House(app, http_app(app, token=ADMIN))


async def test_an_approval_keeps_what_the_call_shows_under_its_key_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    chat_id, call_id = await asking(house.app.store, PAY)
    async with house.client() as ada:
        (shown,) = (await ada.get(f"/api/chats/{chat_id}/calls")).json()["calls"]
        assert shown["offer"] == [PAY]
        body = {"digest": shown["digest"], "always": "agent", "for_s": 60}
        for _ in range(2):
            answer = await ada.post(
                f"/api/chats/{chat_id}/calls/{call_id}/approve", json=body, headers={"Idempotency-Key": "k"}
            )
            assert answer.status_code == 200, answer.text
        (rule,) = (await ada.get("/api/kept-rules")).json()["kept_rules"]
        told = {name: rule[name] for name in ("rule", "scope", "owner", "agent", "chat_id", "made_by", "call_id")}
        assert told == {
            "rule": PAY, "scope": "agent", "owner": "ada", "agent": "agent", "chat_id": None,
            "made_by": "ada's laptop", "call_id": call_id,
        }  # fmt: skip
        assert rule["expires_at"] == rule["made_at"] + 60_000
        assert (await ada.delete(f"/api/kept-rules/{rule['id']}")).json() == rule
        assert (await ada.delete(f"/api/kept-rules/{rule['id']}")).status_code == 404
        assert (await ada.get("/api/kept-rules")).json() == {"kept_rules": [], "next": None}
    lines = [line.__dict__ for line in caplog.records if line.name == "holdfast.audit"]
    assert next(line.get("always") for line in lines if line["action"] == "audit.approved") == "agent"
    assert [(line["principal"], line["rule"]) for line in lines if line["action"] == "audit.rule_revoked"] == [
        ("ada's laptop", rule["id"])
    ]


@pytest.mark.parametrize(
    ("offer", "body", "status", "words"),
    [
        ((), {"always": "chat"}, 409, "without `always`"),
        ((PAY,), {"always": "everyone"}, 422, "always"),
        ((PAY,), {"for_s": 5}, 400, "for_s"),
        ((PAY,), {"always": "chat", "for_s": 0}, 422, "for_s"),
    ],
)
async def test_what_cannot_be_kept_is_refused_and_the_call_still_asks(
    house: House, offer: tuple[str, ...], body: dict[str, Any], status: int, words: str
) -> None:
    chat_id, call_id = await asking(house.app.store, *offer)
    async with house.client() as ada:
        answer = await ada.post(f"/api/chats/{chat_id}/calls/{call_id}/approve", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        assert len((await ada.get(f"/api/chats/{chat_id}/calls")).json()["calls"]) == 1


async def test_an_owner_sees_and_revokes_its_own_alone_and_an_admin_all(house: House) -> None:
    (adas,) = await keep(house.app.store)
    (bobs,) = await keep(house.app.store, owner="bob")
    async with house.client("bob") as bob, house.client(None) as admin:
        assert [rule["id"] for rule in (await bob.get("/api/kept-rules")).json()["kept_rules"]] == [bobs.id]
        assert (await bob.delete(f"/api/kept-rules/{adas.id}")).status_code == 404
        page = (await admin.get("/api/kept-rules", params={"limit": 1})).json()
        rest = (await admin.get("/api/kept-rules", params={"before": page["next"]})).json()
        assert {rule["id"] for rule in page["kept_rules"] + rest["kept_rules"]} == {adas.id, bobs.id}
        assert (await admin.delete(f"/api/kept-rules/{adas.id}")).status_code == 200


async def test_an_admin_keeps_rules_for_the_owner_of_the_chat(house: House) -> None:
    chat_id, call_id = await asking(house.app.store, PAY)
    async with house.client(None) as admin:
        answer = await admin.post(f"/api/chats/{chat_id}/calls/{call_id}/approve", json={"always": "owner"})
        assert answer.status_code == 200, answer.text
    (rule,) = await house.app.kept_rules()
    assert (rule.owner, rule.made_by) == ("ada", "None's laptop")


async def test_a_token_for_one_chat_keeps_and_sees_rules_of_that_chat_alone(house: House) -> None:
    chat_id, call_id = await asking(house.app.store, PAY)
    (other,) = await keep(house.app.store)
    path = f"/api/chats/{chat_id}/calls/{call_id}/approve"
    async with house.client(chat=chat_id) as limited:
        for scope in ("agent", "owner"):
            answer = await limited.post(path, json={"always": scope})
            assert (answer.status_code, "for one chat alone" in answer.text) == (403, True)
        assert (await limited.post(path, json={"always": "chat"})).status_code == 200
        (rule,) = (await limited.get("/api/kept-rules")).json()["kept_rules"]
        assert (rule["scope"], rule["chat_id"]) == ("chat", chat_id)
        assert (await limited.delete(f"/api/kept-rules/{other.id}")).status_code == 404
        assert (await limited.delete(f"/api/kept-rules/{rule['id']}")).status_code == 200


async def test_who_may_not_approve_keeps_and_revokes_nothing(house: House) -> None:
    chat_id, call_id = await asking(house.app.store, PAY)
    (rule,) = await keep(house.app.store)
    async with house.client(scopes=OWN_SCOPES - {"approve"}) as reader:
        answer = await reader.post(f"/api/chats/{chat_id}/calls/{call_id}/approve", json={"always": "chat"})
        assert (answer.status_code, answer.json()["scope"]) == (403, "approve")
        assert (await reader.delete(f"/api/kept-rules/{rule.id}")).status_code == 403
        assert [found["id"] for found in (await reader.get("/api/kept-rules")).json()["kept_rules"]] == [rule.id]
