"""Deliveries as the database has them: which are due, who sends one now, what became of it, and sending it again.

They are made by notices (notices.py), in the transaction of what happened. Whoever sends one moves its `next_at` a
minute ahead first, and only if it still stands where it was seen: of two workers one gets it, and one that dies
while it sends leaves it due again, under the same id. Instants are by the store's clock; one that lies further ahead
than any wait is due, because the clock was set back since.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import Raw

from holdfast.core.codec import encode
from holdfast.core.deliveries import WAIT_S_MAX, Answer
from holdfast.core.notices import Notice, NoticeKind
from holdfast.core.records import Frozen
from holdfast.errors import NotFound
from holdfast.ids import new_id
from holdfast.store.checks import page_size
from holdfast.store.rows import Row
from holdfast.store.statements import StatementRunner, marked
from holdfast.store.webhooks import COLUMNS as HOOK_COLUMNS
from holdfast.store.webhooks import Webhook, webhook_of

RESERVED_MS = 60_000  # more than an attempt can take
FAR_MS = int(WAIT_S_MAX * 1000) + RESERVED_MS
KEPT_DAYS = 30  # how long one is listed
PRUNED_MAX = 1_000
REPLAYED_MAX = 10_000
COUNTED_MAX = 10_000
PENDING_MAX = 100_000  # of one endpoint; what is beyond is failed, the oldest first, and can be replayed
SHED_MAX = 1_000  # of them in one transaction
CROWDED_MAX = 50
ENDPOINTS_GONE_MAX = 100
TOO_MANY = f"more than {PENDING_MAX:,} events waited for this endpoint: this one is not sent unless it is replayed"
ERROR_CHARS_MAX = 500

DeliveryState = Literal["pending", "delivered", "failed"]

COLUMNS: tuple[str, ...] = (
    *("webhook_id", "notice_id", "kind", "owner", "chat_id", "turn", "life", "at", "data"),
    *("state", "attempts", "next_at", "status", "error", "ended_at"),
)


class Delivery(Frozen):
    """One notice for one endpoint. `status` and `error` are of the last attempt."""

    webhook_id: str
    notice_id: str
    kind: NoticeKind
    owner: str
    chat_id: str
    turn: int
    life: int
    at: int
    data: Raw
    state: DeliveryState
    attempts: int
    next_at: int
    status: int | None
    error: str
    ended_at: int | None

    @property
    def notice(self) -> Notice:
        return Notice(
            id=self.notice_id,
            kind=self.kind,
            owner=self.owner,
            chat_id=self.chat_id,
            turn=self.turn,
            life=self.life,
            at=self.at,
            data=self.data,
        )


class Backlog(NamedTuple):
    """What there is to do: endpoints that are told and those that are disabled, what waits for the former, as far as
    COUNTED_MAX, and when the oldest of that happened.
    """

    active: int
    disabled: int
    pending: int
    oldest_at: int | None


def delivery_of(row: Row) -> Delivery:
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    return Delivery(**values | {"data": Raw(values["data"].encode())})


# -- statements. Each store's module `sql` makes its own of them: `{}` is where a value goes.

_SHOWN = ", ".join(COLUMNS)
_SELECT = f"SELECT {_SHOWN} FROM deliveries WHERE"
_THIS = "webhook_id = {} AND notice_id = {}"
_DUE = "state = 'pending' AND (next_at <= {} OR next_at > {})"

# In turn: `id > …` goes on behind the last one that was looked at.
_DUE_HOOKS = f"""
SELECT {", ".join(HOOK_COLUMNS)} FROM webhooks WHERE state = 'active' AND id > {{}}
    AND (throttled_until <= {{}} OR throttled_until > {{}})
    AND EXISTS (SELECT 1 FROM deliveries WHERE webhook_id = webhooks.id AND deliveries.{_DUE})
ORDER BY id LIMIT {{}}
"""

_SOONEST = """
SELECT min(next_at) FROM deliveries WHERE state = 'pending' AND next_at > {}
    AND webhook_id IN (SELECT id FROM webhooks WHERE state = 'active')
