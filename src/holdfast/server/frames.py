"""A chat's journal as it goes over the wire, one frame per item: made once, for all of its readers."""

from collections.abc import Iterable, Iterator

from holdfast.core.journal import FOR_OPERATORS
from holdfast.store.records import Item, Page

HEAD_BYTES = 128  # of a frame, about
BATCH_BYTES = 64 << 10  # that are written at once


class Frame:
    """One item of the journal, for all of its readers. `rest`: nothing comes after it until a client does something;
    a frame without an item tells of that alone.
    """

    __slots__ = ("_data", "cursor", "item", "rest")

    def __init__(self, cursor: str, item: Item | None = None, *, rest: bool = False) -> None:
        self.cursor = cursor
        self.item = item
        self.rest = rest
        self._data: bytes | None = None

    @property
    def data(self) -> bytes:
        """As it goes over the wire: encoded once, when the first reader needs it so."""
        if self._data is None:
            item = self.item  # what is for operators is not shown: the reader's place moves past it
            self._data = b"" if item is None or item.body.startswith(FOR_OPERATORS) else encoded(item)
        return self._data

    @property
    def bytes(self) -> int:
        """What it takes in memory: the item, and beside it the same as it goes over the wire."""
        return 2 * len(self.item.body) + HEAD_BYTES if self.item is not None else 0


class Batch(list[Frame]):
    """Frames that several readers get together. Not changed once it is given to one."""

    __slots__ = ("_whole",)

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        super().__init__(frames)
        self._whole: bytes | None = None

    def pieces(self) -> Iterable[bytes]:
        """To be written. What goes in one piece is joined once for all readers; more is not kept a second time."""
        if self._whole is None:
            if sum(frame.bytes for frame in self) > BATCH_BYTES:
                return joined(frame.data for frame in self)
            self._whole = b"".join(frame.data for frame in self)
        return (self._whole,) if self._whole else ()


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Few large writes instead of many small ones."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        if not piece:
            continue
        if len(piece) >= BATCH_BYTES and batch:
            yield b"".join(batch)  # so that a large one is sent as it is, and not copied for each reader
            batch, size = [], 0
        batch.append(piece)
        size += len(piece)
        if size >= BATCH_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


def frames_of(page: Page) -> Batch:
    frames = Batch(Frame(item.cursor, item) for item in page.items)
    if page.at_rest:
        last = frames.pop() if frames else Frame(page.cursor)
        frames.append(Frame(last.cursor, last.item, rest=True))
    return frames


def encoded(item: Item) -> bytes:
    """A journal entry is named by its kind, a piece of a stream is a `delta`; the stored JSON is used as it is."""
    if item.seq is not None:
        head = b'{"seq":%d,"at":%d,' % (item.seq, item.at)
        name = _kind(item.body)
    else:
        head = b'{"kind":"delta","attempt":%d,"k":%d,"at":%d,' % (item.attempt or 0, item.k or 0, item.at)
        name = b"delta"
    return b"id: %s\nevent: %s\ndata: %s%s\n\n" % (item.cursor.encode(), name, head, item.body[1:])


def _kind(body: bytes) -> bytes:
    """Its `kind` is the first field of every entry we write."""
    prefix = b'{"kind":"'
    return body[len(prefix) : body.index(b'"', len(prefix))] if body.startswith(prefix) else b"message"
