"""Budgets as the database has them: what is spent, what is reserved, and the limits that people set at run time.

A line of spending is written with the commit that tells of it, and nothing else of the ledgers is: no commit of a
chat waits for another's. A draw is a transaction of its own before a call, and only where a limit applies. It adds up
what an account has spent (its ledger, and the lines that are not folded yet) and what is reserved, and reserves an
estimate (`core/budgets.py` decides). The commit that brings what came of the call deletes the reservation and inserts
the line, so that it is counted once, whatever dies in between. What workers reserved whose lease ended is given back
by sweeps.

Work of several statements is written once, as a generator that says what it needs. Each store runs it in one
transaction.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from holdfast.core.budgets import (
    NOTHING,
    BudgetLeft,
    Ceiling,
    Estimate,
    Reached,
    Standing,
    Verdict,
    chat_account,
    day_account,
    judge,
    least,
    left_of,
    owner_account,
    owner_ceilings,
)
from holdfast.core.codec import encode
from holdfast.core.records import Frozen, Purse
from holdfast.errors import NotFound
from holdfast.faults import reach
from holdfast.owner_limits import OwnerLimits
from holdfast.store.checks import check_days, page_size
from holdfast.store.rows import SPENDING_COLUMNS, Row
from holdfast.store.statements import StatementRunner

FOLDED_MAX = 1_000  # lines of one transaction
FOLDS_MAX = 20  # in one sweep
FOLD_AFTER_MS = 15_000  # a line that was sent again under its id finds itself until then
PRUNED_MAX = 1_000
USAGE_ROWS_MAX = 1_000  # of one page
LIMITED_MAX = 1_000  # owners with limits of their own that are known by name: with more, everyone draws

T = TypeVar("T")
Query = tuple[str, dict[str, Any]]
Steps = Generator[Query, list[Row], T]
Grouping = Literal["owner", "agent", "model", "kind", "day"]
GROUPINGS: tuple[Grouping, ...] = ("owner", "agent", "model", "kind", "day")


class OwnerBudget(Frozen):
    """Limits that a person set for one owner. They stand in place of those that the app has for it."""

    owner: str
    limits: OwnerLimits
    set_by: str = ""
    set_at: int = 0


class Draw(Frozen):
    """What is asked for before a call. `own` are the limits of the chat itself that chats below it draw on, too;
    `purses` those of chats above it; `limits` what the app says of its owner, where no person has said more.
    `took` is spent already, and no commit tells of it before that of this call does.
    """

    id: str
    worker: str
    owner: str
    chat_id: str
    day: str
    wanted: Estimate
    took: Estimate = NOTHING
    own: tuple[Ceiling, ...] = ()
    purses: tuple[Purse, ...] = ()
    limits: OwnerLimits | None = None


class Granted(Frozen):
    """It may begin. `reserved`: something has to be settled. `accounts`: of chats above, which the line is for, too.
    `own`: of the chat itself, whose row counts what its commits tell of; only what none tells of is entered there.
    """

    reserved: bool = True
    accounts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class UsageTotal(Frozen):
    """What was spent, by what was asked for; the other names are empty. `lines` are calls that cost something."""

    owner: str = ""
    agent: str = ""
    model: str = ""
    kind: str = ""
    day: str = ""
    lines: int = 0
    tokens: int = 0
    cost: float = 0.0


class BudgetFigures(NamedTuple):
    """How many rows there are."""

    lines: int
    reservations: int
    totals: int
    limits: int


# -- statements. Each store's module `sql` makes its own of them: `{name}` is where a value goes.

_SPENT = (
    "CAST(coalesce((SELECT {0} FROM ledgers WHERE account = {{account}}), 0) "
    "+ coalesce((SELECT sum({0}) FROM spending WHERE owner = {{owner}} AND account = {{line_account}} "
    "AND (CAST({{day}} AS TEXT) IS NULL OR day = {{day}})), 0) "
    "+ coalesce((SELECT CASE WHEN CAST({{turn}} AS BIGINT) = 0 THEN chat_{0} WHEN turn = {{turn}} THEN turn_{0} "
    "ELSE 0 END FROM chats WHERE id = {{chat_id}}), 0) AS {1})"
)
_RESERVED = "CAST(coalesce((SELECT sum({0}) FROM reservations WHERE account = {{account}}), 0) AS {1})"

# One statement, one moment: a commit that turns a reservation into a line is seen wholly or not at all.
_STANDING = (
    "SELECT "
    + ", ".join(
        part.format(*column)
        for part in (_SPENT, _RESERVED)
        for column in (("tokens", "BIGINT"), ("cost", "DOUBLE PRECISION"))
    )
    + ", (SELECT count(*) FROM reservations WHERE account = {account})"
)

_USAGE = """
SELECT {columns}, CAST(sum(lines) AS BIGINT), CAST(sum(tokens) AS BIGINT), CAST(sum(cost) AS DOUBLE PRECISION) FROM (
    SELECT owner, day, agent, model, kind, lines, tokens, cost FROM usage_totals
    UNION ALL
    SELECT owner, day, agent, model, kind, 1, tokens, cost FROM spending WHERE account = ''
) AS spent
WHERE (CAST({owner} AS TEXT) IS NULL OR owner = {owner}) AND (CAST({since} AS TEXT) IS NULL OR day >= {since})
AND (CAST({until} AS TEXT) IS NULL OR day <= {until}){behind}
GROUP BY {columns} ORDER BY {columns} LIMIT {limit}
"""


_ORPHANED = "worker NOT IN (SELECT id FROM workers WHERE ended IS NULL)"

# A sweep's question (survey.py), in the order of SpendingSeen.
LOOKED_AT = (
    "EXISTS (SELECT 1 FROM spending WHERE at <= {before}), "
    f"EXISTS (SELECT 1 FROM reservations WHERE {_ORPHANED}), EXISTS (SELECT 1 FROM budgets)"
)


class SpendingSeen(NamedTuple):
    """What a sweep found."""

    lines: bool  # to fold
    orphans: bool  # reservations of workers whose lease ended
    limited: bool  # there are owners with limits


def _usage_statement(by: Sequence[Grouping], *, behind: bool) -> str:
    """`behind`: only what comes after a row, by the columns that it is ordered by."""
    columns = ", ".join(by)
    last = ", ".join(f"{{last_{name}}}" for name in by)
    return _USAGE.replace("{columns}", columns).replace("{behind}", f" AND ({columns}) > ({last})" if behind else "")


class BudgetStatements(NamedTuple):
    """The statements on budgets, with one store's marks."""

    insert_line: str  # by position, as the commit of a chat has them
    settle: str
    release: str
    insert_once: str
    lock: str | None
    reservation: str
    above: str
    standing: str
    reserve: str
    take_lines: str
    add_totals: str
    add_ledgers: str
    give_back: str
    reserved_by: str
    read_limits: str
    limited_owners: str
    list_limits: str
    set_limits: str
    remove_limits: str
    figures: str
    prune_totals: str
    prune_days: str
    prune_chats: str
    forget: tuple[str, ...]
    usage: Callable[[Sequence[Grouping], bool], str]


