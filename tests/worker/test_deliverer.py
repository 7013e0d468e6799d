"""Webhooks on their way to a real receiver: it fails, hangs, redirects, is gone, or is down for a day."""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.config import Config
from holdfast.core.deliveries import WAITS_S
from holdfast.errors import ConfigError, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.deliveries import RESERVED_MS
from holdfast.store.records import StoreOptions
from holdfast.store.webhooks import NewWebhook, Webhook, new_secret
from holdfast.system.clock import FakeClock
from holdfast.webhook_settings import DeclaredWebhook
from holdfast.worker import deliverer as module
from holdfast.worker import webhook_targets
from holdfast.worker.deliverer import Deliverer
from tests.support.chats import Hand, new_chat, unique
from tests.support.receiver import REACH, Receiver, Reply

DAY_MS = 86_400_000


def trouble(action: str, error: Exception) -> None:
    raise AssertionError(action) from error


def deliverer_of(store: Store, **settings: Any) -> Deliverer:
    config = Config(webhook_reach=settings.pop("reach", REACH), **settings)
    return Deliverer(store, config, trouble, chance=lambda: 0.0)


async def endpoint(store: Store, receiver: Receiver, **given: Any) -> tuple[Webhook, str]:
    new = NewWebhook(**{"name": unique("hook"), "url": receiver.url} | given)
    return await store.webhooks.create(new)


async def turns_end(store: Store, count: int = 1, owner: str = "ada") -> list[str]:
    """So many chats, whose turns are over."""
    hand, ids = Hand(store), [unique("chat") for _ in range(count)]
    for chat_id in ids:
        await store.create_chat(new_chat(id=chat_id, owner=owner))
        await hand.take(chat_id)
        await hand.end_turn()
    hand.close()
    return ids


async def test_a_turns_end_arrives_signed_as_the_reference_library_signs_it(store: Store) -> None:
    async with Receiver() as receiver:
        hook, secret = await endpoint(store, receiver)
        (chat_id,) = await turns_end(store)
        assert await deliverer_of(store).run_once() == 1
        (received,) = receiver.got
    assert received.is_signed_with(secret)
    assert received.headers["content-type"] == "application/json"
    event = received.event
    assert (event["type"], event["data"]["chat_id"]) == ("turn.ended", chat_id)
    assert event["timestamp"].startswith("2023-11-14T22:13:20")
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.attempts, delivery.status) == ("delivered", 1, 204)
    assert delivery.notice_id == received.id


async def test_while_a_secret_takes_over_from_another_both_sign_and_then_the_new_one_alone(
    store: Store, clock: FakeClock
) -> None:
    async with Receiver() as receiver:
        hook, old = await endpoint(store, receiver)
        new = await store.webhooks.rotate(hook.id, overlap_s=3600)
        sender = deliverer_of(store)
        await turns_end(store)
        await sender.run_once()
        clock.advance(3_600_000)
        await turns_end(store)
        await sender.run_once()
        first, second = receiver.got
    assert first.is_signed_with(old)
    assert first.is_signed_with(new)
    assert not second.is_signed_with(old)
    assert second.is_signed_with(new)


