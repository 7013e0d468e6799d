"""Budgets in the database: lines with the commits that tell of them, draws that never promise more than there is,
sums that equal the lines whatever is folded, retried, killed or given back.
"""

import asyncio
from itertools import count

import pytest
from msgspec.structs import replace

from holdfast import faults
from holdfast.core import commands as cmd
from holdfast.core.budgets import BudgetLeft, Ceiling, Estimate, Reached, Verdict, chat_account
from holdfast.core.records import Cause, NewChat, Purse, Snapshot
from holdfast.core.spending import Bill, Spent
from holdfast.errors import NotFound, StaleWriter
from holdfast.owner_limits import OwnerLimits
from holdfast.store.budgets import Draw, Granted, UsageTotal
from holdfast.store.contract import Store
from tests.support.chats import Hand, call, new_chat, user

DAY = "2026-11-17"
_ids = count(1)


def wants(hand: Hand, tokens: int = 100, cost: float = 0.0, *, limits: OwnerLimits | None = None) -> Draw:
    chat = hand.held.chat
    return Draw(
        id=f"draw-{next(_ids)}",
        worker=hand.name,
        owner=chat.owner,
        chat_id=chat.id,
        day=DAY,
        wanted=Estimate(tokens=tokens, cost=cost),
        purses=chat.purses,
        limits=limits,
    )


async def at_work(store: Store, owner: str = "ann") -> Hand:
    made = await store.create_chat(new_chat(owner=owner))
    hand = Hand(store)
    await hand.take(made.chat_id)
    return hand


def spends(hand: Hand, tokens: int, cost: float = 0.0, *drawn: Draw, accounts: tuple[str, ...] = ()) -> cmd.Respond:
    bill = Bill(day=DAY, reservations=tuple(draw.id for draw in drawn), accounts=accounts)
    said = hand.response(call(f"c{next(_ids)}"), start=False)
    return replace(said, message=replace(said.message, model="m"), tokens=tokens, cost=cost, bill=bill)


async def totals(store: Store, owner: str | None = "ann") -> list[UsageTotal]:
    return await store.budgets.usage(("owner", "day", "agent", "model", "kind"), owner=owner)


async def sums(store: Store, owner: str = "ann") -> tuple[int, int, float]:
    found = await store.budgets.usage(("owner",), owner=owner)
    return (found[0].lines, found[0].tokens, found[0].cost) if found else (0, 0, 0.0)


# --- lines ----------------------------------------------------------------------------------------------------------


async def test_whatever_costs_makes_a_line_with_its_commit_and_counts_in_turn_and_chat(store: Store) -> None:
    hand = await at_work(store)
    lost = cmd.AttemptLost(
        by=hand.by, attempt=hand.attempt(), model="m", error="503", tokens=3, cost=0.5, bill=Bill(day=DAY)
    )
    await hand.commit(lost)
    parts = (Spent(model="a", tokens=4), Spent(model="b", tokens=1, cost=0.25))
    bill = Bill(day=DAY, parts=parts)
    await hand.commit(cmd.FinishCompaction(by=hand.by, error="no", tokens=5, cost=0.25, bill=bill))
    await hand.commit(spends(hand, 10, 1.0))
    await store.submit(hand.held.chat.id, cmd.Rename(title="T", tokens=2, cost=0.25, bill=Bill(day=DAY)))
    expected = [
        ("", "title", 2, 0.25),
        ("a", "summary", 4, 0.0),
        ("b", "summary", 1, 0.25),
        ("m", "lost", 3, 0.5),
        ("m", "step", 10, 1.0),
    ]
    assert sorted((line.model, line.kind, line.tokens, line.cost) for line in await totals(store)) == expected
    chat = (await store.read_chat(hand.held.chat.id)).chat
    assert (chat.turn_tokens, chat.chat_tokens, chat.turn_cost, chat.chat_cost) == (20, 20, 2.0, 2.0)
    before = await totals(store)
    assert await store.budgets.fold(0) == 5
    assert await store.budgets.fold(0) == 0
    assert await totals(store) == before
    assert (await store.budgets.figures())[:3] == (0, 0, 5)


