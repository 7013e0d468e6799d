"""One MCP server while a worker uses it: connected on first use, kept, reconnected with backoff, closed for certain.

    unused ──first use──▶ connecting ──▶ ready ──lost──▶ connecting (at once) ──▶ …
                              │                              │
                              ├────────── failed ────────────┴──▶ away ──backoff──▶ …
                              └── it wants a login ──▶ needs_login ──a login, or backoff──▶ …

One task of its own, the keeper, opens and closes the connection; calls of all chats share it. What the server last
listed stays offered while it is away, and a call to it is answered with an error that says so; a server that was
never reached offers nothing. A call that went unanswered raises a doubt, and a server that does not answer a ping
either is given up and connected anew: a program that hangs is killed and started again. No worker waits for a person:
a server that wants a login is one that is away, and says what to run.

    connect_s   from the start of the program, or of the connection, to the end of the handshake
    list_s      for the list of its tools
    call_s      for a call, with everything: a reconnect, a second try
    ping_s      for a sign of life after a call that was not answered
"""

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.core.records import Replay
from holdfast.errors import (
    HoldfastError,
    McpCallTimeout,
    McpConnectTimeout,
    McpError,
    McpListTimeout,
    McpNeedsLogin,
    McpOutcomeUnknown,
    McpPingTimeout,
    McpUnavailable,
    ToolFailed,
)
from holdfast.log_context import logger
from holdfast.mcp_servers import McpServer
from holdfast.redaction import Secrets
from holdfast.system.clock import dice
from holdfast.system.processes import Children
from holdfast.tools.base import Tool, ToolOutput
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.answers import (
    ErrorAnswer,
    LoginNeeded,
    Lost,
    NotSent,
    ServerAnswer,
    UnreadableAnswer,
    Unrenewed,
)
from holdfast.tools.mcp.prompts import ListedPrompt
from holdfast.tools.mcp.tools import Listed, replay_of, tools_of

if TYPE_CHECKING:
    from holdfast.tools.mcp.logins import ServerLogin
    from holdfast.tools.mcp.session import McpWire

log = logger("holdfast.mcp")

CLOSE_S = 4.0  # for a session to end in good order; a program's group is ended in any case
BACKOFF_S = 1.0
BACKOFF_S_MAX = 60.0
LOGIN_LOOK_S = 2.0  # between two looks for a login that a person may have given
STEADY_S = 30.0  # a connection that held so long, or answered a call, was a good one
LIST_PAUSE_S = 1.0  # between two lists: a server may say with each that it has changed
REASON_CHARS_MAX = 2_000

State = Literal["unused", "connecting", "ready", "away", "needs_login", "closed"]
RunSync = Callable[[Callable[[], Any]], Awaitable[Any]]


class LoginPlace(NamedTuple):
    """Where the logins of a worker are, and what keeps them out of journals and logs."""

    home: str
    secrets: Secrets


