"""A model that says what it is told to: for tests, demos and docs. Scripts are plain data.

    ScriptedModel("Hello.", [Call(name="weather", arguments={"city": "Bern"})], "It rains.")

Each response is a text, a step, or a list of steps; steps may be written as dictionaries, so a script can live in a
JSON file. Which response is played depends on the request alone: on how many of the model's own messages its history
holds. A process that crashed and one that did not play the same thing. What depends on the try (`attempts`) goes by
the number that the caller puts into the request.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from holdfast.core.records import Frozen, Message, Role
from holdfast.core.retry import ErrorFields, Kind
from holdfast.errors import ConfigError, ProviderError
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    FinishReason,
    Opened,
    ReasoningDelta,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.deadline_watch import Watch
from holdfast.models.wires.failures import provider_error

REQUESTS_KEPT = 100
_WORD = re.compile(r"\s*\S+\s*")


# --- the script ------------------------------------------------------------------------------------


class _Step(Frozen, tag_field="step", omit_defaults=True, forbid_unknown_fields=True):
    pass


class Say(_Step, tag="say"):
    """Text, word by word or in pieces of so many characters, with a pause before each piece."""

    text: str
    pace_s: float | None = None  # None: the script's
    piece_chars: int | None = None


class Think(_Step, tag="think"):
    """Reasoning. With a signature, a provider would want it back."""

    text: str
    pace_s: float | None = None
    piece_chars: int | None = None
    signature: str | None = None


class Call(_Step, tag="call"):
    """A tool call. `arguments` is an object, or the very text that is streamed, valid or not."""

    name: str
    arguments: dict[str, Any] | str = "{}"
    pace_s: float | None = None
    piece_chars: int = 8


class Together(_Step, tag="together"):
    """Calls whose arguments come interleaved, a piece of each in turn."""

    calls: tuple[Call, ...]


class Stall(_Step, tag="stall"):
    """Silence: for so long, or for ever. `attempts`: only in the first so many attempts; None: in all."""

    for_s: float | None = None
    attempts: int | None = None


class Fail(_Step, tag="fail"):
    """An error, as a provider would send it: with a status, or (None) without one.

    `code` is one of core/retry's kinds, or a provider's own word.
    """

    status: int | None = 500
    code: str = ""
    message: str = "the script says so"
    retry_after: str | None = None  # the header's text
    parameter: str | None = None  # that is not supported
    attempts: int | None = None


class Cut(_Step, tag="cut"):
    """The stream ends here, without finishing."""

    attempts: int | None = None


class Hold(_Step, tag="hold"):
    """Wait until the test says `model.resume(name)`; `await model.reached(name)` tells it that we are here."""

    name: str
    attempts: int | None = None


class Count(_Step, tag="count"):
    """The token count. Without one, the messages of the request and the pieces of the response are counted."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


class Finish(_Step, tag="finish"):
    """How the response ends. Without one: `tool_calls` if there are calls, else `stop`."""

    reason: FinishReason = "stop"


Step = Say | Think | Call | Together | Stall | Fail | Cut | Hold | Count | Finish
Response = tuple[Step, ...]
Written = str | Step | Mapping[str, Any] | Sequence[str | Step | Mapping[str, Any]]

After = Literal["fail", "repeat", "echo"]


class Script(Frozen, forbid_unknown_fields=True):
    """`after`: what follows the last response. `per`: whether each turn starts it again, or only a new chat."""

    responses: tuple[Response, ...] = ()
    after: After = "fail"
    per: Literal["chat", "turn"] = "chat"
    pace_s: float = 0.0


ECHO = Script(after="echo")


