"""The `transcribe` tool: what is said in a recording or a film, as text.

By a service that speaks OpenAI's `/audio/transcriptions`, by a Gemini model, which hears recordings itself, or by
whisper.cpp on this machine. Of a film the sound is taken out by ffmpeg, and so is what is too large to be sent.
"""

import base64
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from holdfast.core.records import File
from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import tool_context
from holdfast.tools.media import programs
from holdfast.tools.media.sources import Medium, Sources, acts_of, closing, place
from holdfast.tools.permissions.acts import Act, Whereabouts
from holdfast.tools.web.client import FetchLimits, Resolver
from holdfast.tools.web.service import Service

SENT_BYTES_MAX = 25_000_000  # what OpenAI takes
INLINE_BYTES_MAX = 14_000_000  # what Gemini takes within a request, in base64
ANSWER_BYTES_MAX = 4 << 20
TIME_S = 600.0
DEADLINE_S = 3600.0
OPENAI_URL = "https://api.openai.com/v1"
_ASK = "Write down what is said in this recording, word for word, and nothing else. If nothing is: [nothing]"
_LANGUAGE = r"^[a-z]{2,3}$"
_WHISPERED = "whisper-cli"


def transcribe_tool(
    root: str | os.PathLike[str],
    *,
    model: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    program: str = _WHISPERED,
    price_per_minute: float = 0.0,
    name: str = "transcribe",
    resolve: Resolver | None = None,
) -> Tool:
    """Write down what is said in a recording or a film, a file below `root` or a URL.

    `model`: "openai:MODEL" (OPENAI_API_KEY), "compatible:MODEL@URL" for another service with `/audio/transcriptions`
    (COMPATIBLE_API_KEY, if it needs one), or "google:MODEL". Or `weights`: a model's file for whisper.cpp, whose
    `program` is run. `price_per_minute` is what a service takes: it counts in the budgets of the chat. Hosts are
    judged as for `fetch_tool`, that of the service as for `web_search_tool`, paths as for `file_tools`.
    """
    if (model is None) == (weights is None):
        raise ConfigError(
            "transcribe_tool needs a model such as openai:whisper-1, or weights for whisper.cpp: give one of them"
        )
    if price_per_minute < 0:
        raise ConfigError(f"price_per_minute is nothing or more, not {price_per_minute}")
    writer: _Whispered | _Served | _Asked
    if weights is not None:
        writer = _Whispered(program, os.fspath(Path(weights).absolute()))
    elif model is not None and model.startswith("google:"):
        writer = _Asked(model)
    else:
        writer = _Served(model or "", price_per_minute)
    transcriber = _Transcriber(Sources(root, resolve), writer.write, writer.acts)
    made = tool(name=name, replay="pure", deadline_s=DEADLINE_S, acts=transcriber.acts, untrusted=True)(
        transcriber.transcribe
    )
    return replace(made, whereabouts=Whereabouts(root=transcriber.sources.root.path, confined=not writer.acts()))


class _Transcriber:
    def __init__(self, sources: Sources, write: Any, acts: Callable[[], Sequence[Act]]) -> None:
        self.sources = sources
        self._write = write
        self._acts = acts

    def acts(self, arguments: dict[str, Any]) -> Sequence[Act]:
        return [*acts_of(arguments), *self._acts()]

    async def transcribe(
        self,
        source: Annotated[str, Field(max_length=8_000, description="A path, or an http or https URL.")],
        language: Annotated[
            str | None, Field(pattern=_LANGUAGE, description="Of what is said, such as en; None: found out.")
        ] = None,
    ) -> str:
        """Write down what is said in a recording or a film: a file, or a URL."""
        async with place():
            with closing(await self.sources.opened(source)) as medium:
                if medium.family not in ("audio", "video"):
                    raise ToolFailed(f"{medium.name} is {medium.kind}: there is nothing to hear in it")
                said = str(await self._write(medium, language))
        return f"[{medium.name}: {medium.kind}, {medium.size:,} bytes]\n\n{said.strip() or '[nothing was said]'}"