async def test_a_chat_keeps_its_sum_over_its_turns(store: Store) -> None:
    hand = await at_work(store)
    said = replace(hand.response("Well."), tokens=7)
    await hand.commit(said, cmd.FinishTurn(by=hand.by))
    await store.submit(hand.held.chat.id, cmd.Send(message=user()))
    after = await store.read_chat(hand.held.chat.id)
    assert (after.chat.turn_tokens, after.chat.chat_tokens) == (0, 7)


async def test_a_commit_that_is_sent_again_or_refused_is_not_counted_again(store: Store) -> None:
    hand = await at_work(store)
    before, said = hand.held, spends(hand, 10)
    after = await store.commit(before, [said], "once")
    assert await store.commit(before, [said], "once") == after
    with pytest.raises(StaleWriter):
        await store.commit(before, [replace(said, by=replace(said.by, worker="another"))], "other")
    assert await sums(store) == (1, 10, 0.0)


async def test_what_no_commit_tells_of_is_entered_once(store: Store) -> None:
    line = ("ann", "", DAY, "x.1", 0, "chat", "agent", "m", "lost", 9, 0.5)
    await store.budgets.enter([line])
    await store.budgets.enter([line])
    assert await sums(store) == (1, 9, 0.5)


async def test_many_chats_commit_their_lines_side_by_side(store: Store) -> None:
    hands = [await at_work(store, "ann" if n % 2 else "bob") for n in range(6)]
    await asyncio.gather(*[hand.commit(spends(hand, n, n / 4)) for n, hand in enumerate(hands, 1)])
    assert (await sums(store, "ann"), await sums(store, "bob")) == ((3, 12, 3.0), (3, 9, 2.25))


# --- draws ----------------------------------------------------------------------------------------------------------


async def test_a_draw_reserves_what_fits_and_the_commit_settles_it(store: Store) -> None:
    limits = OwnerLimits(day_tokens=250)
    first, second = await at_work(store), await at_work(store)
    drawn = wants(first, 200, limits=limits)
    assert isinstance(await store.budgets.draw(drawn), Granted)
    assert isinstance(await store.budgets.draw(drawn), Granted), "done twice it reserves once"
    assert (await store.budgets.figures()).reservations == 1
    assert await store.budgets.draw(wants(second, 100, limits=limits)) is Verdict.WAIT
    await first.commit(spends(first, 30, 0.0, drawn))
    assert (await store.budgets.figures()).reservations == 0
    third = wants(second, 100, limits=limits)
    assert isinstance(await store.budgets.draw(third), Granted)
    await second.commit(spends(second, 300, 0.0, third))
    reached = await store.budgets.draw(wants(first, 1, limits=limits))
    assert reached == Reached(detail="budget of owner 'ann' for 2026-11-17: 330 of 250 tokens")


async def test_a_small_rest_goes_to_one_call_alone(store: Store) -> None:
    limits = OwnerLimits(tokens=100, cost=9.0)
    first, second = await at_work(store), await at_work(store)
    await first.commit(spends(first, 90))
    drawn = wants(first, 50, limits=limits)
    assert isinstance(await store.budgets.draw(drawn), Granted)
    assert await store.budgets.draw(wants(second, 1, limits=limits)) is Verdict.WAIT
    await store.budgets.release(drawn.id)
    assert isinstance(await store.budgets.draw(wants(second, 50, limits=limits)), Granted)


async def test_those_who_draw_at_once_never_get_more_than_there_is(store: Store) -> None:
    hands = [await at_work(store) for _ in range(12)]
    limits = OwnerLimits(day_cost=1.0)
    answers = await asyncio.gather(*[store.budgets.draw(wants(hand, 0, 0.3, limits=limits)) for hand in hands])
    assert sum(isinstance(answer, Granted) for answer in answers) == 3
    assert answers.count(Verdict.WAIT) == 9


