"""Webhooks on their way to a real receiver: it fails, hangs, redirects, is gone, or is down for a day."""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import faults
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


CHUNKED = b"HTTP/1.1 200 so\r\ntransfer-encoding: chunked\r\n\r\n"
SAID = {
    "hangs in its body": Reply(raw=b"HTTP/1.1 200 so\r\ncontent-length: 100\r\n\r\nabc", hangs=True),
    "floods": Reply(raw=CHUNKED, floods=b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
    "packs it badly": Reply(200, (("content-encoding", "gzip"),), body=b"this is not gzip"),
    "ends before its end": Reply(raw=b"HTTP/1.1 201 so\r\ncontent-length: 100\r\n\r\nabc"),
    "says garbage": Reply(raw=CHUNKED + b"kelp\r\n"),
}


@pytest.mark.parametrize("reply", SAID.values(), ids=SAID)
async def test_a_2xx_is_success_whatever_the_receiver_says_behind_it(store: Store, reply: Reply) -> None:
    async with Receiver(reply) as receiver:
        hook, _ = await endpoint(store, receiver)
        await turns_end(store)
        assert await deliverer_of(store).run_once() == 1
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.attempts, delivery.error) == ("delivered", 1, "")


async def test_a_410_disables_and_a_redirect_fails_whatever_comes_behind_them(store: Store) -> None:
    gone = Reply(raw=b"HTTP/1.1 410 so\r\ncontent-length: 100\r\n\r\n", hangs=True)
    moved = Reply(raw=b"HTTP/1.1 302 so\r\nlocation: http://127.0.0.1/\r\ncontent-length: 9\r\n\r\n", hangs=True)
    async with Receiver(gone) as first, Receiver(moved) as second:
        hooks = [(await endpoint(store, receiver))[0] for receiver in (first, second)]
        await turns_end(store)
        await deliverer_of(store).run_once()
    assert [(await store.webhooks.read(hook.id)).state for hook in hooks] == ["disabled", "active"]
    assert [(await store.deliveries.page(hook.id))[0].status for hook in hooks] == [410, 302]


@pytest.mark.parametrize("raw", [b"HTTP/1.1 200 so\r\nx-half: a he", b"kelp\r\n\r\n", b"HTTP/1.1 100 so\r\n\r\n"])
async def test_what_is_no_whole_head_is_no_answer(store: Store, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_targets, "ATTEMPT_S", 1.0)
    async with Receiver(Reply(raw=raw, hangs=True)) as receiver:
        hook, _ = await endpoint(store, receiver)
        await turns_end(store)
        await deliverer_of(store).run_once()
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.status, delivery.attempts) == ("pending", None, 1)


async def test_where_there_is_room_for_few_each_endpoint_has_its_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SENDS_MAX", 1)
    async with Receiver() as receiver:
        for name in "abc":
            await endpoint(store, receiver, url=f"{receiver.url}/{name}")
        await turns_end(store, 3)
        await deliverer_of(store).run_once()
        paths = [received.path for received in receiver.got]
    assert [len(set(paths[n : n + 3])) for n in (0, 3, 6)] == [3, 3, 3], (
        "none waits until the others have all of theirs"
    )


