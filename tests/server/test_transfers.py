"""Exports, imports and owners over HTTP: whole files, one's own chats, and nothing for those who may not see it."""

import asyncio
import io
import json
import logging
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from holdfast import Agent, App, tool
from holdfast.core.records import NewChat, State
from holdfast.errors import LimitReached, TooManyStreams
from holdfast.principals import SCOPES
from holdfast.server.http import http_app
from holdfast.server.uploads import UPLOADS_MAX, Uploads
from holdfast.store.tokens import NewToken
from holdfast.testing import Call, ScriptedModel
from tests.server.program import agents
from tests.server.walk import Ids, exported
from tests.support.chats import assistant, user

ADMIN = "admin-token-of-this-test"
NOBODYS = Ids("chat_0", "msg_0", "call_0", "tok_0", "rule_0", "mallory")
Hook = Callable[[int], Awaitable[None]]


class House(NamedTuple):
    app: App
    api: Any

    @asynccontextmanager
    async def client(self, token: str = ADMIN) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.api)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=30.0
        ) as client:
            yield client

    async def token(self, owner: str | None, scopes: frozenset[str] = SCOPES, **more: Any) -> str:
        return (await self.app.store.tokens.create(NewToken(name="test", owner=owner, scopes=scopes, **more)))[1]

    async def chats(self) -> set[str]:
        return {line.id for line in await self.app.chats()}

    async def asked(self, path: str, token: str, hook: Hook, method: str = "GET") -> tuple[list[bytes], bool]:
        """What is sent of an answer, and whether it has an end. The hook is called while a piece is on its way."""
        sent: list[bytes] = []
        whole = False

        async def send(message: Any) -> None:
            nonlocal whole
            if message["type"] == "http.response.body":
                if message.get("body"):
                    sent.append(message["body"])
                    await hook(len(sent))
                whole = not message.get("more_body", False)

        async def receive() -> Any:
            await asyncio.Event().wait()  # the client stays

        await self.api(scope_of(method, path, token), receive, send)
        return sent, whole


def scope_of(method: str, path: str, token: str, **headers: str) -> dict[str, Any]:
    told = {"host": "localhost", "authorization": f"Bearer {token}", **headers}
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }


@pytest.fixture
async def house(store_url: str, tmp_path: Path) -> AsyncIterator[House]:
    clumsy = Agent("clumsy", ScriptedModel([Call(name="fall")], "Ow."), tools=[fall])
    app = App(store_url, agents=[*agents(), clumsy], home=str(tmp_path), poll_s=0.5, grace_s=2.0)
    async with app.worker():
        yield House(app, http_app(app, token=ADMIN))


@tool
async def fall() -> str:
    """Fall."""
    raise RuntimeError("over the edge")


