"""look and transcribe: pictures, recordings and films, by models, services and programs, each with an end."""

import asyncio
import base64
import json
import os
import shutil
import stat
import subprocess
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from holdfast import Agent, App, ModelFacts, Price
from holdfast.core.records import Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.testing import Call, ScriptedModel
from holdfast.tools.base import Tool, ToolOutput
from holdfast.tools.context import ToolContext, enter
from holdfast.tools.media import programs
from holdfast.tools.media.look import look_tool
from holdfast.tools.media.sources import Medium, kind_of
from holdfast.tools.media.transcribe import transcribe_tool
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.worker.guard import Guard
from tests.support import distribution
from tests.support.chat_server import ChatServer
from tests.support.speakers import INPUT, OUTPUT, Chat, Gemini, saying
from tests.support.waiting import until
from tests.tools.every_tool import results
from tests.tools.sites import Site, page, site

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
KEY = "sk-very-secret-1234"
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason=distribution.missing("ffmpeg"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "dot.png").write_bytes(PNG)
    with wave.open(str(folder / "beep.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(b"\x00\x10" * 8_000)  # a second
    (folder / "words.txt").write_text("only words")
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    return folder


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as found:
        yield found


async def use(made: Tool, guard: Guard | None = None, rules: tuple[str, ...] = (), **arguments: Any) -> ToolOutput:
    enter(context := ToolContext(children=guard, rulebook=Rulebook(rules)))
    found = await made(**made.validate(json.dumps(arguments)))
    text = found.text if isinstance(found, ToolOutput) else str(found)
    files = found.files if isinstance(found, ToolOutput) else ()
    use_spent[:] = [context.spending]
    return ToolOutput(text=text, files=files)


use_spent: list[tuple[int, float]] = []


async def refused(made: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await use(made, **arguments)
    return str(caught.value)


# --- look --------------------------------------------------------------------------------------------


async def test_a_picture_is_shown_to_the_agents_own_model(root: Path) -> None:
    seen = await use(look_tool(root), source="dot.png")
    assert seen.text == f"[dot.png: image/png, {len(PNG)} bytes]"
    assert [(file.media_type, file.name) for file in seen.files] == [("image/png", "dot.png")]
    assert base64.b64decode(seen.files[0].uri.partition(",")[2]) == PNG


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("../secret.png", "leads out of the folder"),
        ("out.png", "through a symlink"),
        ("nowhere.png", "does not exist"),
        ("words.txt", "is neither a picture nor audio nor video"),
        ("beep.wav", "there is nothing to see, it can be transcribed"),
        ("http://127.0.0.1:1/x.png", "internal address"),
        ("http://169.254.169.254/x.png", "internal address"),
        ("file:///etc/passwd", "does not exist"),
    ],
)
async def test_what_cannot_be_looked_at_is_told_in_words(root: Path, source: str, said: str) -> None:
    assert said in await refused(look_tool(root), source=source)


async def test_a_picture_of_the_web_is_fetched_as_by_fetch(root: Path, served: Site) -> None:
    rules = (f"allow reach(127.0.0.1:{served.port})",)
    base = f"http://127.0.0.1:{served.port}"
    told = await refused(look_tool(root), source=f"{base}/ok", rules=rules)
    assert "ok is neither a picture" in told
    assert "internal address" in await refused(look_tool(root), source=f"{base}/to-metadata", rules=rules)
    assert served.hits == {"/ok": 1, "/to-metadata": 1}


async def test_another_model_is_asked_about_it_and_what_it_takes_counts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPATIBLE_API_KEY", raising=False)
    async with ChatServer(saying(Chat(), "A single", " dot.")) as server:
        eyes = f"compatible:eyes@{server.url}"
        model = ScriptedModel([Call(name="look", arguments={"source": "dot.png", "question": "What?"})], "Done.")
        app = App(
            f"sqlite:///{tmp_path}/holdfast.db",
            agents=[Agent("a", model, tools=[look_tool(root, model=eyes)])],
            models={eyes: ModelFacts(price=Price(input=1_000_000.0, output=1_000_000.0))},
        )
        async with app, app.worker():
            turn = await app.run("a", "Go.")
            [result] = results(await turn.chat.messages())
        [asked] = server.asked
    assert result.content.endswith("\n\nA single dot.")
    parts = asked.body["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]
    assert parts[1]["text"] == "What?"
    assert turn.usage.total_tokens >= INPUT + OUTPUT
    assert turn.cost == INPUT + OUTPUT


# --- films -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    sources = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=5:duration=2", "-f", "lavfi", "-i", "sine=duration=2"]
    subprocess.run(
        ["ffmpeg", "-v", "error", *sources, "-c:v", "mpeg4", "-shortest", str(path)], check=True, timeout=60
    )
    return path


@needs_ffmpeg
async def test_a_film_is_seen_as_pictures_in_even_distances(root: Path, film: Path, guard: Guard) -> None:
    shutil.copy(film, root / "film.mp4")
    seen = await use(look_tool(root), guard, source="film.mp4", frames=2)
    assert "pictures at second 0.5, 1.5]" in seen.text
    assert [file.media_type for file in seen.files] == ["image/jpeg"] * 2
    assert all(base64.b64decode(file.uri.partition(",")[2]).startswith(b"\xff\xd8\xff") for file in seen.files)


@needs_ffmpeg
@pytest.mark.parametrize("text", ["#EXTM3U\n#EXTINF:1,\n{0}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{0}'\n"])
async def test_a_film_that_is_a_list_of_other_files_opens_none_of_them(
    root: Path, film: Path, guard: Guard, text: str
) -> None:
    (root / "list.mp4").write_text(text.format(film))
    enter(ToolContext(children=guard))
    with (root / "list.mp4").open("rb") as file:
        medium = Medium(file=file.fileno(), kind="video/mp4", size=100, name="list.mp4")
        with pytest.raises(ToolFailed, match="could not make anything of list"):
            await programs.frames(medium, 1)


async def test_without_ffmpeg_it_is_said_what_to_install(
    root: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "film.mp4").write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(100))
    monkeypatch.setenv("PATH", "/nowhere")
    told = await refused(look_tool(root), guard=guard, source="film.mp4")
    assert "there is no `ffmpeg` here. Install ffmpeg" in told


@needs_ffmpeg
async def test_a_damaged_film_is_seen_as_far_as_it_can_be(root: Path, film: Path, guard: Guard) -> None:
    """What ffmpeg complains of stays out of the picture."""
    damaged = bytearray(film.read_bytes())
    frames = damaged.find(b"mdat") + 200
    for place in range(frames, frames + 3_000, 37):
        damaged[place] ^= 0x5A
    (root / "damaged.mp4").write_bytes(damaged)
    seen = await use(look_tool(root), guard, source="damaged.mp4", frames=2)
    assert [file.media_type for file in seen.files] == ["image/jpeg"] * 2


@pytest.fixture
def ffmpeg(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """One that does as a line of shell says; ffprobe tells of two seconds."""
    folder = tmp_path / "ffmpeg"
    folder.mkdir()
    (root / "film.mp4").write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(100))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def does(line: str) -> Path:
        lines = {"ffprobe": """echo 'odd' >&2; echo '{"format": {"duration": "2.0"}}'""", "ffmpeg": line}
        for name, said in lines.items():
            (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{said}\n")
            (folder / name).chmod(0o755)
        return folder

    return does


async def test_what_ffmpeg_complains_of_is_no_part_of_what_it_makes(
    root: Path, guard: Guard, ffmpeg: Callable[[str], Path]
) -> None:
    ffmpeg(r"echo 'frame damaged' >&2; printf '\377\330\377picture'; echo 'again' >&2")
    seen = await use(look_tool(root), guard, source="film.mp4", frames=2)
    assert "pictures at second 0.5, 1.5]" in seen.text, "ffprobe's complaints are none of its answer either"
    assert base64.b64decode(seen.files[0].uri.partition(",")[2]) == b"\xff\xd8\xffpicture"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kill -9 $$", "ffmpeg could not make anything of film.mp4: exit code -9"),
        ("echo moov atom not found >&2; exit 1", "ffmpeg could not make anything of film.mp4: moov atom not found"),
        ("yes", "film.mp4 is too long: it comes to more than 2,097,152 bytes"),
        ("ulimit -v >&2; exit 1", "ffmpeg could not make anything of film.mp4: 2097152"),
    ],
)
async def test_an_ffmpeg_that_fails_or_floods_is_told_of_and_nothing_is_left_of_it(
    root: Path, guard: Guard, ffmpeg: Callable[[str], Path], line: str, said: str
) -> None:
    ffmpeg(line)
    assert said in await refused(look_tool(root), guard=guard, source="film.mp4")
    await until(lambda: guard.group_count == 0)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_ffmpeg_that_hangs_is_ended_at_its_time_or_with_its_call(
    root: Path, guard: Guard, ffmpeg: Callable[[str], Path], expire: Callable[[float], None], cancelled: bool
) -> None:
    folder = ffmpeg("trap '' TERM; touch begun; while :; do sleep 0.2; done")
    before = psutil.Process().num_fds()
    asking = asyncio.ensure_future(refused(look_tool(root), guard=guard, source="film.mp4"))
    await until((folder / "begun").exists)
    if cancelled:
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    else:
        expire(programs.FFMPEG_S)
        assert "ffmpeg was ended after 300 s: film.mp4 takes too long" in await asking
    await until(lambda: guard.group_count == 0)
    await until(lambda: psutil.Process().num_fds() <= before + 4)  # the starter stays


