"""Taking over after deaths: leases that ended, the chats of their workers, and chats that break promise 7.

The steps at the end are a store's own, each one transaction. What is built of them is the same on both stores: the
lease ends first, so that it cannot be renewed any more; then its chats are taken back, one by one; then its row goes.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.core.commands import Command, LeaseExpired, LeaseOutlived, Repair
from holdfast.core.leases import LeaseWatch
from holdfast.core.records import Cause, Lease, LeaseEnd, Snapshot, State
from holdfast.errors import (
    NotFound,
    RecordError,
    RefusedError,
    StaleWriter,
    StoreCorrupt,
    StoreError,
    StoreTimeout,
)
from holdfast.store import host_lock
from holdfast.store.liveness import JOURNAL_AHEAD, SWEPT_MAX, UNDER_DEAD_LEASE
from holdfast.store.records import Held, StoreOptions, Violation
from holdfast.store.rows import Row
from holdfast.store.statements import StatementRunner, Statements
from holdfast.store.survey import EVERYTHING, Survey, WalkedTo, survey_of, survey_values

log = logging.getLogger("holdfast.store")


class Recovery(ABC):
    """Of one store. Its verbs are told in `contract.py`, where they have the same names."""

    def __init__(
        self,
        options: StoreOptions,
        read_chat: Callable[[str], Awaitable[Snapshot]],
        transactor: StatementRunner,
        sql: Statements,
    ) -> None:
        self._options = options
        self._read_chat = read_chat
        self._statements = transactor
        self._sql = sql
        self._walked_to = WalkedTo()
        self.poisoned = 0  # chats that were failed here because they had lost every worker
        self.unreadable = 0  # chats passed over because newer code wrote them

    # --- leases -------------------------------------------------------------------------------------------------

    async def end_leases(
        self, watch: LeaseWatch | None = None, myself: str | None = None
    ) -> list[tuple[Lease, LeaseEnd]]:
        return await self._end(await self.list_workers(), watch, myself)

    async def _end(
        self, leases: Sequence[Lease], watch: LeaseWatch | None = None, myself: str | None = None
    ) -> list[tuple[Lease, LeaseEnd]]:
        others = [lease for lease in leases if lease.worker != myself]
        silent = watch.look(others, self._options.clock.boot_ms()) if watch is not None else []
        ends = [(lease, lease.ended or await self.end(lease, silent)) for lease in leases]
        return [(lease, how) for lease, how in ends if how is not None]

    async def end(self, lease: Lease, silent: Sequence[Lease]) -> LeaseEnd | None:
        """How its lease ended just now, if it did: a renewal that comes first wins over silence."""
        if lease.lock_path is not None and host_lock.is_dead(lease.lock_path):
            return LeaseEnd.DIED if await self.end_lease(lease.worker, LeaseEnd.DIED) else None
        if lease in silent and await self.end_lease(lease.worker, LeaseEnd.SILENT, lease.renewal):
            extra = {"action": "lease.ended", "worker": lease.worker, "renewal": lease.renewal}
            log.warning("worker %s was silent for its %g s", lease.worker, lease.ttl_ms / 1000, extra=extra)
            return LeaseEnd.SILENT
        return None

    async def expire_workers(self, watch: LeaseWatch | None = None, myself: str | None = None) -> dict[str, int]:
        lost = await self._expire(await self.end_leases(watch, myself))
        return lost | await self._expire_unknown()

    async def expire_seen(self, seen: Survey) -> dict[str, int]:
        """As `expire_workers`, of what a survey showed."""
        leases = map(self.lease, seen.leases) if seen.leases is not None else await self.list_workers()
        lost = await self._expire(await self._end(sorted(leases, key=lambda lease: lease.worker)))
        return lost | await self._expire_unknown() if seen.unknown_holders else lost

    async def _expire(self, ended: Sequence[tuple[Lease, LeaseEnd]]) -> dict[str, int]:
        lost: dict[str, int] = {}
        for lease, how in ended:
            lost[lease.worker] = await self._take_back(lease.worker, how, lease.renewed_at)
            if lease.lock_path is not None:
                host_lock.forget(lease.lock_path)
        return lost

    async def _expire_unknown(self) -> dict[str, int]:
        return {worker: await self._take_back(worker, LeaseEnd.SILENT) for worker in await self.unknown_holders()}

    async def _take_back(self, worker: str, how: LeaseEnd, heard_at: int | None = None) -> int:
        held = await self.held_chats(worker)
        for chat_id, _ in sorted(held):
            if await self.apply_alone(chat_id, LeaseExpired(worker=worker, how=how, heard_at=heard_at)):
                with suppress(NotFound, RecordError):
                    error = (await self._read_chat(chat_id)).chat.error
                    self.poisoned += error is not None and error.cause is Cause.CRASH
        await self.drop_worker(worker)
        return len(held)

    async def outlive_lease(self, worker: str) -> None:
        await self.retire_lease(worker)
        # In this order: what is not held any more has been counted.
        held = [chat_id for chat_id, _ in await self.held_chats(worker)]
        for chat_id in dict.fromkeys((*held, *await self.lost_in_silence(worker))):
            await self.apply_alone(chat_id, LeaseOutlived(worker=worker))

    async def retire_all(self) -> int:
        """Every lease ends, and none as a death. Returns how many there were."""
        leases = [lease for lease in await self.list_workers() if lease.ended is None]
        for lease in leases:
            await self.retire_lease(lease.worker)
        return len(leases)

    # --- violations ---------------------------------------------------------------------------------------------

    async def survey(self, folded_before: int) -> Survey:
        """What there is to sweep, and where: one statement. EVERYTHING where a part of it cannot be read, or not in
        time.
        """
        try:
            return survey_of(await self.look_around(survey_values(self._walked_to, folded_before)))
        except (StoreTimeout, StoreCorrupt) as error:
            extra = {"action": "survey_failed", "error": str(error)}
            log.warning("what is to be swept is looked for part by part", extra=extra)
            return EVERYTHING

    async def find_torn(self) -> list[Violation]:
        found: list[Violation] = []
        after = ""
        while looked_at := await self.next_torn(after):
            found += _torn(looked_at)
            after = looked_at[-1][0]
        return found

    async def repair_some(self, seen: Survey) -> dict[str, int]:
        """A sweep's share, counted by reason. The next sweep goes on behind it, and begins anew at the end."""
        repaired: dict[str, int] = {}
        upto = self._walked_to
        if seen.walked_to is not None:
            self._walked_to = seen.walked_to
        torn = await self._find_some_torn(upto) if seen.torn else []
        violations = await self._find_some_violations(upto) if seen.violations else []
        for violation in [*torn, *violations]:
            if violation.reason == UNDER_DEAD_LEASE:
                continue  # for the next sweep's expiry
            if await self.apply_alone(violation.chat_id, Repair(reason=violation.reason, lease_is_live=True)):
                repaired[violation.reason] = repaired.get(violation.reason, 0) + 1
        return repaired

    async def _find_some_torn(self, upto: WalkedTo) -> list[Violation]:
        looked_at = await self.next_torn(upto.chats)
        self._walked_to = self._walked_to._replace(chats=_end_of([id for id, *_ in looked_at]))
        return _torn(looked_at)

    async def _find_some_violations(self, upto: WalkedTo) -> list[Violation]:
        waiting, queued = await self.next_to_sweep(upto)
        self._walked_to = self._walked_to._replace(waiting=_end_of(waiting), queued=_end_of(queued))
        return await self.find_violations_among(waiting, queued)

    async def apply_alone(self, chat_id: str, command: Command) -> bool:
        """One chat, one transaction: a chat that refuses, is gone, cannot be read, is locked by a client that does
        not let go or meets a fault of ours stops the repair of no other. The next sweep finds it again.
        """
        try:
            await self.apply_upkeep(chat_id, command)
        except RecordError:
            self.unreadable += 1
            return False
        except (RefusedError, StaleWriter, NotFound):
            return False
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreTimeout):
                raise  # of the store, not of this chat
            extra = {"action": "upkeep_failed", "chat": chat_id, "command": command.name, "error": str(error)}
            log.warning("a chat could not be swept", extra=extra, exc_info=error)
            return False
        return True

    # --- steps, each one transaction ------------------------------------------------------------------------------

    async def list_workers(self) -> list[Lease]:
        return [self.lease(row) for row in await self._statements.rows(self._sql.LIST_WORKERS)]

    @abstractmethod
    def lease(self, row: Row) -> Lease:
        """With the path of its lock only if that is of this host."""

    @abstractmethod
    async def look_around(self, values: Mapping[str, Any]) -> Row:
        """The row of a survey."""

    async def held_chats(self, worker: str) -> set[Held]:
        return {(chat_id, stamp) for chat_id, stamp in await self._statements.rows(self._sql.HELD_CHATS, worker)}

    @abstractmethod
    async def end_lease(self, worker: str, how: LeaseEnd, renewal: int | None = None) -> bool:
        """False: it was ended before, or `renewal` is not its number any more."""

    async def retire_lease(self, worker: str) -> None:
        """Ended by its own worker, which lives: that beats what others took it for."""
        await self._statements.write_alone(self._sql.RETIRE_WORKER, worker)

    async def lost_in_silence(self, worker: str) -> list[str]:
        """Chats that were taken from this worker as from one that may live, and have made no progress since."""
        return [row[0] for row in await self._statements.named_rows(self._sql.LOST_IN_SILENCE, worker=worker)]

    async def unknown_holders(self) -> list[str]:
        """Workers that hold chats and have no row: no lease's end would ever take those chats back."""
        return [row[0] for row in await self._statements.rows(self._sql.UNKNOWN_HOLDERS)]

    async def drop_worker(self, worker: str) -> None:
        """Forget a worker that holds nothing any more."""
        await self._statements.write_alone(self._sql.DROP_WORKER, worker)

    @abstractmethod
    async def apply_upkeep(self, chat_id: str, command: Command) -> None:
        """Apply a command that no client asked for; a Repair is counted in the same transaction."""

    @abstractmethod
    async def find_violations(self) -> list[Violation]: ...

    @abstractmethod
    async def next_to_sweep(self, upto: WalkedTo) -> tuple[list[str], list[str]]:
        """At most SWEPT_MAX ids of chats that wait, and of chats with a queue, behind these, in order."""

    @abstractmethod
    async def find_violations_among(self, waiting: list[str], queued: list[str]) -> list[Violation]:
        """As `find_violations`, but of the chats that wait or have a queue only these are looked at."""

    async def next_torn(self, after: str) -> list[tuple[str, str, bool]]:
        """The next SWEPT_MAX chats behind this id: id, state, and whether its journal has lines beyond its row."""
        found = await self._statements.rows(self._sql.NEXT_TORN, after)
        return [(id, state, bool(torn)) for id, state, torn in found]

    async def read_repairs(self) -> dict[str, int]:
        return dict(await self._statements.rows(self._sql.READ_REPAIRS))


def _end_of(ids: Sequence[str]) -> str:
    """Where the next walk goes on."""
    return ids[-1] if len(ids) == SWEPT_MAX else ""


def _torn(looked_at: Sequence[tuple[str, str, bool]]) -> list[Violation]:
    return [
        Violation(chat_id=id, state=State(state), reason=JOURNAL_AHEAD) for id, state, ahead in looked_at if ahead
    ]
