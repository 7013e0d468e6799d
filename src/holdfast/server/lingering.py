"""The end of a connection: its answer arrives, whatever the client was still saying.

A connection that is closed over unread bytes is reset, and the answer lost. So `close` hears a client out that is
still sending, for a moment and unread. That a connection ends is one state, `is_closing`: from then on nothing that
comes is taken.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Any, Protocol

LEAVE_S = 2.0

_SO_NWRITE = 0x1024  # of macOS


def in_kernel(connection: socket.socket) -> int:
    """Bytes that were sent and that the other side has not confirmed."""
    if sys.platform == "darwin":
        return connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
    (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(count)


class Listener(Protocol):
    """The protocol of the connection."""

    def has_more(self) -> bool:
        """Whether something is here that comes before what is still to be read."""

    def has_unheard(self) -> bool:
        """Whether the client is in the midst of saying something, or has said what was not taken."""

    def end(self) -> None:
        """The connection ends: what is here is of no use any more."""


class LingeringTransport(asyncio.Transport):
    def __init__(self, transport: asyncio.Transport, listener: Listener) -> None:
        super().__init__()
        self._transport = transport
        self._listener = listener
        self._lingers = False

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        if self._lingers:
            return
        if self._transport.is_closing() or not (self._listener.has_unheard() or self.has_unread()):
            self._transport.close()
            return
        self._lingers = True
        self._listener.end()
        try:
            self._transport.write_eof()
        except OSError:  # it has left meanwhile, which a transport that does not read is not told of
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._leave_later()

    def _leave_later(self) -> None:
        asyncio.get_running_loop().call_later(LEAVE_S, self._leave, self.untaken())

    def _leave(self, untaken: int) -> None:
        """A client that is still taking its answer gets all of it."""
        if self._transport.is_closing():
            return
        if self.get_write_buffer_size() and self.untaken() < untaken:
            self._leave_later()
        else:
            self._transport.abort()

    def has_unread(self) -> bool:
        """Whether the kernel has something that the client sent."""
        connection = self.get_extra_info("socket")
        if self._transport.is_closing() or connection is None:
            return False
        return bool(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))[0])

    def untaken(self) -> int:
        """Of what was written. With what the kernel has: it asks for more only once a third of its megabytes is gone,
        which takes a slow link, or a slow client, minutes.
        """
        return self.get_write_buffer_size() + in_kernel(self.get_extra_info("socket"))

    def is_reset(self) -> bool:
        """Whether the other side has refused what was sent to it: its client is gone."""
        return bool(self.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def resume_reading(self) -> None:
        if not self._listener.has_more():
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self._transport.write(data)

    def write_eof(self) -> None:
        self._transport.write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()
