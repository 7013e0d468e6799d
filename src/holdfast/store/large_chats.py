"""Forks and deletions: verbs on chats that may be larger than one transaction holds, slice by slice.

`remnants.py` says what a slice holds and what the rows between two slices are. The steps at the end are a store's
own, each one transaction; the loops around them, with their deadlines, are the same on both stores.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.core.records import State
from holdfast.errors import RefusedError, StoreClosed, StoreError, StoreTimeout
from holdfast.store.liveness import SWEPT_MAX
from holdfast.store.records import Answer, DeleteChildren, Forking, StoreOptions
from holdfast.store.remnants import LARGE_DEADLINE_S, Occupied, Remnant, RemnantWatch, Slice
from holdfast.system.clock import Countdown

log = logging.getLogger("holdfast.store")

CLEARING_INTERVAL_S = 5.0  # between two looks at what another process may go on with


class LargeChats(ABC):
    """Of one store. Its verbs are told in `contract.py`, where they have the same names."""

    slice: Slice  # what one transaction takes or adds of a large chat

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._watch = RemnantWatch()
        self._clearing: asyncio.Task[None] | None = None
        self.remnant_count = 0  # ids with rows that have no chat, when this process last looked

    async def fork_chat(self, asked: Forking) -> Answer:
        clock = Countdown(LARGE_DEADLINE_S)
        begun, answer = False, None
        try:
            while answer is None:
                if clock.left_s() <= 0:
                    raise StoreTimeout(
                        f"chat {asked.chat_id!r} could not be copied within {LARGE_DEADLINE_S:g} s; nothing was made"
                    )
                try:
                    answer = await self.fork_slice(asked)
                    begun = True
                except Occupied as occupied:
                    if begun and occupied.taken:
                        why = f"another fork is being made under the id {asked.new_id!r}"
                        raise RefusedError(why, reason="state", state=State.IDLE, command="fork") from occupied
                    await self.vacate(asked.new_id, clock)
        finally:
            if begun and (answer is None or answer.chat_id != asked.new_id):
                self.clear_later(asked.new_id)
        return answer

    async def delete_chat(
        self, chat_id: str, children: DeleteChildren, archived_before: int | None = None
    ) -> tuple[str, ...]:
        deleted, left = await self.take_out(chat_id, children, archived_before)
        done = not left
        try:
            done = done or await self._clear_all(deleted, Countdown(LARGE_DEADLINE_S))
        except StoreError as error:  # it is deleted all the same
            extra = {"action": "remnants.waiting", "chat": chat_id, "error": str(error)}
            log.warning("not all rows of a deleted chat are removed yet", extra=extra)
        finally:
            if not done:
                self.clear_later()
        return deleted

    # --- rows without a chat --------------------------------------------------------------------------------------

    async def clear_remnants(self, within_s: float) -> None:
        clock = Countdown(within_s)
        records = await self.read_remnants()
        for record in self._watch.abandoned(records, self._options.clock.boot_ms()):
            await self.give_up_fork(record.chat_id, record.pos)
            records = [*records, Remnant(chat_id=record.chat_id)]
        self.remnant_count = len(records)
        if going := [record.chat_id for record in records if record.source_id is None]:
            await self._clear_all(going, clock)
            self.remnant_count = len(await self.read_remnants())

    def saw_none(self) -> None:
        """There was no row without a chat a moment ago."""
        self._watch.abandoned((), self._options.clock.boot_ms())
        self.remnant_count = 0

    async def vacate(self, chat_id: str, clock: Countdown) -> None:
        """What is under this id goes, a fork that is being made among it."""
        await self.give_up_fork(chat_id)
        await self._clear_all([chat_id], clock)

    async def _clear_all(self, chat_ids: Sequence[str], clock: Countdown) -> bool:
        """False: there was no time for all of it."""
        for start in range(0, len(chat_ids), SWEPT_MAX):
            some = chat_ids[start : start + SWEPT_MAX]
            while await self.clear_slice(some):
                if clock.left_s() <= 0:
                    return False
        return True

    def clear_later(self, chat_id: str | None = None) -> None:
        """Beside whatever else is done here, until nothing is left; with a fork of our own that came to nothing."""
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.get_running_loop().create_task(self._clear_on(chat_id))

    async def _clear_on(self, chat_id: str | None) -> None:
        while True:
            try:
                if chat_id is not None:
                    await self.vacate(chat_id, Countdown(LARGE_DEADLINE_S))
                    chat_id = None
                await self.clear_remnants(LARGE_DEADLINE_S)
                if not self.remnant_count:
                    return
            except StoreClosed:
                return
            except StoreError as error:
                log.warning("rows could not be removed: %s", error, extra={"action": "remnants.waiting"})
            await asyncio.sleep(CLEARING_INTERVAL_S)

    async def stop_clearing(self) -> None:
        """When the store is closed. The next process that opens it goes on."""
        task, self._clearing = self._clearing, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # --- steps, each one transaction ------------------------------------------------------------------------------

    @abstractmethod
    async def fork_slice(self, asked: Forking) -> Answer | None:
        """The next slice of a fork. None: there is more to copy. Raises Occupied, NotFound, …"""

    @abstractmethod
    async def take_out(
        self, chat_id: str, children: DeleteChildren, archived_before: int | None = None
    ) -> tuple[tuple[str, ...], bool]:
        """After it these chats are gone for every reader. True: rows of them are left."""

    @abstractmethod
    async def clear_slice(self, chat_ids: Sequence[str]) -> bool:
        """A slice of the rows under these ids, those of them whose rows are to go. True: some are left."""

    @abstractmethod
    async def read_remnants(self) -> list[Remnant]:
        """At most SWEPT_MAX records."""

    @abstractmethod
    async def give_up_fork(self, chat_id: str, pos: int | None = None) -> None:
        """The rows of a fork that is not whole are to go. Where a position is told, only if it still stands there."""
