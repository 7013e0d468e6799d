"""Server-sent events, from bytes as they come. Bounded: no line, no event and no buffer grows past its limit.

Everything is bytes: what is split in the middle of a character, or of a line ending, joins again here. The rules are
those of the HTML standard: lines end in LF, CRLF or CR; a colon first makes a comment; an empty line ends an event;
what comes after the last empty line is dropped.
"""

from holdfast.core.records import Frozen
from holdfast.errors import LostResult

LINE_BYTES_MAX = 8 << 20
EVENT_BYTES_MAX = 8 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(Frozen):
    data: bytes
    name: bytes = b""


class EventReader:
    """`feed` it chunks; it returns the events that they complete. Comments, ids and retry times are dropped."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._event_bytes_max = event_bytes_max
        self._tail: list[bytes] = []  # the pieces of an unfinished line
        self._tail_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF; its first half ended the line
            self._after_cr = False
            if not chunk:
                return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        if lines and self._tail:
            lines[0] = b"".join((*self._tail, lines[0]))
            self._tail.clear()
            self._tail_bytes = 0
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
            if self._tail_bytes > self._line_bytes_max:
                raise self._too_large("a line", self._line_bytes_max)
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._add_data(line)
            elif not line:
                if self._data:
                    events.append(self._take())
                self._name = b""
            else:
                self._other(line)
        return events

    def _add_data(self, line: bytes) -> None:
        value = line[6:] if line[5:6] == b" " else line[5:]
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if len(line) > self._line_bytes_max:
            raise self._too_large("a line", self._line_bytes_max)
        if self._data_bytes > self._event_bytes_max + 1:
            raise self._too_large("an event", self._event_bytes_max)

    def _other(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.removeprefix(b" ")
        elif field == b"data":  # without a colon: an empty line of data
            self._add_data(b"data:")

    def _take(self) -> SseEvent:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._data_bytes = 0
        return SseEvent(data=data, name=self._name)

    @staticmethod
    def _too_large(what: str, bytes_max: int) -> LostResult:
        return LostResult(f"the stream holds {what} of more than {bytes_max:,} bytes, which is the limit")