def budget_statements(
    mark: str, named: Callable[[str], str], given: Callable[[str], str], *, lock: str | None, skips: str
) -> BudgetStatements:
    """`given` makes rows of a JSON array of arrays (`rows`) by the types of their columns."""

    def made(statement: str) -> str:
        for name in _NAMES:
            statement = statement.replace(f"{{{name}}}", named(name))
        return statement

    columns = ", ".join(SPENDING_COLUMNS)
    key = "owner, account, day, id"
    insert = f"INSERT INTO spending ({columns}) VALUES ({', '.join([mark] * len(SPENDING_COLUMNS))})"
    totals = "owner, day, agent, model, kind, lines, tokens, cost"
    limits = "owner, tokens, cost, day_tokens, day_cost, set_by, set_at"
    return BudgetStatements(
        insert_line=insert,
        settle=f"DELETE FROM reservations WHERE id = {mark}",
        release=made("DELETE FROM reservations WHERE id = {id}"),
        insert_once=made(f"INSERT INTO spending ({columns}) {given('ssssissssif')} ON CONFLICT ({key}) DO NOTHING"),
        lock=made(lock) if lock is not None else None,
        reservation=made("SELECT account FROM reservations WHERE id = {id} ORDER BY account"),
        above=made("SELECT id, life, turn FROM chats WHERE id = {id}"),
        standing=made(_STANDING),
        reserve=made(
            "INSERT INTO reservations (id, account, worker, chat_id, day, tokens, cost, at) "
            "VALUES ({id}, {account}, {worker}, {chat_id}, {day}, {tokens}, {cost}, {at})"
        ),
        take_lines=made(
            f"DELETE FROM spending WHERE ({key}) IN (SELECT {key} FROM spending WHERE at <= {{before}} "
            f"LIMIT {{limit}}{skips}) RETURNING {columns}"
        ),
        add_totals=made(
            f"INSERT INTO usage_totals ({totals}) {given('sssssiif')} ON CONFLICT (owner, day, agent, model, kind) "
            "DO UPDATE SET lines = usage_totals.lines + excluded.lines, "
            "tokens = usage_totals.tokens + excluded.tokens, cost = usage_totals.cost + excluded.cost"
        ),
        add_ledgers=made(
            f"INSERT INTO ledgers (account, owner, day, chat_id, turn, tokens, cost, moved_at) {given('ssssiifi')} "
            "ON CONFLICT (account) DO UPDATE SET tokens = ledgers.tokens + excluded.tokens, "
            "cost = ledgers.cost + excluded.cost, moved_at = excluded.moved_at"
        ),
        give_back=made(f"DELETE FROM reservations WHERE {_ORPHANED} RETURNING id"),
        reserved_by=made("SELECT DISTINCT id FROM reservations WHERE worker = {worker}"),
        read_limits=made(f"SELECT {limits} FROM budgets WHERE owner = {{owner}}"),
        limited_owners=made("SELECT owner FROM budgets ORDER BY owner LIMIT {limit}"),
        list_limits=made(
            f"SELECT {limits} FROM budgets WHERE (CAST({{owner}} AS TEXT) IS NULL OR owner = {{owner}}) "
            "AND (CAST({after} AS TEXT) IS NULL OR owner > {after}) ORDER BY owner LIMIT {limit}"
        ),
        set_limits=made(
            f"INSERT INTO budgets ({limits}) VALUES "
            "({owner}, {tokens}, {cost}, {day_tokens}, {day_cost}, {set_by}, {set_at}) "
            "ON CONFLICT (owner) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in limits.split(", ")[1:])
        ),
        remove_limits=made("DELETE FROM budgets WHERE owner = {owner} RETURNING owner"),
        figures=(
            "SELECT (SELECT count(*) FROM spending), (SELECT count(*) FROM reservations), "
            "(SELECT count(*) FROM usage_totals), (SELECT count(*) FROM budgets)"
        ),
        prune_totals=made(
            "DELETE FROM usage_totals WHERE (owner, day, agent, model, kind) IN "
            "(SELECT owner, day, agent, model, kind FROM usage_totals WHERE day < {day} ORDER BY day LIMIT {limit}) "
            "RETURNING day"
        ),
        prune_days=made(
            "DELETE FROM ledgers WHERE account IN "
            "(SELECT account FROM ledgers WHERE day <> '' AND day < {day} LIMIT {limit}) RETURNING account"
        ),
        prune_chats=made(
            "DELETE FROM ledgers WHERE account IN (SELECT account FROM ledgers WHERE chat_id <> '' "
            "AND moved_at < {before} AND NOT EXISTS (SELECT 1 FROM chats WHERE chats.id = ledgers.chat_id "
            "AND ledgers.account = CASE WHEN ledgers.turn = 0 THEN 'family:' ELSE 'turn:' END "
            "|| ledgers.turn || ':' || chats.life || ':' || chats.id "
            "AND (ledgers.turn = 0 OR chats.turn = ledgers.turn)) LIMIT {limit}) RETURNING account"
        ),
        forget=tuple(
            made(f"DELETE FROM {table} WHERE owner = {{owner}}")
            for table in ("spending", "ledgers", "usage_totals", "budgets")
        ),
        usage=lambda by, behind: made(_usage_statement(by, behind=behind)),
    )


