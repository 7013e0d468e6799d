"""What one who is let in tries, to see or to keep what is not, or no longer, for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast import App, Principal
from holdfast.errors import InvalidInput, NotFound, Unauthorized
from holdfast.principals import SCOPES
from holdfast.server.grants import LOOKUPS_WAITING_MAX, KnownTokens
from holdfast.server.http import http_app
from holdfast.server.limits import SAID_ALL
from holdfast.server.owned_store import OwnedStore
from holdfast.store.tokens import NewToken, new_secret
from tests.server.program import make_app
from tests.support.waiting import eventually, until

ADMIN = "admin-token-of-this-test"
ENDS_S = 10.0  # in which a stream ends whose token was revoked


@pytest.fixture
async def app(store_url: str, tmp_path: Path) -> AsyncIterator[App]:
    app = make_app(store_url, str(tmp_path))
    async with app.worker():
        yield app


@asynccontextmanager
async def client(api: Any, token: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


async def token_of(app: App, owner: str | None, **more: Any) -> tuple[str, str]:
    token, secret = await app.store.tokens.create(NewToken(name="test", owner=owner, scopes=SCOPES, **more))
    return token.id, secret


class Reader:
    """A client that follows a chat, and takes what it is sent as slowly as it likes."""

    def __init__(self, api: Any, path: str, token: str, query: str = "") -> None:
        self.text = ""
        self.told = asyncio.Event()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.said_all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(), "headers": headers, "http_version": "1.1", "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"},
            "state": {SAID_ALL: self.said_all},
        }  # fmt: skip
        self.answer = asyncio.ensure_future(api(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def _send(self, message: dict[str, Any]) -> None:
        self.text += message.get("body", b"").decode()
        self.told.set()
        await self.may_take.wait()

    async def until(self, words: str) -> None:
        async with asyncio.timeout(30.0):
            while words not in self.text:
                self.told.clear()
                await self.told.wait()


# --- an id that another owner has now ---------------------------------------------------------------------------


async def made_anew(app: App, agent: str, words: str, owner: str) -> None:
    """The chat `desk` is another one's by now."""
    await app.chat("desk").stop()
    await app.chat("desk").wait(30.0)
    await app.chat("desk").delete()
    await app.create(agent, words, owner=owner, chat_id="desk")


async def test_who_waits_for_a_chat_is_not_told_of_one_that_another_owner_has_under_its_id(app: App) -> None:
    await app.create("thinker", "mine", owner="ann", chat_id="desk")
    anns = OwnedStore(app.store, Principal(name="ann", owner="ann"))
    limited = OwnedStore(app.store, Principal(name="ann", owner="ann", chat="desk"))
    for store in (anns, limited):
        assert (await store.read_chat("desk")).chat.owner == "ann"
    await made_anew(app, "echo", "bob's", "bob")
    for store in (anns, limited):
        with pytest.raises(NotFound, match="there is no chat 'desk'"):
            await store.read_chat("desk")
        with pytest.raises(NotFound, match="there is no chat 'desk'"):
            await store.read_history("desk")


async def test_the_html_of_a_chat_is_not_that_of_one_that_had_its_id_before(app: App) -> None:
    api = http_app(app, token=ADMIN)
    path, query = "/api/chats/desk/events", "render=html&follow=true"
    await app.create("thinker", "mine", owner="ann", chat_id="desk")
    ann = Reader(api, path, (await token_of(app, "ann"))[1], query)
    await ann.until("event: html")
    ann.may_take.clear()  # her stream stays for as long as she takes nothing
    await made_anew(app, "storyteller", "tell", "bob")
    bob = Reader(api, path, (await token_of(app, "bob"))[1], query)
    await bob.until("event: html")
    for reader in (bob, ann):
        reader.answer.cancel()
    await asyncio.wait((ann.answer, bob.answer))
    html = [line for line in bob.text.splitlines() if '"html":' in line]
    assert html
    assert not [line for line in html if "think" in line]


READ_LATE: dict[str, tuple[str, str]] = {
    "events": ("/api/chats/desk/events", "follow=true"),
    "a whole turn": ("/api/chats/desk/events", "follow=true&whole_turn=true&live=true"),
    "rendered events": ("/api/chats/desk/events", "follow=true&render=html"),
    "a response": ("/v1/responses/resp_1_desk", "stream=true"),
}


async def test_a_client_that_takes_nothing_yet_is_not_told_of_a_chat_that_has_the_id_by_then(app: App) -> None:
    """Its stream was let begin, and reads nothing before the first piece of the answer is taken."""
    api = http_app(app, token=ADMIN)
    await app.create("thinker", "mine", owner="ann", chat_id="desk")
    _, secret = await token_of(app, "ann")
    readers = {name: Reader(api, path, secret, query) for name, (path, query) in READ_LATE.items()}
    for reader in readers.values():
        reader.may_take.clear()
        await reader.told.wait()
    await made_anew(app, "echo", "bob's plan", "bob")
    await app.chat("desk").wait(30.0)
    for name, reader in readers.items():
        reader.may_take.set()
        await reader.answer
        assert "bob's plan" not in reader.text, name


