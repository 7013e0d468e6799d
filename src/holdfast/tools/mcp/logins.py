"""Logins to MCP servers: their tokens in a file of the home, and one process at a time that renews them.

    HOME/mcp/NAME.json     for this user alone (0600); replaced as a whole, on the disk when it is
    HOME/mcp/NAME.lock     held by the one who renews: who waited reads the file again, and finds them renewed

A refresh token may count only once. So it is renewed under the lock, in a task that no cancelled call takes with it,
and what came is on the disk before anything uses it. That a renewal has begun is written first: a disk that takes no
writes is found out before the old token is spent. A process that dies in between loses what came: the next one shows
the old token again, which strict authorization servers refuse, and then a person has to log in again.

All of a home's workers share its logins, on one machine; the workers of another home have their own. Tokens go to the
URL that the person logged in for, and nowhere else. The floor keeps tools from the home.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast import faults
from holdfast.core.records import Frozen
from holdfast.errors import HoldfastError, McpLoginFailed, McpNeedsLogin, McpUnavailable
from holdfast.log_context import logger
from holdfast.mcp_servers import McpServer
from holdfast.system import disk
from holdfast.tools.mcp.connection import LoginPlace, RunSync
from holdfast.tools.mcp.login_web import REQUEST_S
from holdfast.tools.mcp.oauth import Client, OAuth, OAuthRefused, Tokens

log = logger("holdfast.mcp")

FOLDER = "mcp"
EARLY_MS = 30_000  # before its end a token is renewed; or at a fifth of its time, if that is less
LOCK_S = REQUEST_S + 15.0  # for who waits: one that renews needs a request's time, and two writes
LOCK_LOOK_S = 0.05
FILE_BYTES_MAX = 1 << 20


class Login(Frozen):
    """What a person's login came to. `refused`: why its refresh token counts no more."""

    url: str  # whom the tokens are shown to
    issuer: str
    resource: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    client: Client
    access: str
    refresh: str | None = None
    scope: str | None = None
    made_at: int
    renewed_at: int
    expires_at: int | None = None
    renewing: bool = False  # begun, and not ended: by who holds the lock, or who died with it
    refused: str = ""

    def renewed(self, tokens: Tokens, now_ms: int) -> "Login":
        lasts_ms = None if tokens.expires_s is None else tokens.expires_s * 1000
        return replace(
            self,
            access=tokens.access,
            refresh=tokens.refresh or self.refresh,
            scope=tokens.scope or self.scope,
            renewed_at=now_ms,
            expires_at=None if lasts_ms is None else now_ms + lasts_ms,
            renewing=False,
            refused="",
        )

    def counts(self, now_ms: int) -> bool:
        """As far as this clock tells."""
        return self.expires_at is not None and self.renewed_at - EARLY_MS <= now_ms < self.expires_at

    def ends_soon(self, now_ms: int) -> bool:
        """Also where the clock was set: what is out of its time is renewed."""
        if self.expires_at is None:
            return False
        early_ms = min(EARLY_MS, (self.expires_at - self.renewed_at) // 5)
        return not self.renewed_at - EARLY_MS <= now_ms < self.expires_at - early_ms


class LoginFile:
    """Of one server. Raises McpLoginFailed for what is wrong with it; all but the lock blocks."""

    def __init__(self, home: str, server: str) -> None:
        self._server = server
        self._folder = Path(home) / FOLDER
        self._path = self._folder / f"{server}.json"

    def stamp(self) -> tuple[int, int] | None:
        """Another one for every write; None if there is no login."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def read(self) -> Login | None:
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
            return msgspec.json.decode(data, type=Login)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._failed("cannot be read", error) from error

    def write(self, login: Login) -> None:
        """On the disk when it returns."""
        data = msgspec.json.encode(login)
        try:
            self._have_folder()
            if not disk.create_path(self._path, data, 0o600):
                self._path.chmod(0o600)
                disk.write_path(self._path, data)
        except OSError as error:
            raise self._failed("cannot be written", error) from error

    def remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("cannot be removed", error) from error

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Against every other process, and every other holder in this one. The death of a holder frees it."""
        try:
            self._have_folder()
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed("cannot be locked", error) from error
        try:
            until = time.monotonic() + LOCK_S
            while not _taken(lock):
                if time.monotonic() > until:
                    words = f"another process has been renewing its tokens for {LOCK_S:g} s"
                    raise McpLoginFailed(self._server, words)
                await asyncio.sleep(LOCK_LOOK_S)
            yield
        finally:
            os.close(lock)

    def _have_folder(self) -> None:
        disk.make_home(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def _failed(self, what: str, error: Exception) -> McpLoginFailed:
        why = error.strerror if isinstance(error, OSError) else "it is damaged: log in again"
        return McpLoginFailed(self._server, f"its login {what} ({self._path}): {why or error}")


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ServerLogin:
    """The login to one server, as a worker uses it. Belongs to one event loop."""

    def __init__(self, server: McpServer, place: LoginPlace, run_sync: RunSync) -> None:
        self._server = server
        self._file = LoginFile(place.home, server.name)
        self._secrets = place.secrets
        self._run_sync = run_sync
        self._known: Login | None = None
        self._stamp: tuple[int, int] | None = None
        self._oauth: OAuth | None = None
        self._unkept = False  # what is known is not on the disk
        self.renewing: asyncio.Task[Login] | None = None

    async def made_at(self) -> int | None:
        """When a person made the login that there is; no renewal changes that. None: there is none."""
        login: Login | None = None
        with suppress(HoldfastError):  # it is damaged, or no thread is free to read it
            login = await self._run_sync(self._file.read)
        return None if login is None else login.made_at

    async def bearer(self) -> str | None:
        """The access token, renewed before its end; None: there is no login. Raises McpNeedsLogin, McpUnavailable."""
        login = await self._run_sync(self._look)
        if login is None:
            return None
        if login.refused:
            raise self.needed(login.refused)
        if login.refresh is None or not login.ends_soon(_now_ms()):
            return str(login.access)
        try:
            return (await self._renew(login.access)).access
        except McpNeedsLogin:
            raise
        except McpUnavailable:
            if login.counts(_now_ms()):  # it is renewed early so that there is time for another attempt
                return str(login.access)
            raise

    async def renewed(self, used: str | None) -> str:
        """Another one than the server has just refused. Raises McpNeedsLogin, McpUnavailable."""
        login = await self._run_sync(self._look)
        if login is None:
            raise self.needed("it wants one")
        if login.access != used and not login.refused:
            return str(login.access)
        return (await self._renew(login.access)).access

    def needed(self, why: str) -> McpNeedsLogin:
        name = self._server.name
        return McpNeedsLogin(name, f"a person has to log in ({why}): holdfast mcp login {name}")

    def _look(self) -> Login | None:
        stamp = self._file.stamp()
        if stamp is None or stamp != self._stamp:
            self._take(self._file.read() if stamp is not None else None, stamp)
        return self._known

    def _take(self, login: Login | None, stamp: tuple[int, int] | None) -> None:
        if login is not None and login.url != self._server.url:
            login = None  # it was for another server, which had this name: its tokens are not for this one
        if login is not None:
            for value in (login.access, login.refresh, login.client.secret):
                if value is not None:
                    self._secrets.add_chosen(f"token of {self._server.name}", value)
        self._known, self._stamp, self._unkept = login, stamp, False

    async def _renew(self, used: str) -> Login:
        """One at a time in this process, too, and to its end: the caller may be cancelled, the renewal is not."""
        if self.renewing is None or self.renewing.done():
            self.renewing = asyncio.get_running_loop().create_task(self._renewal(used))
            self.renewing.add_done_callback(_heard)
        return await asyncio.shield(self.renewing)

    async def _renewal(self, used: str) -> Login:
        try:
            async with self._file.locked():
                return await self._renew_alone(used)
        except OAuthRefused as error:
            raise self.needed(error.words) from error
        except McpLoginFailed as error:
            raise McpUnavailable(self._server.name, f"its tokens could not be renewed: {error.words}") from error

    async def _renew_alone(self, used: str) -> Login:
        file, run = self._file, self._run_sync
        if not self._unkept:
            self._stamp = None  # it is read again: who held the lock before us may have written it
        login: Login | None = await run(self._look)
        if login is None:
            raise self.needed("it wants one")
        if login.access != used and not login.refused:
            return login  # another process was first
        if login.refused or login.refresh is None:
            raise self.needed(login.refused or "its tokens count no more, and cannot be renewed")
        await run(lambda: file.write(replace(login, renewing=True)))
        if self._oauth is None:
            self._oauth = OAuth(self._server)
        try:
            tokens = await self._oauth.refresh(login.token_endpoint, login.client, login.refresh, login.resource)
        except OAuthRefused as error:
            cut = "; a renewal before this one was cut short, and took the new ones with it" if login.renewing else ""
            refused = replace(login, renewing=False, refused=f"{error.words}{cut}")
            await run(lambda: file.write(refused))
            raise OAuthRefused(self._server.name, refused.refused) from error
        faults.reach("mcp.refreshed")
        renewed, unkept = login.renewed(tokens, _now_ms()), False
        try:
            await run(lambda: file.write(renewed))
        except McpLoginFailed as error:
            # The old one is spent: what this process has in memory is all there is. It goes on with that.
            extra = {"action": "mcp_login_not_kept", "server": self._server.name, "error": error.words}
            log.error(
                "new tokens could not be written: if this process ends now, a person has to log in", extra=extra
            )
            unkept = True
        self._take(renewed, await run(file.stamp))
        self._unkept = unkept
        return renewed


def _heard(work: "asyncio.Task[Login]") -> None:
    if not work.cancelled():
        work.exception()  # its waiters have seen it


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