async def test_a_receiver_that_is_down_for_a_day_loses_nothing_and_gets_nothing_under_another_id(
    store: Store, clock: FakeClock
) -> None:
    receiver = Receiver()
    await receiver.start()
    hook, secret = await endpoint(store, receiver)
    await receiver.stop()
    sender = deliverer_of(store)
    chats = await turns_end(store, 5)
    for _ in range(24):
        await sender.run_once()
        clock.advance(DAY_MS // 24)
    chats += await turns_end(store, 2)
    told = {delivery.notice_id: delivery.chat_id for delivery in await store.deliveries.page(hook.id)}
    assert sorted(told.values()) == sorted(chats)
    assert sender.failed_attempts >= 5 * 7
    await receiver.start()
    for _ in range(20):
        await sender.run_once()
        clock.advance(DAY_MS // 24)
    await receiver.stop()
    assert sorted(receiver.ids) == sorted(told), "each event once, under the id that it always had"
    assert all(received.is_signed_with(secret) for received in receiver.got)
    assert {delivery.state for delivery in await store.deliveries.page(hook.id)} == {"delivered"}


async def test_attempts_follow_the_table_and_then_the_endpoint_is_disabled_with_the_reason(
    store: Store, clock: FakeClock
) -> None:
    async with Receiver(Reply(500)) as receiver:
        hook, _ = await endpoint(store, receiver)
        sender = deliverer_of(store)
        await turns_end(store)
        for n, wait_s in enumerate(WAITS_S):
            clock.advance(wait_s * 1000 - 1 if wait_s else 0)
            if wait_s:
                assert await sender.run_once() == 0, f"attempt {n + 1} comes after {wait_s} s, not before"
                clock.advance(1)
            assert await sender.run_once() == 1, f"attempt {n + 1}"
        assert len(set(receiver.ids)) == 1
        assert len({received.body for received in receiver.got}) == 1, "the same bytes each time"
        (delivery,) = await store.deliveries.page(hook.id)
        assert (delivery.state, delivery.attempts, delivery.status) == ("failed", 10, 500)
        known = await store.webhooks.read(hook.id)
        assert known.state == "disabled"
        assert "10 attempts; last: it answered 500" in known.why
        await turns_end(store)
        assert len(await store.deliveries.page(hook.id)) == 1, "a disabled endpoint hears of nothing"
        receiver.usual = Reply()
        await store.webhooks.enable(hook.id)
        assert await store.deliveries.replay_failed(hook.id, 0) == 1
        assert await sender.run_once() == 1
    assert (await store.deliveries.page(hook.id))[0].state == "delivered"


async def test_an_endpoint_that_takes_other_events_is_not_disabled_for_one_that_it_never_takes(
    store: Store, clock: FakeClock
) -> None:
    async with Receiver(Reply(500)) as receiver:
        hook, _ = await endpoint(store, receiver)
        sender = deliverer_of(store)
        await turns_end(store)
        for wait_s in WAITS_S[:-1]:
            clock.advance(wait_s * 1000)
            await sender.run_once()
        receiver.replies.append(Reply(200))
        await turns_end(store)
        await sender.run_once()
        clock.advance(WAITS_S[-1] * 1000)
        await sender.run_once()
    states = Counter(delivery.state for delivery in await store.deliveries.page(hook.id))
    assert states == {"failed": 1, "delivered": 1}
    assert (await store.webhooks.read(hook.id)).state == "active"


async def test_410_disables_at_once_and_what_waits_is_sent_when_it_is_enabled_again(store: Store) -> None:
    async with Receiver(Reply(410)) as receiver:
        hook, _ = await endpoint(store, receiver)
        sender = deliverer_of(store)
        await turns_end(store, 6)
        await sender.run_once()
        known = await store.webhooks.read(hook.id)
        assert (known.state, "410" in known.why) == ("disabled", True)
        asked = len(receiver.got)
        assert asked <= module.SENDS_PER_HOOK_MAX, "what was under way, and nothing after it"
        assert await sender.run_once() == 0
        receiver.usual = Reply()
        await store.webhooks.enable(hook.id)
        await store.deliveries.replay_failed(hook.id, 0)
        await sender.run_once()
    assert {delivery.state for delivery in await store.deliveries.page(hook.id)} == {"delivered"}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(store: Store, status: int) -> None:
    async with Receiver() as other, Receiver() as receiver:
        receiver.replies.append(Reply(status, (("location", other.url),)))
        hook, _ = await endpoint(store, receiver)
        await turns_end(store)
        await deliverer_of(store).run_once()
        assert other.got == []
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.status) == ("pending", status)
    assert "redirect is not followed" in delivery.error


async def test_a_receiver_that_hangs_costs_its_deadline_and_holds_up_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_targets, "ATTEMPT_S", 3.0)
    async with Receiver(Reply(hangs=True)) as slow, Receiver() as quick:
        hanging, _ = await endpoint(store, slow)
        prompt, _ = await endpoint(store, quick)
        await turns_end(store, 12)
        sender = deliverer_of(store)
        sending = asyncio.create_task(sender.run_once())
        await quick.until(lambda: len(quick.got) == 12)
        most = module.SENDS_PER_HOOK_MAX
        await slow.until(lambda: len(slow.got) >= most)
        assert slow.open_most == most, "so many at once, and those of the other have all arrived"
        # From now on it has one attempt at a time: the second of these comes when the first is over.
        await slow.until(lambda: len(slow.got) >= most + 2)
        assert sender.figures()["sending_to_one"] == 1
        sending.cancel()
        await sender.close()
    assert {delivery.state for delivery in await store.deliveries.page(prompt.id)} == {"delivered"}
    tried = [delivery for delivery in await store.deliveries.page(hanging.id) if delivery.attempts]
    assert len(tried) >= module.SENDS_PER_HOOK_MAX
    assert all("timed out" in delivery.error for delivery in tried)


