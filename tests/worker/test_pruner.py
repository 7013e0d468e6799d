"""A worker's own pruning: a slice at a time, by a clock that does not leap."""

import pytest

from holdfast.config import Retention
from holdfast.core import commands as cmd
from holdfast.core.records import NewChat
from holdfast.errors import NotFound
from holdfast.store.contract import Store
from holdfast.system.clock import FakeClock
from holdfast.worker.pruner import RECEIPTS_S, WALK_S, Pruner
from tests.support.kept import asking

HOUR_MS = 3_600_000


def no_trouble(action: str, error: Exception) -> None:
    raise AssertionError(action) from error


async def walk(store: Store, policy: Retention) -> Pruner:
    """A worker that starts, and its first walk to the end."""
    pruner = Pruner(store, policy, no_trouble)
    while not pruner.walks:
        pause_s = await pruner.run_once()
    assert 0 < pause_s <= min(RECEIPTS_S, WALK_S)
    return pruner


async def test_a_clock_that_is_set_forward_deletes_no_archived_chat(store: Store, clock: FakeClock) -> None:
    policy = Retention(archived_chats_days=0.5)
    await store.create_chat(NewChat(id="c1", agent="agent"))
    await store.submit("c1", cmd.Archive())
    await walk(store, policy)
    clock.advance(365 * 24 * HOUR_MS)
    pruner = await walk(store, policy)
    assert pruner.pruned["archived_chats"].rows == 0
    assert [line.id for line in await store.list_chats()] == ["c1"]
    for _ in range(12):  # hour by hour it grows old
        clock.advance(HOUR_MS)
        pruner = await walk(store, policy)
    assert pruner.figures()["archived_chats_pruned"] == 1
    assert await store.list_chats() == []


async def test_without_a_retention_a_worker_looks_at_receipts_alone(store: Store) -> None:
    pruner = Pruner(store, Retention(), no_trouble)
    assert await pruner.run_once() == RECEIPTS_S
    assert pruner.walks == 0


async def test_kept_rules_that_have_ended_are_forgotten(store: Store, clock: FakeClock) -> None:
    for ms in (HOUR_MS // 2, 24 * HOUR_MS):
        chat_id, call_id = await asking(store, f"allow call(p{ms})")
        await store.submit(chat_id, cmd.Approve(call_id=call_id, always="owner", always_ms=ms))
    ended, lives = sorted(await store.kept_rules.page(), key=lambda rule: rule.expires_at or 0)
    await Pruner(store, Retention(), no_trouble).run_once()
    clock.advance(HOUR_MS)
    await Pruner(store, Retention(), no_trouble).run_once()
    with pytest.raises(NotFound):
        await store.kept_rules.read(ended.id)
    assert await store.kept_rules.read(lives.id) == lives
