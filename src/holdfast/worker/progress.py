"""What a tool says while it runs, or a model before it answers, on its way into the journal: gathered, at most a few
commits a second, bounded.

The first words go out at once, what follows within a fifth of a second goes out together, and the last ones with the
outcome, in one commit.
"""

import asyncio
import threading
from contextlib import suppress

from holdfast.core import commands as cmd
from holdfast.core.codec import storable
from holdfast.errors import HoldfastError
from holdfast.worker.held_chat import HeldChat
from holdfast.worker.history_cache import Moved

INTERVAL_S = 0.2
NOTE_CHARS_MAX = 8_192  # of one note: the newest are kept
CALL_CHARS_MAX = 262_144  # of one call: beyond that clients hear no more of its progress
TOPIC = "progress"


class ProgressNotes:
    """Of one call, or of the model if there is no `call_id`. `say` may be called from any thread, however often: the
    loop is woken once for all that is said until it comes. All else belongs to the loop.
    """

    def __init__(self, held: HeldChat, call_id: str | None = None) -> None:
        self._held = held
        self._call_id = call_id
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the three below
        self._pending = ""
        self._said_chars = 0
        self._waking = False
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def say(self, text: str) -> None:
        text = str(text)
        with self._lock:
            if self._said_chars >= CALL_CHARS_MAX:
                return
            self._said_chars += len(text)
            self._pending = (self._pending + text[-NOTE_CHARS_MAX:])[-NOTE_CHARS_MAX:]
            if self._waking:
                return
            self._waking = True
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            self._waking = False
        if self._task is None and not self._ended.is_set():
            self._task = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while not self._ended.is_set() and (note := self._take()):
                await self._held.commit(note)
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL_S):
                        await self._ended.wait()
        except (Moved, HoldfastError):
            return  # the call's own commit will meet the same, and say so
        finally:
            self._task = None

    def _take(self) -> cmd.Note | None:
        with self._lock:
            text, self._pending = self._pending, ""
        if not text:
            return None
        return cmd.Note(by=self._held.by, topic=TOPIC, text=storable(text), call_id=self._call_id)

    async def rest(self) -> list[cmd.Command]:
        """What is still to be said, for the commit of the outcome. Nothing is said after it."""
        with self._lock:
            self._said_chars = CALL_CHARS_MAX
        self._ended.set()
        if self._task is not None:
            await asyncio.wait((self._task,))  # not cancelled: words on their way to the store would be lost
        return [note] if (note := self._take()) is not None else []
