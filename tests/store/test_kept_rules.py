"""Kept rules in the database: kept with an approval or not at all, by owner, agent, chat and life, until they end."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.limits import Limits
from holdfast.core.records import CallState, ChatRecord
from holdfast.errors import InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import Key, StoreOptions
from holdfast.system.clock import FakeClock
from holdfast.transfer import delete_owner, export_chat, import_chat
from tests.support.chats import Hand, new_chat
from tests.support.kept import PAY, asking, finish, keep

HOUR_MS = 3_600_000


async def chat_of(store: Store, chat_id: str) -> ChatRecord:
    return (await store.read_chat(chat_id)).chat


async def covering(store: Store, chat: ChatRecord, *rules: str) -> list[str]:
    return [rule.rule for rule in await store.kept_rules.covering(chat, rules or (PAY,))]


async def state_of(store: Store, chat_id: str, call_id: str) -> CallState:
    found = (await store.read_chat(chat_id)).call(call_id)
    assert found is not None
    return found.state


async def test_a_call_that_asks_shows_what_always_would_keep(store: Store) -> None:
    chat_id, call_id = await asking(store, PAY, "allow call(tell)")
    (listed,) = await store.open_calls(chat_id)
    assert listed.offer == (PAY, "allow call(tell)")
    assert await store.read_open_call(chat_id, call_id) == listed
    plain, _ = await asking(store)
    assert [call.offer for call in await store.open_calls(plain)] == [()]


async def test_an_approval_keeps_what_was_offered_and_by_whom_since_when_and_until_when(
    store: Store, clock: FakeClock
) -> None:
    chat_id, call_id = await asking(store, PAY, "allow call(tell)")
    digest = (await store.open_calls(chat_id))[0].digest
    approval = cmd.Approve(call_id=call_id, by="ann", digest=digest, always="chat", always_ms=HOUR_MS)
    await store.submit(chat_id, approval)
    assert await state_of(store, chat_id, call_id) is CallState.APPROVED
    rules = await store.kept_rules.page()
    assert sorted(rule.rule for rule in rules) == [PAY, "allow call(tell)"]
    chat = await chat_of(store, chat_id)
    for rule in rules:
        assert (rule.scope, rule.owner, rule.agent, rule.chat_id, rule.life) == (
            "chat",
            "ada",
            None,
            chat_id,
            chat.life,
        )
        assert (rule.made_by, rule.call_id) == ("ann", call_id)
        assert rule.expires_at == rule.made_at + HOUR_MS
        assert await store.kept_rules.read(rule.id) == rule


async def test_always_is_refused_where_it_is_not_offered_and_the_call_still_asks(store: Store) -> None:
    chat_id, call_id = await asking(store)
    with pytest.raises(RefusedError, match="Approve it without `always`") as caught:
        await store.submit(chat_id, cmd.Approve(call_id=call_id, always="owner"))
    assert caught.value.reason == "nothing_to_keep"
    assert await state_of(store, chat_id, call_id) is CallState.ASKING
    assert await store.kept_rules.page() == []


async def test_an_approval_of_other_arguments_keeps_nothing(store: Store) -> None:
    chat_id, call_id = await asking(store, PAY)
    with pytest.raises(RefusedError, match="look again"):
        await store.submit(chat_id, cmd.Approve(call_id=call_id, digest="0" * 20, always="owner"))
    assert await store.kept_rules.page() == []


async def test_an_always_that_cannot_be_meant_is_refused(store: Store) -> None:
    chat_id, call_id = await asking(store, PAY)
    for always, always_ms in (("everyone", None), (None, 5), ("chat", 0), ("chat", 1 << 60)):
        with pytest.raises(InvalidInput):
            await store.submit(chat_id, cmd.Approve(call_id=call_id, always=always, always_ms=always_ms))  # type: ignore[arg-type]


@pytest.mark.parametrize("point", ["write.receipt.before", "write.receipt.after"])
async def test_approval_and_rules_are_there_together_or_not_at_all(store: Store, point: str) -> None:
    chat_id, call_id = await asking(store, PAY)
    approval, key = cmd.Approve(call_id=call_id, always="owner"), Key(principal="ada", key="once")

    def fail() -> None:
        raise RuntimeError("the power went")

    faults.arm(point, fail)
    with pytest.raises(RuntimeError, match="the power went"):
        await store.submit(chat_id, approval, key)
    assert await state_of(store, chat_id, call_id) is CallState.ASKING
    assert await store.kept_rules.page() == []
    first = await store.submit(chat_id, approval, key)
    kept = await store.kept_rules.page()
    assert [rule.rule for rule in kept] == [PAY]
    assert await store.submit(chat_id, approval, key) == first
    assert await store.kept_rules.page() == kept, "the same request again keeps nothing again"


async def test_a_rule_counts_for_its_owner_agent_and_chat(store: Store) -> None:
    hand = Hand(store)
    chats = {}
    for owner, agent in (("ada", "payer"), ("ada", "clerk"), ("bob", "payer")):
        await store.create_chat(new_chat(None, id=f"{owner}-{agent}", owner=owner, agent=agent))
        chats[owner, agent] = await chat_of(store, f"{owner}-{agent}")

    async def counts_for() -> set[tuple[str, str]]:
        return {whose for whose, chat in chats.items() if await covering(store, chat)}

    for always, wanted in (
        ("chat", set()),
        ("agent", {("ada", "payer")}),
        ("owner", {("ada", "payer"), ("ada", "clerk")}),
    ):
        (rule,) = await keep(store, always=always, agent="payer", hand=hand)
        assert await counts_for() == wanted, always
        own = await chat_of(store, rule.chat_id) if rule.chat_id is not None else chats["ada", "payer"]
        assert await covering(store, own) == [PAY]
        assert await covering(store, replace(own, owner="bob")) == []
        assert await covering(store, own, "allow call(p)", "allow call(*)") == [], "word for word"
        await store.kept_rules.revoke(rule.id)
        assert await covering(store, own) == []


async def test_a_chat_made_under_the_id_of_a_deleted_one_inherits_nothing(store: Store) -> None:
    (rule,) = await keep(store, always="chat", chat_id="c1")
    old = await chat_of(store, "c1")
    await finish(Hand(store), "c1", rule.call_id)
    (other,) = await keep(store, always="owner")
    assert [found.id for found in await store.kept_rules.page(chat_id="c1")] == [rule.id]
    await store.delete_chat("c1")
    assert [found.id for found in await store.kept_rules.page()] == [other.id]
    await keep(store, "allow call(x)", always="chat", chat_id="c1")
    assert await covering(store, await chat_of(store, "c1"), "allow call(x)") == ["allow call(x)"]
    assert await covering(store, old, "allow call(x)") == []


async def test_a_rule_ends_by_its_time_and_is_forgotten(store: Store, clock: FakeClock) -> None:
    chat_id, call_id = await asking(store, PAY)
    await store.submit(chat_id, cmd.Approve(call_id=call_id, always="owner", always_ms=1_000))
    (forever,) = await keep(store, "allow call(x)")
    chat = await chat_of(store, chat_id)
    (rule,) = await store.kept_rules.covering(chat, [PAY])
    assert rule.expires_at is not None
    clock.advance(rule.expires_at - store.now_ms() - 1)
    assert await covering(store, chat) == [PAY]
    assert await store.kept_rules.prune(store.now_ms()) == 0
    clock.advance(1)
    assert await covering(store, chat) == []
    assert [found.id for found in await store.kept_rules.page()] == [forever.id]
    clock.advance(1)
    assert await store.kept_rules.prune(store.now_ms()) == 1
    with pytest.raises(NotFound, match=rule.id):
        await store.kept_rules.read(rule.id)


async def test_a_revoked_rule_is_gone_for_every_process(store: Store, store_url: str) -> None:
    (rule,) = await keep(store)
    async with open_store(store_url) as other:
        assert await other.kept_rules.revoke(rule.id) == rule
    assert await covering(store, await chat_of(store, (await store.list_chats())[0].id)) == []
    with pytest.raises(NotFound, match=rule.id):
        await store.kept_rules.revoke(rule.id)


async def test_of_those_who_revoke_a_rule_at_once_one_has_revoked_it(store: Store, store_url: str) -> None:
    (rule,) = await keep(store)
    async with open_store(store_url) as other:
        revokes = (each.kept_rules.revoke(rule.id) for each in (store, other, store, other))
        answers = await asyncio.gather(*revokes, return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, NotFound)] == [rule]


async def test_the_same_rule_kept_again_replaces_the_one_before(store: Store) -> None:
    (first,) = await keep(store, by="ann")
    (second,) = await keep(store, by="ben")
    assert (second.id, second.made_by) == (first.id, "ben")
    assert len(await store.kept_rules.page()) == 1
    await keep(store, always="agent")
    await keep(store, owner="bob")
    assert len(await store.kept_rules.page()) == 3


async def test_an_owner_keeps_so_many_rules_and_is_told_beyond(store_url: str, clock: FakeClock) -> None:
    limits = Limits(kept_rules_max=2)
    async with open_store(store_url, StoreOptions(clock=clock, limits=limits)) as store:
        await keep(store, "allow call(a)", "allow call(b)")
        chat_id, call_id = await asking(store, "allow call(c)")
        with pytest.raises(LimitReached, match="kept rules of an owner"):
            await store.submit(chat_id, cmd.Approve(call_id=call_id, always="chat"))
        assert await state_of(store, chat_id, call_id) is CallState.ASKING, "nothing of it happened"
        assert len(await store.kept_rules.page()) == 2
        assert await keep(store, "allow call(a)"), "one that is there is no further one"
        assert await keep(store, "allow call(c)", owner="bob"), "another owner has room of its own"
        await store.submit(chat_id, cmd.Approve(call_id=call_id))


async def test_two_who_keep_the_last_rule_at_once_keep_one(store_url: str, clock: FakeClock) -> None:
    options = StoreOptions(clock=clock, limits=Limits(kept_rules_max=1))
    async with open_store(store_url, options) as one, open_store(store_url, options) as two:
        calls = [await asking(store, f"allow call(p{n})") for n, store in enumerate((one, two))]
        answers = await asyncio.gather(
            *(
                store.submit(chat_id, cmd.Approve(call_id=call_id, always="owner"))
                for store, (chat_id, call_id) in zip((one, two), calls, strict=True)
            ),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers].count(LimitReached) == 1
        assert len(await one.kept_rules.page()) == 1


async def test_with_an_owner_go_its_rules(store: Store) -> None:
    (adas,) = await keep(store, owner="ada", chat_id="adas")
    await finish(Hand(store), "adas", adas.call_id)
    (bobs,) = await keep(store, owner="bob")
    await delete_owner(store, "ada")
    assert [rule.id for rule in await store.kept_rules.page()] == [bobs.id]


async def test_they_are_listed_newest_first_by_owner_and_page_by_page(store: Store) -> None:
    hand = Hand(store)
    for n in range(3):
        await keep(store, f"allow call(a{n})", hand=hand)
    await keep(store, owner="bob", hand=hand)
    first = await store.kept_rules.page(owner="ada", limit=2)
    rest = await store.kept_rules.page(owner="ada", before=first[-1].id, limit=2)
    ids = [rule.id for rule in (*first, *rest)]
    assert ids == sorted(ids, reverse=True)
    assert {rule.rule for rule in (*first, *rest)} == {f"allow call(a{n})" for n in range(3)}
    assert len(await store.kept_rules.page()) == 4


async def test_neither_an_offer_nor_a_rule_comes_along_with_a_chat_that_is_imported(
    store: Store, tmp_path: Path
) -> None:
    chat_id, call_id = await asking(store, PAY)
    await keep(store, always="chat")
    await export_chat(store, chat_id, tmp_path / "chat.jsonl")
    assert PAY not in (tmp_path / "chat.jsonl").read_text()
    copy = (await import_chat(store, tmp_path / "chat.jsonl", new_ids=True)).chat_id
    (asked,) = await store.open_calls(copy)
    assert (asked.kind, asked.offer) == ("approval", ())
    with pytest.raises(RefusedError, match="without `always`"):
        await store.submit(copy, cmd.Approve(call_id=asked.call_id, always="chat"))
    await store.submit(chat_id, cmd.Approve(call_id=call_id, always="chat"))