async def test_what_was_spent_before_there_was_a_limit_counts_and_days_are_days(store: Store) -> None:
    hand = await at_work(store)
    await hand.commit(spends(hand, 80))
    await store.budgets.fold(0)
    await hand.commit(cmd.Refuse(by=hand.by, call_id=hand.held.calls[0].id, content="no"))
    await hand.commit(replace(spends(hand, 15), bill=Bill(day="2026-11-16")))
    await store.budgets.set("ann", OwnerLimits(day_tokens=80), by="op")
    assert isinstance(await store.budgets.draw(wants(hand)), Reached)
    await store.budgets.set("ann", OwnerLimits(tokens=95))
    assert isinstance(await store.budgets.draw(wants(hand)), Reached)
    await store.budgets.set("ann", OwnerLimits(tokens=96, day_tokens=81))
    assert isinstance(await store.budgets.draw(wants(hand)), Granted)
    yesterday = replace(wants(hand), day="2026-11-16")
    assert await store.budgets.draw(yesterday) is Verdict.WAIT, "in all, what is left is reserved"


async def test_limits_of_a_person_stand_in_place_of_those_of_the_app(store: Store) -> None:
    hand = await at_work(store)
    await hand.commit(spends(hand, 10))
    app = OwnerLimits(tokens=5)
    assert await store.budgets.read("ann") is None
    assert isinstance(await store.budgets.draw(wants(hand, limits=app)), Reached)
    await store.budgets.set("ann", OwnerLimits(), by="op")
    assert await store.budgets.draw(wants(hand, limits=app)) == Granted(reserved=False)
    (listed,) = await store.budgets.page()
    assert (listed.owner, listed.limits, listed.set_by) == ("ann", OwnerLimits(), "op")
    await store.budgets.remove("ann")
    with pytest.raises(NotFound):
        await store.budgets.remove("ann")
    assert isinstance(await store.budgets.draw(wants(hand, limits=app)), Reached)


# --- families -------------------------------------------------------------------------------------------------------


async def family(store: Store) -> tuple[Hand, Hand]:
    """A parent whose turn may use 100 tokens, and a child of it, each with its holder."""
    parent = await at_work(store)
    await parent.commit(parent.response(call("spawn"), start=True))
    purses = (
        Purse(chat_id=parent.held.chat.id, tokens=100),
        Purse(chat_id=parent.held.chat.id, cost=1.0, family=True),
    )
    child = NewChat(id=f"{parent.held.chat.id}-child", agent="agent", message=user("task"), purses=purses)
    await parent.commit(cmd.Outcome(by=parent.by, call_id="spawn", content="ok", spawn=child))
    hand = Hand(store)
    await hand.take(child.id)
    return parent, hand


def own(parent: Snapshot) -> Ceiling:
    chat = parent.chat
    account = chat_account(chat.id, chat.life, chat.turn)
    return Ceiling(account=account, words="turn", tokens=100, chat_id=chat.id, turn=chat.turn)


async def test_a_child_draws_on_what_is_left_of_its_parents_turn_and_the_parent_on_the_same(store: Store) -> None:
    parent, child = await family(store)
    assert (parent.held.chat.spawned, child.held.chat.purses[0].tokens) == (1, 100)
    await parent.commit(spends(parent, 60))
    drawn = wants(child, 30)
    granted = await store.budgets.draw(drawn)
    assert isinstance(granted, Granted)
    assert len(granted.accounts) == 2
    again = replace(wants(parent, 30), own=(own(parent.held),))
    assert await store.budgets.draw(again) is Verdict.WAIT
    await child.commit(spends(child, 45, 0.5, drawn, accounts=granted.accounts))
    reached = await store.budgets.draw(again)
    assert isinstance(reached, Reached)
    assert "105 of 100" in reached.detail
    await store.budgets.fold(0)
    assert await store.budgets.draw(again) == reached, "folded or not"
    told = await store.budgets.draw(wants(child))
    assert isinstance(told, Reached)
    assert f"budget of turn 1 of chat {parent.held.chat.id} above" in told.detail
    assert await sums(store) == (2, 105, 0.5), "one line each, whatever the accounts"


async def test_what_is_left_is_told_and_is_what_the_tightest_of_the_limits_leaves(store: Store) -> None:
    parent, child = await family(store)
    await parent.commit(spends(parent, 60))
    assert await store.budgets.left(wants(child)) == BudgetLeft(tokens=40, cost=1.0)
    drawn = wants(child, 30, 0.25)
    granted = await store.budgets.draw(drawn)
    assert isinstance(granted, Granted)
    assert await store.budgets.left(wants(child)) == BudgetLeft(tokens=10, cost=0.75), "what is reserved is taken"
    await child.commit(spends(child, 45, 0.5, drawn, accounts=granted.accounts))
    await store.budgets.fold(0)
    assert await store.budgets.left(wants(child)) == BudgetLeft(tokens=0, cost=0.5)
    narrow = OwnerLimits(cost=0.625, day_tokens=1_000)
    assert await store.budgets.left(wants(child, limits=narrow)) == BudgetLeft(tokens=0, cost=0.125)
    other = await at_work(store, "bob")
    assert await store.budgets.left(wants(other)) == BudgetLeft(), "no limit"
    assert (await store.budgets.figures()).reservations == 0