class _Whispered:
    """By whisper.cpp, on this machine."""

    def __init__(self, program: str, weights: str) -> None:
        self._program = program
        self._weights = weights

    def acts(self) -> Sequence[Act]:
        return ()

    async def write(self, medium: Medium, language: str | None) -> str:
        programs.check_weights(self._weights)
        programs.find(self._program, programs.INSTALL_WHISPER)
        with closing(await programs.sound(medium, programs.WAV)) as wav:
            return await programs.heard_by_whisper(self._program, self._weights, wav, language or "auto")


class _Asked:
    """By a model that hears."""

    def __init__(self, model: str) -> None:
        self._model = model

    def acts(self) -> Sequence[Act]:
        return ()

    async def write(self, medium: Medium, language: str | None) -> str:
        with ExitStack() as leaving:
            sent = await _small_enough(medium, INLINE_BYTES_MAX, leaving)
            data = base64.b64encode(sent.bytes(INLINE_BYTES_MAX)).decode()
        file = File(
            media_type=sent.kind, uri=f"data:{sent.kind};base64,{data}", name="recording", size_bytes=sent.size
        )
        spoken = f" It is in the language {language}." if language else ""
        return await tool_context().ask_model(self._model, _ASK + spoken, [file])


class _Served:
    """By a service with `/audio/transcriptions`."""

    def __init__(self, model: str, price_per_minute: float) -> None:
        provider, _, rest = model.partition(":")
        named, _, url = rest.rpartition("@http")
        if provider == "openai" and rest:
            named, base = rest, os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL
            key = os.environ.get("OPENAI_API_KEY", "").strip()
            if not key:
                raise ConfigError(f"model {model!r} needs a key: set the environment variable OPENAI_API_KEY")
        elif provider == "compatible" and named:
            base, key = f"http{url}", os.environ.get("COMPATIBLE_API_KEY", "").strip()
        else:
            raise ConfigError(
                f"transcribe_tool does not know {model!r}: write openai:MODEL, compatible:MODEL@URL or google:MODEL"
            )
        self._model = named
        self._price = price_per_minute
        self._service = Service(
            provider,
            base,
            limits=FetchLimits(bytes_max=ANSWER_BYTES_MAX, time_s=TIME_S),
            headers={"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})},
            key=key,
            key_advice="look at its key",
        )

    def acts(self) -> Sequence[Act]:
        return self._service.acts()

    async def write(self, medium: Medium, language: str | None) -> str:
        with ExitStack() as leaving:
            length_s = await programs.duration_s(medium) if self._price else 0.0
            sent = await _small_enough(medium, SENT_BYTES_MAX, leaving)
            body, kind = _form(self._model, language, sent)
        if self._price:  # whatever comes of it: it was sent
            tool_context().spent(cost=length_s / 60 * self._price)
        found = self._service.decoded(await self._service.post("/audio/transcriptions", body, kind))
        text = found.get("text") if isinstance(found, dict) else None
        if not isinstance(text, str):
            raise ToolFailed(f"{self._service.name} answered with JSON that holds no text: is its URL right?")
        usage = found.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        if isinstance(tokens, int) and 0 < tokens < 10_000_000:
            tool_context().spent(tokens=tokens)
        return self._service.hidden(text)


async def _small_enough(medium: Medium, most: int, leaving: ExitStack) -> Medium:
    """A recording that is not too large goes as it is."""
    if medium.family == "audio" and medium.size <= most:
        return medium
    return leaving.enter_context(closing(await programs.sound(medium, programs.FLAC)))


def _form(model: str, language: str | None, medium: Medium) -> tuple[bytes, str]:
    """As multipart/form-data."""
    boundary = f"holdfast-{secrets.token_hex(16)}"
    ending = {"audio/mpeg": "mp3", "audio/mp4": "m4a"}.get(medium.kind, medium.kind.partition("/")[2])
    fields = {"model": model, "response_format": "json", **({"language": language} if language else {})}
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="recording.{ending}"\r\n'
        f"Content-Type: {medium.kind}\r\n\r\n"
    )
    body = b"".join((head.encode(), medium.bytes(SENT_BYTES_MAX), f"\r\n--{boundary}--\r\n".encode()))
    return body, f"multipart/form-data; boundary={boundary}"
