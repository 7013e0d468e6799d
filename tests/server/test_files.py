"""Files of a chat by the API: sent as data: URIs, told by their names, read by who may read the chat."""

import base64

import httpx2 as httpx
import pytest

from holdfast import Agent, App
from holdfast.core.kept_files import SCHEME, digest_of
from holdfast.core.limits import Limits
from holdfast.models.scripted import ScriptedModel
from holdfast.server.http import http_app
from holdfast.store import kept_files
from holdfast.store.records import StoreOptions
from tests.server.test_kept_rules import ADMIN, House, house
from tests.support.chats import new_chat

__all__ = ["house"]

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20
HTML = b"<script>alert(1)</script>" * 200


def part(data: bytes, media_type: str) -> dict[str, str]:
    uri = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"kind": "file", "media_type": media_type, "uri": uri, "name": "a"}


async def sent(house: House, client: httpx.AsyncClient, owner: str, data: bytes, media_type: str) -> str:
    chat_id = (await house.app.store.create_chat(new_chat(None, owner=owner))).chat_id
    answer = await client.post(f"/api/chats/{chat_id}/messages", json={"message": [part(data, media_type)]})
    assert answer.status_code == 200, answer.text
    return chat_id


@pytest.mark.parametrize(
    ("data", "media_type", "told"),
    [(PNG, "image/png", "image/png"), (HTML, "text/html", "application/octet-stream")],
)
async def test_a_file_is_told_by_its_name_and_read_with_a_type_that_a_browser_cannot_run(
    house: House, data: bytes, media_type: str, told: str
) -> None:
    async with house.client() as ada:
        chat_id = await sent(house, ada, "ada", data, media_type)
        (message,) = (await ada.get(f"/api/chats/{chat_id}/messages")).json()["messages"]
        (file,) = message["parts"]
        assert file == {
            "kind": "file", "media_type": media_type, "name": "a",
            "uri": SCHEME + digest_of(data), "size_bytes": len(data),
        }  # fmt: skip
        answer = await ada.get(f"/api/chats/{chat_id}/files/{digest_of(data)}")
        assert (answer.status_code, answer.content) == (200, data)
        assert answer.headers["content-type"] == told
        assert answer.headers["content-disposition"] == ("inline" if media_type == "image/png" else "attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


async def test_only_who_may_read_the_chat_reads_its_files(house: House) -> None:
    async with house.client() as ada, house.client("bob") as bob:
        adas, bobs = await sent(house, ada, "ada", PNG, "image/png"), await sent(house, bob, "bob", HTML, "text/html")
        for client, chat_id in ((bob, adas), (ada, bobs), (bob, bobs)):
            assert (await client.get(f"/api/chats/{chat_id}/files/{digest_of(PNG)}")).status_code == 404
        named = {"kind": "file", "media_type": "image/png", "uri": SCHEME + digest_of(PNG)}
        refused = await bob.post(f"/api/chats/{bobs}/messages", json={"message": [named]})
        assert refused.status_code == 400
        assert "does not hold" in refused.json()["detail"]
        async with house.client(chat=adas) as guest:
            assert (await guest.get(f"/api/chats/{adas}/files/{digest_of(PNG)}")).content == PNG
            assert (await guest.get(f"/api/chats/{bobs}/files/{digest_of(HTML)}")).status_code == 404
        assert (await ada.get(f"/api/chats/{adas}/files/none")).status_code == 404


def item(url: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}


async def test_items_join_a_conversation_without_the_bytes_of_its_files(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that are refused leave it as it was."""
    options = StoreOptions(limits=Limits(given_messages_max=3))
    urls = [part(data, "image/png")["uri"] for data in (PNG, PNG + b"2")]
    app = App(store_url, agents=[Agent("a", ScriptedModel("I see."))], options=options)
    async with app, House(app, http_app(app, token=ADMIN)).client() as ada:
        made = (await ada.post("/v1/conversations", json={"items": list(map(item, urls))})).json()["id"]
        more = {"items": [item("https://example.org/a")]}
        with monkeypatch.context() as patched:
            patched.setattr(kept_files, "SHOWN_BYTES_MAX", len(PNG) + 10)
            assert (await ada.post(f"/v1/conversations/{made}/items", json=more)).status_code == 200
        assert (await ada.post(f"/v1/conversations/{made}/items", json=more)).status_code == 413
        listed = (await ada.get(f"/v1/conversations/{made}/items", params={"order": "asc"})).json()
        assert [one["content"][0]["image_url"] for one in listed["data"]] == [*urls, "https://example.org/a"]
