"""What a model is shown of a file: numbered lines, images, PDFs, and no more than there is room for."""

import base64
import os
from pathlib import Path

import pytest

from holdfast.agent import Agent
from holdfast.core.records import File, State, ToolResult
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import FILES_BYTES_MAX, FILES_MAX, ToolOutput, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.files.pictures import SHOWN_BYTES_MAX
from holdfast.tools.files.tools import file_tools
from holdfast.worker.tool_body import Body, Returned
from tests.support.turns import rested, running
from tests.tools.filed import Files

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
NUMBERED = "     1\tone\n     2\ttwo\n"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        (b"GIF89a\x01\x00", "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"%PDF-1.7\n", "application/pdf"),
    ],
)
def test_an_image_or_a_pdf_is_seen_whatever_its_name_is(files: Files, data: bytes, kind: str) -> None:
    (files.root / "d").mkdir()
    (files.root / "d/f.txt").write_bytes(data)
    assert files("read_file", path="d/f.txt") == f"[d/f.txt: {kind}, {len(data)} bytes]"
    found = files.output("read_file", path="d/f.txt")
    uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    assert found.files == (File(media_type=kind, uri=uri, name="f.txt", size_bytes=len(data)),)


def test_a_gigabyte_is_neither_read_nor_shown(files: Files) -> None:
    """Sparse files: what is refused by its size, or at its beginning, or after so many bytes."""
    for name, head in (("image", PNG), ("text", b"line\n" * 4_000), ("nothing", b"")):
        with (files.root / name).open("wb") as file:
            file.write(head)
            file.truncate(1 << 30)
    assert f"up to {SHOWN_BYTES_MAX:,} are shown" in files.refused("read_file", path="image")
    assert "binary file (1,073,741,824 bytes)" in files.refused("read_file", path="nothing")
    assert len(files("read_file", path="text")) < 300_000
    assert "beyond the first" in files.refused("read_file", path="text", start_line=5_000)


def test_short_lines_take_no_more_room_with_their_numbers(files: Files) -> None:
    (files.root / "f").write_bytes(b"\n" * 1_000_000)
    shown = files("read_file", path="f")
    assert len(shown) < 270_000
    assert "go on with start_line=" in shown


def test_what_is_written_with_the_numbers_of_its_lines_is_refused(files: Files) -> None:
    (files.root / "f").write_text("one\ntwo\n")
    assert files("read_file", path="f").startswith(NUMBERED)
    for name, arguments in (
        ("write_file", {"content": NUMBERED}),
        ("edit_file", {"old": NUMBERED, "new": "x"}),
        ("edit_file", {"old": "     2\ttwo", "new": "     2\tTWO"}),
        ("edit_file", {"old": "two", "new": "     2\tTWO"}),
        ("edit_file", {"edits": [{"old": "one", "new": "ONE"}, {"old": "     2\ttwo", "new": "TWO"}]}),
    ):
        assert "Give the lines without them" in files.refused(name, path="f", **arguments)
    assert (files.root / "f").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "content", ["1\tann\n2\tben\n", "     1\tone\n     3\tthree\n", "     1\tone\nand no more\n"]
)
def test_a_table_or_a_list_is_not_mistaken_for_numbered_lines(files: Files, content: str) -> None:
    files("write_file", path="f", content=content)
    assert (files.root / "f").read_text() == content
    files("edit_file", path="f", old="one" if "one" in content else "ann", new="x")


def test_a_file_that_holds_such_numbers_is_written_with_them(files: Files) -> None:
    (files.root / "f").write_text(NUMBERED)
    files("edit_file", path="f", old=NUMBERED, new=NUMBERED.upper())
    assert (files.root / "f").read_text() == NUMBERED.upper()


async def returned(output: ToolOutput) -> Returned:
    @tool
    async def show() -> ToolOutput:
        return output

    async def never(work: object) -> None: ...

    found = await Body(show, "call_1", ToolContext(), set()).run("{}", never)
    assert found is not None
    return found


async def test_files_beyond_the_limits_are_left_out_and_the_text_says_so() -> None:
    small = File(media_type="image/png", uri="data:image/png;base64,AAAA", name="a\x00b")
    large = File(media_type="image/png", uri="data:," + "A" * FILES_BYTES_MAX)
    found = await returned(ToolOutput(text="Look.", files=(small, large)))
    assert [file.name for file in found.files] == ["a\ufffdb"]  # as every text that is kept
    assert found.content == "Look.\n[1 of 2 files left out: they are too large to be shown]"
    found = await returned(ToolOutput(files=(small,) * (FILES_MAX + 5)))
    assert len(found.files) == FILES_MAX
    assert "5 of 25 files left out" in found.content


async def test_a_model_sees_the_image_that_its_tool_read(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "chart").write_bytes(PNG)
    model = ScriptedModel([Call(name="read_file", arguments={"path": "chart"})], "A chart.")
    async with running(store_url, Agent("eye", model, tools=file_tools(tmp_path))) as (app, _):
        chat = await app.create("eye", "Look.")
        assert await rested(chat) is State.IDLE
        stored = [part for message in await chat.messages() for part in message.parts if isinstance(part, ToolResult)]
    shown = [
        part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)
    ]
    assert shown == stored
    assert [file.media_type for file in shown[0].files] == ["image/png"]
    assert os.fsencode(shown[0].files[0].uri).endswith(base64.b64encode(PNG))