def lines_of(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


async def test_an_owner_exports_a_chat_and_has_it_again_under_a_new_id(house: House) -> None:
    turn = await house.app.run("echo", "remember me", owner="ann")
    async with house.client(await house.token("ann")) as ann:
        file = await ann.get(f"/api/chats/{turn.chat.id}/export")
        assert file.headers["content-disposition"] == f"attachment; filename*=UTF-8''{turn.chat.id}.jsonl"
        assert lines_of(file.content)[-1]["kind"] == "end"
        made = await ann.post("/api/chats/import", content=file.content)
        assert made.status_code == 201, made.text
        copy = made.json()
        assert made.headers["location"] == f"/api/chats/{copy['id']}"
        assert (copy["owner"], copy["state"], copy["id"] == turn.chat.id) == ("ann", "idle", False)
        said = (await ann.get(f"/api/chats/{copy['id']}/messages")).json()["messages"]
        assert [message["parts"][0]["text"] for message in said] == ["remember me", "You said: remember me"]
        sent = await ann.post(f"/api/chats/{copy['id']}/messages", json={"message": "and go on"})
        assert sent.status_code == 200
        again = await ann.get(f"/api/chats/{copy['id']}/turn", params={"wait_s": 30, "number": 2})
        assert again.json()["text"] == "You said: and go on"


async def test_what_is_imported_is_its_importers_whatever_the_file_says(house: House) -> None:
    async with house.client(await house.token("ann")) as ann, house.client() as admin:
        made = await ann.post("/api/chats/import", content=exported(NOBODYS))
        assert made.json()["owner"] == "ann"
        for query in ({"owner": "mallory"}, {"keep_ids": True}):
            assert (await ann.post("/api/chats/import", params=query, content=exported(NOBODYS))).status_code == 403
        kept = await admin.post("/api/chats/import", params={"keep_ids": True}, content=exported(NOBODYS))
        assert (kept.json()["owner"], kept.json()["id"]) == ("mallory", "chat_0")
        again = await admin.post("/api/chats/import", params={"keep_ids": True}, content=exported(NOBODYS))
        assert (again.status_code, again.json()["code"]) == (409, "refused")
        other = await admin.post("/api/chats/import", params={"owner": "bob"}, content=exported(NOBODYS))
        assert other.json()["owner"] == "bob"
    one_chat = await house.token("ann", chat=made.json()["id"])
    async with house.client(one_chat) as limited:
        assert (await limited.get(f"/api/chats/{made.json()['id']}/export")).status_code == 200
        assert (await limited.post("/api/chats/import", content=exported(NOBODYS))).status_code == 403


async def test_the_same_key_brings_in_nothing_again(house: House) -> None:
    async with house.client(await house.token("ann")) as ann:
        keyed = {"Idempotency-Key": "k1"}
        first = await ann.post("/api/chats/import", content=exported(NOBODYS), headers=keyed)
        second = await ann.post("/api/chats/import", content=exported(NOBODYS), headers=keyed)
        assert (first.status_code, first.json()) == (second.status_code, second.json())
        assert await house.chats() == {first.json()["id"]}
        file = exported(NOBODYS, title="another")
        assert (await ann.post("/api/chats/import", content=file, headers=keyed)).status_code == 422
        assert (await ann.post("/api/chats/import", content=file)).status_code == 201


async def test_tracebacks_are_in_an_export_for_operators_alone(house: House) -> None:
    chat = await house.app.create("clumsy", "fall", owner="ann")
    await chat.wait(60.0)
    path = f"/api/chats/{chat.id}/export"
    async with (
        house.client(await house.token("ann", SCOPES - {"operate"})) as ann,
        house.client(await house.token("ann")) as operator,
    ):
        theirs, whole = await ann.get(path), await operator.get(path)
        assert "Traceback" in whole.text
        assert "Traceback" not in theirs.text
        assert len(lines_of(theirs.content)) == len(lines_of(whole.content)), "its number in the journal stays"
        traces = [line for line in lines_of(theirs.content) if '"kind":"trace"' in line.get("body", "")]
        assert [json.loads(line["body"])["error"] for line in traces] == [""]
        assert (await ann.post("/api/chats/import", content=theirs.content)).status_code == 201


async def a_large_chat(app: App, chat_id: str, owner: str, word: str) -> None:
    """At rest, and more than a page of it."""
    past = tuple(make(f"{word} " * 150_000) for make in (user, assistant, user, assistant))
    await app.store.create_chat(NewChat(id=chat_id, agent="echo", owner=owner, past=past))


async def test_an_export_of_a_chat_that_is_deleted_meanwhile_is_no_whole_one_and_has_no_line_of_the_next(
    house: House,
) -> None:
    await a_large_chat(house.app, "taken", "ann", "mine")

    async def replaced(piece: int) -> None:
        if piece == 1:
            await house.app.chat("taken").delete()
            await a_large_chat(house.app, "taken", "bob", "bobs")

    sent, whole = await house.asked("/api/chats/taken/export", await house.token("ann"), replaced)
    told = lines_of(b"".join(sent))
    assert b"mine mine" in b"".join(sent)
    assert b"bobs" not in b"".join(sent)
    assert (told[-1]["kind"], "changed, or was deleted" in told[-1]["why"]) == ("cut", True)
    assert not whole, "an HTTP client has an error, too"
    async with house.client() as admin:
        refused = await admin.post("/api/chats/import", content=b"".join(sent))
    assert (refused.status_code, "the export was cut off" in refused.text) == (400, True)


async def test_an_export_ends_with_its_token(house: House) -> None:
    await a_large_chat(house.app, "large", "ann", "mine")
    token, secret = await house.app.store.tokens.create(NewToken(name="test", owner="ann", scopes=SCOPES))

    async def revoked(piece: int) -> None:
        if piece == 1:
            await house.app.store.tokens.revoke(token.id)
            await house.api.state.grants.look()
            for _ in range(10):  # turns of the loop: the stream learns of it while this piece is on its way
                await asyncio.sleep(0)

    sent, whole = await house.asked("/api/chats/large/export", secret, revoked)
    last = lines_of(b"".join(sent))[-1]
    assert (last["kind"], "revoked" in last["why"], whole) == ("cut", True, False)
    assert house.api.state.streams.shares.count == 0


async def test_an_export_is_a_stream_that_is_counted_and_told_when_the_server_goes(house: House) -> None:
    await a_large_chat(house.app, "large", "ann", "mine")

    async def going(piece: int) -> None:
        if piece == 1:
            assert house.api.state.streams.shares.count == 1
            house.api.state.streams.drain()
            for _ in range(10):
                await asyncio.sleep(0)

    sent, whole = await house.asked("/api/chats/large/export", ADMIN, going)
    assert ("the server goes" in lines_of(b"".join(sent))[-1]["why"], whole) == (True, False)


async def test_a_chat_that_runs_is_not_exported(house: House) -> None:
    chat = await house.app.create("thinker", "think", owner="ann")
    async with house.client(await house.token("ann")) as ann, house.client() as admin:
        assert (await ann.get(f"/api/chats/{chat.id}/export")).status_code == 409
        assert (await admin.get("/api/owners/ann/export")).status_code == 409
    await chat.stop()


async def test_a_client_that_leaves_in_the_middle_of_its_file_leaves_nothing(house: House) -> None:
    file = exported(NOBODYS)
    pieces = [{"type": "http.request", "body": file[:-30], "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        pass

    await house.api(scope_of("POST", "/api/chats/import", ADMIN), receive, send)
    assert await house.chats() == set()
    assert house.api.state.streams.uploads.figures()["uploads"] == 0
    assert await house.app.store.large_chats.read_remnants() == []


def request_with(*pieces: bytes, hangs: bool = False, size: int = 0) -> Request:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages += [] if hangs else [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    headers = {"content-length": str(size)} if size else {}
    return Request(scope_of("POST", "/api/chats/import", ADMIN, **headers), receive)


async def test_a_file_is_bounded_in_bytes_in_time_and_in_number(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, bytes_max=3 << 20)
    piece = b"x" * (1 << 20)
    async with uploads.taken(request_with(piece, b"the rest"), "ann") as upload:
        assert upload.file.read() == piece + b"the rest"
        assert list(tmp_path.iterdir()) == [], "it has no name that a killed process could leave"
    for request in (request_with(*[piece] * 4), request_with(size=4 << 20)):
        with pytest.raises(LimitReached, match="the file in bytes"):
            async with uploads.taken(request, "ann"):
                pass
    with pytest.raises(HTTPException, match="408"):
        async with Uploads(tmp_path, 1 << 20, deadline_s=0.01).taken(request_with(b"x", hangs=True), "ann"):
            pass
    with pytest.raises(ClientDisconnect):
        async with uploads.taken(Request(scope_of("POST", "/api/chats/import", ADMIN), _left), "ann"):
            pass
    held = [uploads.taken(request_with(b"x"), f"owner {n}") for n in range(UPLOADS_MAX)]
    for upload_of in held[:-1]:
        await upload_of.__aenter__()
    with pytest.raises(TooManyStreams, match="uploads of one client"):
        async with uploads.taken(request_with(b"x"), "owner 0"):
            pass
    await held[-1].__aenter__()
    with pytest.raises(TooManyStreams, match="uploads of this server"):
        async with uploads.taken(request_with(b"x"), "another owner"):
            pass
    for upload_of in held:
        await upload_of.__aexit__(None, None, None)
    assert uploads.figures()["uploads"] == 0


async def _left() -> Any:
    return {"type": "http.disconnect"}


async def test_a_file_may_be_larger_than_any_other_body(house: House) -> None:
    """Elements and bytes beyond what is taken elsewhere; and a scope is asked for before any of it is read."""
    async with house.client() as admin:
        line = b'{"kind":"note"' + b',"a":1' * 200_000 + b"}\n"
        refused = await admin.post("/api/chats/import", content=line + b"x" * (17 << 20))
        assert (refused.status_code, "line 1" in refused.text) == (400, True)
    async with house.client(await house.token("ann", frozenset({"read"}))) as reader:
        refused = await reader.post("/api/chats/import", content=b"x" * (1 << 20))
        assert (refused.status_code, refused.headers["connection"]) == (403, "close")


async def test_an_owner_is_listed_exported_and_deleted(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.audit")
    name = "ann@example.com"
    turn = await house.app.run("echo", "hello", owner=name)
    waits = await house.app.create("asker", "look", owner=name)
    await waits.wait(60.0)
    await house.app.run("echo", "hello", owner="bob")
    token = await house.token(name)
    async with house.client() as admin:
        listed = (await admin.get("/api/owners", params={"limit": 1})).json()
        assert listed == {"owners": [{"owner": name, "chats": 2}], "next": name}
        rest = (await admin.get("/api/owners", params={"after": name})).json()
        assert rest == {"owners": [{"owner": "bob", "chats": 1}], "next": None}
        archive = await admin.get(f"/api/owners/{name}/export")
        with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert json.loads(files.pop("owner.json")) == {"owner": name, "files": 2}
        assert set(files) == {f"{turn.chat.id}.jsonl", f"{waits.id}.jsonl"}

        assert (await admin.delete(f"/api/owners/{name}")).status_code == 409
        assert (await admin.delete("/api/owners/")).status_code == 404, "nobody is no owner to delete by mistake"
        deleted = await admin.delete(f"/api/owners/{name}", params={"stop": True})
        assert deleted.json() == {"owner": name, "chats": 2, "stopped": 1, "tokens": 1, "done": True}
        again = await admin.delete(f"/api/owners/{name}")
        assert again.json() == {"owner": name, "chats": 0, "stopped": 0, "tokens": 0, "done": True}
        for file in files.values():
            back = await admin.post("/api/chats/import", params={"keep_ids": True}, content=file)
            assert (back.status_code, back.json()["owner"]) == (201, name)
    assert (await waits.snapshot()).chat.state is State.WAITING
    told = [record for record in caplog.records if record.__dict__["action"].startswith("audit.")]
    actions = [record.__dict__["action"] for record in told]
    assert {"audit.owner_exported", "audit.owner_deleted", "audit.chat_imported"} <= set(actions)
    of_deletion = told[actions.index("audit.owner_deleted")].__dict__
    assert (of_deletion["owner"], of_deletion["chats"], of_deletion["principal"]) == (name, 2, "admin")
    assert token
