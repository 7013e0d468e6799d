"""Endpoints and deliveries in the database: whose they are, how many, their secrets, and what goes with whom."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.deliveries import Answer
from holdfast.errors import InvalidInput, LimitReached, NotFound
from holdfast.store.contract import Store
from holdfast.store.deliveries import KEPT_DAYS
from holdfast.store.webhooks import WEBHOOKS_MAX, NewWebhook, Webhook, new_secret
from holdfast.system.clock import FakeClock
from holdfast.transfer import delete_owner, export_chat
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat, unique

DAY_MS = 86_400_000
URL = "https://example.com/hook"


async def made(store: Store, **given: Any) -> Webhook:
    return (await store.webhooks.create(NewWebhook(**{"name": unique("hook"), "url": URL} | given)))[0]


async def a_turn_ends(store: Store, owner: str = "ada") -> str:
    hand, chat_id = Hand(store), unique("chat")
    await store.create_chat(new_chat(id=chat_id, owner=owner))
    await hand.take(chat_id)
    await hand.end_turn()
    hand.close()
    return chat_id


async def test_a_secret_is_given_out_once_and_no_verb_for_people_shows_it(store: Store) -> None:
    hook, secret = await store.webhooks.create(
        NewWebhook(name="ops", url=URL, kinds=("turn.ended",), created_by="ann")
    )
    assert secret.startswith("whsec_")
    assert await store.webhooks.signing(hook.id) == [secret]
    assert await store.webhooks.read(hook.id) == hook
    assert (hook.owner, hook.kinds, hook.links, hook.state, hook.source) == (
        None,
        ("turn.ended",),
        False,
        "active",
        "made",
    )
    shown = repr([hook, await store.webhooks.page(), await store.webhooks.disable(hook.id, "so")])
    assert secret not in shown


async def test_rotation_keeps_the_one_before_for_the_overlap_and_no_longer(store: Store, clock: FakeClock) -> None:
    hook, first = await store.webhooks.create(NewWebhook(name="ops", url=URL))
    second = await store.webhooks.rotate(hook.id, overlap_s=60)
    assert await store.webhooks.signing(hook.id) == [second, first]
    clock.advance(60_000)
    assert await store.webhooks.signing(hook.id) == [second]
    third = await store.webhooks.rotate(hook.id, overlap_s=0)
    assert await store.webhooks.signing(hook.id) == [third]
    with pytest.raises(InvalidInput, match="overlap_s"):
        await store.webhooks.rotate(hook.id, overlap_s=1e9)
    with pytest.raises(InvalidInput, match="whsec_"):
        await store.webhooks.rotate(hook.id, secret="hunter2")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kinds": ("turn.began",)}, "there are turn.ended"),
        ({"kinds": ("ping",)}, "there are turn.ended"),
        ({"name": " "}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"url": "https://example.com/" + "x" * 2_000}, "url"),
        ({"secret": "whsec_short"}, "24 to 64"),
    ],
)
async def test_what_cannot_be_an_endpoint_is_refused(store: Store, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await made(store, **given)
    assert await store.webhooks.page() == []


async def test_an_owner_has_so_many_and_others_have_theirs(store: Store) -> None:
    for _ in range(WEBHOOKS_MAX):
        await made(store, owner="ada")
    with pytest.raises(LimitReached, match="remove one"):
        await made(store, owner="ada")
    await made(store, owner="bob")
    await made(store)
    assert len(await store.webhooks.page(owner="ada")) == WEBHOOKS_MAX
    assert len(await store.webhooks.page()) == WEBHOOKS_MAX + 2
    first = await store.webhooks.page(limit=5)
    rest = await store.webhooks.page(before=first[-1].id, limit=500)
    assert len({hook.id for hook in (*first, *rest)}) == WEBHOOKS_MAX + 2


async def test_an_owner_that_makes_many_at_once_gets_no_more_than_the_limit(store: Store) -> None:
    asked = (made(store, owner="ada") for _ in range(2 * WEBHOOKS_MAX))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert len(await store.webhooks.page(owner="ada")) == WEBHOOKS_MAX
    assert sum(isinstance(answer, LimitReached) for answer in answers) == WEBHOOKS_MAX


async def test_what_is_changed_stays_changed_and_what_is_not_there_is_said_so(store: Store) -> None:
    hook = await made(store)
    changed = await store.webhooks.change(
        replace(hook, url="https://example.com/new", kinds=("turn.failed",), links=True)
    )
    assert changed == await store.webhooks.read(hook.id)
    assert (changed.url, changed.kinds, changed.links) == ("https://example.com/new", ("turn.failed",), True)
    assert await store.webhooks.remove(hook.id) == changed
    for verb in (store.webhooks.read, store.webhooks.remove, store.webhooks.enable, store.webhooks.rotate):
        with pytest.raises(NotFound, match="webhook"):
            await verb(hook.id)
    with pytest.raises(NotFound):
        await store.webhooks.change(hook)
    with pytest.raises(NotFound):
        await store.deliveries.ping(hook.id)


async def test_what_the_settings_declare_is_one_endpoint_however_often_it_is_declared(
    store: Store, clock: FakeClock
) -> None:
    first, second = new_secret(), new_secret()
    declared = NewWebhook(name="ops", url=URL, secret=first, source="settings")
    hooks = await asyncio.gather(*[store.webhooks.declare(declared) for _ in range(4)])
    assert len({hook.id for hook in hooks}) == len(await store.webhooks.page()) == 1
    await store.webhooks.disable(hooks[0].id, "a person said so")
    again = await store.webhooks.declare(replace(declared, secret=second, url="https://example.com/new"))
    assert (again.source, again.state, again.url) == ("settings", "disabled", "https://example.com/new")
    assert await store.webhooks.signing(again.id) == [second, first], "a new secret takes over from the one before"
    await store.webhooks.declare(replace(declared, secret=second))
    assert await store.webhooks.signing(again.id) == [second, first]
    clock.advance(DAY_MS)
    assert await store.webhooks.signing(again.id) == [second]


async def test_an_owner_that_is_deleted_leaves_no_endpoint_and_no_word_of_its_chats(
    store: Store, store_url: str
) -> None:
    await made(store, owner="ada")
    everybodys = await made(store)
    await a_turn_ends(store)
    await a_turn_ends(store, "bob")
    await delete_owner(store, "ada")
    assert await store.webhooks.page(owner="ada") == []
    assert [delivery.owner for delivery in await store.deliveries.page(everybodys.id)] == ["bob"]
    assert sql(store_url, "SELECT count(*) FROM deliveries") == [(1,)]


async def test_an_export_holds_neither_endpoint_nor_secret(store: Store, tmp_path: Any) -> None:
    _, secret = await store.webhooks.create(NewWebhook(name="ops-endpoint", url=URL))
    chat_id = await a_turn_ends(store)
    await export_chat(store, chat_id, tmp_path / "chat.jsonl")
    text = (tmp_path / "chat.jsonl").read_text()
    assert secret not in text
    assert "ops-endpoint" not in text


async def test_deliveries_are_listed_by_state_and_pruned_by_age(store: Store, clock: FakeClock) -> None:
    hook = await made(store)
    for _ in range(3):
        await a_turn_ends(store)
    newest, _, oldest = await store.deliveries.page(hook.id)
    await store.deliveries.settle_taken(oldest, Answer(status=200))
    assert [delivery.state for delivery in await store.deliveries.page(hook.id, state="delivered")] == ["delivered"]
    assert len(await store.deliveries.page(hook.id, state="pending")) == 2
    assert await store.deliveries.page(hook.id, before=newest.notice_id, limit=1) == [
        (await store.deliveries.page(hook.id))[1]
    ]
    clock.advance(KEPT_DAYS * DAY_MS)
    await a_turn_ends(store)
    assert await store.deliveries.prune(store.now_ms() - 1) == 3
    assert len(await store.deliveries.page(hook.id)) == 1


async def test_what_another_took_over_is_not_settled_as_failed_by_who_was_too_slow(
    store: Store, clock: FakeClock
) -> None:
    hook = await made(store)
    await a_turn_ends(store)
    (delivery,) = await store.deliveries.due(hook.id, 1)
    slow = await store.deliveries.reserve(delivery)
    assert slow is not None
    clock.advance(120_000)
    (again,) = await store.deliveries.due(hook.id, 1)
    assert await store.deliveries.reserve(again) is not None
    await store.deliveries.settle_given_up(delivery, Answer(status=500), slow)
    await store.deliveries.settle_again(delivery, Answer(status=500), slow, store.now_ms())
    (now,) = await store.deliveries.page(hook.id)
    assert (now.state, now.attempts) == ("pending", 0)
    await store.deliveries.settle_taken(delivery, Answer(status=200))
    assert (await store.deliveries.page(hook.id))[0].state == "delivered", "but what arrived, arrived"


async def test_a_replay_of_what_is_under_way_changes_nothing(store: Store) -> None:
    hook = await made(store)
    await a_turn_ends(store)
    (delivery,) = await store.deliveries.due(hook.id, 1)
    until = await store.deliveries.reserve(delivery)
    assert (await store.deliveries.replay(hook.id, delivery.notice_id)).next_at == until
    await store.deliveries.settle_taken(delivery, Answer(status=200))
    replayed = await store.deliveries.replay(hook.id, delivery.notice_id)
    assert (replayed.state, replayed.attempts, replayed.notice_id) == ("pending", 0, delivery.notice_id)
    with pytest.raises(NotFound, match="delivery"):
        await store.deliveries.replay(hook.id, "evt_none")


async def test_an_endpoint_of_the_settings_is_not_given_to_another_owner_with_what_it_was_told(store: Store) -> None:
    declared = NewWebhook(name="ops", url=URL, owner="ada", secret=new_secret(), source="settings")
    hook = await store.webhooks.declare(declared)
    await a_turn_ends(store)
    for owner in ("bob", None, ""):
        with pytest.raises(InvalidInput, match=f"owner: .* remove {hook.id} first"):
            await store.webhooks.declare(replace(declared, owner=owner))
    assert await store.webhooks.read(hook.id) == hook
    assert await store.webhooks.page(owner="bob") == []
    await store.webhooks.remove(hook.id)  # and whoever does it is killed before the deliveries are gone
    assert await store.deliveries.forget_gone() == 1
    bobs = await store.webhooks.declare(replace(declared, owner="bob"))
    await a_turn_ends(store, "bob")
    assert [delivery.owner for delivery in await store.deliveries.page(bobs.id)] == ["bob"]
    assert await store.deliveries.forget_gone() == 0


async def test_what_arrived_is_delivered_though_it_was_given_up_meanwhile(store: Store) -> None:
    hook = await made(store)
    await a_turn_ends(store)
    (delivery,) = await store.deliveries.due(hook.id, 1)
    assert await store.deliveries.shed(0) == {hook.id: 1}
    assert (await store.deliveries.read(hook.id, delivery.notice_id)).state == "failed"
    await store.deliveries.settle_taken(delivery, Answer(status=200))
    now = await store.deliveries.read(hook.id, delivery.notice_id)
    assert (now.state, now.error) == ("delivered", "")
