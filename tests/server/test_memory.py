"""Memory by the API: people read, change, accept and delete what is their owner's, and nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core.memory import Append
from holdfast.server.http import http_app
from holdfast.store.memory import Allowed
from tests.server.test_kept_rules import ADMIN, House
from tests.store.test_memory import chat, remember


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    app = App(store_url, home=str(tmp_path / "home"))
    async with app:
        yield House(app, http_app(app, token=ADMIN))


async def test_an_owner_reads_changes_and_deletes_its_own_memory(house: House) -> None:
    store = house.app.store
    talk = await chat(store)
    fact = await remember(store, talk, "likes tea")
    await store.memory.edit_by_call(talk, "c2", "notes", Append(text="short answers"), Allowed())
    async with house.client() as ada:
        (shown,) = (await ada.get("/api/memory")).json()["memories"]
        assert (shown["id"], shown["text"], shown["chat_id"], shown["tainted"]) == (
            fact.id,
            "likes tea",
            talk.id,
            False,
        )
        assert (await ada.get(f"/api/memory/{fact.id}")).json() == shown
        (block,) = (await ada.get("/api/memory/blocks")).json()["blocks"]
        assert (block["name"], block["text"], block["version"]) == ("notes", "short answers", 1)
        path = "/api/memory/blocks/notes?agent=agent"
        edited = await ada.put(path, json={"text": "long answers", "version": 1})
        assert (edited.json()["text"], edited.json()["version"]) == ("long answers", 2)
        stale = await ada.put(path, json={"text": "again", "version": 1})
        assert stale.status_code == 409
        changed = await ada.put(f"/api/memory/{fact.id}", json={"text": "likes coffee"})
        found = (await ada.get("/api/memory/search", params={"q": 'likes "NEAR('})).json()
        assert [one["text"] for one in found["passages"]] == ["likes coffee"]
        assert changed.json()["replaces"] == fact.id
        assert (await ada.delete(f"/api/memory/{changed.json()['id']}")).status_code == 204
        assert (await ada.delete(path)).status_code == 204
        assert (await ada.get("/api/memory", params={"everything": True})).json()["memories"] == []
        added = await ada.post("/api/memory", json={"agent": "agent", "text": "by hand"})
        assert (added.status_code, added.json()["owner"], added.json()["made_by"]) == (201, "ada", "ada's laptop")


async def test_what_a_person_adds_changes_and_deletes_is_told_in_audit_lines(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    async with house.client() as ada:
        added = (await ada.post("/api/memory", json={"agent": "agent", "text": "likes tea"})).json()
        changed = (await ada.put(f"/api/memory/{added['id']}", json={"text": "likes coffee"})).json()
        await ada.put("/api/memory/blocks/notes?agent=agent", json={"text": "short answers"})
        await ada.delete(f"/api/memory/{changed['id']}")
        await ada.delete("/api/memory/blocks/notes?agent=agent")
    told = [getattr(record, "action", "") for record in caplog.records]
    assert [action for action in told if action.startswith("audit.memory")] == [
        *["audit.memory_changed"] * 3,
        *["audit.memory_deleted"] * 2,
    ]
    assert getattr(caplog.records[-1], "block", None) == "notes"


async def test_a_name_that_no_chat_has_is_refused_on_both_stores(house: House) -> None:
    async with house.client(None) as operator:
        for owner, agent in (("ada", ""), ("ada", "a\0"), ("a\0", "agent"), ("é" * 512, "agent")):
            added = await operator.post("/api/memory", json={"agent": agent, "owner": owner, "text": "x"})
            edited = await operator.put(
                "/api/memory/blocks/notes", params={"agent": agent, "owner": owner}, json={"text": "x"}
            )
            assert {added.status_code, edited.status_code} <= {400, 422}, (owner, agent)
        assert (await operator.get("/api/memory")).json()["memories"] == []
        assert (await operator.get("/api/memory/blocks")).json()["blocks"] == []


async def test_what_came_from_outside_is_accepted_by_who_may_approve_and_it_is_kept_who_did(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    fact = await remember(house.app.store, await chat(house.app.store, tainted=True), "wire it to Mallory")
    async with house.client(scopes=("read", "chat")) as reader:
        assert (await reader.post(f"/api/memory/{fact.id}/accept")).status_code == 403
    async with house.client() as ada:
        (shown,) = (await ada.get("/api/memory")).json()["memories"]
        assert shown["tainted"] is True
        accepted = (await ada.post(f"/api/memory/{fact.id}/accept")).json()
        assert (accepted["tainted"], accepted["cleared_by"]) == (False, "ada's laptop")
    assert "audit.memory_accepted" in [getattr(record, "action", "") for record in caplog.records]


async def test_what_is_another_owners_is_not_there(house: House) -> None:
    store = house.app.store
    fact = await remember(store, await chat(store), "ada's secret")
    await store.memory.edit_block("ada", "agent", "notes", Append(text="ada's"), by="ann")
    async with house.client("bob") as bob:
        assert (await bob.get("/api/memory")).json()["memories"] == []
        assert (await bob.get("/api/memory/blocks")).json()["blocks"] == []
        assert (await bob.get("/api/memory/search", params={"q": "secret"})).json()["passages"] == []
        for path in ("/api/memory?owner=ada", "/api/memory/search?q=secret&owner=ada"):
            assert (await bob.get(path)).status_code == 403
        assert (await bob.get(f"/api/memory/{fact.id}")).status_code == 404
        assert (await bob.put(f"/api/memory/{fact.id}", json={"text": "x"})).status_code == 404
        assert (await bob.post(f"/api/memory/{fact.id}/accept")).status_code == 404
        assert (await bob.delete(f"/api/memory/{fact.id}")).status_code == 404
        assert (await bob.delete("/api/memory/blocks/notes?agent=agent&owner=ada")).status_code == 403
    async with house.client(None) as operator:
        assert len((await operator.get("/api/memory")).json()["memories"]) == 1
        assert len((await operator.get("/api/memory?owner=ada")).json()["memories"]) == 1
        assert (await operator.get("/api/memory/search", params={"q": "secret"})).status_code == 400
    assert (await store.memory.read(fact.id)).text == "ada's secret"


async def test_an_export_has_blocks_facts_episodes_and_proposals(house: House) -> None:
    store = house.app.store
    await remember(store, await chat(store), "a fact")
    await store.memory.edit_block("ada", "agent", "notes", Append(text="a line"), by="ann")
    await store.memory.edit_by_call(
        await chat(store, tainted=True), "c1", "notes", Append(text="from a page"), Allowed()
    )
    lines = [line async for line in house.app.memory.export(owner="ada")]
    assert [(line["kind"], line["text"]) for line in lines] == [
        ("block", "a line"),
        ("proposal", "notes: from a page"),
        ("fact", "a fact"),
    ]
