"""Webhooks by the API: an owner's are its own, a secret is shown once, and who may not approve gets no links."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
import standardwebhooks

from holdfast import App
from holdfast.agent import Agent
from holdfast.principals import OWN_SCOPES, SCOPES
from holdfast.server.http import http_app
from holdfast.store.tokens import NewToken
from tests.support.receiver import REACH, Receiver, Reply
from tests.support.waiting import eventually

ADMIN = "admin-token-of-this-test"
URL = "https://example.com/hook"


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
    app = App(store_url, [Agent("echo", "scripted")], home=str(tmp_path / "home"), webhook_reach=REACH)
    async with app:
        yield House(app, http_app(app, token=ADMIN))


async def made(client: httpx.AsyncClient, **given: Any) -> dict[str, Any]:
    answer = await client.post("/api/webhooks", json={"name": "ops", "url": URL, **given})
    assert answer.status_code == 201, answer.text
    hook: dict[str, Any] = answer.json()
    return hook


async def is_disabled(client: httpx.AsyncClient, path: str) -> bool:
    return bool((await client.get(path)).json()["state"] == "disabled")


async def is_delivered(client: httpx.AsyncClient, path: str) -> bool:
    return bool((await client.get(f"{path}/deliveries")).json()["deliveries"][0]["state"] == "delivered")


async def test_a_webhook_from_its_making_to_its_removal(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    async with Receiver() as receiver, house.client() as ada:
        hook = await made(ada, url=receiver.url, kinds=["turn.ended"])
        assert (hook["owner"], hook["kinds"], hook["state"], hook["links"]) == (
            "ada",
            ["turn.ended"],
            "active",
            False,
        )
        secret, path = hook.pop("secret"), f"/api/webhooks/{hook['id']}"
        assert (await ada.get(path)).json() == hook, "without its secret"
        assert (await ada.get("/api/webhooks")).json() == {"webhooks": [hook], "next": None}
        pinged = (await ada.post(f"{path}/ping")).json()
        async with house.app.worker():
            chat = await house.app.create("echo", "hello", owner="ada")
            await chat.wait(60.0)
            await receiver.until(lambda: len(receiver.got) == 2)
        judge = standardwebhooks.Webhook(secret)
        kinds = {received.id: judge.verify(received.body, received.headers)["type"] for received in receiver.got}
        assert kinds.pop(pinged["id"]) == "ping"
        assert [*kinds.values()] == ["turn.ended"]
        listed = (await ada.get(f"{path}/deliveries", params={"state": "delivered"})).json()["deliveries"]
        assert [(line["kind"], line["attempts"], line["status"]) for line in listed] == [
            ("turn.ended", 1, 204),
            ("ping", 1, 204),
        ]
        assert listed[0]["data"]["chat_id"] == chat.id
        rotated = (await ada.post(f"{path}/rotate", json={"overlap_s": 60})).json()
        assert rotated["secret"] != secret
        assert rotated["old_until"] is not None
        changed = await ada.patch(path, json={"name": "other", "kinds": []})
        assert (changed.json()["name"], changed.json()["kinds"], changed.json()["url"]) == ("other", [], receiver.url)
        assert (await ada.post(f"{path}/disable")).json()["why"] == "ada's laptop disabled it"
        refused = await ada.post(f"{path}/ping")
        assert (refused.status_code, "enable it first" in refused.text) == (409, True)
        assert (await ada.post(f"{path}/enable")).json()["state"] == "active"
        assert (await ada.delete(path)).status_code == 200
        assert (await ada.get(path)).status_code == 404
    told = [
        (line.__dict__["action"], line.__dict__["webhook"]) for line in caplog.records if "webhook" in line.__dict__
    ]
    assert [action for action, _ in told] == [
        "audit.webhook_made",
        "audit.webhook_changed",
        "audit.webhook_changed",
        "audit.webhook_changed",
        "audit.webhook_changed",
        "audit.webhook_removed",
    ]
    assert {hook_id for _, hook_id in told} == {hook["id"]}
    assert secret not in caplog.text


async def test_what_failed_is_sent_again_one_by_one_or_all(house: House) -> None:
    async with Receiver(Reply(410)) as receiver, house.client() as ada:
        hook = await made(ada, url=receiver.url)
        path = f"/api/webhooks/{hook['id']}"
        async with house.app.worker():
            await (await house.app.create("echo", "hello", owner="ada")).wait(60.0)
            await receiver.until(lambda: len(receiver.got) == 1)
            await eventually(lambda: is_disabled(ada, path))
            receiver.usual = Reply()
            (failed,) = (await ada.get(f"{path}/deliveries", params={"state": "failed"})).json()["deliveries"]
            one = f"{path}/deliveries/{failed['id']}/replay"
            assert (await ada.post(one)).status_code == 409, "it is disabled"
            await ada.post(f"{path}/enable")
            assert (await ada.post(f"{path}/replay", json={"since": failed["at"] + 1})).json() == {"replayed": 0}
            assert (await ada.post(f"{path}/replay", json={"since": failed["at"]})).json() == {"replayed": 1}
            await receiver.until(lambda: len(receiver.got) == 2)
            await eventually(lambda: is_delivered(ada, path))
            assert (await ada.post(one)).json()["state"] == "pending"
            await receiver.until(lambda: len(receiver.got) == 3)
        assert len(set(receiver.ids)) == 1


async def test_an_owner_has_its_own_alone_and_an_operator_all(house: House) -> None:
    async with (
        house.client() as ada,
        house.client("bob") as bob,
        house.client(None, scopes=SCOPES) as admin,
        house.client(None) as sees_all,
    ):
        adas, bobs = await made(ada), await made(bob)
        everybodys, for_bob = await made(admin), await made(admin, owner="bob")
        assert (everybodys["owner"], for_bob["owner"]) == (None, "bob")
        assert [hook["id"] for hook in (await ada.get("/api/webhooks")).json()["webhooks"]] == [adas["id"]]
        seen = {hook["id"] for hook in (await bob.get("/api/webhooks")).json()["webhooks"]}
        assert seen == {bobs["id"], for_bob["id"]}
        assert len((await admin.get("/api/webhooks")).json()["webhooks"]) == 4
        assert (await bob.delete(f"/api/webhooks/{adas['id']}")).status_code == 404
        assert (await bob.get(f"/api/webhooks/{everybodys['id']}/deliveries")).status_code == 404
        refused = await bob.post("/api/webhooks", json={"name": "x", "url": URL, "owner": "ada"})
        assert refused.status_code == 403
        refused = await sees_all.post("/api/webhooks", json={"name": "x", "url": URL})
        assert (refused.status_code, refused.json()["scope"]) == (403, "operate")
        assert (await sees_all.delete(f"/api/webhooks/{everybodys['id']}")).status_code == 403


async def test_who_may_not_approve_neither_makes_nor_changes_an_endpoint_that_gets_links(house: House) -> None:
    async with house.client() as ada, house.client(scopes=OWN_SCOPES - {"approve"}) as writer:
        linked, plain = await made(ada, links=True), await made(writer)
        path = f"/api/webhooks/{linked['id']}"
        tries = [
            await writer.post("/api/webhooks", json={"name": "x", "url": URL, "links": True}),
            await writer.patch(f"/api/webhooks/{plain['id']}", json={"links": True}),
            await writer.patch(path, json={"url": "https://mallory.example/"}),
            await writer.post(f"{path}/rotate", json={}),
        ]
        assert [(answer.status_code, answer.json()["scope"]) for answer in tries] == [(403, "approve")] * 4
        assert (await ada.get(path)).json()["url"] == URL


async def test_who_only_reads_or_has_one_chat_changes_nothing(house: House) -> None:
    chat = await house.app.create("echo", owner="ada")
    async with house.client() as ada, house.client(scopes=frozenset({"read"})) as reader:
        hook = await made(ada)
        assert (await reader.get(f"/api/webhooks/{hook['id']}")).status_code == 200
        assert (await reader.post("/api/webhooks", json={"name": "x", "url": URL})).status_code == 403
        assert (await reader.delete(f"/api/webhooks/{hook['id']}")).status_code == 403
        async with house.client(chat=chat.id) as limited:
            assert (await limited.get("/api/webhooks")).status_code == 403
            assert (await limited.post("/api/webhooks", json={"name": "x", "url": URL})).status_code == 403


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"url": "http://example.com/"}, 400, "https://"),
        ({"url": "ftp://example.com/"}, 400, "https://host/path"),
        ({"url": "https://user:pass@example.com/"}, 400, "password"),
        ({"url": "https://exa mple.com/"}, 400, "blank"),
        ({"url": "nonsense"}, 400, "https://host/path"),
        ({"kinds": ["turn.began"]}, 422, "kinds"),
        ({"name": ""}, 422, "name"),
        ({"secret": "whsec_mine"}, 422, "secret"),
    ],
)
async def test_what_cannot_be_meant_is_refused_in_words(
    house: House, given: dict[str, Any], status: int, words: str
) -> None:
    async with house.client() as ada:
        answer = await ada.post("/api/webhooks", json={"name": "ops", "url": URL, **given})
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
