"""A response's body, unpacked and bounded: however small a bomb is, what comes out of it stops at the limit."""

import zlib

from holdfast.errors import ToolFailed

_ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Unpacker:
    """`feed` until it says that it is enough; then `data` is what there is; `cut`: more would come."""

    def __init__(self, encoding: str, bytes_max: int) -> None:
        names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
        if len(names) > 1 or any(name not in _ENCODINGS for name in names):
            raise ToolFailed(f"it is packed in a way that was not asked for: {encoding[:100]!r}")
        self._window = _ENCODINGS[names[0]] if names else None
        self._zip = None if self._window is None else zlib.decompressobj(self._window)
        self._bytes_max = bytes_max
        self._received = 0
        self.data = bytearray()
        self.cut = False

    def feed(self, piece: bytes) -> bool:
        """True while there is room for more."""
        first = self._received == 0
        self._received += len(piece)
        if self._zip is None:
            self._add(piece)
        else:
            self._unpack(piece, first)
        if self._received > self._bytes_max:  # nothing but headers of packed files, say
            self.cut = True
        return not self.cut

    def _unpack(self, piece: bytes, first: bool) -> None:
        while piece and not self.cut:
            assert self._zip is not None
            if self._zip.eof:  # a gzip file may be several, one after the other
                self._zip = zlib.decompressobj(self._window or 31)
            try:
                self._add(self._zip.decompress(piece, self._bytes_max - len(self.data) + 1))
            except zlib.error as error:
                if not (first and self._window == 15):
                    raise ToolFailed(f"it cannot be unpacked: {error}") from None
                self._zip, first = zlib.decompressobj(-15), False  # what many servers mean by deflate
                continue
            piece = self._zip.unconsumed_tail or self._zip.unused_data

    def _add(self, data: bytes) -> None:
        room = self._bytes_max - len(self.data)
        self.data += data[:room]
        self.cut = self.cut or len(data) > room

    def end(self) -> None:
        """The body is complete, it says."""
        if self._zip is not None and self._received and not self._zip.eof:
            raise ToolFailed("it is packed, and ends too early")
