"""Chunks are joined, and nothing else about a response changes, however the network cuts it."""

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.models.http.chunks import Joiner

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def read(stream: bytes) -> tuple[bytes, int] | str:
    """What h11 makes of it: the body, and in how many pieces it came."""
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    body, pieces = b"", 0
    try:
        connection.receive_data(stream)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Data):
                body += event.data
                pieces += 1
            elif isinstance(event, h11.EndOfMessage) or event in (h11.NEED_DATA, h11.PAUSED):
                return body, pieces
    except h11.RemoteProtocolError as error:
        return str(error)


def joined(*reads: bytes) -> bytes:
    joiner = Joiner()
    joiner.restart()
    return b"".join(joiner.feed(read) for read in reads)


def test_chunks_that_came_together_are_one() -> None:
    assert read(chunked(b"a", b"bc", b"def")) == (b"abcdef", 3)
    assert read(joined(chunked(b"a", b"bc", b"def"))) == (b"abcdef", 1)


def test_a_chunk_that_came_alone_passes_as_it_is() -> None:
    stream = chunked(b"abc", end=b"")
    assert joined(stream) == stream
    joiner = Joiner()
    joiner.restart()
    joiner.feed(HEAD)
    assert joiner.feed(b"3\r\nabc\r\n") == b"3\r\nabc\r\n"


def test_nothing_that_is_here_is_kept_back() -> None:
    joiner = Joiner()
    joiner.restart()
    assert joiner.feed(HEAD + b"1\r\na\r\n5\r\nbc") == HEAD + b"1\r\na\r\n5\r\nbc"
    assert joiner.feed(b"d") == b"d"
    assert joiner.feed(b"ef\r\n1\r") == b"ef\r\n"  # but for half a size line
    assert joiner.feed(b"\ng\r\n0\r\n\r\n") == b"1\r\ng\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n1\r\na\r\n1\r\nb\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n1\r\na\r\n1\r\nb\r\n",
        b"HTTP/1.1 103 Early\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"a", b"b"),
        chunked(b"a", b"b").replace(b"chunked", b"gzip, chunked"),
        HEAD + b"1;x=y\r\na\r\n1\r\nb\r\n0\r\n\r\n",
        HEAD + b"zz\r\na\r\n1\r\nb\r\n",
        HEAD + b"1_0\r\n" + b"a" * 16 + b"\r\n1\r\nb\r\n",
        HEAD + b"+1\r\na\r\n1\r\nb\r\n",
        HEAD + b"1\r\nabc\r\n1\r\nb\r\n",
        HEAD + b"1" * 40 + b"\r\n",
        HEAD + b"0\r\ntrailer: x\r\n\r\n",
        b"garbage\r\n\r\n1\r\na\r\n",
    ],
)
def test_what_is_not_plainly_chunked_passes_untouched(stream: bytes) -> None:
    assert joined(stream) == stream


def test_the_next_response_on_the_connection_is_joined_again() -> None:
    joiner = Joiner()
    for _ in range(3):
        joiner.restart()
        assert read(joiner.feed(chunked(b"a", b"b"))) == (b"ab", 1)
        assert joiner.feed(b"whatever\r\n") == b"whatever\r\n"


PIECES = st.lists(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"1\r\na\r\n"]), max_size=6
)
ENDS = st.sampled_from(
    [b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"", b"5\r\nab", b"1\r", b"1;x\r\na\r\n", b"q\r\n", b"\r\n"]
)


@given(PIECES, ENDS, st.data())
@example([b"a"], b"", None)
def test_however_it_is_cut_the_parser_reads_the_same(
    pieces: list[bytes], end: bytes, data: st.DataObject | None
) -> None:
    stream = chunked(*pieces, end=end)
    cuts = [] if data is None else sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected, found = read(stream), read(joined(*reads))
    if isinstance(expected, tuple) and isinstance(found, tuple):
        assert found[0] == expected[0]
    else:
        assert found == expected


@given(st.binary(max_size=300), st.data())
def test_noise_after_a_head_is_judged_by_the_parser_alone(noise: bytes, data: st.DataObject) -> None:
    stream = HEAD + noise
    cut = data.draw(st.integers(0, len(stream)))
    expected, found = read(stream), read(joined(stream[:cut], stream[cut:]))
    assert (expected[0] if isinstance(expected, tuple) else "refused") == (
        found[0] if isinstance(found, tuple) else "refused"
    )