async def test_a_look_ends_where_every_endpoint_has_all_the_attempts_that_it_may(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOOKS_TOGETHER", 2)
    monkeypatch.setattr(module, "SENDS_PER_HOOK_MAX", 1)
    async with Receiver(Reply(hangs=True)) as receiver:
        for _ in range(4):  # whole pages of them
            await endpoint(store, receiver)
        sender = deliverer_of(store)
        await turns_end(store)
        assert [await sender._begin() for _ in range(3)] == [2, 2, 0]
        await turns_end(store)
        async with asyncio.timeout(30.0):
            assert await sender._begin() == 0
        sender._sends, under_way = {}, list(sender._sends)
        for task in under_way:
            task.cancel()
        await asyncio.wait(under_way)


async def test_of_two_answers_the_one_that_asks_for_the_longer_wait_counts(store: Store, clock: FakeClock) -> None:
    async with Receiver() as receiver:
        receiver.replies += [Reply(429, (("retry-after", "3600"),)), Reply(502)]
        hook, _ = await endpoint(store, receiver)
        await turns_end(store, 2)
        await deliverer_of(store).run_once()
        assert len(receiver.got) == 2
        until = (await store.webhooks.read(hook.id)).throttled_until
        assert until == store.now_ms() + 3_600_000, "whichever of them came last"
        moved = replace(hook, url=receiver.url + "/new")
        assert (await store.webhooks.change(moved)).throttled_until == 0, "another address asked for nothing"


async def test_what_the_old_address_answers_does_nothing_to_an_endpoint_that_has_moved(store: Store) -> None:
    async with Receiver(Reply(hangs=True)) as old, Receiver() as new:
        hook, _ = await endpoint(store, old)
        await turns_end(store)
        sending = asyncio.create_task(deliverer_of(store).run_once())
        await old.until(lambda: len(old.got) == 1)
        await store.webhooks.change(replace(hook, url=new.url))
        sending.cancel()
        assert not await store.webhooks.give_up(hook, "it answered 410", 1 << 62)
        await store.webhooks.throttle(hook, store.now_ms() + 3_600_000)
        known = await store.webhooks.read(hook.id)
        assert (known.state, known.throttled_until) == ("active", 0)


async def test_what_waits_for_an_endpoint_is_bounded_and_what_is_too_much_can_be_replayed(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    await receiver.start()
    hook, _ = await endpoint(store, receiver)
    other, _ = await endpoint(store, receiver, kinds=("turn.failed",))
    await receiver.stop()
    await turns_end(store, 6)
    sender = deliverer_of(store)
    await sender.shed_some(6)
    assert (sender.figures()["shed"], caplog.text) == (0, "")
    await sender.shed_some(4)
    assert sender.figures()["shed"] == 2
    assert "too much waits" in caplog.text
    states = [delivery.state for delivery in await store.deliveries.page(hook.id)]
    assert states == ["pending"] * 4 + ["failed"] * 2, "the oldest went"
    assert "unless it is replayed" in (await store.deliveries.page(hook.id))[-1].error
    assert (await store.webhooks.read(hook.id)).state == "active"
    await receiver.start()
    assert await store.deliveries.replay_failed(hook.id, 0) == 2
    assert await sender.run_once() == 6
    await receiver.stop()
    assert len(set(receiver.ids)) == len(receiver.got) == 6, "and none of them is lost"
    assert await store.deliveries.page(other.id) == []


async def test_a_look_bounds_what_waits_where_it_counts_very_much(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    await receiver.start()
    hook, _ = await endpoint(store, receiver)
    await receiver.stop()
    await turns_end(store, 6)
    monkeypatch.setattr(module, "PENDING_MAX", 4)
    sender = deliverer_of(store)
    await sender._look()
    assert sender.figures()["shed"] == 0, "so few are not even looked at"
    await sender.close()
    monkeypatch.setattr(module, "COUNTED_MAX", 6)
    other = deliverer_of(store)
    await other._look()
    await other.close()
    assert other.figures()["shed"] == 2
    assert [one.state for one in await store.deliveries.page(hook.id)].count("pending") == 4


async def test_what_waits_and_for_how_long_is_counted_of_endpoints_that_are_told(
    store: Store, clock: FakeClock
) -> None:
    receiver = Receiver()
    await receiver.start()
    await receiver.stop()
    hook, _ = await endpoint(store, receiver)
    disabled, _ = await endpoint(store, receiver)
    await turns_end(store)
    clock.advance(90_000)
    await turns_end(store)
    await store.webhooks.disable(disabled.id, "so")
    sender = deliverer_of(store)
    await sender.sum_up()
    told = sender.figures()
    assert (told["endpoints"], told["endpoints_disabled"], told["pending"]) == (1, 1, 2)
    assert told["oldest_pending_s"] == 90.0
    await store.webhooks.disable(hook.id, "so")
    await sender.sum_up()
    told = sender.figures()
    assert (told["endpoints_disabled"], told["pending"], told["oldest_pending_s"]) == (2, 0, 0.0)


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


async def test_who_is_told_to_go_when_it_has_just_reserved_an_event_sends_it(store: Store) -> None:
    """It was held back for as long as the reservation, though the next worker had nothing else to do."""
    loop = asyncio.get_running_loop()
    async with Receiver() as receiver:
        hook, _ = await endpoint(store, receiver)
        await turns_end(store)
        sender = deliverer_of(store)
        looking = loop.create_task(sender.run_forever())

        def go() -> None:
            loop.call_soon_threadsafe(looking.cancel)

        faults.arm("commit.after", go)
        try:
            await asyncio.wait((looking,))
        finally:
            faults.disarm()
        await sender.close()
        assert len(receiver.got) == 1
    (delivery,) = await store.deliveries.page(hook.id)
    assert (delivery.state, delivery.attempts) == ("delivered", 1)


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