# --- transcribe, by a service ------------------------------------------------------------------------


class Scribe:
    """A service with `/audio/transcriptions`, which does as the model's name says."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[tuple[dict[str, str], bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            self.asked.append((headers, body))
            model = body.partition(b'name="model"\r\n\r\n')[2].partition(b"\r\n")[0]
            if model == b"hang":
                await reader.read()
            elif model == b"inward":
                writer.write(page(b"", "Location: http://169.254.169.254/", status="302 Found"))
            elif model == b"busy":
                writer.write(page(f"key {KEY}".encode(), "Retry-After: 9", status="429 Too Many Requests"))
            elif model == b"flood":
                writer.write(page(b" " * (6 << 20)))
            else:
                said = {"text": f" Hello, {KEY}. ", "usage": {"type": "tokens", "total_tokens": 14}}
                writer.write(page(json.dumps(said).encode()))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scribing() -> AsyncIterator[Scribe]:
    scribe = Scribe()
    server = await asyncio.start_server(scribe.serve, "127.0.0.1", 0)
    scribe.port = server.sockets[0].getsockname()[1]
    try:
        yield scribe
    finally:
        server.close()


@pytest.fixture
async def scribe() -> AsyncIterator[Scribe]:
    async with scribing() as found:
        yield found


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPATIBLE_API_KEY", KEY)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def by_service(root: Path, scribe: Scribe, model: str = "whisper-1", **options: Any) -> Tool:
    return transcribe_tool(root, model=f"compatible:{model}@http://127.0.0.1:{scribe.port}/v1", **options)


async def test_a_recording_is_written_down_by_a_service(root: Path, scribe: Scribe) -> None:
    said = await use(by_service(root, scribe), source="beep.wav", language="en")
    assert said.text == "[beep.wav: audio/wav, 16,044 bytes]\n\nHello, [key]."
    assert use_spent == [(14, 0.0)]
    [(headers, body)] = scribe.asked
    assert headers["authorization"] == f"Bearer {KEY}"
    assert b'name="model"\r\n\r\nwhisper-1\r\n' in body
    assert b'name="language"\r\n\r\nen\r\n' in body
    assert b'filename="recording.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF' in body


@needs_ffmpeg
async def test_of_a_film_the_sound_is_sent_and_its_length_is_paid_for(
    root: Path, film: Path, scribe: Scribe, guard: Guard
) -> None:
    shutil.copy(film, root / "film.mp4")
    said = await use(by_service(root, scribe, price_per_minute=30.0), guard, source="film.mp4")
    assert "Hello" in said.text
    assert b'filename="recording.flac"\r\nContent-Type: audio/flac\r\n\r\nfLaC' in scribe.asked[0][1]
    [(tokens, cost)] = use_spent
    assert tokens == 14
    assert cost == pytest.approx(1.0, abs=0.1), "two seconds of a minute"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("inward", "a redirect, which is not followed"),
        ("busy", "try again in 9 s. It said: key [key]"),
        ("flood", "more than 4,194,304 bytes"),
    ],
)
async def test_a_service_that_fails_is_told_of_in_words_without_the_key(
    root: Path, scribe: Scribe, model: str, said: str
) -> None:
    told = await refused(by_service(root, scribe, model), source="beep.wav")
    assert said in told
    assert KEY not in told


async def test_a_service_that_hangs_is_given_up_at_its_time_or_left_at_once(
    root: Path, scribe: Scribe, expire: Callable[[float], None]
) -> None:
    asking = asyncio.ensure_future(refused(by_service(root, scribe, "hang"), source="beep.wav"))
    await until(lambda: scribe.asked)
    expire(600.0)
    assert "timed out after 600 s" in await asking
    asking = asyncio.ensure_future(refused(by_service(root, scribe, "hang"), source="beep.wav"))
    await until(lambda: len(scribe.asked) == 2)
    before = psutil.Process().num_fds()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: psutil.Process().num_fds() < before)


async def test_a_model_that_hears_is_asked_as_any_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatServer(saying(Gemini(), "Hello", " there.")) as server:
        monkeypatch.setenv("GOOGLE_API_KEY", KEY)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        made = transcribe_tool(root, model="google:gemini-3.8-flash")
        model = ScriptedModel([Call(name="transcribe", arguments={"source": "beep.wav"})], "Done.")
        app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", model, tools=[made])])
        async with app, app.worker():
            turn = await app.run("a", "Go.")
            [result] = results(await turn.chat.messages())
        [asked] = server.asked
    assert result.content.endswith("\n\nHello there.")
    assert asked.body["contents"][0]["parts"][0]["inlineData"]["mimeType"] == "audio/wav"


# --- transcribe, by whisper.cpp ----------------------------------------------------------------------

# It says what it was told, and how much it read: the command line is whisper-cli's own.
WHISPER = """#!/bin/sh
[ "$1" = -m ] && [ -f "$2" ] && [ "$3" = -l ] && [ "$5" = -t ] && [ "$7 $8 $9" = "-nt -np -f" ] || exit 9
read_bytes=$(wc -c)
echo "Heard in $4, $read_bytes bytes."
"""


@pytest.fixture
def whisper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "whisper-cli"
    program.write_text(WHISPER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    weights = tmp_path / "ggml-tiny.bin"
    weights.write_bytes(b"weights")
    return weights


@needs_ffmpeg
async def test_a_recording_is_written_down_by_whisper_on_this_machine(
    root: Path, whisper: Path, guard: Guard
) -> None:
    said = await use(transcribe_tool(root, weights=whisper), guard, source="beep.wav", language="de")
    assert "Heard in de, 32" in said.text, "16,000 samples of two bytes for a second, and a head"


async def test_what_is_missing_for_whisper_is_said(root: Path, guard: Guard, tmp_path: Path) -> None:
    nowhere = transcribe_tool(root, weights=tmp_path / "nowhere.bin")
    assert "there are no weights for whisper.cpp at" in await refused(nowhere, guard=guard, source="beep.wav")
    (tmp_path / "weights.bin").touch()
    missing = transcribe_tool(root, weights=tmp_path / "weights.bin", program="no-whisper")
    told = await refused(missing, guard=guard, source="beep.wav")
    assert "there is no `no-whisper` here. Install whisper.cpp" in told
    assert "nothing to hear" in await refused(missing, guard=guard, source="dot.png")


# --- both --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give one of them"),
        ({"model": "openai:whisper-1", "weights": "w"}, "give one of them"),
        ({"model": "openai:whisper-1"}, "set the environment variable OPENAI_API_KEY"),
        ({"model": "anthropic:claude"}, "does not know 'anthropic:claude'"),
        ({"model": "compatible:m"}, "does not know 'compatible:m'"),
        ({"weights": "w", "price_per_minute": -1.0}, "nothing or more"),
    ],
)
def test_what_is_missing_is_said_when_the_tool_is_made(root: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        transcribe_tool(root, **options)


def test_they_are_judged_by_what_they_read_and_whom_they_ask(root: Path) -> None:
    service = transcribe_tool(root, model="compatible:m@http://127.0.0.1:9/v1")
    acts = {
        name: [str(act) for act in made.acts_of({"source": source})]
        for name, made, source in (
            ("path", look_tool(root), "a.png"),
            ("url", look_tool(root), "https://a.example/a.png"),
            ("service", service, "a.wav"),
        )
    }
    assert acts == {
        "path": ["read(a.png)"],
        "url": ["reach(a.example:443)"],
        "service": ["read(a.wav)", "reach(127.0.0.1:9)"],
    }
    assert Rulebook(mode="ask").judge(service.acts_of({"source": "a.wav"}), service.whereabouts).ruling == "ask"
    assert {look_tool(root).replay, service.replay} == {Replay.PURE}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (PNG, "image/png"),
        (b"RIFF\x00\x00\x00\x00WAVE", "audio/wav"),
        (b"RIFF\x00\x00\x00\x00AVI ", "video/x-msvideo"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
        (b"OggS" + bytes(30), "audio/ogg"),
        (b"OggS" + bytes(30) + b"theora", "video/ogg"),
        (b"\x00\x00\x00\x18ftypM4A ", "audio/mp4"),
        (b"\x00\x00\x00\x18ftypisom", "video/mp4"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\x1aE\xdf\xa3", "video/webm"),
        (b"#EXTM3U\n", None),
        (b"", None),
    ],
)
def test_what_a_file_is_its_first_bytes_say(head: bytes, kind: str | None) -> None:
    assert kind_of(head) == kind