_NAMES = (
    *("account", "owner", "line_account", "day", "turn", "chat_id", "id", "worker", "tokens", "cost", "at", "rows"),
    *("before", "limit", "after", "day_tokens", "day_cost", "set_by", "set_at", "since", "until"),
    *(f"last_{name}" for name in GROUPINGS),
)


# -- work of several statements


def drawing(sql: BudgetStatements, draw: Draw, now: int) -> Steps[Granted | Verdict | Reached]:
    """Verdict.WAIT: not now. Done twice, it reserves once."""
    known = yield sql.reservation, {"id": draw.id}
    if known:
        return _granted(draw, [account for (account,) in known])
    ceilings = yield from _ceilings(sql, draw)
    if not ceilings:
        return Granted(reserved=False)
    accounts = sorted({ceiling.account for ceiling in ceilings})
    if sql.lock is not None:
        for account in accounts:
            yield sql.lock, {"account": account}
    verdict: Verdict | Reached = Verdict.BEGIN
    for ceiling in ceilings:
        ruling = judge(ceiling, (yield from _standing(sql, ceiling, draw)), draw.wanted)
        if isinstance(ruling, Reached):
            return ruling
        if ruling is Verdict.WAIT:
            verdict = ruling
    if verdict is not Verdict.BEGIN:
        return verdict
    about = {"id": draw.id, "worker": draw.worker, "chat_id": draw.chat_id, "day": draw.day, "at": now}
    reach("draw.before")
    about |= {"tokens": draw.wanted.tokens + draw.took.tokens, "cost": draw.wanted.cost + draw.took.cost}
    for account in accounts:
        yield sql.reserve, {**about, "account": account}
    reach("draw.after")
    return _granted(draw, accounts)