async def test_a_fork_of_a_sub_agents_chat_is_a_chat_of_its_own_and_its_owners(store: Store) -> None:
    """A person made it: it is below no other, no stop of the family reaches it, and none of its budgets binds it."""
    _, child = await family(store)
    await child.commit(spends(child, 45, 0.5, accounts=()))
    fork_id = (await store.fork_chat(child.held.chat.id, "fork")).chat_id
    fork = (await store.read_chat(fork_id)).chat
    assert (fork.parent_id, fork.root_id, fork.depth, fork.purses) == (None, None, 0, ())
    assert (fork.owner, fork.chat_tokens) == (child.held.chat.owner, 0)
    hand = Hand(store)
    await store.submit(fork_id, cmd.Send(message=user()))
    await hand.take(fork_id)
    assert await store.budgets.left(wants(hand, limits=OwnerLimits(tokens=50))) == BudgetLeft(tokens=5)


async def test_another_turn_of_the_parent_is_another_budget_and_the_family_has_one_for_all(store: Store) -> None:
    parent, child = await family(store)
    granted = await store.budgets.draw(drawn := wants(child, 30))
    assert isinstance(granted, Granted)
    await child.commit(spends(child, 200, 0.5, drawn, accounts=granted.accounts))
    assert isinstance(await store.budgets.draw(wants(child)), Reached)
    await parent.commit(parent.response("Well."), cmd.FinishTurn(by=parent.by))
    assert isinstance(await store.budgets.draw(wants(child)), Reached), "over or not, it is the last one"
    await store.submit(parent.held.chat.id, cmd.Send(message=user()))
    granted = await store.budgets.draw(drawn := wants(child, 30))
    assert isinstance(granted, Granted)
    await child.commit(cmd.Refuse(by=child.by, call_id=child.held.calls[0].id, content="no"))
    await child.commit(spends(child, 1, 0.5, drawn, accounts=granted.accounts))
    told = await store.budgets.draw(wants(child))
    assert isinstance(told, Reached)
    assert "family budget" in told.detail
    await store.budgets.fold(0)
    assert await store.budgets.prune("2000-01-01", 1 << 60) == 1, "of the turn that is over"
    assert isinstance(await store.budgets.draw(wants(child)), Reached)


# --- deaths ---------------------------------------------------------------------------------------------------------


async def test_a_lease_that_ended_gives_back_what_it_had_reserved_whoever_sweeps(store: Store) -> None:
    limits = OwnerLimits(tokens=100)
    dead, other = await at_work(store), await at_work(store)
    drawn = wants(dead, 100, limits=limits)
    assert isinstance(await store.budgets.draw(drawn), Granted)
    assert await store.budgets.reserved_by(dead.name) == [drawn.id]
    await store.sweep()
    assert await store.budgets.draw(wants(other, limits=limits)) is Verdict.WAIT
    await dead.dies()
    await asyncio.gather(store.sweep(), store.sweep(), store.sweep())
    assert await totals(store) == []
    assert isinstance(await store.budgets.draw(wants(other, limits=limits)), Granted)


@pytest.mark.parametrize("point", ["draw.before", "draw.after", "fold.before", "fold.after", "write.spending.before"])
async def test_what_breaks_off_happened_wholly_or_not_at_all(store: Store, point: str) -> None:
    hand = await at_work(store)
    await hand.commit(spends(hand, 10))
    await hand.commit(cmd.Refuse(by=hand.by, call_id=hand.held.calls[0].id, content="no"))
    drawn = wants(hand, 50, limits=OwnerLimits(tokens=100))

    class Broken(Exception):
        pass

    def breaks() -> None:
        raise Broken

    async def everything() -> None:
        assert isinstance(await store.budgets.draw(drawn), Granted)
        await store.budgets.fold(0)
        if (await store.read_chat(hand.held.chat.id)).chat.chat_tokens == 10:
            await hand.commit(spends(hand, 20, 0.0, drawn))

    faults.arm(point, breaks)
    try:
        with pytest.raises(Broken):
            await everything()
    finally:
        faults.disarm()
    await everything()
    await store.budgets.fold(0)
    assert await sums(store) == (2, 30, 0.0)
    assert (await store.budgets.figures())[:2] == (0, 0)