class Link:
    """Belongs to one event loop. `run_sync` is for the SDK's import, which would hold it up for a second."""

    def __init__(
        self, server: McpServer, children: Children | None, run_sync: RunSync, logins: LoginPlace | None = None
    ) -> None:
        """`logins`: for a server that takes one."""
        self.server = server
        self.state: State = "unused"
        self.tools: Mapping[str, Tool] = MappingProxyType({})  # what it last listed
        self.prompts: tuple[ListedPrompt, ...] = ()  # likewise
        self.connects = 0
        self.losses = 0
        self.calls = 0
        self.calls_failed = 0
        self.last_error: str | None = None
        self._children = children
        self._run_sync = run_sync
        self._logins = logins if server.takes_login else None
        self._login: ServerLogin | None = None
        self._listing: list[Listed] = []
        self._wire: McpWire | None = None
        self._wires: Any = None  # the module, once loaded
        self._keeper: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[ServerAnswer]] = set()
        self._first = asyncio.Event()  # the first attempt to connect has ended, well or not
        self._decided = asyncio.Event()  # it is ready or away, not in between
        self._stir = asyncio.Event()
        self._doubted = False
        self._judgement = asyncio.Event()  # a doubt was cleared up, one way or the other
        self._ready_at = 0.0
        self._listed_at = 0.0  # anew, for the last time
        self._failures = 0  # in a row
        self._reported: str | None = None  # why it is away, as the log has it
        self._proven = False  # this connection has answered a call
        self._retry_at: float | None = None

    # --- for who uses it --------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Until it was tried once, at most connect_s and list_s from the first use. Later it waits for nothing."""
        if self.state != "closed":
            self._start()
            await self._first.wait()

    async def call(self, listed: Listed, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        """The body of each of its tools. Raises ToolFailed with a text for the model."""
        self._start()
        self.calls += 1
        sent = _Sent()
        try:
            async with asyncio.timeout(self.server.call_s) as limit:
                answer = await self._try(listed, arguments, context, sent)
        except TimeoutError:
            if not limit.expired():
                raise
            self.calls_failed += 1
            self._doubt()
            what = f"{listed.name} gave no answer"
            late = McpCallTimeout(self.server.name, what, self.server.call_s)
            if sent and self._is_unsafe(listed):
                reason = f"{what} within {self.server.call_s:g} s (call_s)"
                raise McpOutcomeUnknown(self.server.name, reason) from late
            raise late from None
        except McpError:
            self.calls_failed += 1
            raise
        if answer.error:
            raise ToolFailed(answer.text)
        return answer.output

    async def prompt(self, name: str, arguments: dict[str, str]) -> ServerAnswer:
        """Once; and once more on a new connection if this one was lost. Raises McpError; bounded by the caller."""
        self._start()
        for last in (False, True):
            wire = await self._connected()
            try:
                return await wire.prompt(name, arguments)
            except LoginNeeded as error:
                raise McpNeedsLogin(self.server.name, str(error)) from error
            except (NotSent, Lost) as error:
                if last or isinstance(error, Unrenewed):
                    raise McpUnavailable(self.server.name, f"no prompt: {_story(wire, error)}") from error
                await self._judged(wire)
            except ErrorAnswer as error:
                raise McpError(self.server.name, f"{name}: {error}"[:REASON_CHARS_MAX]) from error
        raise AssertionError("the second try either answers or raises")

    def absence(self) -> str:
        """Why it cannot be called now, for a model or a person."""
        again = "" if self._retry_at is None else f"; next attempt in {max(0.0, self._retry_at - _now()):.0f} s"
        return f"not available: {self.last_error or 'it is not connected'}{again}"

    @property
    def away(self) -> bool:
        return self.state == "away"

    @property
    def needs_login(self) -> bool:
        return self.state == "needs_login"

    def figures(self) -> dict[str, Any]:
        """From any thread."""
        wire, retry_at = self._wire, self._retry_at
        return {
            "server": self.server.name,
            "transport": self.server.transport,
            "place": self.server.place,
            "state": self.state,
            "pid": wire.pid if wire is not None else None,
            "tools": len(self.tools),
            "connects": self.connects,
            "losses": self.losses,
            "failures_in_a_row": self._failures,
            "retry_in_s": None if retry_at is None else round(max(0.0, retry_at - _now()), 1),
            "calls": self.calls,
            "calls_failed": self.calls_failed,
            "calls_open": len(self._requests),
            "garbage_lines": wire.garbage if wire is not None else 0,
            "stderr": wire.stderr.text[-1_000:] if wire is not None else "",
            "last_error": self.last_error,
            "connect_s": self.server.connect_s,
            "list_s": self.server.list_s,
            "call_s": self.server.call_s,
            "ping_s": self.server.ping_s,
        }

    async def close(self) -> None:
        """Bounded, whatever the server does. Nothing of it is left; it cannot be used again."""
        self.state = "closed"
        self._down()
        self._decide("closed")
        for task in (*self._requests, *([self._keeper] if self._keeper is not None else [])):
            task.cancel()
        if self._keeper is not None:
            await asyncio.wait({self._keeper, *self._requests}, timeout=2 * CLOSE_S)
        if self._login is not None and (renewing := self._login.renewing) is not None:
            await asyncio.wait({renewing}, timeout=2 * CLOSE_S)  # what came for a spent token is to be on the disk

    # --- a call -----------------------------------------------------------------------------------------

    async def _try(
        self, listed: Listed, arguments: dict[str, Any], context: ToolContext, sent: "_Sent"
    ) -> ServerAnswer:
        """Once; and once more on a new connection if the server never had it, or if it may simply run again."""
        for last in (False, True):
            wire = await self._connected()
            try:
                with sent:
                    answer = await self._request(wire, listed, arguments, context)
            except ErrorAnswer as error:
                lost = isinstance(error, UnreadableAnswer) and self._is_unsafe(listed)
                raise (McpOutcomeUnknown if lost else McpError)(
                    self.server.name, f"{listed.name}: {error}"
                ) from error
            except LoginNeeded as error:
                raise McpNeedsLogin(self.server.name, f"{listed.name} was not called: {error}") from error
            except NotSent as error:
                if last or isinstance(error, Unrenewed):
                    raise McpUnavailable(self.server.name, f"{listed.name} was not called: {error}") from error
                await self._judged(wire)
            except Lost as error:
                await self._judged(wire)
                reason = f"the connection was lost while {listed.name} ran: {_story(wire, error)}"
                if self._is_unsafe(listed):
                    raise McpOutcomeUnknown(self.server.name, reason) from error
                if last:
                    raise McpUnavailable(self.server.name, reason) from error
            else:
                self._proven, self._failures = True, 0
                return answer
        raise AssertionError("the second try either answers or raises")

    async def _connected(self) -> "McpWire":
        """The connection; with patience for one that is just being made. Raises McpUnavailable."""
        await self._decided.wait()
        if self._wire is None:
            raise (McpNeedsLogin if self.needs_login else McpUnavailable)(self.server.name, self.absence())
        return self._wire

    async def _judged(self, wire: "McpWire") -> None:
        """Until it is known what is left of a connection that lost a request: by a ping, or by its end."""
        if self._wire is wire:
            await self._doubt().wait()
        if self._wire is not wire:
            await wire.closed.wait()

    async def _request(
        self, wire: "McpWire", listed: Listed, arguments: dict[str, Any], context: ToolContext
    ) -> ServerAnswer:
        """In a task of its own: the SDK tells the server of a cancellation, and its caller need not wait for that."""
        work = asyncio.ensure_future(wire.carry_out(listed, arguments, context))
        self._requests.add(work)
        work.add_done_callback(self._forget)
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            raise
        if work.cancelled():
            lost = McpOutcomeUnknown if self._is_unsafe(listed) else McpUnavailable
            raise lost(self.server.name, f"the connection was closed while {listed.name} ran")
        return work.result()

    def _is_unsafe(self, listed: Listed) -> bool:
        return replay_of(self.server, listed) is Replay.UNSAFE

    def _forget(self, work: "asyncio.Task[ServerAnswer]") -> None:
        self._requests.discard(work)
        if not work.cancelled():
            work.exception()  # its waiter has seen it

    def _doubt(self) -> asyncio.Event:
        """Let the keeper find out whether the server still answers. The event is set when it has."""
        self._doubted = True
        self._judgement.clear()
        self._stir.set()
        return self._judgement

    # --- the connection ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.state == "closed":
            raise McpUnavailable(self.server.name, "it is closed: its worker has stopped")
        if self._keeper is None:
            self.state = "connecting"
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        """The keeper: one connection after the other."""
        while self.state != "closed":
            connects = self.connects
            wire, login_wanted, seen = None, False, None
            try:
                wire = await self._load()
                seen = await self._login.made_at() if self._login is not None else None
                await self._live(wire)
            except Exception as error:  # noqa: BLE001  whatever a server or the SDK does, the next attempt comes
                login_wanted = wire is not None and wire.login_wanted is not None
                self.last_error = (_words(error) if wire is None else _story(wire, error))[:REASON_CHARS_MAX]
            wait_s = self._gone(was_ready=self.connects > connects, login_wanted=login_wanted)
            await (self._until_login(seen, wait_s) if login_wanted else asyncio.sleep(wait_s))
            self._retry_at = None

    async def _until_login(self, seen: int | None, wait_s: float) -> None:
        """Until a person has made another login than before the attempt, or it is time for the next one anyway."""
        assert self._login is not None
        for _ in range(max(1, int(wait_s / LOGIN_LOOK_S))):
            await asyncio.sleep(min(LOGIN_LOOK_S, wait_s))
            if await self._login.made_at() != seen:
                return

    async def _load(self) -> "McpWire":
        if self._wires is None:
            self._wires = await self._run_sync(self._load_off_the_loop)
            if self._logins is not None:
                self._login = self._wires.ServerLogin(self.server, self._logins, self._run_sync)
        wire: McpWire = self._wires.McpWire(self.server, self._stirred)
        return wire

    def _load_off_the_loop(self) -> Any:
        wires = importlib.import_module("holdfast.tools.mcp.session")
        if self.server.url:
            importlib.import_module("holdfast.tools.mcp.http_transport").tls()
        return wires

    def _stirred(self) -> None:
        """A connection ended, wants a login, or its list changed. But for the last, it serves no call from now on."""
        if self._wire is not None and (self._wire.ended is not None or self._wire.login_wanted is not None):
            self._down()
        self._stir.set()

    async def _live(self, wire: "McpWire") -> None:
        """One connection, from its start to its end. Ends with an error."""
        stack = AsyncExitStack()
        try:
            await self._open(stack, wire)
            await self._list(wire)
            self._up(wire)
            await self._serve(wire)
        except BaseException as error:
            self._down()
            if (why := await _left(stack, error)) is not error:
                raise why from None
            raise
        finally:
            wire.closed.set()

    async def _open(self, stack: AsyncExitStack, wire: "McpWire") -> None:
        try:
            async with asyncio.timeout(self.server.connect_s) as limit:
                await stack.enter_async_context(self._wires.connect(wire, self.server, self._children, self._login))
        except TimeoutError:
            if not limit.expired():
                raise
            raise McpConnectTimeout(self.server.name, "no session", self.server.connect_s) from None

    def _up(self, wire: "McpWire") -> None:
        self.connects += 1
        self._wire, self._proven, self._doubted, self._ready_at = wire, False, False, _now()
        self._decide("ready")
        self._reported = None
        extra = {"action": "mcp_connected", "server": self.server.name, "tools": len(self.tools)}
        log.info("MCP server connected", extra=extra)

    def _down(self) -> None:
        """Before anything is closed: no call sends another request where it would be lost."""
        if self._wire is not None:
            self._wire = None
            self._judgement.set()
            if self.state != "closed":
                self.state = "connecting"
                self._decided.clear()

    def _decide(self, state: State) -> None:
        if self.state != "closed":
            self.state = state
        self._first.set()
        self._decided.set()

    async def _serve(self, wire: "McpWire") -> None:
        while True:
            if wire.ended is not None:
                raise McpUnavailable(self.server.name, wire.ended.reason)
            if wire.login_wanted is not None:
                if self._requests:  # those that it has taken may still be answered
                    await asyncio.wait(set(self._requests), timeout=self.server.call_s)
                raise LoginNeeded(wire.login_wanted)
            if self._doubted or wire.doubted:
                wire.doubted = False
                await self._ping(wire)
                self._doubted = False
                self._judgement.set()
            pause_s = self._listed_at + LIST_PAUSE_S - _now() if wire.stale else None
            if pause_s is not None and pause_s <= 0:
                wire.stale, pause_s = False, None
                await self._list_again(wire)
                self._listed_at = _now()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stir.wait()
            self._stir.clear()

    async def _ping(self, wire: "McpWire") -> None:
        try:
            async with asyncio.timeout(self.server.ping_s) as limit:
                with suppress(ErrorAnswer, Unrenewed):  # an answer all the same; or it could not even be asked
                    await wire.ping()
        except TimeoutError:
            if not limit.expired():
                raise
            raise McpPingTimeout(self.server.name, "it hangs: no answer to a ping", self.server.ping_s) from None

    async def _list(self, wire: "McpWire") -> None:
        try:
            async with asyncio.timeout(self.server.list_s) as limit:
                listing, self.prompts = await wire.list(), await wire.list_prompts()
        except TimeoutError:
            if not limit.expired():
                raise
            raise McpListTimeout(self.server.name, "no list of its tools", self.server.list_s) from None
        if listing != self._listing:
            self._listing = listing
            self.tools = MappingProxyType(tools_of(self.server, listing, self.call))

    async def _list_again(self, wire: "McpWire") -> None:
        """A list that does not come changes nothing: the last one stays, and the server is asked whether it lives."""
        try:
            await self._list(wire)
        except (McpListTimeout, ErrorAnswer) as error:
            self.last_error = str(error)[:REASON_CHARS_MAX]
            extra = {"action": "mcp_list_failed", "server": self.server.name, "error": self.last_error}
            log.warning("list of tools", extra=extra)
            self._doubt()

    def _gone(self, *, was_ready: bool, login_wanted: bool = False) -> float:
        """How long to wait for the next attempt: not at all after a good connection, else longer and longer."""
        if was_ready:
            self.losses += 1
            if self._proven or _now() - self._ready_at >= STEADY_S:
                self._failures = 0
        self._failures += 1
        at_once = was_ready and self._failures == 1 and not login_wanted
        wait_s = 0.0 if at_once else min(BACKOFF_S * 2 ** min(self._failures - 1, 10), BACKOFF_S_MAX)
        wait_s *= dice.uniform(0.5, 1.0)
        self._retry_at = _now() + wait_s
        if not at_once:
            self._decide("needs_login" if login_wanted else "away")
        extra = {
            "action": "mcp_needs_login" if login_wanted else "mcp_lost" if was_ready else "mcp_failed",
            "server": self.server.name,
            "error": self.last_error,
            "retry_in_s": round(wait_s, 1),
        }
        # The same reason again, attempt after attempt, would fill the log: once is enough, until it was there again.
        level = logging.WARNING if was_ready or self.last_error != self._reported else logging.DEBUG
        self._reported = self.last_error
        log.log(level, "MCP server lost" if was_ready else "MCP server not reached", extra=extra)
        return wait_s


class _Sent:
    """Whether a server has, or may have, the request of a call. Around each try: what says `NotSent` was none."""

    def __init__(self) -> None:
        self._tries = 0

    def __bool__(self) -> bool:
        return self._tries > 0

    def __enter__(self) -> None:
        self._tries += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, NotSent):
            self._tries -= 1


def _now() -> float:
    return time.monotonic()


def _story(wire: "McpWire", error: Exception) -> str:
    """What went wrong, and what the server itself said last."""
    reason = wire.ended.reason if wire.ended is not None else _words(error)
    return "; ".join(filter(None, (reason, wire.epitaph()))).rstrip(".")


def _words(error: BaseException) -> str:
    """Of a group of errors, the first: the SDK's task groups wrap what happened in them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, HoldfastError | LoginNeeded | Lost | NotSent | ErrorAnswer):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _left(stack: AsyncExitStack, error: BaseException) -> BaseException:
    """Why it ended. What a connection that is given up still raises tells nothing, unless the SDK has cancelled us:
    then something in there broke, no caller wants the keeper to end, and only on the way out it is told what it was.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = isinstance(error, asyncio.CancelledError)
    why: Exception = Lost("the session broke")
    try:
        async with asyncio.timeout(CLOSE_S):
            await (stack.__aexit__(type(error), error, error.__traceback__) if cancelled else stack.aclose())
    except asyncio.CancelledError:
        if task.cancelling():
            raise
    except Exception as raised:  # noqa: BLE001  whatever it is
        why = raised
    return why if cancelled and not task.cancelling() else error