def looking(sql: BudgetStatements, draw: Draw) -> Steps[BudgetLeft]:
    """What is left for it, at this moment. Nothing is reserved."""
    found = []
    for ceiling in (yield from _ceilings(sql, draw)):
        found.append(left_of(ceiling, (yield from _standing(sql, ceiling, draw))))
    return least(found)


def _ceilings(sql: BudgetStatements, draw: Draw) -> Steps[list[Ceiling]]:
    found = yield sql.read_limits, {"owner": draw.owner}
    limits = budget_of(found[0]).limits if found else draw.limits
    ceilings = [*draw.own, *(owner_ceilings(draw.owner, draw.day, limits) if limits is not None else ())]
    for purse in draw.purses:
        above = yield sql.above, {"id": purse.chat_id}
        ceilings += [_ceiling_above(purse, *row) for row in above]
    return ceilings


def _standing(sql: BudgetStatements, ceiling: Ceiling, draw: Draw) -> Steps[Standing]:
    ((tokens, cost, reserved_tokens, reserved_cost, count),) = yield sql.standing, _where(ceiling, draw.owner)
    return Standing(
        tokens=tokens + draw.took.tokens,
        cost=cost + draw.took.cost,
        reserved_tokens=reserved_tokens,
        reserved_cost=reserved_cost,
        reservations=count,
    )


def _granted(draw: Draw, accounts: Sequence[str]) -> Granted:
    own = {ceiling.account for ceiling in draw.own}
    above = (account for account in accounts if account.startswith(("turn:", "family:")) and account not in own)
    return Granted(accounts=tuple(above), own=tuple(sorted(own)))


def _ceiling_above(purse: Purse, chat_id: str, life: int, turn: int) -> Ceiling:
    """Of a turn: the last one that the chat above began, be it over or not."""
    words = f"family budget of chat {chat_id}" if purse.family else f"budget of turn {turn} of chat {chat_id} above"
    turn = 0 if purse.family else turn
    account = chat_account(chat_id, life, turn)
    return Ceiling(account=account, words=words, tokens=purse.tokens, cost=purse.cost, chat_id=chat_id, turn=turn)


def _where(ceiling: Ceiling, owner: str) -> dict[str, Any]:
    return {
        "account": ceiling.account,
        "owner": owner,
        "line_account": ceiling.account if ceiling.chat_id else "",
        "day": ceiling.day,
        "chat_id": ceiling.chat_id,
        "turn": ceiling.turn,
    }


def folding(sql: BudgetStatements, before: int, now: int) -> Steps[int]:
    """Lines become sums. Returns how many there were."""
    lines = yield sql.take_lines, {"before": before, "limit": FOLDED_MAX}
    totals: defaultdict[tuple[str, ...], list[Any]] = defaultdict(lambda: [0, 0, 0.0])
    ledgers: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, 0.0])
    for owner, account, day, _, _, _, agent, model, kind, tokens, cost in lines:
        if account:
            _, turn, _, chat_id = account.split(":", 3)
            entered = [(account, owner, "", chat_id, int(turn))]
        else:
            total = totals[owner, day, agent, model, kind]
            total[:] = total[0] + 1, total[1] + tokens, total[2] + cost
            entered = [(owner_account(owner), owner, "", "", 0), (day_account(owner, day), owner, day, "", 0)]
        for entry in entered:
            sums = ledgers[entry]
            sums[:] = sums[0] + tokens, sums[1] + cost
    reach("fold.before")
    if totals:
        yield sql.add_totals, {"rows": _rows([(*key, *totals[key]) for key in sorted(totals)])}
    if ledgers:
        yield sql.add_ledgers, {"rows": _rows([(*key, *ledgers[key], now) for key in sorted(ledgers)])}
    reach("fold.after")
    return len(lines)


