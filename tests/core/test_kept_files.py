"""Files that are put aside: what is, what is not, and that it comes back as it was."""

import base64
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.compaction import estimated_message
from holdfast.core.kept_files import (
    INLINE_CHARS_MAX,
    SCHEME,
    Sorter,
    files_of,
    inline_bytes,
    instead,
    kept_digest,
    kept_in,
    put_aside,
    whole,
    with_files,
)
from holdfast.core.records import File, Message, NewChat, Role, Text, ToolResult

BYTES = bytes(range(256)) * 10


def data_uri(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image(data: bytes = BYTES) -> File:
    return File(media_type="image/png", uri=data_uri(data), name="a.png")


@given(
    st.binary(min_size=INLINE_CHARS_MAX, max_size=3 * INLINE_CHARS_MAX), st.sampled_from(("image/png", "text/csv"))
)
def test_what_is_put_aside_comes_back_character_for_character(data: bytes, media_type: str) -> None:
    file = File(media_type=media_type, uri=data_uri(data, media_type), name="some.name")
    found = put_aside(file)
    assert found is not None
    kept, content = found
    assert (content.digest, content.data) == (sha256(data).hexdigest(), data)
    assert (kept.uri, kept.size_bytes, kept_digest(kept)) == (SCHEME + content.digest, len(data), content.digest)
    back = whole(kept, content.data)
    assert (back.uri, back.media_type, back.name) == (file.uri, file.media_type, file.name)


LONG = base64.b64encode(BYTES).decode()


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.org/" + "a" * INLINE_CHARS_MAX,
        data_uri(b"short"),
        f"data:image/jpeg;base64,{LONG}",  # of another type than the part says
        f"data:image/png;charset=utf-8;base64,{LONG}",
        f"data:image/png,{LONG}",
        f"data:image/png;base64,{LONG[:-1]}",
        f"data:image/png;base64,{LONG[:100]}\n{LONG[100:]}",
        f"data:image/png;base64,{LONG.replace('+', '-').replace('/', '_')}",
        f"data:image/png;base64,{'A' * INLINE_CHARS_MAX}AB==",  # bits that decoding would drop
    ],
)
def test_what_would_come_back_otherwise_stays_where_it_is(uri: str) -> None:
    assert put_aside(File(media_type="image/png", uri=uri)) is None


@pytest.mark.parametrize(
    "uri", [SCHEME, SCHEME + "0" * 63, SCHEME + "G" * 64, SCHEME + "0" * 65, "holdfast:file/" + "0" * 64]
)
def test_only_a_digest_names_a_kept_file(uri: str) -> None:
    assert kept_digest(File(media_type="image/png", uri=uri)) is None


def test_a_client_s_write_is_sorted_wherever_its_files_are() -> None:
    message = Message(id="m", role=Role.USER, parts=(Text(text="see"), image()))
    result = ToolResult(call_id="c", name="t", content="here", files=(image(b"\1" * 3_000),))
    answered = Message(id="r", role=Role.TOOL, parts=(result,))
    all_of_them: list[Any] = [
        cmd.Send(message=message),
        cmd.Edit(message=message, pos=0, role=Role.USER, epoch=0),
        cmd.Submit(call_id="c", content="", files=(image(),)),
        NewChat(id="c", agent="a", past=(message, answered), message=message, since=(message,)),
    ]
    for brought in all_of_them:
        sorter = Sorter()
        made = sorter.brought(brought)
        assert all(kept_digest(file) is not None for file in files_of(made))
        assert len(list(files_of(made))) == len(list(files_of(brought)))
        assert {content.digest for content in sorter.aside.contents} == {kept_digest(file) for file in files_of(made)}
        again = Sorter()
        assert again.brought(made) == made
        assert again.aside.contents == ()
        assert again.aside.named == {kept_digest(file) for file in files_of(made)}
    stop = cmd.Stop()
    assert Sorter().brought(stop) is stop


def test_a_model_is_told_of_a_file_whose_bytes_are_gone() -> None:
    kept, _ = put_aside(image()) or (None, None)
    assert kept is not None
    result = ToolResult(call_id="c", name="t", content="here", files=(kept,))
    for part in (kept, result):
        message = Message(id="m", role=Role.USER, parts=(part,))
        assert kept_in((message,)) == {kept_digest(kept)}
        told = with_files(message, lambda file: instead(file, "it is gone"))
        assert kept_in((told,)) == set()
        said = told.parts[0]
        assert isinstance(said, Text | ToolResult)
        assert "a.png is not here: it is gone" in (said.text if isinstance(said, Text) else said.content)


def test_a_kept_text_counts_as_many_tokens_as_it_had_in_its_message() -> None:
    text = File(media_type="text/plain", uri=data_uri(b"word " * 10_000, "text/plain"))
    kept, _ = put_aside(text) or (None, None)
    assert kept is not None
    message = Message(id="m", role=Role.USER, parts=(text,))
    assert estimated_message(replace(message, parts=(kept,))) == pytest.approx(estimated_message(message), abs=10)


def test_inline_bytes_are_those_of_a_data_uri() -> None:
    assert inline_bytes(image()) == BYTES
    assert inline_bytes(File(media_type="text/plain", uri="data:text/plain,a%20b")) == b"a b"
    for uri in ("https://example.org/a,b", "data:nothing", "data:image/png;base64,A"):
        assert inline_bytes(File(media_type="image/png", uri=uri)) is None
