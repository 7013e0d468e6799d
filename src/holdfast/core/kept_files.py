"""Files that are kept once: what stands in a message in place of the bytes, and how it becomes the bytes again.

A message that holds an image as a data: URI would carry it through every journal line, queue, copy and page. So the
bytes are put aside under their SHA-256, and the part names them: `holdfast:files/` and the digest. What is put aside
comes back character for character; a data: URI of which that is not true, and a short one, stays where it is.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from holdfast.core.commands import Command, Edit, Give, Send, Submit
from holdfast.core.records import File, Message, NewChat, Part, Text, ToolResult

SCHEME = "holdfast:files/"
INLINE_CHARS_MAX = 2_000  # of a URI that stays in its message
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Content(NamedTuple):
    digest: str
    data: bytes


class Aside(NamedTuple):
    """What a write brings beside its rows: bytes to keep, and the digests of such as must be kept already."""

    contents: tuple[Content, ...] = ()
    named: frozenset[str] = frozenset()


NOTHING_ASIDE = Aside()


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kept_digest(file: File) -> str | None:
    """Of a file that is put aside; None for any other."""
    if not file.uri.startswith(SCHEME):
        return None
    digest = file.uri.removeprefix(SCHEME)
    return digest if _DIGEST.fullmatch(digest) else None


def put_aside(file: File) -> tuple[File, Content] | None:
    """None: it stays as it is."""
    head = f"data:{file.media_type};base64,"
    if len(file.uri) <= INLINE_CHARS_MAX or not file.uri.startswith(head):
        return None
    written = file.uri[len(head) :]
    try:
        data = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        return None
    if base64.b64encode(data).decode() != written:
        return None
    content = Content(digest_of(data), data)
    return replace(file, uri=SCHEME + content.digest, size_bytes=len(data)), content


def whole(file: File, data: bytes) -> File:
    """As it was before it was put aside."""
    return replace(file, uri=f"data:{file.media_type};base64,{base64.b64encode(data).decode()}")


def instead(file: File, why: str) -> Text:
    """What a model is told of a file that it is not shown."""
    return Text(text=f"[the file {file.name or file.media_type} is not here: {why}]")


def inline_bytes(file: File) -> bytes | None:
    """Of a data: URI; None for anything else."""
    head, comma, written = file.uri.partition(",")
    if not comma or not head.startswith("data:"):
        return None
    data = unquote_to_bytes(written)
    try:
        return base64.b64decode(data) if head.endswith(";base64") else data
    except binascii.Error:
        return None


# --- in messages ------------------------------------------------------------------------------------------------


def files_in(parts: Iterable[Part]) -> Iterator[File]:
    for part in parts:
        if isinstance(part, File):
            yield part
        elif isinstance(part, ToolResult):
            yield from part.files


def kept_in(messages: Iterable[Message]) -> set[str]:
    """The digests of what these messages name."""
    found = (kept_digest(file) for message in messages for file in files_in(message.parts))
    return {digest for digest in found if digest is not None}


def with_files(message: Message, changed: Callable[[File], File | Text]) -> Message:
    """Each of its files as `changed` makes it. A result holds its files beside its text: a text joins that."""
    return replace(message, parts=tuple(_changed(part, changed) for part in message.parts))


def _changed(part: Part, changed: Callable[[File], File | Text]) -> Part:
    if isinstance(part, File):
        return changed(part)
    if not isinstance(part, ToolResult) or not part.files:
        return part
    made = [changed(file) for file in part.files]
    said = "".join(f"\n{one.text}" for one in made if isinstance(one, Text))
    return replace(part, content=part.content + said, files=tuple(one for one in made if isinstance(one, File)))


# --- on their way in ----------------------------------------------------------------------------------------------

Brought = TypeVar("Brought", NewChat, Command)


def files_of(brought: NewChat | Command) -> Iterator[File]:
    """All that a client's write brings."""
    match brought:
        case NewChat():
            for message in brought.messages:
                yield from files_in(message.parts)
        case Give():
            for message in brought.messages:
                yield from files_in(message.parts)
        case Send() | Edit():
            yield from files_in(brought.message.parts)
        case Submit():
            yield from brought.files


class Sorter:
    """Takes the bytes out of what a write brings, and remembers them."""

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}
        self._named: set[str] = set()

    @property
    def aside(self) -> Aside:
        return Aside(tuple(self._contents.values()), frozenset(self._named))

    def file(self, file: File) -> File:
        if (named := kept_digest(file)) is not None:
            self._named.add(named)
        if (found := put_aside(file)) is None:
            return file
        kept, content = found
        self._contents[content.digest] = content
        return kept

    def files(self, files: Iterable[File]) -> tuple[File, ...]:
        return tuple(map(self.file, files))

    def message(self, message: Message) -> Message:
        return with_files(message, self.file) if any(files_in(message.parts)) else message

    def brought(self, brought: Brought) -> Brought:
        match brought:
            case NewChat():
                first = self.message(brought.message) if brought.message is not None else None
                past, since = map(self.message, brought.past), map(self.message, brought.since)
                return replace(brought, past=tuple(past), message=first, since=tuple(since))
            case Give():
                return replace(brought, messages=tuple(map(self.message, brought.messages)))
            case Send() | Edit():
                return replace(brought, message=self.message(brought.message))
            case Submit():
                return replace(brought, files=self.files(brought.files))
            case _:
                return brought
