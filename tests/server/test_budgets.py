"""Budgets and usage by the API: set by operators, seen by their owner, and a chat that goes on."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import Cause
from holdfast.core.spending import Bill
from tests.server.test_kept_rules import ADMIN, House, house
from tests.support.chats import Hand, new_chat

__all__ = ["house"]
OPERATOR = frozenset({"read", "chat", "approve", "operate"})


async def spent(house: House, owner: str, tokens: int) -> str:
    """A chat whose turn used so much, and was then ended by a budget."""
    store = house.app.store
    made = await store.create_chat(new_chat(owner=owner))
    hand = Hand(store)
    await hand.take(made.chat_id)
    lost = cmd.AttemptLost(by=hand.by, attempt=hand.attempt(), model="m", error="503", tokens=tokens)
    await hand.commit(replace(lost, bill=Bill(day="2026-11-17")))
    await hand.commit(cmd.FinishTurn(by=hand.by, cause=Cause.BUDGET, detail="day: 1 of 1 tokens"))
    return made.chat_id


async def test_operators_set_budgets_and_an_owner_sees_its_own(house: House) -> None:
    async with house.client(None, scopes=OPERATOR) as admin, house.client("ada") as ada:
        given = {"day_tokens": 100, "tokens": 500}
        made = (await admin.post("/api/budgets", params={"owner": "ada"}, json=given)).json()
        assert (made["owner"], made["day_tokens"], made["tokens"], made["cost"]) == ("ada", 100, 500, None)
        await admin.post("/api/budgets", params={"owner": "bob"}, json={"day_tokens": 1})
        assert [line["owner"] for line in (await admin.get("/api/budgets")).json()["budgets"]] == ["ada", "bob"]
        assert [line["owner"] for line in (await ada.get("/api/budgets")).json()["budgets"]] == ["ada"]
        assert (await ada.post("/api/budgets", params={"owner": "ada"}, json=given)).status_code == 403
        assert (await ada.delete("/api/budgets", params={"owner": "ada"})).status_code == 403
        wrong = await admin.post("/api/budgets", params={"owner": "ada"}, json={"day_tokens": -1})
        assert wrong.status_code == 422
        assert (await admin.delete("/api/budgets", params={"owner": "ada"})).status_code == 204
        assert (await admin.delete("/api/budgets", params={"owner": "ada"})).status_code == 404


async def test_usage_is_told_to_those_who_may_see_it(house: House) -> None:
    await spent(house, "ada", 7)
    await spent(house, "bob", 5)
    async with house.client(None, scopes=OPERATOR) as admin, house.client("ada") as ada:
        found = (await admin.get("/api/usage", params={"by": ["owner", "kind"]})).json()["usage"]
        assert [(line["owner"], line["kind"], line["tokens"]) for line in found] == [
            ("ada", "lost", 7),
            ("bob", "lost", 5),
        ]
        (own,) = (await ada.get("/api/usage", params={"by": "day"})).json()["usage"]
        assert (own["day"], own["tokens"], own["lines"]) == ("2026-11-17", 7, 1)
        assert (await ada.get("/api/usage", params={"owner": "bob"})).json()["usage"] == []
        assert (await ada.get("/api/usage", params={"since": "2026-11-18"})).json()["usage"] == []
        assert (await ada.get("/api/usage", params={"by": "shoes"})).status_code == 422
        assert (await ada.get("/api/usage", params={"since": "now"})).status_code == 422
        for name in ("since", "until"):
            never = await ada.get("/api/usage", params={name: "2026-02-30"})
            assert (never.status_code, never.json()["field"]) == (400, name)
    assert ADMIN


async def test_usage_comes_in_pages_by_the_api(house: House) -> None:
    for n in range(5):
        await spent(house, f"owner {n}", 7)
    async with house.client(None, scopes=OPERATOR) as admin:
        asked: dict[str, Any] = {"by": ["owner", "kind"], "limit": 2}
        seen: list[str] = []
        page = (await admin.get("/api/usage", params=asked)).json()
        while True:
            seen += [line["owner"] for line in page["usage"]]
            if page["next"] is None:
                break
            page = (await admin.get("/api/usage", params={**asked, "after": page["next"]})).json()
        assert seen == [f"owner {n}" for n in range(5)]
        for wrong in ("nonsense", "[1]", '["owner 1"]'):
            assert (await admin.get("/api/usage", params={**asked, "after": wrong})).status_code == 400


async def test_who_changes_a_budget_is_told_in_audit_lines(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with house.client(None, scopes=OPERATOR) as admin:
        await admin.post("/api/budgets", params={"owner": "ada"}, json={"day_tokens": 5})
        await admin.delete("/api/budgets", params={"owner": "ada"})
        await admin.delete("/api/budgets", params={"owner": "ada"})
    lines = [line.__dict__ for line in caplog.records if line.name == "holdfast.audit"]
    assert [(line["action"], line["owner"], line.get("day_tokens")) for line in lines] == [
        ("audit.budget_set", "ada", 5),
        ("audit.budget_removed", "ada", None),
    ]


async def test_a_chat_that_a_budget_ended_goes_on_by_the_api_and_only_once(house: House) -> None:
    chat_id = await spent(house, "ada", 7)
    async with house.client("ada") as ada, house.client("bob") as bob:
        assert (await bob.post(f"/api/chats/{chat_id}/go-on")).status_code == 404
        assert (await ada.post(f"/api/chats/{chat_id}/go-on")).status_code == 200
        assert (await ada.get(f"/api/chats/{chat_id}")).json()["state"] == "running"
        assert (await ada.post(f"/api/chats/{chat_id}/go-on")).status_code == 409
