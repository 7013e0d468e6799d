"""Chats that this worker holds and that no runner of it drives. Its lease is alive, so no other takes them.

Some are known: their runner ended while it held them. The others are found by comparing what the store says with what
is driven, as after a restored backup, which gives back what had ended long ago. All are handed over, each by itself:
one that cannot be, because it is locked, unreadable or wrong in an unforeseen way, keeps the worker neither
from the others nor from claiming.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Set

from holdfast.core.commands import Command, LeaseExpired, Release, Writer
from holdfast.core.records import State
from holdfast.errors import CallerError, OwnershipLost, RecordError, StoreError, UnknownRecord
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.store.records import Held
from holdfast.system.clock import dice

log = logger("holdfast.worker")

COMPARE_S = 5.0
COMPARE_AGAIN_S = 1.0  # after a look that found something
AT_ONCE_MAX = 8
UNREADABLE_MS = 5_000  # how long a chat of newer code is left alone


class Strays:
    """One per worker. `name` and `driven` tell what the worker is called and drives at this moment."""

    def __init__(
        self, store: Store, secrets: Secrets, name: Callable[[], str], driven: Callable[[], Set[Held]]
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._name = name
        self._driven = driven
        self._known: dict[Held, BaseException | None] = {}  # and what their runner ended with
        self._wanted = asyncio.Event()  # there is a new one
        self._unaccounted: frozenset[Held] = frozenset()  # found by the last look
        self._begun_then = 0
        self.claims_begun = 0
        self.claims_ended = 0
        self.found = 0  # by comparing

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[str, int, BaseException | None]]:
        return ((chat_id, claim_stamp, error) for (chat_id, claim_stamp), error in list(self._known.items()))

    def add(self, chat_id: str, claim_stamp: int, error: BaseException | None) -> None:
        self._known[chat_id, claim_stamp] = error
        self._wanted.set()

    async def run_forever(self) -> None:
        while True:
            pause_s = COMPARE_S
            try:
                if await self.run_once():
                    pause_s = COMPARE_AGAIN_S
            except Exception as error:  # noqa: BLE001  what it would find must not wait for a restart
                self._tell("compare_failed", error)
            await self._let_go_while_waiting(pause_s * dice.uniform(0.8, 1.2))

    async def _let_go_while_waiting(self, pause_s: float) -> None:
        """Those that become known meanwhile go at once; one that failed waits for the next look."""
        loop = asyncio.get_running_loop()
        until = loop.time() + pause_s
        while (left_s := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._wanted.wait()
            except TimeoutError:
                return
            await self.let_go()

    async def run_once(self) -> bool:
        """Let go of all that is known, then compare. True: a chat was found that the next look may confirm."""
        await self.let_go()
        return await self._compare()

    # --- comparing --------------------------------------------------------------------------------------

    async def _compare(self) -> bool:
        """A chat that nothing accounts for in two looks is one. A claim that had begun by the first look and has not
        ended by the second may still bring it: then the third decides.
        """
        claims_heard = self.claims_ended >= self._begun_then
        held = await self._store.held_chats(self._name())
        unaccounted = frozenset(held - self._driven() - self._known.keys())
        confirmed = unaccounted & self._unaccounted if claims_heard else frozenset()
        for chat_id, claim_stamp in sorted(confirmed):
            self.found += 1
            extra = {"action": "not_driven", "chat": chat_id}
            log.warning("a chat is held and not driven: it is let go", extra=extra)
            self.add(chat_id, claim_stamp, None)
        if claims_heard or not self._unaccounted:
            self._begun_then = self.claims_begun
            self._unaccounted = unaccounted - confirmed
        else:
            self._unaccounted &= unaccounted
        await self.let_go()
        return bool(self._unaccounted)

    # --- letting go -------------------------------------------------------------------------------------

    async def let_go(self) -> None:
        """Each once, unless the store fails for several in a row: the rest waits for the next time. Never raises."""
        self._wanted.clear()
        known = list(self._known)
        for start in range(0, len(known), AT_ONCE_MAX):
            some = known[start : start + AT_ONCE_MAX]
            if not any(await asyncio.gather(*map(self._settle, some))):
                return

    async def _settle(self, claim: Held) -> bool:
        """False: the store failed. One that newer code made unreadable stays ours until it can be read, or our lease
        ends: then a worker that can read it takes it back.
        """
        try:
            await self._hand_over(*claim, self._known.get(claim))
        except (CallerError, OwnershipLost):
            pass  # it is gone, or not ours any more
        except RecordError:
            return True
        except Exception as error:  # noqa: BLE001  of this chat: the others go on, and so do claims
            self._tell("letting_go_failed", error, chat=claim[0])
            if claim in self._known:
                self._known[claim] = self._known.pop(claim)  # behind the others
            return not isinstance(error, StoreError)
        self._known.pop(claim, None)
        return True

    async def _hand_over(self, chat_id: str, claim_stamp: int, error: BaseException | None) -> None:
        """As what it is: cleanly, or as after a crash if the runner broke. Not under another claim: where the
        database lost the first, this worker may drive the chat under one of the same number.
        """
        name = self._name()
        snapshot = await self._store.read_chat(chat_id)
        chat = snapshot.chat
        held = (chat.worker, chat.claim_stamp) == (name, claim_stamp)
        if not held or chat.state not in (State.RUNNING, State.STOPPING):
            return
        by = Writer(name, chat.fence, chat.epoch)
        command: Command = Release(by=by)
        if isinstance(error, UnknownRecord):
            command = Release(by=by, delay_ms=UNREADABLE_MS)
        elif error is not None and not isinstance(error, StoreError):
            command = LeaseExpired(worker=name, why=self._secrets.taken_out(described(error)))
        await self._store.commit(snapshot, (command,), new_id("commit"))

    def _tell(self, action: str, error: Exception, **about: str) -> None:
        known = isinstance(error, StoreError)
        extra = {"action": action, "error": described(error), **about}
        log.log(logging.WARNING if known else logging.ERROR, action, extra=extra, exc_info=None if known else error)


def described(error: BaseException) -> str:
    """In one line. An error of a user's code may fail to say what it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  as above
        return type(error).__name__