async def test_an_endpoint_that_is_asked_too_much_is_left_alone_for_as_long_as_it_says(
    store: Store, clock: FakeClock
) -> None:
    async with Receiver() as receiver:
        receiver.replies.append(Reply(429, (("retry-after", "120"),)))
        hook, _ = await endpoint(store, receiver)
        sender = deliverer_of(store)
        await turns_end(store)
        await sender.run_once()
        await turns_end(store)
        clock.advance(119_000)
        assert await sender.run_once() == 0, "nothing else is sent there, either"
        clock.advance(1_000)
        assert await sender.run_once() == 2
    assert {delivery.state for delivery in await store.deliveries.page(hook.id)} == {"delivered"}


async def test_two_workers_do_not_send_the_same_at_the_same_time_and_a_dead_ones_is_sent_again(
    store: Store, clock: FakeClock
) -> None:
    async with Receiver() as receiver:
        hook, _ = await endpoint(store, receiver)
        await turns_end(store, 8)
        assert sum(await asyncio.gather(*[deliverer_of(store).run_once() for _ in range(4)])) == 8
        assert len(set(receiver.ids)) == len(receiver.got) == 8
        await turns_end(store)
        (taken,) = await store.deliveries.due(hook.id, 10)
        assert await store.deliveries.reserve(taken) is not None, "a worker that dies now, before it sends"
        assert await store.deliveries.reserve(taken) is None
        assert await deliverer_of(store).run_once() == 0
        clock.advance(RESERVED_MS)
        assert await deliverer_of(store).run_once() == 1
        assert receiver.ids[-1] == taken.notice_id


async def test_a_clock_that_is_set_back_keeps_nothing_from_being_sent(store: Store, clock: FakeClock) -> None:
    async with Receiver() as receiver:
        await endpoint(store, receiver)
        clock.step_wall(365 * DAY_MS)
        await turns_end(store)
        clock.step_wall(-365 * DAY_MS)
        assert await deliverer_of(store).run_once() == 1


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/hook", "https://169.254.169.254/latest", "https://localhost/hook", "https://10.1.2.3/"],
)
async def test_no_webhook_leads_inside_unless_the_settings_say_so(store: Store, url: str) -> None:
    hook, _ = await store.webhooks.create(NewWebhook(name="inside", url=url))
    await turns_end(store)
    await deliverer_of(store, reach=()).run_once()
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.status, delivery.attempts) == ("pending", None, 1)
    assert "internal" in delivery.error or "https://" in delivery.error


async def test_a_worker_tells_at_once_of_what_it_ends_itself(store_url: str) -> None:
    async with Receiver() as receiver, open_store(store_url, StoreOptions()) as store:
        await endpoint(store, receiver)
        sender = deliverer_of(store)
        running = asyncio.create_task(sender.run_forever())
        await turns_end(store, 3)
        await receiver.until(lambda: len(receiver.got) == 3)
        running.cancel()
        await asyncio.wait([running])
        await sender.close()
        assert sender.figures()["delivered"] + sender.figures()["sending"] <= 3


async def test_no_log_line_holds_a_secret(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Receiver(Reply(500)) as receiver:
        _, secret = await endpoint(store, receiver)
        await turns_end(store)
        await deliverer_of(store).run_once()
    said = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "webhook.attempt_failed" in said
    assert secret not in said


async def test_a_worker_brings_what_the_settings_declare_into_the_store(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_secret()
    monkeypatch.setenv("OPS_WEBHOOK_SECRET", secret)
    async with Receiver() as receiver:
        declared = DeclaredWebhook("ops", url=receiver.url, secret_env="OPS_WEBHOOK_SECRET", kinds=("turn.ended",))
        settings: Any = {"home": str(tmp_path), "webhooks": (declared,), "webhook_reach": REACH}
        app = App(store_url, [Agent("echo", "scripted")], **settings)
        async with app.worker():
            await app.run("echo", "hello")
            await receiver.until(lambda: len(receiver.got) == 1)
            (hook,) = await app.webhooks.page()
            with pytest.raises(RefusedError, match=r"\[webhooks.ops\]"):
                await app.webhooks.rotate(hook.id)
        assert receiver.got[0].is_signed_with(secret)
        assert app.secrets.taken_out(f"it is {secret}") != f"it is {secret}"


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (DeclaredWebhook("ops", url="http://example.com/", secret_env="X"), "https://"),
        (DeclaredWebhook("ops", url="https://example.com/", secret_env="X", kinds=("ping",)), "kinds"),
    ],
)
def test_an_app_is_not_made_with_an_endpoint_that_cannot_be_meant(
    tmp_path: Path, declared: DeclaredWebhook, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"webhooks.ops: .*{words}"):
        App(f"sqlite:///{tmp_path}/x.db", webhooks=(declared,))