def _rows(rows: Collection[Row]) -> str:
    return encode(list(rows)).decode()


def _forgetting(sql: BudgetStatements, owner: str) -> Steps[None]:
    for statement in sql.forget:
        yield statement, {"owner": owner}


def _entering(sql: BudgetStatements, lines: Collection[Row], release: Sequence[str]) -> Steps[None]:
    if lines:
        yield sql.insert_once, {"rows": _rows(lines)}
    for id in release:
        yield sql.release, {"id": id}


def _pruning(sql: BudgetStatements, day: str, before: int) -> Steps[int]:
    gone = yield sql.prune_totals, {"day": day, "limit": PRUNED_MAX}
    gone += yield sql.prune_days, {"day": day, "limit": PRUNED_MAX}
    gone += yield sql.prune_chats, {"before": before, "limit": PRUNED_MAX}
    return len(gone)


def budget_of(row: Row) -> OwnerBudget:
    owner, tokens, cost, day_tokens, day_cost, set_by, set_at = row
    limits = OwnerLimits(tokens=tokens, cost=cost, day_tokens=day_tokens, day_cost=day_cost)
    return OwnerBudget(owner=owner, limits=limits, set_by=set_by, set_at=set_at)


class StepRunner(StatementRunner, Protocol):
    async def run_steps(self, steps: Callable[[], Steps[T]]) -> T:
        """In one transaction. Asked again, from the start, where its outcome is not known: so it must find out."""


