"""ffmpeg and whisper.cpp, where they are there: run under the guard, with the file as their standard input.

ffmpeg is given no name and no protocol but that of files, and only formats that hold what they are about themselves:
a list of parts elsewhere (HLS, concat) would have it open other files, or reach for hosts. It has two threads and a
bounded memory: what it works on may be made to take all of both.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.core.records import Frozen
from holdfast.errors import ToolFailed
from holdfast.system import processes
from holdfast.system.capture import Kept
from holdfast.tools.context import tool_context
from holdfast.tools.media.sources import Medium

FFMPEG_S = 300.0
WHISPER_S = 1500.0
SAID_BYTES_MAX = 1 << 20
ERROR_BYTES_MAX = 8_192
FFMPEG_MEMORY_KIB_MAX = 2 << 20
FRAME_BYTES_MAX = 2 << 20
SOUND_BYTES_MAX = 512 << 20  # four hours
FRAME_WIDTH = 1024
INSTALL_FFMPEG = "Install ffmpeg (Debian, Ubuntu: apt install ffmpeg; macOS: brew install ffmpeg)"
INSTALL_WHISPER = "Install whisper.cpp (macOS: brew install whisper-cpp; else build it), which brings whisper-cli"

_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mp3,wav,ogg,flac,aac,flv,mpeg,mpegts"
_INPUT = ("-threads", "2", "-protocol_whitelist", "file,pipe", "-format_whitelist", _FORMATS)
_BOUNDED = ("/bin/sh", "-c", 'ulimit -v "$0" 2>/dev/null; exec "$@"', str(FFMPEG_MEMORY_KIB_MAX))


class Sounds(Frozen):
    """How a recording is written: for whom."""

    arguments: tuple[str, ...]
    kind: str


WAV = Sounds(arguments=("-c:a", "pcm_s16le", "-f", "wav"), kind="audio/wav")
FLAC = Sounds(arguments=("-c:a", "flac", "-f", "flac"), kind="audio/flac")


def find(program: str, advice: str) -> str:
    """Raises ToolFailed that says what to install."""
    found = shutil.which(program, path=processes.environment()["PATH"])
    if found is None:
        raise ToolFailed(f"there is no `{program}` here. {advice}.")
    return found


def check_weights(path: str) -> None:
    """Raises ToolFailed."""
    if not Path(path).is_file():
        raise ToolFailed(f"there are no weights for whisper.cpp at {path}: download a ggml model to there")


class _Collected:
    """What a program writes, up to a bound; more of it ends the call."""

    def __init__(self, most: int, into: Callable[[bytes], object] | None = None) -> None:
        self._most = most
        self._into = into
        self.data = bytearray()
        self.size = 0
        self.problem: str | None = None
        self.stop: Callable[[], object] = lambda: None

    def add(self, piece: bytes) -> None:
        if self.problem is not None:
            return
        self.size += len(piece)
        if self.size > self._most:
            self.problem = f"it comes to more than {self._most:,} bytes"
        elif self._into is None:
            self.data += piece
        else:
            try:
                self._into(piece)
            except OSError as error:
                self.problem = f"it could not be kept: {error.strerror}"
        if self.problem is not None:
            self.stop()


async def _run(
    program: Sequence[str],
    arguments: Sequence[str],
    medium: Medium,
    deadline_s: float,
    collected: _Collected | None = None,
) -> str:
    """What it said; what it complained of on the way is no part of that. Raises ToolFailed in words of its own."""
    os.lseek(medium.file, 0, os.SEEK_SET)
    complaints = Kept(ERROR_BYTES_MAX)
    running = asyncio.ensure_future(
        processes.run(
            [*program, *arguments],
            children=tool_context().children,
            deadline_s=deadline_s,
            bytes_max=SAID_BYTES_MAX,
            stdin=medium.file,
            heard=None if collected is None else collected.add,
            errors=complaints,
        )
    )
    if collected is not None:
        collected.stop = running.cancel
    try:
        ended: processes.Ended | None = await running
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if collected is None or collected.problem is None or (task is not None and task.cancelling()):
            raise
        ended = None
    if collected is not None and collected.problem is not None:
        raise ToolFailed(f"{medium.name} is too long: {collected.problem}")
    assert ended is not None
    _check(program[-1].rpartition("/")[2], ended, complaints.text, medium, deadline_s)
    return ended.output


def _check(name: str, ended: processes.Ended, complaints: str, medium: Medium, deadline_s: float) -> None:
    """Raises ToolFailed."""
    if ended.timed_out:
        raise ToolFailed(f"{name} was ended after {deadline_s:g} s: {medium.name} takes too long")
    if ended.returncode != 0:
        said = " ".join((complaints or ended.output).split())[-400:]
        raise ToolFailed(
            f"{name} could not make anything of {medium.name}: {said or f'exit code {ended.returncode}'}"
        )


async def duration_s(medium: Medium) -> float:
    program = [*_BOUNDED, find("ffprobe", INSTALL_FFMPEG)]
    asked = ("-show_entries", "format=duration", "-of", "json", "/dev/stdin")
    said = await _run(program, ["-v", "error", *_INPUT, *asked], medium, FFMPEG_S)
    try:
        return max(0.0, float(msgspec.json.decode(said)["format"]["duration"]))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return 0.0  # of what streams, it is not known


async def frames(medium: Medium, count: int) -> list[tuple[float, bytes]]:
    """Pictures of a film, in even distances, as JPEG, with their second."""
    program = [*_BOUNDED, find("ffmpeg", INSTALL_FFMPEG)]
    length_s = await duration_s(medium)
    found = []
    for number in range(count if length_s else 1):
        at_s = length_s * (2 * number + 1) / (2 * count)
        collected = _Collected(FRAME_BYTES_MAX)
        scale = f"scale='min({FRAME_WIDTH},iw)':-2"
        seek = ("-ss", f"{at_s:.3f}") if length_s else ()
        takes = ("-frames:v", "1", "-vf", scale, "-q:v", "4", "-f", "image2pipe", "-c:v", "mjpeg", "pipe:1")
        arguments = ["-nostdin", "-v", "error", *_INPUT, *seek, "-i", "/dev/stdin", *takes]
        await _run(program, arguments, medium, FFMPEG_S, collected)
        if collected.data.startswith(b"\xff\xd8\xff"):
            found.append((at_s, bytes(collected.data)))
    if not found:
        raise ToolFailed(f"{medium.name} has no picture that ffmpeg could take from it")
    return found


async def sound(medium: Medium, how: Sounds) -> Medium:
    """The sound alone, with 16,000 samples per second, one channel. The caller closes it."""
    program = [*_BOUNDED, find("ffmpeg", INSTALL_FFMPEG)]
    with tempfile.TemporaryFile() as file:  # without a name: nothing is left of it, whatever ends us
        collected = _Collected(SOUND_BYTES_MAX, file.write)
        takes = ("-vn", "-ac", "1", "-ar", "16000", *how.arguments, "pipe:1")
        arguments = ["-nostdin", "-v", "error", *_INPUT, "-i", "/dev/stdin", *takes]
        await _run(program, arguments, medium, FFMPEG_S, collected)
        file.flush()
        return Medium(file=os.dup(file.fileno()), kind=how.kind, size=collected.size, name=medium.name)


async def heard_by_whisper(program: str, weights: str, medium: Medium, language: str) -> str:
    """`medium` is a WAV file of 16,000 samples per second. It has half of the cores, so that chats go on."""
    cores = str(max(1, (os.cpu_count() or 2) // 2))
    words = ("-m", weights, "-l", language, "-t", cores, "-nt", "-np", "-f", "-")
    return await _run([find(program, INSTALL_WHISPER)], words, medium, WHISPER_S)
