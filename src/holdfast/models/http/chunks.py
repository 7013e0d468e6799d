"""Small chunks of a chunked HTTP response, joined before the parser sees them.

Providers send a chunk per token. When a read brings many, h11 and httpcore2 hand them on one by one, at some 25 µs
each; joined, they pass as one. Only the framing of what is already here changes, as any proxy may change it: nothing
is delayed, nothing is held but half a size line, and whatever looks odd passes untouched for the parser to judge.
"""

import re

_HEAD_BYTES_MAX = 64 << 10
_SIZE_LINE_BYTES_MAX = 32
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.I)
_FINAL = re.compile(rb"HTTP/1\.[01] [2-5]")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")


class Joiner:
    """The bytes of one connection, response after response. `restart` when a request is sent."""

    __slots__ = ("_body", "_head", "_held", "_left")

    def __init__(self) -> None:
        self._head: bytes | None = None  # of the response, as far as it is here; None: past it
        self._body = False  # in a chunked body
        self._held = b""  # half a size line
        self._left = 0  # of a chunk that is only partly here; passed on as it comes

    def restart(self) -> None:
        self._head, self._body, self._held, self._left = b"", False, b"", 0

    def feed(self, data: bytes) -> bytes:
        if self._body:
            return self._join(data)
        if self._head is None or not data:
            return data
        before = len(self._head)
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _HEAD_BYTES_MAX:
                self._head = None
            return data
        end += 4
        head, self._head = self._head[:end], None
        self._body = _FINAL.match(head) is not None and _CHUNKED.search(head) is not None
        if not self._body:
            return data
        return data[: end - before] + self._join(data[end - before :])

    def _join(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        at = min(self._left, len(data))
        self._left -= at
        passed, start = [data[:at]], at
        whole: list[bytes] = []
        while at < len(data):
            line_end = data.find(b"\r\n", at, at + _SIZE_LINE_BYTES_MAX)
            size_line = data[at:line_end] if line_end >= 0 else b""
            if line_end < 0 and len(data) - at < _SIZE_LINE_BYTES_MAX:
                self._held = data[at:]
                break
            size = int(size_line, 16) if _SIZE.fullmatch(size_line) else 0
            after = line_end + 2 + size + 2
            if not size or (after <= len(data) and data[after - 2 : after] != b"\r\n"):
                self._body = False  # the last chunk, or nothing we understand
                return b"".join((*passed, *self._framed(whole, data[start:at]), data[at:]))
            if after > len(data):
                self._left = after - len(data)
                return b"".join((*passed, *self._framed(whole, data[start:at]), data[at:]))
            whole.append(data[line_end + 2 : after - 2])
            at = after
        return b"".join((*passed, *self._framed(whole, data[start:at])))

    @staticmethod
    def _framed(whole: list[bytes], as_it_came: bytes) -> tuple[bytes, ...]:
        if len(whole) < 2:
            return (as_it_came,)
        return (b"%x\r\n" % sum(map(len, whole)), *whole, b"\r\n")