"""

_RESERVE = f"UPDATE deliveries SET next_at = {{}} WHERE {_THIS} AND state = 'pending' AND next_at = {{}} RETURNING 1"

# Whoever has it: what arrived, arrived.
_TAKEN = (
    "UPDATE deliveries SET state = 'delivered', attempts = attempts + 1, status = {}, error = '', ended_at = {} "
    f"WHERE {_THIS} AND state <> 'delivered' RETURNING 1"
)

# Only by who still has it: it may be another's by now.
_AGAIN = (
    "UPDATE deliveries SET attempts = attempts + 1, status = {}, error = {}, next_at = {} "
    f"WHERE {_THIS} AND state = 'pending' AND next_at = {{}} RETURNING 1"
)

_GIVEN_UP = (
    "UPDATE deliveries SET state = 'failed', attempts = attempts + 1, status = {}, error = {}, ended_at = {} "
    f"WHERE {_THIS} AND state = 'pending' AND next_at = {{}} RETURNING 1"
)

_LISTED = (
    f"{_SELECT} webhook_id = {{}} AND (CAST({{}} AS TEXT) IS NULL OR state = {{}}) "
    "AND (CAST({} AS TEXT) IS NULL OR notice_id < {}) ORDER BY notice_id DESC LIMIT {}"
)

_PENDING_ANEW = "UPDATE deliveries SET state = 'pending', attempts = 0, next_at = {}, ended_at = NULL WHERE"
# One that is under way is left alone.
_REPLAY = f"{_PENDING_ANEW} {_THIS} AND (state <> 'pending' OR next_at > {{}}) RETURNING 1"
_REPLAY_FAILED = f"""
{_PENDING_ANEW} webhook_id = {{}} AND notice_id IN (
    SELECT notice_id FROM deliveries WHERE webhook_id = {{}} AND state = 'failed' AND at >= {{}}
    ORDER BY notice_id LIMIT {{}}
) AND state = 'failed' RETURNING 1
"""

_PING = (
    "INSERT INTO deliveries (webhook_id, notice_id, kind, owner, chat_id, turn, life, at, data, next_at) "
    "SELECT id, {}, 'ping', '', '', 0, 0, {}, {}, {} FROM webhooks WHERE id = {} ON CONFLICT DO NOTHING"
)

# In no order: to sort 100,000 that wait took a tenth of a second.
_BACKLOG = """
SELECT (SELECT count(*) FROM webhooks WHERE state = 'active'),
    (SELECT count(*) FROM webhooks WHERE state = 'disabled'), count(*), min(at)
FROM (
    SELECT at FROM deliveries WHERE state = 'pending'
        AND webhook_id IN (SELECT id FROM webhooks WHERE state = 'active')
    LIMIT {}
) AS waiting
"""

_CROWDED = """
SELECT id FROM webhooks WHERE state = 'active' AND EXISTS (
    SELECT 1 FROM deliveries WHERE webhook_id = webhooks.id AND state = 'pending' LIMIT 1 OFFSET {}
) ORDER BY id LIMIT {}
"""

# All but the newest.
_SHED = """
UPDATE deliveries SET state = 'failed', error = {}, ended_at = {} WHERE webhook_id = {} AND notice_id IN (
    SELECT notice_id FROM deliveries WHERE webhook_id = {} AND state = 'pending'
    ORDER BY notice_id DESC LIMIT {} OFFSET {}
) AND state = 'pending' RETURNING 1
"""

# From one endpoint's rows to the next one's: a look at each endpoint, however many rows it has.
_GONE = """
WITH RECURSIVE known (id) AS (
    SELECT min(webhook_id) FROM deliveries
    UNION ALL
    SELECT (SELECT min(webhook_id) FROM deliveries WHERE webhook_id > known.id) FROM known WHERE known.id IS NOT NULL
)
SELECT id FROM known WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM webhooks WHERE webhooks.id = known.id)
LIMIT {}
"""

_PRUNE = """
DELETE FROM deliveries WHERE (webhook_id, notice_id) IN (
    SELECT webhook_id, notice_id FROM deliveries WHERE at < {} ORDER BY at LIMIT {}
) RETURNING 1
"""

_FORGET = """
DELETE FROM deliveries WHERE webhook_id = {} AND notice_id IN (
    SELECT notice_id FROM deliveries WHERE webhook_id = {} LIMIT {}
) RETURNING 1
"""

_FORGET_OWNER = """
DELETE FROM deliveries WHERE (webhook_id, notice_id) IN (
    SELECT webhook_id, notice_id FROM deliveries WHERE owner = {} LIMIT {}
) RETURNING 1
"""


class DeliveryStatements(NamedTuple):
    """The statements on deliveries, with one store's marks."""

    due_hooks: str
    due: str
    soonest: str
    reserve: str
    taken: str
    again: str
    given_up: str
    read: str
    listed: str
    replay: str
    replay_failed: str
    ping: str
    any_pending: str
    backlog: str
    crowded: str
    shed: str
    gone: str
    prune: str
    forget: str
    forget_owner: str


