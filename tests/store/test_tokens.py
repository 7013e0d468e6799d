"""Tokens in the database: found by their secret, which is not in it, and ended for good."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.errors import InvalidInput, NotFound
from holdfast.principals import Principal
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.store.tokens import NewToken, Token
from holdfast.system.clock import FakeClock
from tests.support.chats import new_chat
from tests.support.rows import read_rows

ANN = NewToken(name="ann's laptop", owner="ann", created_by="admin")


async def made(store: Store, new: NewToken = ANN) -> tuple[Token, str]:
    return await store.tokens.create(new)


async def test_a_token_is_found_by_its_secret_and_says_who_asks(store: Store) -> None:
    scopes = frozenset({"read", "chat"})
    token, secret = await made(store, replace(ANN, scopes=scopes, chat="c1", expires_at=store.now_ms() + 5_000))
    found = await store.tokens.find(secret)
    assert found == token
    assert found is not None
    assert found.principal == Principal(
        name="ann's laptop", owner="ann", scopes=scopes, chat="c1", expires_at=token.expires_at
    )
    assert found.ended(store.now_ms()) is None
    assert secret.startswith(f"hf_{token.id}_")


async def test_no_secret_is_in_the_database(store: Store, store_url: str) -> None:
    _, secret = await made(store)
    assert secret[-43:] not in repr(read_rows(store_url)), "nor what is random of it"


async def test_what_is_no_secret_of_ours_finds_nothing(store: Store) -> None:
    token, secret = await made(store)
    for wrong in ("", "hf_", secret[:-1], secret + "a", f"hf_{token.id}_" + "A" * 43, "x" * 100_000, "hf_\x00"):
        assert await store.tokens.find(wrong) is None
        assert await store.tokens.use_once(wrong) is None


async def test_a_token_ends_when_it_is_revoked_or_its_time_is_up(store: Store, clock: FakeClock) -> None:
    revoked, _ = await made(store)
    assert (await store.tokens.revoke(revoked.id)).ended(store.now_ms()) == "revoked"
    at = (await store.tokens.revoke(revoked.id)).revoked_at
    clock.advance(1_000)
    assert (await store.tokens.revoke(revoked.id)).revoked_at == at, "it was revoked when it was first"
    with pytest.raises(NotFound, match="tok_none"):
        await store.tokens.revoke("tok_none")
    _, secret = await made(store, replace(ANN, expires_at=store.now_ms() + 1_000))
    found = await store.tokens.find(secret)
    assert found is not None
    assert found.ended(store.now_ms() + 999) is None
    assert found.ended(store.now_ms() + 1_000) == "expired"


async def test_a_token_ends_with_those_it_was_made_with(store: Store) -> None:
    first, _ = await made(store)
    second, _ = await made(store, replace(ANN, parent=first.id))
    third, secret = await made(store, replace(ANN, parent=second.id))
    other, _ = await made(store)
    assert [token.ended(0) for token in await store.tokens.read([first.id, third.id, other.id])] == [None] * 3
    await store.tokens.revoke(first.id)
    found = await store.tokens.find(secret)
    assert found is not None
    assert found.ended(0) == "revoked"
    ended = {token.id: token.ended(0) for token in await store.tokens.read([second.id, third.id, other.id, "tok_0"])}
    assert ended == {second.id: "revoked", third.id: "revoked", other.id: None}
    assert await store.tokens.prune(store.now_ms() + 1) == 1, "the first is forgotten"
    assert (await store.tokens.read([third.id]))[0].ended(0) == "revoked", "and still those end that came from it"


async def test_a_link_is_used_once_however_many_try(store: Store) -> None:
    _, secret = await made(store, replace(ANN, kind="link", expires_at=store.now_ms() + 60_000))
    used = await asyncio.gather(*(store.tokens.use_once(secret) for _ in range(8)))
    assert sum(token is not None for token in used) == 1
    assert await store.tokens.use_once(secret) is None
    _, late = await made(store, replace(ANN, kind="link", expires_at=store.now_ms()))
    assert await store.tokens.use_once(late) is None
    _, other = await made(store)
    assert await store.tokens.use_once(other) is None, "a token is no link"
    parent, _ = await made(store)
    _, orphan = await made(store, replace(ANN, kind="link", parent=parent.id))
    await store.tokens.revoke(parent.id)
    assert await store.tokens.use_once(orphan) is None


async def test_tokens_are_listed_newest_first_by_owner_and_kind(store: Store) -> None:
    mine = [(await made(store))[0].id for _ in range(3)]
    bobs = (await made(store, replace(ANN, owner="bob")))[0].id
    admins = (await made(store, replace(ANN, owner=None)))[0].id
    session = (await made(store, replace(ANN, kind="session")))[0].id
    every = {token.id for token in await store.tokens.page()}
    assert every == {*mine, bobs, admins}
    assert {token.id for token in await store.tokens.page(owner="ann")} == set(mine)
    assert [token.id for token in await store.tokens.page(kind="session")] == [session]
    first = await store.tokens.page(limit=2)
    rest = await store.tokens.page(before=first[-1].id)
    assert [token.id for token in (*first, *rest)] == sorted(every, reverse=True)


async def test_what_ended_long_ago_is_forgotten_and_nothing_else(store: Store, clock: FakeClock) -> None:
    kept, _ = await made(store)
    lasting, _ = await made(store, replace(ANN, expires_at=store.now_ms() + 10**9))
    await made(store, replace(ANN, expires_at=store.now_ms() + 1))
    await store.tokens.revoke((await made(store))[0].id)
    clock.advance(1_000)
    assert await store.tokens.prune(store.now_ms()) == 2
    assert {token.id for token in await store.tokens.page()} == {kept.id, lasting.id}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": ""}, "name"),
        ({"owner": ""}, "owner"),
        ({"owner": "a\x00b"}, "owner"),
        ({"scopes": frozenset({"read", "everything"})}, "scopes"),
        ({"kind": "key"}, "kind"),
    ],
)
async def test_a_token_that_would_mean_nothing_is_refused(store: Store, wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        await made(store, replace(ANN, **wrong))


async def test_another_process_sees_a_revocation_at_once(store_url: str) -> None:
    async with open_store(store_url, StoreOptions()) as one, open_store(store_url, StoreOptions()) as other:
        token, secret = await made(one)
        assert await other.tokens.find(secret) == token
        await one.tokens.revoke(token.id)
        found = await other.tokens.find(secret)
        assert found is not None
        assert found.ended(0) == "revoked"


async def test_whose_a_chat_is_can_be_asked_without_reading_it(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1", owner="ann"))
    assert await store.read_owner("c1") == ("ann", None)
    assert await store.read_owner("c2") is None
