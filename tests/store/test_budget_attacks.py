"""What was tried against budgets in the database: pages, lives, rounding, limits that change or are nothing."""

import asyncio
from math import inf, nan

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.budgets import Estimate, Reached, Verdict
from holdfast.core.records import Cause, LeaseEnd
from holdfast.core.spending import TOKENS_MAX, Bill, SpendingKind, Spent
from holdfast.errors import NotFound, RefusedError
from holdfast.owner_limits import OwnerLimits
from holdfast.store.budgets import Granted
from holdfast.store.contract import Store
from holdfast.store.settlements import count_spending
from tests.store.test_budgets import DAY, at_work, family, spends, sums, wants
from tests.support.scale import scaled


def line(n: int, cost: float = 0.0, owner: str = "ann") -> tuple[object, ...]:
    return (owner, "", DAY, f"x.{n}", 0, "chat", "agent", f"model {n:06}", "step", 1, cost)


async def test_usage_comes_in_pages_and_no_row_is_left_out_or_told_twice(store: Store) -> None:
    await store.budgets.enter([line(n) for n in range(25)])
    await store.budgets.fold(0)
    await store.budgets.enter([line(n) for n in range(20, 45)])
    found = await store.budgets.usage(("model", "kind"), limit=10)
    pages = [len(found)]
    while page := await store.budgets.usage(("model", "kind"), after=found[-1], limit=10):
        found += page
        pages.append(len(page))
    assert pages == [10, 10, 10, 10, 5]
    assert [total.model for total in found] == [f"model {n:06}" for n in range(45)]
    assert sum(total.lines for total in found) == 50


@pytest.mark.parametrize(
    ("tokens", "cost"), [(1 << 63, 0.0), (TOKENS_MAX + 1, 0.0), (-1, 0.0), (0, nan), (0, inf), (0, -0.1), (0, 1e300)]
)
async def test_what_no_call_can_have_spent_is_refused_and_the_chat_lives_on(
    store: Store, tokens: int, cost: float
) -> None:
    hand = await at_work(store)
    with pytest.raises(RefusedError):
        await hand.commit(spends(hand, tokens, cost))
    await hand.commit(spends(hand, 3))
    assert await sums(store) == (1, 3, 0.0)


async def test_many_small_costs_add_up_and_ten_tenths_are_a_whole(store: Store) -> None:
    count, each = scaled(3_000, 100_000), 0.000_001_3
    for start in range(0, count, 1_000):
        await store.budgets.enter([line(n, each) for n in range(start, start + 1_000)])
        await store.budgets.fold(0)
    lines, _, cost = await sums(store)
    assert lines == count
    assert cost == pytest.approx(count * each, abs=1e-9)
    await store.budgets.enter([line(n, 0.1, "bob") for n in range(10)])
    hand = await at_work(store, "bob")
    assert isinstance(await store.budgets.draw(wants(hand, limits=OwnerLimits(cost=1.0))), Reached)


async def test_a_limit_of_nothing_lets_nothing_begin_and_one_below_a_slice_one_call(store: Store) -> None:
    first, second = await at_work(store), await at_work(store)
    for nothing in (
        OwnerLimits(tokens=0),
        OwnerLimits(day_tokens=0),
        OwnerLimits(cost=0.0),
        OwnerLimits(day_cost=0.0),
    ):
        assert isinstance(await store.budgets.draw(wants(first, limits=nothing)), Reached)
    small = OwnerLimits(day_tokens=5)
    drawn = wants(first, limits=small)
    assert isinstance(await store.budgets.draw(drawn), Granted)
    assert await store.budgets.draw(wants(second, limits=small)) is Verdict.WAIT
    await first.commit(spends(first, 90, 0.0, drawn))
    assert isinstance(await store.budgets.draw(wants(second, limits=small)), Reached)


async def test_a_limit_that_is_raised_or_removed_ends_a_wait_and_one_that_is_lowered_ends_it_too(
    store: Store,
) -> None:
    first, second = await at_work(store), await at_work(store)
    await store.budgets.set("ann", OwnerLimits(tokens=100))
    await first.commit(spends(first, 10))
    assert isinstance(await store.budgets.draw(wants(first, 80)), Granted)
    waiting = wants(second, 80)
    assert await store.budgets.draw(waiting) is Verdict.WAIT
    await store.budgets.set("ann", OwnerLimits(tokens=10))
    assert isinstance(await store.budgets.draw(waiting), Reached)
    await store.budgets.set("ann", OwnerLimits(tokens=1_000))
    assert isinstance(await store.budgets.draw(waiting), Granted)
    await store.budgets.remove("ann")
    assert await store.budgets.draw(wants(second, 80)) == Granted(reserved=False)


async def test_those_who_let_a_chat_go_on_at_once_do_so_once(store: Store) -> None:
    hand = await at_work(store)
    await hand.commit(cmd.FinishTurn(by=hand.by, cause=Cause.BUDGET, detail="max_tokens"))
    chat_id = hand.held.chat.id
    answers = await asyncio.gather(*[store.submit(chat_id, cmd.GoOn()) for _ in range(6)], return_exceptions=True)
    assert sum(not isinstance(answer, Exception) for answer in answers) == 1
    assert all(isinstance(answer, RefusedError) for answer in answers if isinstance(answer, Exception))
    assert (await store.read_chat(chat_id)).chat.turn == 2


