"""What an MCP server answers, as text and files for a model; and the ways in which there is no answer.

Nothing of it is trusted. A picture is one if its first bytes say so, whatever the server calls it: what a provider
would refuse must not get into a history. What a model cannot be shown is described, with its kind and its size.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.records import File, Frozen
from holdfast.tools.base import FILES_BYTES_MAX, FILES_MAX, ToolOutput, output_text
from holdfast.tools.files.pictures import SHOWN_BYTES_MAX, media_type

KIND_CHARS_MAX = 100
URI_CHARS_MAX = 2_000
HEAD_CHARS = 64  # in base64: what is looked at before all of it is


class ServerAnswer(Frozen):
    text: str
    files: tuple[File, ...] = ()
    error: bool = False

    @property
    def output(self) -> ToolOutput:
        return ToolOutput(text=self.text, files=self.files)


class NotSent(Exception):
    """The server never had this request: it can be sent again, whatever it does."""


class Unrenewed(NotSent):
    """The server never had this request, for want of tokens: that says nothing about the server."""


class LoginNeeded(Exception):
    """The server did nothing: it wants to know who asks, and a person has to log in."""


class Lost(Exception):
    """The connection went while the request was under way: what became of it is not known."""


class ErrorAnswer(Exception):
    """The server answered with an error."""


class LinksWanted(ErrorAnswer):
    """The server answered that the person has to open a link first. Each has the words that go with it."""

    def __init__(self, words: str, links: Sequence[tuple[str, str]]) -> None:
        super().__init__(words)
        self.links = tuple(links)


class UnreadableAnswer(ErrorAnswer):
    """The server answered, and what it said cannot be read."""


def answer_of(
    blocks: Sequence[Mapping[str, Any]], structured: Any, bytes_max: int, *, error: bool = False
) -> ServerAnswer:
    """Texts as they are, pictures as files. `structured` counts where there is no text: a server that sends both says
    the same thing twice.
    """
    files = _Files()
    said = [_block(block, files) for block in blocks]
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        said.insert(0, output_text(structured, bytes_max))
    return ServerAnswer(text=output_text("\n".join(said), bytes_max), files=tuple(files.taken), error=error)


class _Files:
    """Those that the model is shown, within the bounds of one result."""

    def __init__(self) -> None:
        self.taken: list[File] = []
        self._room = FILES_BYTES_MAX

    def show(self, what: str, name: str | None, block: Mapping[str, Any], data: str) -> str:
        """What stands in the text for it."""
        shown = f"{what}, {_kind(block)}, {_size(data):,} bytes"
        kind = _picture(data)
        if kind is None:
            return f"[{shown}: not shown]"
        uri = f"data:{kind};base64,{data}"
        if _size(data) > SHOWN_BYTES_MAX or len(uri) > self._room or len(self.taken) == FILES_MAX:
            return f"[{shown}: too large, or too many, to be shown]"
        try:
            base64.b64decode(data, validate=True)
        except ValueError:  # binascii.Error, and what is not ASCII at all
            return f"[{shown}: not shown, it is no base64]"
        self._room -= len(uri)
        self.taken.append(File(media_type=kind, uri=uri, name=name, size_bytes=_size(data)))
        return f"[{shown}: shown as file {len(self.taken)}]"


def _block(block: Mapping[str, Any], files: _Files) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as what, "data": str(data)}:
            return files.show(what, None, block, data)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return f"[resource {_uri(resource)}]\n{text}"
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            uri = _uri(resource)
            return files.show(f"resource {uri}", uri.rpartition("/")[2] or None, resource, data)
        case {"type": "resource_link"}:
            about = " ".join(str(block[key]) for key in ("name", "description") if block.get(key))
            return f"[resource {_uri(block)}: {about}]" if about else f"[resource {_uri(block)}]"
        case _:
            return f"[{str(block.get('type', 'something'))[:KIND_CHARS_MAX]}: not shown]"


def _picture(data: str) -> str | None:
    """What kind of file its first bytes make it; None if it is none that a model is shown."""
    try:
        return media_type(base64.b64decode(data[:HEAD_CHARS], validate=True))
    except ValueError:
        return None


def _uri(block: Mapping[str, Any]) -> str:
    return str(block.get("uri"))[:URI_CHARS_MAX]


def _kind(block: Mapping[str, Any]) -> str:
    return str(block.get("mimeType") or "of unknown kind")[:KIND_CHARS_MAX]


def _size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