def delivery_statements(mark: str) -> DeliveryStatements:
    """`mark` is where a value goes."""
    return DeliveryStatements(
        due_hooks=marked(_DUE_HOOKS, mark),
        due=marked(f"{_SELECT} webhook_id = {{}} AND {_DUE} ORDER BY next_at, notice_id LIMIT {{}}", mark),
        soonest=marked(_SOONEST, mark),
        reserve=marked(_RESERVE, mark),
        taken=marked(_TAKEN, mark),
        again=marked(_AGAIN, mark),
        given_up=marked(_GIVEN_UP, mark),
        read=marked(f"{_SELECT} {_THIS}", mark),
        listed=marked(_LISTED, mark),
        replay=marked(_REPLAY, mark),
        replay_failed=marked(_REPLAY_FAILED, mark),
        ping=marked(_PING, mark),
        any_pending="SELECT 1 FROM deliveries WHERE state = 'pending' LIMIT 1",
        backlog=marked(_BACKLOG, mark),
        crowded=marked(_CROWDED, mark),
        shed=marked(_SHED, mark),
        gone=marked(_GONE, mark),
        prune=marked(_PRUNE, mark),
        forget=marked(_FORGET, mark),
        forget_owner=marked(_FORGET_OWNER, mark),
    )


class Deliveries:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StatementRunner, statements: DeliveryStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms

    # --- sending ----------------------------------------------------------------------------------------------------

    async def due_hooks(self, after: str, limit: int) -> list[Webhook]:
        """Endpoints that something is due for, behind this id."""
        now_ms = self._now_ms()
        bounds = (now_ms, now_ms + FAR_MS)
        return [
            webhook_of(row) for row in await self._runner.rows(self._sql.due_hooks, after, *bounds, *bounds, limit)
        ]

    async def due(self, webhook_id: str, limit: int) -> list[Delivery]:
        """The oldest first."""
        now_ms = self._now_ms()
        found = await self._runner.rows(self._sql.due, webhook_id, now_ms, now_ms + FAR_MS, limit)
        return [delivery_of(row) for row in found]

    async def any_pending(self) -> bool:
        return bool(await self._runner.rows(self._sql.any_pending))

    async def soonest(self) -> int | None:
        """When the next one is due that is not due yet."""
        found: int | None = (await self._runner.rows(self._sql.soonest, self._now_ms()))[0][0]
        return found

    async def reserve(self, delivery: Delivery) -> int | None:
        """Until when it is the caller's to send; None: another has it, or it is over."""
        until_ms = max(self._now_ms() + RESERVED_MS, delivery.next_at + 1)
        done = await self._runner.write_alone(
            self._sql.reserve, until_ms, delivery.webhook_id, delivery.notice_id, delivery.next_at
        )
        return until_ms if done else None

    async def settle_taken(self, delivery: Delivery, answer: Answer) -> None:
        where = (delivery.webhook_id, delivery.notice_id)
        await self._runner.write_alone(self._sql.taken, answer.status, self._now_ms(), *where)

    async def settle_again(self, delivery: Delivery, answer: Answer, reserved_until: int, next_at: int) -> None:
        where = (delivery.webhook_id, delivery.notice_id, reserved_until)
        await self._runner.write_alone(self._sql.again, answer.status, _error(answer), next_at, *where)

    async def settle_given_up(self, delivery: Delivery, answer: Answer, reserved_until: int) -> None:
        where = (delivery.webhook_id, delivery.notice_id, reserved_until)
        await self._runner.write_alone(self._sql.given_up, answer.status, _error(answer), self._now_ms(), *where)

    # --- for people -------------------------------------------------------------------------------------------------

    async def read(self, webhook_id: str, notice_id: str) -> Delivery:
        """Raises NotFound."""
        found = await self._runner.rows(self._sql.read, webhook_id, notice_id)
        if not found:
            raise NotFound("delivery", notice_id)
        return delivery_of(found[0])

    async def page(
        self, webhook_id: str, *, state: DeliveryState | None = None, before: str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """Newest first: `before` is the id of the last one of the page before."""
        values = (webhook_id, state, state, before, before, page_size(limit))
        return [delivery_of(row) for row in await self._runner.rows(self._sql.listed, *values)]

    async def replay(self, webhook_id: str, notice_id: str) -> Delivery:
        """It is due now, under the same id and with all attempts before it. Safe to repeat. Raises NotFound."""
        now_ms = self._now_ms()
        await self._runner.write_alone(self._sql.replay, now_ms, webhook_id, notice_id, now_ms + RESERVED_MS)
        return await self.read(webhook_id, notice_id)

    async def replay_failed(self, webhook_id: str, since_ms: int) -> int:
        """The same for those that failed, of what happened since; at most REPLAYED_MAX. Returns how many."""
        values = (self._now_ms(), webhook_id, webhook_id, since_ms, REPLAYED_MAX)
        return len(await self._runner.write_alone(self._sql.replay_failed, *values))

    async def ping(self, webhook_id: str) -> Delivery:
        """One that says nothing, for this endpoint alone, whatever kinds it chose. Raises NotFound."""
        notice_id, now_ms = new_id("evt"), self._now_ms()
        data = encode({"webhook_id": webhook_id}).decode()
        await self._runner.write_alone(self._sql.ping, notice_id, now_ms, data, now_ms, webhook_id)
        return await self.read(webhook_id, notice_id)

    # --- upkeep -----------------------------------------------------------------------------------------------------

    async def backlog(self) -> Backlog:
        return Backlog(*(await self._runner.rows(self._sql.backlog, COUNTED_MAX))[0])

    async def shed(self, pending_max: int = PENDING_MAX) -> dict[str, int]:
        """Fail what is more than so many of one endpoint, the oldest first; SHED_MAX of each at most. Returns how
        many of which endpoints. They are listed and can be replayed like all that failed.
        """
        shed = {}
        for (webhook_id,) in await self._runner.rows(self._sql.crowded, pending_max, CROWDED_MAX):
            values = (TOO_MANY, self._now_ms(), webhook_id, webhook_id, SHED_MAX, pending_max)
            shed[webhook_id] = len(await self._runner.write_alone(self._sql.shed, *values))
        return shed

    async def prune(self, before_ms: int) -> int:
        """Forget those of what happened before that instant, at most PRUNED_MAX. Returns how many."""
        return len(await self._runner.write_alone(self._sql.prune, before_ms, PRUNED_MAX))

    async def forget(self, webhook_id: str) -> int:
        """All of an endpoint that is gone. Returns how many."""
        return await self._all(self._sql.forget, webhook_id, webhook_id)

    async def forget_gone(self) -> int:
        """What is left of endpoints that are gone: their remover was killed, or a writer still knew them. Returns how
        many. An endpoint of the settings may come back under its id, and is not told what was meant for the other.
        """
        gone = await self._runner.rows(self._sql.gone, ENDPOINTS_GONE_MAX)
        return sum([await self.forget(webhook_id) for (webhook_id,) in gone])

    async def forget_owner(self, owner: str) -> int:
        """All that tell of an owner's chats, whoever was told. Returns how many."""
        return await self._all(self._sql.forget_owner, owner)

    async def _all(self, statement: str, *values: Any) -> int:
        gone = 0
        while found := len(await self._runner.forget(statement, *values, PRUNED_MAX)):
            gone += found
        return gone


def _error(answer: Answer) -> str:
    return answer.words[:ERROR_CHARS_MAX]