def read_script(path: str | Path) -> Script:
    """A script from a JSON file: an object like `Script`, or only its list of responses."""
    try:
        data = msgspec.json.decode(Path(path).read_bytes())
        return script_of(data)
    except OSError as error:
        raise ConfigError(f"cannot read the script {str(path)!r}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise ConfigError(f"{str(path)!r} is not a script: {error}") from error


def script_of(written: Mapping[str, Any] | Sequence[Written]) -> Script:
    """A script from plain data."""
    if not isinstance(written, Mapping):
        return Script(responses=tuple(map(_response, written)))
    fields = {**written, "responses": [_response(response) for response in written.get("responses", ())]}
    return msgspec.convert(fields, Script)


def _response(written: Written) -> Response:
    steps = [written] if isinstance(written, str | _Step | Mapping) else written
    return tuple(map(_step, steps))


def _step(written: Any) -> Step:
    if isinstance(written, str):
        return Say(text=written)
    if isinstance(written, _Step):
        return cast("Step", written)
    step: Step = msgspec.convert(written, Step)
    return step


# --- the model -------------------------------------------------------------------------------------


class ScriptedModel:
    """A `Model` without state, but for what it remembers for tests: the last `requests`, and what it is held at."""

    def __init__(
        self,
        *responses: Written,
        script: Script | None = None,
        name: str = "scripted",
        provider: str = "scripted",
        after: After = "fail",
        per: Literal["chat", "turn"] = "chat",
        pace_s: float = 0.0,
        context_limit: int | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if script is None:
            script = Script(responses=tuple(map(_response, responses)), after=after, per=per, pace_s=pace_s)
        self.script = script
        self._name = name
        self._provider = provider
        self._context_limit = context_limit
        self._sleep = sleep
        self._holds: dict[str, _Held] = {}
        self.requests: deque[Request] = deque(maxlen=REQUESTS_KEPT)
        self.open_streams = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def provider(self) -> str:
        return self._provider

    @property
    def context_limit(self) -> int | None:
        return self._context_limit

    def __repr__(self) -> str:
        return f"<ScriptedModel {self._name}>"

    async def reached(self, name: str) -> None:
        """Returns when a stream waits at `Hold(name)`."""
        await self._held(name).reached.wait()

    def resume(self, name: str) -> None:
        """Let go what waits at `Hold(name)`, and whatever comes there later."""
        self._held(name).resumed.set()

    def _held(self, name: str) -> "_Held":
        return self._holds.setdefault(name, _Held())

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        self.requests.append(request)
        watch = Watch(request.deadlines, self._name, asyncio.get_running_loop().time)
        watch.sent()
        playing = _Playing(self, request, watch)
        self.open_streams += 1
        try:
            progressed = False
            for beat in playing.play(self._choose(request)):
                if isinstance(beat, _Wait):
                    if progressed:
                        watch.progressed()
                        progressed = False
                    await playing.within_deadlines(beat.until)
                else:
                    yield beat
                    progressed = progressed or type(beat) is not Opened
        finally:
            self.open_streams -= 1

    def _choose(self, request: Request) -> Response:
        responses, after = self.script.responses, self.script.after
        enough = len(responses) if after == "repeat" else None
        position = position_of(request, self.script.per, enough)
        if position < len(responses):
            return responses[position]
        if after == "repeat" and responses:
            return responses[-1]
        if after == "echo":
            return (Say(text=echo(request)),)
        raise ProviderError(
            f"the script of {self._name} has {len(responses)} responses, and this is the request for number "
            f"{position + 1}",
            code=Kind.BAD_REQUEST,
        )


class _Held:
    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.resumed = asyncio.Event()


def position_of(request: Request, per: Literal["chat", "turn"] = "chat", enough: int | None = None) -> int:
    """How many responses the model has given already, by what the request shows of them; it counts up to `enough`."""
    messages: Iterable[Message] = request.messages
    if per == "turn":
        messages = takewhile(lambda message: message.role is not Role.USER, reversed(request.messages))
    given = (message for message in messages if message.role is Role.ASSISTANT)
    return sum(1 for _ in islice(given, enough))


def echo(request: Request) -> str:
    """What the model `scripted` answers without a script."""
    for message in reversed(request.messages):
        if message.role is Role.USER:
            return f"You said: {message.text}"
    return "You have not said anything yet."


class _Wait(msgspec.Struct):
    """Where a response has to wait, and for what."""

    until: Awaitable[object]


class _Playing:
    """One response, being played: parts to be given out, and waits. The stream itself does the waiting, so that it is
    the only asynchronous generator of a call; each of them costs the loop more than the part it passes on."""

    def __init__(self, model: ScriptedModel, request: Request, watch: Watch) -> None:
        self._model = model
        self._request = request
        self._watch = watch
        self._calls = 0
        self._pieces = 0
        self._count: Usage | None = None
        self._reason: FinishReason | None = None

    def play(self, steps: Response) -> Iterator[StreamPart | _Wait]:
        opened = False
        for step in steps:
            if isinstance(step, Cut) and self._applies(step.attempts):
                return
            if isinstance(step, Fail) and self._applies(step.attempts):
                raise self._error(step)
            if not opened and not isinstance(step, Stall | Hold):
                opened = True  # what comes before is the provider thinking
                yield Opened(request_id=f"scripted-{self._request.attempt}")
            for beat in self._play_step(step):
                self._pieces += type(beat) is not _Wait
                yield beat
        for index in range(self._calls):
            yield CallEnded(index=index)
        counted = Usage(input_tokens=len(self._request.messages), output_tokens=self._pieces)
        yield self._count or counted
        yield ResponseFinished(reason=self._reason or ("tool_calls" if self._calls else "stop"))

    def _applies(self, attempts: int | None) -> bool:
        return attempts is None or self._request.attempt <= attempts

    def _play_step(self, step: Step) -> Iterator[StreamPart | _Wait]:
        match step:
            case Say():
                for piece in _pieces(step.text, step.piece_chars):
                    yield from self._pause(step.pace_s)
                    yield TextDelta(text=piece)
            case Think():
                for piece in _pieces(step.text, step.piece_chars):
                    yield from self._pause(step.pace_s)
                    yield ReasoningDelta(text=piece)
                if step.signature is not None:
                    yield ReasoningDelta(signature=msgspec.Raw(msgspec.json.encode(step.signature)))
            case Call():
                yield from self._play_calls((step,))
            case Together():
                yield from self._play_calls(step.calls)
            case Stall() if self._applies(step.attempts):
                for_s = step.for_s
                yield _Wait(asyncio.Event().wait() if for_s is None else self._model._sleep(for_s))
            case Hold() if self._applies(step.attempts):
                held = self._model._held(step.name)
                held.reached.set()
                yield _Wait(held.resumed.wait())
            case Count():
                self._count = Usage(**msgspec.structs.asdict(step))
            case Finish():
                self._reason = step.reason
            case _:
                pass  # a step that is over after the first attempts

    def _play_calls(self, calls: Sequence[Call]) -> Iterator[StreamPart | _Wait]:
        streams: list[tuple[int, Call, Iterator[str]]] = []
        for call in calls:
            index, self._calls = self._calls, self._calls + 1
            text = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
            streams.append((index, call, _pieces(text, call.piece_chars)))
            yield CallStarted(index=index, name=call.name, provider_id=f"scripted-{index}")
        while streams:
            for stream in list(streams):
                index, call, pieces = stream
                if (piece := next(pieces, None)) is None:
                    streams.remove(stream)
                    continue
                yield from self._pause(call.pace_s)
                yield CallArguments(index=index, text=piece)

    def _pause(self, pace_s: float | None) -> Iterator[_Wait]:
        wait_s = self._model.script.pace_s if pace_s is None else pace_s
        if wait_s > 0:
            yield _Wait(self._model._sleep(wait_s))

    async def within_deadlines(self, wait: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout_at(self._watch.due_at) as limit:
                await wait
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._watch.late() from error

    def _error(self, step: Fail) -> ProviderError:
        headers = {} if step.retry_after is None else {"retry-after": step.retry_after}
        error = provider_error(
            self._model.name, step.status, ErrorFields(message=step.message, code=step.code), headers=headers
        )
        if step.code in set(Kind):
            error.code = Kind(step.code)
        error.parameter = step.parameter
        return error


def _pieces(text: str, piece_chars: int | None) -> Iterator[str]:
    if piece_chars is None:
        return iter(_WORD.findall(text) or ([text] if text else []))
    return (text[at : at + piece_chars] for at in range(0, len(text), piece_chars))