class BudgetLedgers:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StepRunner, statements: BudgetStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms
        self._limited: frozenset[str] | None = None  # owners that people set limits for; None: not looked yet
        self._many = False  # more of them than are known by name
        self._sets = 0  # that were made here

    # --- a call ---------------------------------------------------------------------------------------------------

    async def draw(self, draw: Draw) -> Granted | Verdict | Reached:
        """Reserve what a call may take. Again under the same id, it is answered as done."""
        return await self._runner.run_steps(lambda: drawing(self._sql, draw, self._now_ms()))

    async def left(self, draw: Draw) -> BudgetLeft:
        """What a call could take now, of the limits that several chats draw on. It is not promised to it."""
        return await self._runner.run_steps(lambda: looking(self._sql, draw))

    async def release(self, id: str) -> None:
        """Nothing came of it, and it cost nothing."""
        await self._runner.run_steps(lambda: _entering(self._sql, (), (id,)))

    async def enter(self, lines: Collection[Row], release: Sequence[str] = ()) -> None:
        """What was spent and no commit tells of: its chat refused it, or is gone. Once, by the lines' ids."""
        await self._runner.run_steps(lambda: _entering(self._sql, lines, release))

    async def accounts_above(self, purses: Sequence[Purse]) -> tuple[str, ...]:
        """What a chat with these spends is entered in, where it does not draw for it: what its tools take."""
        found = [
            _ceiling_above(purse, *row).account
            for purse in purses
            for row in await self._runner.named_rows(self._sql.above, id=purse.chat_id)
        ]
        return tuple(sorted(set(found)))

    async def reserved_by(self, worker: str) -> list[str]:
        """The ids of its reservations."""
        return [id for (id,) in await self._runner.named_rows(self._sql.reserved_by, worker=worker)]

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def fold(self, after_ms: int = FOLD_AFTER_MS) -> int:
        """Lines become sums, at most FOLDED_MAX. Returns how many."""
        now = self._now_ms()
        return await self._runner.run_steps(lambda: folding(self._sql, now - after_ms, now))

    @property
    def fold_before(self) -> int:
        """Lines from before this instant are to be folded."""
        return self._now_ms() - FOLD_AFTER_MS

    async def sweep(self, seen: SpendingSeen) -> None:
        """Fold what is to be folded and give back what the dead have reserved."""
        if seen.limited or self._many or self._limited != frozenset():
            await self.look_for_limits()  # also where none was seen: one may have been set since
        if seen.orphans:
            await self.give_back()
        for _ in range(FOLDS_MAX if seen.lines else 0):
            if await self.fold() < FOLDED_MAX:
                break

    async def give_back(self) -> int:
        """What workers have reserved whose lease ended is free again. Returns how many reservations that were."""
        return len(set(await self._runner.write_alone(self._sql.give_back)))

    async def prune(self, day: str, before_ms: int) -> int:
        """Sums of days before that one, and of turns and families that are over. An owner's sum of all days stays."""
        return await self._runner.run_steps(lambda: _pruning(self._sql, day, before_ms))

    async def forget(self, owner: str) -> None:
        await self._runner.run_steps(lambda: _forgetting(self._sql, owner))

    async def figures(self) -> BudgetFigures:
        return BudgetFigures(*(await self._runner.rows(self._sql.figures))[0])

    # --- limits ---------------------------------------------------------------------------------------------------

    async def is_limited(self, owner: str) -> bool:
        """Has a person set limits for this owner, as far as was seen at the last sweep? Only those have to draw."""
        if self._limited is None:
            await self.look_for_limits()
        return self._many or self._limited is None or owner in self._limited

    async def look_for_limits(self) -> None:
        sets = self._sets
        rows = await self._runner.named_rows(self._sql.limited_owners, limit=LIMITED_MAX + 1)
        self._many = len(rows) > LIMITED_MAX
        # What was set meanwhile may not be among them: then it is not known who is limited, and all draw.
        self._limited = frozenset(owner for (owner,) in rows[:LIMITED_MAX]) if sets == self._sets else None

    async def read(self, owner: str) -> OwnerBudget | None:
        found = await self._runner.named_rows(self._sql.read_limits, owner=owner)
        return budget_of(found[0]) if found else None

    async def page(
        self, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[OwnerBudget]:
        """By owner; `after` is the last one of the page before. An owner can be the empty text."""
        values = {"owner": owner, "after": after, "limit": page_size(limit)}
        return [budget_of(row) for row in await self._runner.named_rows(self._sql.list_limits, **values)]

    async def set(self, owner: str, limits: OwnerLimits, by: str = "") -> OwnerBudget:
        """In place of what was set before. Draws heed it from now on."""
        budget = OwnerBudget(owner=owner, limits=limits, set_by=by, set_at=self._now_ms())
        values = {
            "owner": owner,
            "tokens": limits.tokens,
            "cost": limits.cost,
            "day_tokens": limits.day_tokens,
            "day_cost": limits.day_cost,
            "set_by": by,
            "set_at": budget.set_at,
        }
        await self._runner.run_steps(lambda: _alone(self._sql.set_limits, values))
        self._sets += 1
        if self._limited is not None:
            self._limited |= {owner}
        return budget

    async def remove(self, owner: str) -> None:
        """What the app says holds again. Raises NotFound."""
        if not await self._runner.run_steps(lambda: _alone(self._sql.remove_limits, {"owner": owner})):
            raise NotFound("budget of owner", owner)

    # --- usage ----------------------------------------------------------------------------------------------------

    async def usage(
        self,
        by: Sequence[Grouping] = ("day", "kind"),
        *,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
        after: UsageTotal | None = None,
        limit: int = USAGE_ROWS_MAX,
    ) -> list[UsageTotal]:
        """Who spent what, folded or not: a page of it, at one moment. `since` and `until` are days, both included;
        `after` is the last one of the page before.
        """
        check_days(since=since, until=until)
        names = tuple(dict.fromkeys(by)) or GROUPINGS[-1:]
        values = {"owner": owner, "since": since, "until": until, "limit": min(limit, USAGE_ROWS_MAX)}
        if after is not None:
            values |= {f"last_{name}": getattr(after, name) for name in names}
        found = await self._runner.named_rows(self._sql.usage(names, after is not None), **values)
        return [_usage_of(names, row) for row in found]


def _alone(statement: str, values: dict[str, Any]) -> Steps[list[Row]]:
    return (yield statement, values)


def _usage_of(names: Sequence[str], row: Row) -> UsageTotal:
    values: dict[str, Any] = dict(zip((*names, "lines", "tokens", "cost"), row, strict=True))
    return UsageTotal(**values)