# --- a token that ended -----------------------------------------------------------------------------------------


FOLLOWED: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "events": ("GET", "/api/chats/{chat}/events", None),
    "rendered events": ("GET", "/api/chats/{chat}/events?render=html&follow=true", None),
    "a turn": ("GET", "/api/chats/{chat}/turn?wait_s=30", None),
    "a streamed response": ("GET", "/v1/responses/resp_1_{chat}?stream=true", None),
    "a new streamed response": ("POST", "/v1/responses", {"model": "thinker", "input": "hi", "stream": True}),
    "a new response": ("POST", "/v1/responses", {"model": "thinker", "input": "hi"}),
    "a streamed completion": (
        "POST",
        "/v1/chat/completions",
        {"model": "thinker", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    ),
    "a completion": (
        "POST",
        "/v1/chat/completions",
        {"model": "thinker", "messages": [{"role": "user", "content": "hi"}]},
    ),
}


@pytest.mark.parametrize("how", ["revoked", "expired", "its maker revoked"])
async def test_whatever_a_client_follows_ends_with_its_token(app: App, how: str) -> None:
    api = http_app(app, token=ADMIN)
    chat = await app.create("thinker", "mine", owner="ann")
    maker_id, _ = await token_of(app, "ann")
    ends = app.store.now_ms() + 2_000 if how == "expired" else None
    token_id, secret = await token_of(app, "ann", expires_at=ends, parent=maker_id)
    async with client(api, secret) as ann:
        assert (await ann.get(f"/api/chats/{chat.id}")).status_code == 200
        asked = [
            asyncio.ensure_future(ann.request(method, path.format(chat=chat.id), json=body, timeout=30.0))
            for method, path, body in FOLLOWED.values()
        ]
        await until(lambda: api.state.streams.traffic.answering == len(asked))
        if how != "expired":
            await app.store.tokens.revoke(token_id if how == "revoked" else maker_id)
        async with asyncio.timeout(ENDS_S):
            answers = await asyncio.gather(*asked)
        for name, answer in zip(FOLLOWED, answers, strict=True):
            assert "the token was revoked, or has expired" in answer.text, name
        assert (await ann.get(f"/api/chats/{chat.id}")).status_code == 401


async def test_a_client_that_takes_slowly_and_has_said_all_is_dismissed_like_any_other(app: App) -> None:
    api = http_app(app, token=ADMIN)
    chat = await app.create("storyteller", "tell", owner="ann")
    token_id, secret = await token_of(app, "ann")
    reader = Reader(api, f"/api/chats/{chat.id}/events", secret, "follow=true")
    await reader.until("word5")
    reader.may_take.clear()
    reader.told.clear()
    await reader.told.wait()  # this piece it does not take
    reader.said_all.set_result(None)
    await app.store.tokens.revoke(token_id)
    async with asyncio.timeout(ENDS_S):
        await reader.answer


async def test_a_summary_is_not_for_one_whose_token_was_revoked_meanwhile(app: App) -> None:
    api = http_app(app, token=ADMIN)
    token_id, secret = await token_of(app, "ann")
    said = [{"role": role, "content": f"{n} words " * 2_000} for n in range(8) for role in ("user", "assistant")]
    async with client(api, secret) as ann:
        asked = asyncio.ensure_future(
            ann.post("/v1/responses/compact", json={"model": "thinker", "input": said}, timeout=30.0)
        )
        await eventually(app.chats)
        await app.store.tokens.revoke(token_id)
        async with asyncio.timeout(ENDS_S):
            answer = await asked
    assert answer.status_code == 401, answer.text


# --- keys -------------------------------------------------------------------------------------------------------


async def test_tokens_for_one_chat_each_have_keys_of_their_own(app: App) -> None:
    """Who names them is the program that makes them, and it may name all browsers alike."""
    api = http_app(app, token=ADMIN)
    for owner in ("ann", "bob"):
        chat = await app.create("echo", owner=owner)
        async with client(api, (await token_of(app, None, chat=chat.id))[1]) as browser:
            sent = [
                await browser.post(
                    f"/api/chats/{chat.id}/messages", json={"message": "hi"}, headers={"Idempotency-Key": "1"}
                )
                for _ in range(2)
            ]
            assert [answer.status_code for answer in sent] == [200, 200], sent[0].text
            assert sent[0].json() == sent[1].json()