# --- upkeep ---------------------------------------------------------------------------------------------------------


async def test_old_days_go_and_what_an_owner_used_in_all_stays(store: Store) -> None:
    hand = await at_work(store)
    await hand.commit(spends(hand, 50))
    await store.budgets.fold(0)
    assert await store.budgets.prune("2026-11-17", 0) == 0
    assert await store.budgets.prune("2026-11-18", 0) == 2
    assert await sums(store) == (0, 0, 0.0)
    assert isinstance(await store.budgets.draw(wants(hand, limits=OwnerLimits(tokens=50))), Reached)
    await store.budgets.forget("ann")
    assert isinstance(await store.budgets.draw(wants(hand, limits=OwnerLimits(tokens=50))), Granted)


async def test_usage_is_told_by_what_is_asked_for(store: Store) -> None:
    ann, bob = await at_work(store), await at_work(store, "bob")
    await ann.commit(spends(ann, 10, 1.0))
    await store.budgets.fold(0)
    await bob.commit(replace(spends(bob, 5), bill=Bill(day="2026-11-18")))
    assert await store.budgets.usage(("owner",)) == [
        UsageTotal(owner="ann", lines=1, tokens=10, cost=1.0),
        UsageTotal(owner="bob", lines=1, tokens=5),
    ]
    assert await store.budgets.usage(("kind",)) == [UsageTotal(kind="step", lines=2, tokens=15, cost=1.0)]
    assert await store.budgets.usage(("day",), since="2026-11-18") == [
        UsageTotal(day="2026-11-18", lines=1, tokens=5)
    ]
    assert await store.budgets.usage(("day",), owner="ann", until="2026-11-17") == [
        UsageTotal(day="2026-11-17", lines=1, tokens=10, cost=1.0)
    ]


# --- going on -------------------------------------------------------------------------------------------------------


async def test_a_turn_that_a_budget_ended_goes_on_without_a_message(store: Store) -> None:
    hand = await at_work(store)
    await hand.commit(cmd.FinishTurn(by=hand.by, cause=Cause.BUDGET, detail="max_tokens"))
    chat_id = hand.held.chat.id
    await store.submit(chat_id, cmd.GoOn())
    await hand.take(chat_id)
    chat = hand.held.chat
    assert (chat.turn, chat.phase, chat.length, chat.turn_from, chat.cause) == (2, "model", 1, 0, None)
    ended = await hand.end_turn()
    assert (ended.chat.state, ended.chat.length) == ("idle", 2)


async def test_what_a_parent_spends_itself_counts_once_in_its_turn_and_its_family(store: Store) -> None:
    parent, _ = await family(store)
    chat = parent.held.chat
    whole = Ceiling(account=chat_account(chat.id, chat.life, 0), words="family", tokens=100, chat_id=chat.id)
    drawn = replace(wants(parent, 30), own=(own(parent.held), whole))
    granted = await store.budgets.draw(drawn)
    assert isinstance(granted, Granted)
    await parent.commit(spends(parent, 60, 0.0, drawn, accounts=granted.accounts))
    assert isinstance(await store.budgets.draw(replace(drawn, id="again")), Granted), "60 of 100 are spent"
    assert await store.budgets.draw(replace(drawn, id="third")) is Verdict.WAIT


async def test_the_budget_of_chats_that_nobody_owns_is_listed(store: Store) -> None:
    await store.budgets.set("", OwnerLimits(tokens=1))
    await store.budgets.set("ann", OwnerLimits(tokens=2))
    assert [budget.owner for budget in await store.budgets.page()] == ["", "ann"]
    assert [budget.owner for budget in await store.budgets.page(limit=1)] == [""]
    assert [budget.owner for budget in await store.budgets.page(after="", limit=1)] == ["ann"]