async def test_a_clock_that_is_set_back_over_midnight_draws_on_the_day_before_and_never_twice(store: Store) -> None:
    limits, hand = OwnerLimits(day_tokens=100), await at_work(store)
    granted = replace(wants(hand, limits=limits), day="2026-11-18")
    assert isinstance(await store.budgets.draw(granted), Granted)
    done = spends(hand, 100, 0.0, granted)
    await hand.commit(replace(done, bill=replace(done.bill, day="2026-11-18")))
    await store.budgets.fold(0)
    assert isinstance(await store.budgets.draw(wants(hand, limits=limits)), Granted), "the day before has its own"
    again = replace(wants(hand, limits=limits), day="2026-11-18")
    assert isinstance(await store.budgets.draw(again), Reached), "and the day that comes again is used up"


async def test_reservations_of_a_time_that_a_restore_took_back_hold_nothing_up(store: Store) -> None:
    """A backup has the reservations of its moment. A restore ends all leases, and the next sweep gives them back."""
    limits, hand, other = OwnerLimits(tokens=1_000), await at_work(store), await at_work(store)
    assert isinstance(await store.budgets.draw(wants(hand, 600, limits=limits)), Granted)
    assert await store.budgets.draw(wants(other, 600, limits=limits)) is Verdict.WAIT
    await store.recovery.end_lease(hand.name, LeaseEnd.DIED)
    await store.sweep()
    assert (await store.budgets.figures()).reservations == 0
    assert isinstance(await store.budgets.draw(wants(other, 600, limits=limits)), Granted)


async def test_sweepers_side_by_side_fold_each_line_once(store: Store) -> None:
    await store.budgets.enter([line(n, 0.5) for n in range(200)])
    await asyncio.gather(*[store.budgets.fold(0) for _ in range(4)], *[store.sweep() for _ in range(2)])
    assert await sums(store) == (200, 200, 100.0)
    assert (await store.budgets.figures()).lines == 0


async def test_a_worker_that_could_not_commit_counts_what_it_knows_once_though_its_lease_has_ended(
    store: Store,
) -> None:
    hand = await at_work(store)
    drawn = wants(hand, 90, limits=OwnerLimits(tokens=1_000))
    assert isinstance(await store.budgets.draw(drawn), Granted)
    await hand.dies()
    bill = Bill(day=DAY, reservations=(drawn.id,), parts=(Spent(model="m", tokens=40),))
    chat = hand.held.chat
    await asyncio.gather(count_spending(store, chat, SpendingKind.STOPPED, bill), store.sweep())
    await count_spending(store, chat, SpendingKind.STOPPED, bill)
    assert await sums(store) == (1, 40, 0.0)
    assert (await store.read_chat(chat.id)).chat.chat_tokens == 40


async def test_what_a_chat_spent_that_is_gone_counts_for_its_owner(store: Store) -> None:
    hand = await at_work(store)
    drawn = wants(hand, 90, limits=OwnerLimits(tokens=100))
    assert isinstance(await store.budgets.draw(drawn), Granted)
    await hand.commit(hand.response("Well."), cmd.FinishTurn(by=hand.by))
    chat = hand.held.chat
    await store.delete_chat(chat.id)
    with pytest.raises(NotFound):
        await store.read_chat(chat.id)
    bill = Bill(day=DAY, reservations=(drawn.id,), parts=(Spent(model="m", tokens=40),))
    for _ in range(2):
        await count_spending(store, chat, SpendingKind.TITLE, bill)
    assert await sums(store) == (1, 40, 0.0)
    assert (await store.budgets.figures()).reservations == 0


async def test_the_ledger_of_an_earlier_life_is_pruned_while_a_chat_lives_under_its_id(store: Store) -> None:
    _, child = await family(store)
    granted = await store.budgets.draw(drawn := wants(child, 30))
    assert isinstance(granted, Granted)
    earlier = tuple(
        ":".join((*account.split(":")[:2], "7", account.split(":", 3)[3])) for account in granted.accounts
    )
    await child.commit(spends(child, 20, 0.0, drawn, accounts=(*granted.accounts, *earlier)))
    await store.budgets.fold(0)
    assert await store.budgets.prune("2000-01-01", 1 << 60) == len(earlier) == 2
    assert await store.budgets.prune("2000-01-01", 1 << 60) == 0
    told = await store.budgets.draw(replace(wants(child), wanted=Estimate(tokens=1)))
    assert isinstance(told, Granted), "20 of 100 are spent, and that is known still"


async def test_what_another_life_of_a_chat_spent_is_not_its_own(store: Store) -> None:
    hand = await at_work(store)
    earlier = replace(hand.held.chat, life=hand.held.chat.life ^ 1)
    bill = Bill(day=DAY, parts=(Spent(model="m", tokens=40),))
    await count_spending(store, earlier, SpendingKind.TITLE, bill)
    assert await sums(store) == (1, 40, 0.0)
    assert (await store.read_chat(hand.held.chat.id)).chat.chat_tokens == 0