async def test_the_keys_of_a_chat_are_not_those_of_another_owners_chat_that_had_its_id(app: App) -> None:
    """Its message was taken for one that had been sent, and was never said."""
    api = http_app(app, token=ADMIN)
    sent: list[Any] = []
    for owner in ("ann", "bob"):
        chat = await app.create("echo", owner=owner, chat_id="desk")
        async with client(api, (await token_of(app, owner, chat="desk"))[1]) as browser:
            keyed: dict[str, Any] = {"json": {"message": "hi"}, "headers": {"Idempotency-Key": "1"}}
            sent += [(await browser.post("/api/chats/desk/messages", **keyed)).json() for _ in range(2)]
        await chat.wait(30.0)
        assert [message.text for message in await chat.messages()][:1] == ["hi"], owner
        await chat.delete()
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]
    assert sent[0]["message_id"] != sent[2]["message_id"]


def test_no_name_of_an_owner_or_a_chat_makes_up_the_keys_of_another() -> None:
    names = (None, "ann", "ann:desk", "desk", "desk:1", "1", "3:ann", "3:ann:desk", "owned chat:3:ann:desk")
    asking = [Principal(name="x", owner=owner, chat=chat) for owner in names for chat in names]
    assert len({principal.key_space for principal in asking}) == len(asking)


# --- those who guess, and programs that are wrong ---------------------------------------------------------------


async def test_those_who_guess_keep_no_one_out_who_is_known(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.grants.FRESH_S", 0.0)  # each look is a new one
    known = KnownTokens(app.store)
    _, secret = await token_of(app, "ann")
    assert await known.find(secret) is not None
    guesses = [asyncio.ensure_future(known.find(new_secret()[1])) for _ in range(LOOKUPS_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Unauthorized, match="too many"):
        await known.find(new_secret()[1])
    assert await known.find(secret) is not None
    assert await asyncio.gather(*guesses) == [None] * LOOKUPS_WAITING_MAX


WRONG: dict[str, Callable[[Any], Any]] = {
    "a name": lambda _: "ann",
    "fields": lambda _: {"name": "ann", "owner": "ann"},
    "an end that is no number": lambda _: Principal(name="ann", owner="ann", expires_at="never"),  # type: ignore[arg-type]
    "an end that is no instant": lambda _: Principal(name="ann", owner="ann", expires_at=float("inf")),  # type: ignore[arg-type]
    "an owner that is a number": lambda _: Principal(name="ann", owner=7),  # type: ignore[arg-type]
    "an owner in bytes": lambda _: Principal(name="ann", owner=b"ann"),  # type: ignore[arg-type]
    "a chat that is a number": lambda _: Principal(name="ann", owner="ann", chat=3),  # type: ignore[arg-type]
    "scopes in one word": lambda _: Principal(name="ann", owner="ann", scopes="read"),  # type: ignore[arg-type]
    "an exception": lambda _: 1 / 0,
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_program_that_says_nonsense_of_a_client_lets_it_not_in(wrong: str, tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/holdfast.db", str(tmp_path))
    async with app, client(http_app(app, token=ADMIN, authenticate=WRONG[wrong]), "") as stranger:
        for answer in (
            await stranger.get("/api/chats"),
            await stranger.get("/api/chats/chat_0"),
            await stranger.post("/api/chats", json={"agent": "echo"}),
        ):
            assert answer.status_code == 401, (wrong, answer.text)


def test_a_principal_says_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidInput, match="expires_at: is a number of milliseconds since 1970, or None"):
        Principal(name="ann", owner="ann", expires_at="never")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="chat: is a text, or None"):
        Principal(name="ann", owner="ann", chat=3)  # type: ignore[arg-type]


async def test_an_answer_for_a_person_is_told_of_in_an_audit_line_by_every_protocol(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    api = http_app(app, token=ADMIN)
    async with client(api, (await token_of(app, "ann"))[1]) as ann:
        for approve in (True, False):
            chat = await app.create("payer", "pay", owner="ann")
            await chat.wait(30.0)
            (call,) = await chat.open_calls()
            given = {"approval_request_id": f"mcpr_{call.id}-{chat.id}", "approve": approve}
            items = [{"type": "mcp_approval_response", **given}]
            with caplog.at_level("INFO", "holdfast.audit"):
                caplog.clear()
                answer = await ann.post("/v1/responses", json={"model": "payer", "input": items}, timeout=30.0)
            assert answer.status_code == 200, answer.text
            lines: list[Any] = [line for line in caplog.records if line.name == "holdfast.audit"]
            told = [(line.action, line.principal, line.chat, line.call) for line in lines]
            assert told == [("audit.approved" if approve else "audit.denied", "test", chat.id, call.id)]


async def test_who_makes_and_who_revokes_a_token_is_told_of_in_an_audit_line(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(http_app(app, token=ADMIN), ADMIN) as admin:
        with caplog.at_level("INFO", "holdfast.audit"):
            caplog.clear()
            made = await admin.post("/api/tokens", json={"name": "laptop", "owner": "ann"})
            assert made.status_code == 201, made.text
            await admin.delete(f"/api/tokens/{made.json()['id']}")
    told = [(line.action, line.principal, line.token, line.owner) for line in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        ("audit.token_made", "admin", made.json()["id"], "ann"),
        ("audit.token_revoked", "admin", made.json()["id"], "ann"),
    ]
