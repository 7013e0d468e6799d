"""Books against bills: three worker processes, one owner's daily limit, and a provider at the wire that keeps its own
bill in tokens and money. Steps, retries, calls that broke or were stopped in mid-stream, titles, summaries, tools
that spend; and, in `make long`, workers that are killed.
"""

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast import TextAdded
from holdfast.app import App
from holdfast.core import commands as cmd
from holdfast.core.records import Cause, ChatRecord, State
from holdfast.owner_limits import OwnerLimits
from holdfast.store.budgets import UsageTotal
from tests.support.billing import CUT_OFF, ONE_MAX, UNIT, BillingProvider, billing
from tests.support.programs import Program
from tests.support.scale import FULL, scaled
from tests.support.waiting import eventually, until
from tests.worker.billed_worker import CHOICES, STALLS, TARIFFS, Orders, make_app

WORKERS = 3
FAMILIES = scaled(8, 32)
KILLS = scaled(0, 40)
PENNY = 1e-9  # of the rounding of floats


class House:
    """A store, its provider, and worker processes."""

    def __init__(self, url: str, provider: BillingProvider, day_tokens: int, day_cost: float, lease_s: float) -> None:
        self.orders = Orders(url, provider.url, day_tokens, day_cost, lease_s)
        self.provider = provider
        self.app: App = make_app(self.orders)
        self.workers: list[Program] = []

    def start(self) -> None:
        self.workers.append(Program("tests.worker.billed_worker", msgspec.json.encode(self.orders).decode()))

    async def kill(self, n: int) -> int:
        """Returns for how many calls it had drawn that no commit had settled: it is held while they are counted."""
        worker = self.workers.pop(n)
        worker.process.send_signal(signal.SIGSTOP)
        names = [lease.worker for lease in await self.app.store.list_workers() if lease.pid == worker.pid]
        drawn = [id for name in names for id in await self.app.store.budgets.reserved_by(name)]
        worker.process.kill()
        worker.__exit__(None, None, None)
        return len(drawn)

    def stop(self) -> None:
        """Each drains, and ends well."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.finish()

    def close(self) -> None:
        for worker in self.workers:
            worker.__exit__(None, None, None)

    async def chats(self) -> list[ChatRecord]:
        lines = await self.app.store.list_chats(limit=500)
        return [(await self.app.store.read_chat(line.id)).chat for line in lines]

    async def everyone_rests(self) -> None:
        async def rests() -> bool:
            return all(chat.state in (State.IDLE, State.FAILED) for chat in await self.chats())

        await eventually(rests, 240.0)

    async def settled(self) -> None:
        """What the dead had reserved is given back, and no request is under way."""
        await until(lambda: not self.provider.under_way, 60.0)

        async def nothing_reserved() -> bool:
            await self.app.store.sweep()
            return (await self.app.store.budgets.figures()).reservations == 0

        await eventually(nothing_reserved, 60.0)

    async def end(self) -> None:
        """Every worker stops, once nothing is under way: of a title that a shutdown cuts off before it is answered,
        the input is estimated.
        """
        await self.settled()
        await asyncio.to_thread(self.stop)
        await self.settled()

    async def books(self) -> dict[str, UsageTotal]:
        """By the names that the bill has: a model's short one, or a tool's."""
        found = await self.app.usage(["model"])
        return {total.model.partition(":")[2].partition("@")[0] or total.model: total for total in found}


async def a_house(stack: AsyncExitStack, url: str, day_tokens: int, day_cost: float, lease_s: float = 10.0) -> House:
    provider = stack.enter_context(billing(CHOICES, TARIFFS, STALLS))
    house = House(url, provider, day_tokens, day_cost, lease_s)
    await stack.enter_async_context(house.app)
    stack.callback(house.close)
    for _ in range(WORKERS):
        house.start()
    return house


def show(house: House, books: dict[str, UsageTotal], note: str) -> None:
    print(f"\n{note}")  # noqa: T201  for who runs it with -s
    for name, bill in sorted(house.provider.bills.items()):
        booked = books.get(name, UsageTotal())
        figures = f"billed {bill.requests:>5} {bill.tokens:>8,} {bill.cost:.8f}"
        print(f"  {name:<8} {figures}   booked {booked.lines:>5} {booked.tokens:>8,} {booked.cost:.8f}")  # noqa: T201
    others = {name: total for name, total in books.items() if name not in house.provider.bills}
    for name, total in others.items():
        print(f"  {name or '(lost)':<8} {'':<31} booked {total.lines:>5} {total.tokens:>8,} {total.cost:.8f}")  # noqa: T201
    print(f"  what befell requests: {dict(house.provider.faults)}")  # noqa: T201


async def words_came(chat: Any) -> None:
    """All that the provider says before it stalls has reached the journal."""
    text = ""
    async for update in chat.stream():
        if isinstance(update, TextAdded):
            text += update.text
        else:
            text = update.turn.text if update.turn is not None and hasattr(update.turn, "text") else text
        if text.endswith("".join(CUT_OFF)):
            return


def assert_equal(house: House, books: dict[str, UsageTotal]) -> None:
    bills = house.provider.bills
    assert {name: total.tokens for name, total in books.items()} == {
        name: bill.tokens for name, bill in bills.items()
    }
    for name, bill in bills.items():
        assert books[name].cost == pytest.approx(bill.cost, abs=PENNY), name
        assert books[name].lines == bill.requests, name


@pytest.mark.timeout(300)
async def test_books_equal_the_bill_in_tokens_and_money_whatever_became_of_the_requests(store_url: str) -> None:
    limit = FAMILIES * 2 * ONE_MAX  # a family asks five times or more: it is reached
    async with AsyncExitStack() as stack:
        house = await a_house(stack, store_url, limit, 1_000.0)
        app, store = house.app, house.app.store
        for _ in range(FAMILIES):
            await app.create("parent", "go", owner="ann")
        buyer = await app.create("buyer", "buy two " * 40, owner="bob")
        talkers = [await app.create("talker", "talk", owner=owner) for owner in ("bob", "eve")]
        for talker in talkers:
            await asyncio.wait_for(words_came(talker), 60.0)
            await talker.stop()
        await buyer.wait(60.0)
        await buyer.send("again")
        await buyer.wait(60.0)
        await buyer.compact()
        await buyer.wait(60.0)
        await house.everyone_rests()
        await house.end()
        books, chats = await house.books(), await house.chats()
        show(house, books, f"{len(chats)} chats, {WORKERS} workers, limit {limit:,} tokens a day")
        assert_equal(house, books)
        (ann,) = await app.usage(["owner"], owner="ann")
        assert limit <= ann.tokens <= limit + ONE_MAX, "all of it is used, and no more than one call above it"
        assert {chat.cause for chat in chats if chat.owner == "ann"} >= {Cause.BUDGET}
        # The rows of the chats say the same as the ledgers, to the token.
        bills = house.provider.bills.values()
        assert sum(chat.chat_tokens for chat in chats) == sum(bill.tokens for bill in bills)
        assert sum(chat.chat_cost for chat in chats) == pytest.approx(
            sum(bill.units for bill in bills) * UNIT, abs=PENNY
        )
        kinds = {total.kind for total in await app.usage(["kind"])}
        assert kinds == {"step", "lost", "stopped", "summary", "title", "tool"}
        assert {"broke", "cut", "counted", "refused"} <= set(house.provider.faults)
        assert (await store.budgets.figures()).reservations == 0


@pytest.mark.timeout(600)
async def test_a_limit_in_money_holds_and_a_person_who_raises_it_lets_the_chats_go_on(store_url: str) -> None:
    one = 76 * 7_500 * UNIT  # more than any request costs
    limit = FAMILIES * 0.000_75
    async with AsyncExitStack() as stack:
        house = await a_house(stack, store_url, 1 << 40, limit)
        for _ in range(FAMILIES):
            await house.app.create("parent", "go", owner="ann")
        await house.everyone_rests()
        await house.settled()
        (ann,) = await house.app.usage(["owner"], owner="ann")
        assert limit <= ann.cost <= limit + one
        cut = [chat for chat in await house.chats() if chat.cause is Cause.BUDGET and chat.parent_id is None]
        assert cut
        await house.app.set_budget("ann", OwnerLimits(day_cost=10.0))
        await house.app.store.submit(cut[0].id, cmd.GoOn())
        await house.everyone_rests()
        assert (await house.app.store.read_chat(cut[0].id)).chat.cause is None
        await house.end()
        assert_equal(house, await house.books())


@pytest.mark.skipif(not FULL, reason="long by nature: `make long` runs it")
@pytest.mark.timeout(1_200)
async def test_with_workers_that_are_killed_what_died_with_them_is_all_that_the_books_lack_and_the_limit_holds(
    store_url: str,
) -> None:
    limit, dice = 400 * ONE_MAX, random.Random(7)
    async with AsyncExitStack() as stack:
        house = await a_house(stack, store_url, limit, 1_000.0, lease_s=3.0)
        app = house.app
        made = died = 0  # families; calls that died with their worker
        for _ in range(KILLS):
            for _ in range(4 if made < 4 * FAMILIES else 0):
                await app.create("parent", "go", owner="ann")
                made += 1
            requests = sum(bill.requests for bill in house.provider.bills.values())
            wanted = requests + dice.randint(3, 15)
            await eventually(partial(moved, house, wanted), 240.0)
            died += await house.kill(dice.randrange(WORKERS))
            house.start()
        await house.everyone_rests()
        await house.end()
        books, chats = await house.books(), await house.chats()
        show(house, books, f"{len(chats)} chats, {KILLS} kills, {died} calls died, limit {limit:,} tokens a day")
        bills = house.provider.bills
        for name, total in books.items():
            assert total.tokens <= bills[name].tokens, name
            assert total.cost <= bills[name].cost + PENNY, name
            assert total.lines <= bills[name].requests, name
        billed, booked = sum(bill.tokens for bill in bills.values()), sum(total.tokens for total in books.values())
        requests, lines = sum(bill.requests for bill in bills.values()), sum(total.lines for total in books.values())
        assert requests - died <= lines, "only what died with a worker is not in the books"
        assert billed - (requests - lines) * ONE_MAX <= booked
        assert limit <= booked <= limit + ONE_MAX
        assert sum(chat.chat_tokens for chat in chats) == booked


async def moved(house: House, wanted: int) -> bool:
    if sum(bill.requests for bill in house.provider.bills.values()) >= wanted:
        return True
    return all(chat.state in (State.IDLE, State.FAILED) for chat in await house.chats())
