"""The `look` tool: a picture, or a film as pictures of it, shown to the agent's own model or asked of another."""

import base64
import os
from collections.abc import Sequence
from typing import Annotated

from msgspec.structs import replace
from pydantic import Field

from holdfast.core.records import File
from holdfast.errors import ToolFailed
from holdfast.tools.base import Tool, ToolOutput, tool
from holdfast.tools.context import tool_context
from holdfast.tools.files.pictures import SHOWN_BYTES_MAX
from holdfast.tools.media import programs
from holdfast.tools.media.sources import Medium, Sources, acts_of, closing, place
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.web.client import Resolver

DEADLINE_S = 900.0
FRAMES = 6
FRAMES_MAX = 12
QUESTION_CHARS_MAX = 4_000


def look_tool(
    root: str | os.PathLike[str], *, model: str | None = None, name: str = "look", resolve: Resolver | None = None
) -> Tool:
    """Look at a picture (PNG, JPEG, GIF, WebP), a PDF or a film, a file below `root` or a URL.

    Without `model` the agent's own model sees it. With one, such as "openai:gpt-6.1-terra", that model is asked about
    it, by the path of all model calls; its words come back, and what it takes counts in the budgets of the chat.
    Films need ffmpeg. Hosts are judged as for `fetch_tool`, paths as for `file_tools`.
    """
    looker = _Looker(Sources(root, resolve), model)
    made = tool(name=name, replay="pure", deadline_s=DEADLINE_S, acts=acts_of, untrusted=True)(looker.look)
    return replace(made, whereabouts=Whereabouts(root=looker.sources.root.path, confined=True))


class _Looker:
    def __init__(self, sources: Sources, model: str | None) -> None:
        self.sources = sources
        self._model = model

    async def look(
        self,
        source: Annotated[str, Field(max_length=8_000, description="A path, or an http or https URL.")],
        question: Annotated[
            str, Field(max_length=QUESTION_CHARS_MAX, description="What you want to know of it.")
        ] = "Describe what you see.",
        frames: Annotated[int, Field(ge=1, le=FRAMES_MAX, description="Of a film: how many pictures.")] = FRAMES,
    ) -> ToolOutput:
        """Look at a picture, a PDF or a film: a file, or a URL. Of a film you see pictures in even distances."""
        async with place():
            with closing(await self.sources.opened(source)) as medium:
                told, files = await self._seen(medium, frames)
            if self._model is None:
                return ToolOutput(text=told, files=tuple(files))
            answer = await tool_context().ask_model(self._model, question, files)
            return ToolOutput(text=f"{told}\n\n{answer}")

    async def _seen(self, medium: Medium, count: int) -> tuple[str, Sequence[File]]:
        if medium.family == "audio":
            raise ToolFailed(f"{medium.name} is {medium.kind}: there is nothing to see, it can be transcribed")
        if medium.family != "video":
            data = medium.bytes(SHOWN_BYTES_MAX)
            return f"[{medium.name}: {medium.kind}, {medium.size:,} bytes]", [_file(data, medium.kind, medium.name)]
        found = await programs.frames(medium, count)
        seconds = ", ".join(f"{at_s:.1f}" for at_s, _ in found)
        told = f"[{medium.name}: {medium.kind}, {medium.size:,} bytes; pictures at second {seconds}]"
        return told, [_file(data, "image/jpeg", f"second-{at_s:.1f}.jpg") for at_s, data in found]


def _file(data: bytes, kind: str, name: str) -> File:
    uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return File(media_type=kind, uri=uri, name=name.rpartition("/")[2], size_bytes=len(data))
