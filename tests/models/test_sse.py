"""Server-sent events: whatever the network does to the bytes, the events stay the same, and all is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LostResult
from holdfast.models.http.sse import EventReader, SseEvent


def events(*chunks: bytes) -> list[SseEvent]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [SseEvent(data=b"a")]),
        (b"data:a\n\ndata:  b\n\n", [SseEvent(data=b"a"), SseEvent(data=b" b")]),
        (b"data: a\ndata: b\n\n", [SseEvent(data=b"a\nb")]),
        (b"event: ping\ndata: {}\n\n", [SseEvent(data=b"{}", name=b"ping")]),
        (b"event: ping\n\ndata: a\n\n", [SseEvent(data=b"a")]),  # without data it is none, and its name is forgotten
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [SseEvent(data=b"a"), SseEvent(data=b"b"), SseEvent(data=b"c")]),
        (b": a comment\n\n:\n\n: ping\ndata: a\n\n", [SseEvent(data=b"a")]),
        (b"id: 7\nretry: 100\nunknown: x\ndata: a\n\n", [SseEvent(data=b"a")]),
        (b"data\n\n", [SseEvent(data=b"")]),
        (b"data:\n\n", [SseEvent(data=b"")]),
        (b"data\ndata\n\n", [SseEvent(data=b"\n")]),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(data=b"a")]),
        (b"data: \xef\xbb\xbf\n\n", [SseEvent(data=b"\xef\xbb\xbf")]),
        ("data: 水\u2028\u0085\n\n".encode(), [SseEvent(data="水\u2028\u0085".encode())]),  # no line ends here
        (b"data: lost", []),
        (b"data: lost\n", []),
        (b"", []),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, expected: list[SseEvent]) -> None:
    assert events(stream) == expected
    assert events(*(bytes([byte]) for byte in stream)) == expected


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:{}",
        b"data",
        b"event: x",
        b": ping",
        b"id: 1",
        b"",
        "data: é水".encode(),
        b"\xef\xbb\xbfdata: b",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = (
    st.lists(st.tuples(LINES, ENDS)).map(lambda lines: b"".join(line + end for line, end in lines)) | st.binary()
)


@given(STREAMS, st.data())
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert b"".join(pieces) == stream
    assert events(*pieces) == events(stream)


def test_a_line_without_end_is_refused_when_it_passes_the_limit() -> None:
    reader = EventReader(line_bytes_max=1000)
    for _ in range(10):
        reader.feed(b"x" * 100)
    with pytest.raises(LostResult, match="a line of more than 1,000 bytes"):
        reader.feed(b"x")


def test_a_comment_without_end_is_refused_too() -> None:
    reader = EventReader(line_bytes_max=1000)
    with pytest.raises(LostResult, match="a line"):
        reader.feed(b":" * 1001)


def test_an_event_of_many_lines_is_refused_when_it_passes_the_limit() -> None:
    reader = EventReader(event_bytes_max=1000)
    reader.feed(b"data: " + b"x" * 499 + b"\n")
    reader.feed(b"data: " + b"x" * 500 + b"\n")
    with pytest.raises(LostResult, match="an event of more than 1,000 bytes"):
        reader.feed(b"data: x\n")


def test_a_large_line_in_small_pieces_costs_no_more_than_its_size() -> None:
    """Joining the buffer anew for every piece would copy 16 GB here."""
    reader = EventReader()
    for _ in range(8_000):
        assert reader.feed(b"x" * 1_000) == []
    assert reader.feed(b"\n\n") == []
