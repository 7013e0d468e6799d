"""JWTs of an issuer that is trusted: who gets in by one, who does not, and what an issuer that fails costs."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast import Agent, App, ConfigError, JwtIssuer, StoreOptions, http_app, load_config
from holdfast.jwt_issuer import ALGORITHMS
from holdfast.server import jwt_tokens
from holdfast.server.issuer_keys import (
    DOCUMENT_BYTES_MAX,
    FETCH_S,
    FRESH_S,
    GONE_S,
    KEPT_S,
    KEYS_MAX,
    RETRY_S,
    keys_of,
)
from holdfast.server.jwt_tokens import TOKEN_CHARS_MAX, VERIFIED_S, JwtTokens
from holdfast.system.clock import Clock, FakeClock, SystemClock
from tests.support.issuer import AUDIENCE, CONFIGURATION, KEYS, Issuer, Signer
from tests.support.looptime import LoopTime
from tests.support.waiting import eventually, until

ADMIN = "admin-token-of-this-test"
_PEM = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class LateClock(SystemClock):
    """The system's, so far ahead of it."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Door:
    """A server, in this process, that trusts an issuer."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.api = http_app(app, token=ADMIN)

    @asynccontextmanager
    async def client(self, token: str) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.api)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=60.0
        ) as client:
            yield client

    async def ask(self, token: str, path: str = "/api/chats") -> httpx.Response:
        async with self.client(token) as client:
            return await client.get(path)

    async def lets_in(self, token: str) -> bool:
        answer = await self.ask(token)
        if answer.status_code == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.json()["code"] == "unauthorized"
            return False
        assert answer.status_code == 200, answer.text
        return True


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer().listening() as listening:
        yield listening


@asynccontextmanager
async def door_to(url: str, issuer: Issuer, *, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Door]:
    trusted = JwtIssuer(**{"issuer": issuer.url, "audience": AUDIENCE, "jwks_url": issuer.url + KEYS, **settings})
    options = StoreOptions(clock=clock or SystemClock())
    async with App(url, agents=[Agent("echo", "scripted")], jwt=trusted, options=options) as app:
        yield Door(app)


@pytest.fixture
async def door(tmp_path: Path, issuer: Issuer) -> AsyncIterator[Door]:
    async with door_to(f"sqlite:///{tmp_path}/holdfast.db", issuer) as open_door:
        yield open_door


def tokens_of(issuer: Issuer, clock: Clock, **settings: Any) -> JwtTokens:
    return JwtTokens(
        JwtIssuer(**{"issuer": issuer.url, "audience": AUDIENCE, "jwks_url": issuer.url + KEYS, **settings}), clock
    )


def part(document: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


# --- who gets in --------------------------------------------------------------------------------------------------


async def test_a_token_that_the_issuer_signed_lets_its_bearer_in(door: Door, issuer: Issuer) -> None:
    rsa = [Signer("rsa", algorithm) for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")]
    others = [Signer(algorithm, algorithm) for algorithm in ("ES256", "ES384", "ES512", "EdDSA")]
    issuer.signers = [rsa[0], *others]
    assert {signer.algorithm for signer in (*rsa, *others)} == set(ALGORITHMS)
    assert all([await door.lets_in(issuer.token(signer)) for signer in (*rsa, *others)])
    assert issuer.fetched == [KEYS]


async def test_a_bearer_sees_the_chats_of_its_owner_alone_and_makes_tokens_that_end_with_its_own(
    store_url: str, issuer: Issuer
) -> None:
    async with door_to(store_url, issuer) as door:
        exp = int(time.time()) + 300
        async with door.client(issuer.token(exp=exp)) as ann, door.client(issuer.token(sub="bob")) as bob:
            made = (await ann.post("/api/chats", json={"agent": "echo", "message": "hello"})).json()
            assert made["owner"] == "ann"
            assert [chat["id"] for chat in (await ann.get("/api/chats")).json()["chats"]] == [made["id"]]
            assert (await bob.get("/api/chats")).json()["chats"] == []
            assert (await bob.get(f"/api/chats/{made['id']}")).status_code == 404
            assert (await bob.post("/api/tokens", json={"name": "x", "chat": made["id"]})).status_code == 404
            assert (await ann.post("/api/tokens", json={"name": "all"})).status_code == 403
            page = (await ann.post("/api/tokens", json={"name": "page", "chat": made["id"], "ttl_s": 9999})).json()
            assert (page["owner"], page["expires_at"]) == ("ann", exp * 1000)
            assert (await door.ask(page["token"], f"/api/chats/{made['id']}")).status_code == 200


@pytest.mark.parametrize(
    ("claims", "settings", "scopes"),
    [
        ({}, {}, {"read", "chat", "approve"}),
        ({}, {"default_scopes": ("read",)}, {"read"}),
        ({"scope": "openid read chat delete-everything"}, {}, {"read", "chat"}),
        ({"scope": ["read", 7, "operate"]}, {}, {"read", "operate"}),
        ({"scope": ""}, {}, set()),
        ({"scope": {"read": True}}, {}, set()),
        ({"scope": "read holdfast:chat"}, {"scope_prefix": "holdfast:"}, {"chat"}),
        ({"scope": "read", "roles": ["approve"]}, {"scope_claim": "roles"}, {"approve"}),
    ],
)
async def test_the_scopes_of_a_token_are_those_that_holdfast_knows(
    issuer: Issuer, claims: dict[str, Any], settings: dict[str, Any], scopes: set[str]
) -> None:
    principal = await tokens_of(issuer, FakeClock(), **settings).find(issuer.token(**claims))
    assert principal is not None
    assert principal.scopes == scopes


async def test_the_claims_that_name_owner_and_bearer_are_settings(issuer: Issuer) -> None:
    tokens = tokens_of(issuer, FakeClock(), owner_claim="tenant", name_claim="email")
    principal = await tokens.find(issuer.token(tenant="acme", email="ann@example.com"))
    assert principal is not None
    assert (principal.owner, principal.name) == ("acme", "ann@example.com")
    nameless = await tokens.find(issuer.token(tenant="acme"))
    assert nameless is not None
    assert nameless.name == "acme"
    assert await tokens.find(issuer.token()) is None, "it names no tenant, and would see the chats of all of them"


async def test_a_token_without_the_scope_of_a_route_is_told_so(door: Door, issuer: Issuer) -> None:
    answer = await door.ask(issuer.token(scope="chat"))
    assert (answer.status_code, answer.json()["scope"]) == (403, "read")


async def test_the_other_ways_in_are_open_beside_it(door: Door) -> None:
    assert await door.lets_in(ADMIN)


# --- who does not -------------------------------------------------------------------------------------------------


def refused_tokens(issuer: Issuer) -> dict[str, str]:
    now = int(time.time())
    head, body, signature = issuer.token().split(".")
    other = part({"iss": issuer.url, "aud": AUDIENCE, "sub": "bob", "exp": now + 600})
    return {
        "another issuer": issuer.token(iss="https://elsewhere.example"),
        "another audience": issuer.token(aud="another-service"),
        "other audiences": issuer.token(aud=["another-service", "a-third"]),
        "expired": issuer.token(exp=now - 1),
        "not yet valid": issuer.token(nbf=now + 60),
        "issued in the future": issuer.token(iat=now + 60),
        "expires in words": issuer.token(exp="tomorrow"),
        "expires after all time": issuer.token(exp=10**15),
        "no issuer": issuer.token(without="iss"),
        "no audience": issuer.token(without="aud"),
        "no expiry": issuer.token(without="exp"),
        "no owner": issuer.token(without="sub"),
        "an empty owner": issuer.token(sub=""),
        "an owner that no store takes": issuer.token(sub="a\x00b"),
        "an owner of half a character": issuer.token(sub="\ud800"),
        "an owner that is too long": issuer.token(sub="a" * 201),
        "a key that the issuer has not": issuer.token(Signer("stranger")),
        "another key under a known id": issuer.token(Signer("stranger"), header={"kid": "one"}),
        "another algorithm": issuer.token(Signer("one", "EdDSA")),
        "changed": f"{head}.{other}.{signature}",
        "no signature": f"{head}.{body}.",
        "another signature": f"{head}.{body}.{'A' * len(signature)}",
        "unknown demands": issuer.token(header={"crit": ["exp"], "exp": 1}),
        "too large": issuer.token(padding="x" * TOKEN_CHARS_MAX),
        "nothing of all that": "a.b.c",
        "other letters": "a+b.c/d.e=f",
        "an id that is a list": f"{part({'alg': 'ES256', 'kid': [1]})}.{body}.{signature}",
        "an algorithm that is a list": f"{part({'alg': ['ES256'], 'kid': 'one'})}.{body}.{signature}",
    }


async def test_a_token_that_is_not_right_in_every_respect_is_none(door: Door, issuer: Issuer) -> None:
    wrong = refused_tokens(issuer)
    assert [what for what, token in wrong.items() if await door.lets_in(token)] == []
    assert await door.lets_in(issuer.token()), "it is not the door that is shut"


async def test_a_token_of_no_algorithm_is_none(door: Door, issuer: Issuer) -> None:
    _, body, signature = issuer.token().split(".")
    for name in ("none", "None", "NONE", ""):
        unsigned = f"{part({'alg': name, 'kid': 'one'})}.{body}"
        assert not await door.lets_in(f"{unsigned}.")
        assert not await door.lets_in(f"{unsigned}.{signature}")


async def test_a_token_that_is_signed_with_the_public_key_as_a_secret_is_none(door: Door, issuer: Issuer) -> None:
    signer = Signer("rsa", "RS256")
    issuer.signers = [signer]
    assert await door.lets_in(issuer.token())
    body = issuer.token().split(".")[1]
    from_pem = signer.public.public_bytes(*_PEM)
    for secret in (from_pem, from_pem.strip(), json.dumps(signer.jwk).encode(), signer.jwk["n"].encode()):
        signed = f"{part({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{body}"
        mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        assert not await door.lets_in(f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")


async def test_a_token_is_verified_once_in_some_seconds(issuer: Issuer) -> None:
    clock = FakeClock()
    tokens, token = tokens_of(issuer, clock), issuer.token()
    first = await tokens.find(token)
    assert first is not None
    clock.advance(int(VERIFIED_S * 1000) - 1)
    assert await tokens.find(token) is first
    clock.advance(1)
    again = await tokens.find(token)
    assert again == first
    assert again is not first


async def test_a_bounded_number_of_verified_tokens_is_remembered(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_tokens, "VERIFIED_MAX", 2)
    tokens = tokens_of(issuer, FakeClock())
    sent = [issuer.token(sub=name) for name in ("ann", "bob", "eve")]
    first = [await tokens.find(token) for token in sent]
    again = [await tokens.find(token) for token in reversed(sent)]
    assert [old is new for old, new in zip(reversed(first), again, strict=True)] == [True, True, False]


async def test_an_algorithm_that_was_not_allowed_is_none(issuer: Issuer) -> None:
    issuer.signers = [Signer("one"), Signer("two", "EdDSA")]
    tokens = tokens_of(issuer, FakeClock(), algorithms=("EdDSA",))
    assert await tokens.find(issuer.token(issuer.signers[0])) is None
    assert await tokens.find(issuer.token(issuer.signers[1])) is not None


async def test_keys_that_are_weak_secret_or_for_other_things_verify_nothing() -> None:
    right, other, weak = Signer("right"), Signer("other", "RS256"), Signer("weak", "RS256", bits=1024)
    found: list[dict[str, Any]] = [
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        {**Signer("encrypts").jwk, "use": "enc"},
        Signer("private").private_jwk,
        {**Signer("confused").jwk, "alg": "RS256"},
        {"kty": "RSA", "kid": "broken"},
        {"kty": ["RSA"], "kid": "odd"},
        {},
        weak.jwk,
        {**other.jwk, "alg": "RS512"},
        right.jwk,
    ]
    assert set(keys_of(found, ALGORITHMS)) == {("right", "ES256"), ("other", "RS512")}
    assert set(keys_of(found, ("ES256",))) == {("right", "ES256")}


async def test_a_token_need_not_name_the_only_key(issuer: Issuer) -> None:
    clock = FakeClock()
    tokens, nameless = tokens_of(issuer, clock), issuer.token(header={"kid": None})
    assert "kid" not in json.loads(base64.urlsafe_b64decode(nameless.split(".")[0] + "=="))
    assert await tokens.find(nameless) is not None
    issuer.signers.append(Signer("two"))
    clock.advance(int(GONE_S * 1000) + 1)
    assert await tokens.find(nameless) is None


# --- those who stay -----------------------------------------------------------------------------------------------


async def test_open_streams_end_when_the_token_does(tmp_path: Path, issuer: Issuer) -> None:
    clock = LateClock()
    async with door_to(f"sqlite:///{tmp_path}/holdfast.db", issuer, clock=clock) as door:
        chat = await door.app.create("echo", owner="ann")
        token, longer = issuer.token(), issuer.token(exp=int(time.time()) + 3600)
        path = f"/api/chats/{chat.id}/events?follow=true"
        ends, stays = (asyncio.create_task(door.ask(of, path)) for of in (token, longer))
        grants, streams = door.api.state.grants, door.api.state.streams
        await until(lambda: streams.figures()["streams"] == 2)
        await grants.look()
        clock.ahead_ms = 700_000
        await grants.look()
        assert "event: unauthorized" in (await ends).text
        assert not await door.lets_in(token)
        assert await door.lets_in(longer)
        assert not stays.done()
        stays.cancel()
        await asyncio.wait((stays,))


# --- the issuer's keys --------------------------------------------------------------------------------------------


async def test_the_keys_are_found_by_the_issuers_openid_configuration(tmp_path: Path, issuer: Issuer) -> None:
    async with door_to(f"sqlite:///{tmp_path}/holdfast.db", issuer, jwks_url="") as door:
        assert await door.lets_in(issuer.token())
    assert issuer.fetched == [CONFIGURATION, KEYS]


async def test_an_openid_configuration_of_another_issuer_is_not_believed(issuer: Issuer) -> None:
    trusted = JwtIssuer(issuer=issuer.url + "/", audience=AUDIENCE)
    token = issuer.token(iss=issuer.url + "/")
    assert await JwtTokens(trusted).find(token) is None
    assert issuer.fetched == [CONFIGURATION]


async def test_keys_that_could_be_changed_on_their_way_are_not_fetched(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.jwks_uri = issuer.url.replace("127.0.0.1", "keys.example") + KEYS
    assert await tokens_of(issuer, FakeClock(), jwks_url="").find(issuer.token()) is None
    assert "must begin with https://" in caplog.text


async def test_a_new_key_is_accepted_and_one_that_is_gone_is_not_while_the_server_runs(
    door: Door, issuer: Issuer
) -> None:
    clock = FakeClock()
    door.api.state.grants.jwt_tokens = tokens_of(issuer, clock)
    old, new = issuer.signers[0], Signer("two", "EdDSA")
    assert await door.lets_in(issuer.token(old))
    issuer.signers = [new]
    clock.advance(int(RETRY_S * 1000))
    assert await door.lets_in(issuer.token(new)), "an id that is not known is asked for"
    clock.advance(int(VERIFIED_S * 1000))
    assert not await door.lets_in(issuer.token(old))


async def test_a_key_that_is_gone_is_none_after_ten_minutes_at_the_latest(issuer: Issuer) -> None:
    assert GONE_S + VERIFIED_S + FETCH_S < 600
    busy_clock, idle_clock = FakeClock(), FakeClock()
    busy, idle = tokens_of(issuer, busy_clock), tokens_of(issuer, idle_clock)
    token = issuer.token()
    assert await busy.find(token) is not None
    assert await idle.find(token) is not None
    issuer.signers = [Signer("two")]
    issuer.was_asked.clear()
    busy_clock.advance(int(FRESH_S * 1000) + 1)
    assert await busy.find(token) is not None, "no one waits for the issuer whose key is known"
    await until(issuer.was_asked.is_set)

    async def gone() -> bool:
        busy_clock.advance(int(VERIFIED_S * 1000))
        return await busy.find(token) is None

    await eventually(gone)
    idle_clock.advance(int(GONE_S * 1000) + 1)
    assert await idle.find(token) is None


async def test_unknown_keys_make_few_fetches_however_many_there_are(door: Door, issuer: Issuer) -> None:
    clock = FakeClock()
    door.api.state.grants.jwt_tokens = tokens_of(issuer, clock)
    strangers = [issuer.token(header={"kid": f"stranger-{n}"}) for n in range(50)]
    assert not any(await asyncio.gather(*map(door.lets_in, strangers)))
    assert len(issuer.fetched) == 1
    clock.advance(int(RETRY_S * 1000))
    assert not any(await asyncio.gather(*map(door.lets_in, strangers)))
    assert len(issuer.fetched) == 2
    assert await door.lets_in(issuer.token())
    assert len(issuer.fetched) == 2


async def test_an_issuer_that_is_away_locks_out_no_one_whose_key_is_known_for_a_day(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    away = Issuer()
    async with away.listening():
        tokens, token = tokens_of(away, clock), away.token()
        assert await tokens.find(token) is not None
    stranger = away.token(Signer("stranger"))
    hours = 0
    while hours < 48 and await tokens.find(token) is not None:
        assert await tokens.find(stranger) is None
        clock.advance(3_600_000)
        hours += 1
    assert hours == KEPT_S / 3600 + 1
    assert "jwt.keys_failed" in {vars(record).get("action") for record in caplog.records}
    async with away.listening():
        clock.advance(int(RETRY_S * 1000))
        assert await tokens.find(token) is not None


async def test_an_issuer_that_hangs_costs_its_deadline_once_and_those_whose_key_is_known_nothing(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    clock, loop_time = FakeClock(), LoopTime()
    tokens, token = tokens_of(issuer, clock), issuer.token()
    assert await tokens.find(token) is not None
    issuer.hangs = True
    issuer.was_asked.clear()
    clock.advance(int(RETRY_S * 1000))
    strangers = [asyncio.create_task(tokens.find(issuer.token(Signer(f"stranger-{n}")))) for n in range(5)]
    await issuer.was_asked.wait()
    assert await tokens.find(token) is not None
    assert not any(stranger.done() for stranger in strangers)
    loop_time.advance(FETCH_S)
    assert await asyncio.gather(*strangers) == [None] * 5
    assert await tokens.find(issuer.token(Signer("stranger"))) is None, "at once: it is too early to ask again"
    assert len(issuer.fetched) == 2
    (told,) = [record for record in caplog.records if vars(record).get("action") == "jwt.keys_failed"]
    assert told.levelno == logging.WARNING


async def test_all_documents_of_a_fetch_have_one_deadline(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    loop_time = LoopTime()
    issuer.hangs = True
    finding = asyncio.create_task(tokens_of(issuer, FakeClock(), jwks_url="").find(issuer.token()))
    await until(lambda: issuer.fetched == [CONFIGURATION])
    loop_time.advance(FETCH_S - 1)
    first, issuer.released = issuer.released, asyncio.Event()
    first.set()
    await until(lambda: issuer.fetched == [CONFIGURATION, KEYS] or finding.done())
    loop_time.advance(1)
    assert await finding is None
    assert f"no answer within {FETCH_S:g} s" in caplog.text


NO_KEYS = b'{"keys": []}'


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"keys": {}}'),
        (200, b'{"keys": [7]}'),
        (200, b"\xff\xfe"),
        (200, json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode()),
        (200, NO_KEYS + b" " * DOCUMENT_BYTES_MAX),
        (500, NO_KEYS),
        (302, NO_KEYS),
    ],
    ids=["nothing", "a page", "a list", "no list", "numbers", "no text", "too many", "too much", "fails", "moved"],
)
async def test_garbage_of_the_issuer_changes_nothing_and_is_told(
    issuer: Issuer, status: int, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    tokens, token = tokens_of(issuer, clock), issuer.token()
    assert await tokens.find(token) is not None
    issuer.status, issuer.answer = status, answer
    clock.advance(int(GONE_S * 1000) + 1)
    assert await tokens.find(token) is not None
    assert len(issuer.fetched) == 2
    assert [vars(record).get("action") for record in caplog.records].count("jwt.keys_failed") == 1


async def test_nothing_of_a_token_is_in_any_log(door: Door, issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sent = [*refused_tokens(issuer).values(), issuer.token(sub="kelp-forest")]
    for token in sent:
        await door.lets_in(token)
    told = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "jwt.refused" in told
    pieces = {piece for token in sent for piece in token.split(".") if len(piece) > 20}
    assert len(pieces) > 20
    assert not [piece for piece in pieces if piece in told]
    assert "stranger" not in told


# --- settings -----------------------------------------------------------------------------------------------------


def test_the_settings_come_from_the_file_the_environment_and_arguments(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[jwt]\nissuer = "https://a.example"\naudience = "x"\nalgorithms = ["ES256"]\n')
    assert load_config(file, {}).jwt == JwtIssuer(issuer="https://a.example", audience="x", algorithms=("ES256",))
    said = "issuer=https://b.example/?a=b, audience=y, algorithms=RS256 EdDSA, default_scopes=read"
    assert load_config(file, {"HOLDFAST_JWT": said}).jwt == JwtIssuer(
        issuer="https://b.example/?a=b", audience="y", algorithms=("RS256", "EdDSA"), default_scopes=("read",)
    )
    given = JwtIssuer(issuer="https://c.example", audience="z")
    assert load_config(file, {"HOLDFAST_JWT": said}, jwt=given).jwt == given
    assert load_config(environ={}).jwt is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("audience=x", "issuer"),
        ("issuer=https://a.example", "audience"),
        ("issuer=https://a.example, audience=", "audience is empty"),
        ("issuer=accounts.example, audience=x", "jwks_url"),
        ("issuer=http://a.example, audience=x", "https"),
        ("issuer=https://a.example, audience=x, jwks_url=http://a.example/keys", "https"),
        ("issuer=https://a.example, audience=x, jwks_url=https://me:pw@a.example/keys", "password"),
        ("issuer=https://a.example, audience=x, algorithms=HS256", "HS256"),
        ("issuer=https://a.example, audience=x, algorithms=RS256 none", "none"),
        ("issuer=https://a.example, audience=x, algorithms=", "algorithms"),
        ("issuer=https://a.example, audience=x, default_scopes=read write", "write"),
        ("issuer=https://a.example, audience=x, owner_claim=", "owner_claim is empty"),
        ("issuer=https://a.example, audience=x, audiance=y", "audiance"),
    ],
)
def test_settings_that_do_not_fit_are_told_when_they_are_read(said: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(environ={"HOLDFAST_JWT": said})


def test_code_is_told_of_them_as_well() -> None:
    for wrong in ({"algorithms": ["HS256"]}, {"algorithms": "RS256"}, {"issuer": 7}, {"default_scopes": ["all"]}):
        given: Any = {"issuer": "https://a.example", "audience": "x", **wrong}
        with pytest.raises(ConfigError, match="jwt: "):
            JwtIssuer(**given)
    named = JwtIssuer(issuer="accounts.example", audience="x", jwks_url="https://a.example/keys")
    assert named.issuer == "accounts.example", "an issuer need not be an address"
