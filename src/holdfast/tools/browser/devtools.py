"""The Chrome DevTools Protocol over two pipes: JSON, each message ended by a NUL. Each command has a deadline, and
everything that is kept a bound.

There is no library between us and the browser: those that there are start and supervise it themselves, in a process
of their own that no guard of ours knows, and keep whatever a page makes them keep.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import ToolFailed
from holdfast.system.capture import PipeReader

COMMAND_S = 15.0
MESSAGE_BYTES_MAX = 8 << 20
UNSENT_BYTES_MAX = 1 << 20
_NOTHING = Raw(b"null")
# A page's text may hold halves of characters (UTF-16), which the browser sends as they are, and no JSON may hold.
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class BrowserLost(ToolFailed):
    """The browser is gone, or has to go: it broke a bound, or does not answer."""


class _Fault(msgspec.Struct):
    message: str = ""


class _Envelope(msgspec.Struct):
    id: int | None = None
    method: str | None = None
    params: Raw = _NOTHING
    result: Raw = _NOTHING
    error: _Fault | None = None


class DevTools:
    """A browser's end of the pipes is elsewhere; both of ours are closed by `close`. Belongs to one event loop."""

    def __init__(self, commands: int, answers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._commands = commands
        self._unsent = bytearray()
        self._writing = False
        self._heard = bytearray()
        self._searched = 0  # of what was heard: no NUL is in it
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        self.lost: str | None = None  # why nothing is asked any more
        os.set_blocking(commands, False)
        self._reader = PipeReader(answers, None, self._hear)

    def listen(self, event: str, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Called on the loop, with each such event. It must be quick; what it raises ends the browser."""
        self._listeners[event] = listener

    async def ask(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        session: str = "",
        within_s: float | None = None,
    ) -> Any:
        """Raises ToolFailed for what the browser refuses, BrowserLost where it does not answer."""
        most_s = COMMAND_S if within_s is None else within_s
        number = self._send(method, parameters, session)
        answer = self._waiting[number] = self._loop.create_future()
        try:
            async with asyncio.timeout(most_s):
                return await answer
        except TimeoutError:
            raise BrowserLost(f"the page did not answer within {most_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def tell(self, method: str, parameters: Mapping[str, Any] | None = None, *, session: str = "") -> None:
        """Without waiting for an answer. From a listener, too."""
        with suppress(BrowserLost):
            self._send(method, parameters, session)

    def lose(self, why: str) -> None:
        """Nothing more is asked or heard; who waits is told why. The first reason counts."""
        if self.lost is None:
            self.lost = why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrowserLost(self.lost))
                waiting.exception()  # its waiter may have left
        self._waiting.clear()
        self._heard.clear()

    def close(self) -> None:
        self.lose("the browser was ended")
        self._stop_writing()
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1
        self._reader.close()

    # --- what is said -----------------------------------------------------------------------------------------

    def _send(self, method: str, parameters: Mapping[str, Any] | None, session: str) -> int:
        if self.lost is not None:
            raise BrowserLost(self.lost)
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": dict(parameters or {})}
        if session:
            message["sessionId"] = session
        self._unsent += msgspec.json.encode(message) + b"\x00"
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.lose("the browser does not read what it is told")
            raise BrowserLost(str(self.lost))
        self._write()
        return self._last_id

    def _write(self) -> None:
        try:
            while self._unsent and self._commands >= 0:
                del self._unsent[: os.write(self._commands, self._unsent)]
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._commands, self._write)
            return
        except OSError:
            self.lose("the browser has ended")
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._commands)

    # --- what is heard ----------------------------------------------------------------------------------------

    def _hear(self, data: bytes) -> None:
        if self.lost is not None:
            return
        self._heard += data
        while (end := self._heard.find(b"\x00", self._searched)) >= 0:  # none is left once it is lost
            message = bytes(self._heard[:end])
            del self._heard[: end + 1]
            self._searched = 0
            self._take(message)
        self._searched = len(self._heard)
        if len(self._heard) > MESSAGE_BYTES_MAX:
            self.lose(f"the browser said more than {MESSAGE_BYTES_MAX:,} bytes at once")

    def _take(self, message: bytes) -> None:
        try:
            envelope = _envelope(message)
            if envelope.id is not None:
                self._answer(envelope)
            elif envelope.method in self._listeners:
                parameters = msgspec.json.decode(envelope.params)
                self._listeners[envelope.method](parameters if isinstance(parameters, dict) else {})
        except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError) as error:
            self.lose(f"the browser said what cannot be understood ({type(error).__name__})")

    def _answer(self, envelope: _Envelope) -> None:
        waiting = self._waiting.get(envelope.id or 0)
        if waiting is None or waiting.done():
            return
        if envelope.error is not None:
            waiting.set_exception(ToolFailed(f"the browser refused: {envelope.error.message[:300]}"))
        else:
            waiting.set_result(msgspec.json.decode(envelope.result))


def _envelope(message: bytes) -> _Envelope:
    try:
        return msgspec.json.decode(message, type=_Envelope)
    except msgspec.DecodeError:
        return msgspec.json.decode(_HALF.sub(rb"\\ufffd", message), type=_Envelope)
