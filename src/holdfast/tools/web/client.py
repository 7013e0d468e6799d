"""HTTP for URLs that no one vouches for: every address is checked before it is connected to, all has an end.

A name is looked up once per hop; all its addresses must be public, and the connection goes to one of those very
addresses, while TLS and the Host header keep the name. A redirect of a GET or a HEAD is a new URL, checked like the
first; one of any other method is the answer. There are no proxies (they would do the looking up), no cookies, no
retries and no kept connections.
"""

import asyncio
import base64
import hashlib
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import hishel
import hishel.httpx2
import httpcore2
import httpx2

from holdfast.core.records import Frozen
from holdfast.errors import ConfigError, OutcomeUnknown, ToolFailed
from holdfast.system.threads import Pool
from holdfast.tools.permissions.acts import Reach
from holdfast.tools.permissions.host_patterns import WEB_PORTS, address_text
from holdfast.tools.permissions.rulebook import NO_RULES, Rulebook
from holdfast.tools.web import addresses
from holdfast.tools.web.addresses import Address
from holdfast.tools.web.cache import WebCache
from holdfast.tools.web.decompression import Unpacker

URL_CHARS_MAX = 8_000
REDIRECTS_MAX = 5
CONNECT_S = 10.0
LOOKUPS_MAX = 4  # at once; one that hangs and was given up does not count
LOOKUP_SLOW_S = 1.0  # one that takes longer may hang: others go past it
ADDRESSES_MAX = 64
PASSED_OVER_S = 1.0  # for which a body is heard that nothing is made of: who is cut off may see a failure
USER_AGENT = "holdfast-fetch"

Resolver = Callable[[str], Awaitable[Sequence[str]]]

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_lookups = Pool("fetch-dns", LOOKUPS_MAX)


def lookup_threads() -> int:
    return _lookups.thread_count


class FetchLimits(Frozen):
    bytes_max: int
    time_s: float


class Bounds:
    """What is fetched from: public addresses on the usual ports, and what an allow is written for."""

    def __init__(self, rulebook: Rulebook, only_hosts: frozenset[str] | None = None) -> None:
        self._rulebook = rulebook
        self._only = only_hosts

    def host_problem(self, host: str, port: int) -> str | None:
        """Why a host, a name or an address, is not one of those that are meant."""
        if self._only is None or not self._only.isdisjoint((host, f"{host}:{port}")):
            return None
        if any(one.startswith("*.") and host.endswith(one[1:]) for one in self._only):
            return None
        return f"it is none of the hosts that may be asked: {', '.join(sorted(self._only)) or 'none may'}"

    def name_problem(self, host: str, port: int) -> str | None:
        """Why a name is not even looked up."""
        problem = addresses.name_problem(host)
        return None if problem is not None and self._rulebook.names(host, port) else problem

    def problem(self, host: str, port: int, found: Sequence[Address]) -> str | None:
        """Why none of these addresses is connected to: one that must not be is enough."""
        book = self._rulebook
        for address in found:
            if (why := book.against(str(addresses.embedded(address)), port)) is not None:
                return f"{host} leads to {address}, and {why}"
        inside = [
            address
            for address in found
            if addresses.internal(address) is not None and not book.names(str(addresses.embedded(address)), port)
        ]
        if inside and not book.names(host, port):
            return f"{host} is an internal address ({addresses.internal(inside[0])}), and no rule is written for it"
        listed = all(book.names(str(addresses.embedded(address)), port) for address in found)
        if port not in WEB_PORTS and not book.covers(host, port) and not listed:
            return f"port {port} is not one that may be fetched from, and no rule is written for it"
        return None

    def check(self, target: "Target", first: "Target | None") -> None:
        """Raises ToolFailed for what the rules are against. The first was judged before, and perhaps approved, or
        allowed by a kept rule though no person is there; a person was not asked about where it redirects to. None: no
        person was asked about anything.
        """
        decision = self._rulebook.judge([Reach(address=address_text(target.host, target.port))])
        asked = False
        if first is not None:
            upgraded = (first.port, target.port) == (80, 443) and decision.by_mode  # to https, as most hosts have it
            asked = target.host == first.host and (target.port == first.port or upgraded)
        alone = self._rulebook.mode == "unattended" and decision.by_mode
        if decision.ruling != "allow" and not (asked and (decision.ruling == "ask" or alone)):
            raise ToolFailed(
                f"it leads to {decision.shown}: {decision.why}. To have a person asked, fetch that by itself"
                if decision.ruling == "ask"
                else f"it leads to {decision.shown}: {decision.why}"
            )


class Target:
    """A URL that may be asked for, taken apart once: the check and the connection see the same host."""

    def __init__(self, url: str) -> None:
        if len(url) > URL_CHARS_MAX or any(char <= " " or char in "\\\x7f" for char in url):
            raise ToolFailed(
                f"a URL has at most {URL_CHARS_MAX:,} characters, and no space, backslash or control character"
            )
        try:
            parsed = httpx2.URL(url)
            host = parsed.raw_host.decode("ascii").lower()
            self.host = host[:-1] if host.endswith(".") else host
            self.scheme = parsed.scheme
            self.port = _PORTS.get(parsed.scheme, 0) if parsed.port is None else parsed.port
            self.userinfo = parsed.userinfo
            self.url = parsed.copy_with(userinfo=b"", fragment=None, host=self.host)
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise ToolFailed(f"that is not a URL: {error}") from None
        if self.scheme not in _PORTS or not self.host or not 0 < self.port < 65536:
            raise ToolFailed("a URL to fetch looks like https://host/path, with http or https")

    @property
    def shown(self) -> str:
        """Without a name and password."""
        return str(self.url)

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    def follow(self, location: str) -> "Target":
        try:
            return Target(str(self.url.join(location)))
        except httpx2.InvalidURL as error:
            raise ToolFailed(f"it redirects to what is not a URL: {error}") from None


class Outgoing(Frozen):
    """What is asked. `headers` are for the origin of the first URL alone. `status_only`: the status and the headers
    are the answer, whatever the body does. `only_asks`: whatever its method, it changes nothing where it arrives.
    """

    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    status_only: bool = False
    only_asks: bool = False

    @property
    def safe(self) -> bool:
        """By HTTP's own definition it changes nothing."""
        return self.method in ("GET", "HEAD")


class Fetched(Frozen):
    url: str  # after redirects
    status: int
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes
    cut: bool  # there was more than the limit
    cached: bool


class _Course:
    """How far a request got."""

    def __init__(self) -> None:
        self.connected: list[Address] = []
        self.answered: Fetched | None = None  # by its status, where that is all that is asked for


class Web:
    """`only_hosts`: none but these are asked, whatever the rules say."""

    def __init__(
        self,
        limits: FetchLimits,
        *,
        resolve: Resolver | None,
        ssl_context: ssl.SSLContext | None,
        only_hosts: Iterable[str] | None = None,
    ) -> None:
        if limits.bytes_max <= 0 or limits.time_s <= 0:
            raise ConfigError("the limits of fetch are above 0")
        self._limits = limits
        self._resolve = resolve or look_up
        self._ssl_context = ssl_context
        self._only_hosts = None if only_hosts is None else frozenset(host.lower() for host in only_hosts)

    async def get(self, url: str, cache: WebCache | None = None, rulebook: Rulebook = NO_RULES) -> Fetched:
        """Raises ToolFailed, also when the time is up."""
        return await self.ask(url, Outgoing(), cache, rulebook)

    async def ask(
        self, url: str, outgoing: Outgoing, cache: WebCache | None = None, rulebook: Rulebook = NO_RULES
    ) -> Fetched:
        """Raises ToolFailed, also when the time is up; OutcomeUnknown where it may have taken effect all the same."""
        course = _Course()
        try:
            async with asyncio.timeout(self._limits.time_s):
                return await self._ask(Target(url), outgoing, cache, Bounds(rulebook, self._only_hosts), course)
        except Exception as error:
            if course.answered is not None:
                return course.answered
            if isinstance(error, TimeoutError):
                raise _failure(f"timed out after {self._limits.time_s:g} s", outgoing, course) from None
            if isinstance(error, ToolFailed):
                raise _failure(str(error), outgoing, course) from error.__cause__
            # Whatever a hostile server brings about is its own URL's failure.
            raise _failure(f"it failed: {str(error) or type(error).__name__}", outgoing, course) from error

    async def _ask(
        self,
        target: Target,
        outgoing: Outgoing,
        cache: WebCache | None,
        bounds: Bounds,
        course: _Course,
    ) -> Fetched:
        userinfo, origin, first = target.userinfo, target.origin, target
        for _ in range(REDIRECTS_MAX + 1):
            bounds.check(target, first)
            checked = await checked_addresses(target, bounds, self._resolve)
            # A name, a password and headers are for the host they were given for. Those in a redirect were given
            # for none.
            if target.origin != origin:
                userinfo, outgoing = b"", Outgoing(method=outgoing.method)
            response = await self._send(target, checked, userinfo, outgoing, cache, course.connected)
            try:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or not location or not outgoing.safe:
                    if outgoing.status_only:
                        return await self._pass_over(target, response, course)
                    return await self._read(target, response, outgoing)
            finally:
                await response.aclose()
            target = target.follow(location)
        raise ToolFailed(f"it redirects more than {REDIRECTS_MAX} times")

    async def _send(
        self,
        target: Target,
        checked: list[Address],
        userinfo: bytes,
        outgoing: Outgoing,
        cache: WebCache | None,
        connected: list[Address],
    ) -> httpx2.Response:
        headers = {
            "host": target.url.netloc.decode("ascii"),
            "user-agent": USER_AGENT,
            "accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
            "accept-encoding": "gzip, deflate",
        }
        if userinfo:
            headers["authorization"] = f"Basic {base64.b64encode(_basic(userinfo)).decode()}"
        headers |= {name.lower(): value for name, value in outgoing.headers}
        transport: httpx2.AsyncBaseTransport = _Direct(checked, self._tls(target), connected)
        extensions: dict[str, Any] = {}
        if cache is not None:
            extensions = {"caching": {"key": cache_key(target, checked)}}
            options = hishel.CacheOptions(shared=True, supported_methods=["GET"], allow_stale=False)
            transport = hishel.httpx2.AsyncCacheTransport(transport, storage=cache, rfc=options)
        content = outgoing.body if outgoing.body or not outgoing.safe else None
        request = httpx2.Request(outgoing.method, target.url, headers=headers, content=content, extensions=extensions)
        return await transport.handle_async_request(request)

    def _tls(self, target: Target) -> ssl.SSLContext | None:
        if target.scheme == "https" and self._ssl_context is None:
            self._ssl_context = httpcore2.default_ssl_context()  # reads some hundred certificates: once
        return self._ssl_context

    async def _pass_over(self, target: Target, response: httpx2.Response, course: _Course) -> Fetched:
        """The rest is heard for a moment and as far as the limit, and may hang, fail or mean nothing."""
        course.answered = _fetched(target, response, b"", cut=False)
        size = 0
        async with asyncio.timeout(PASSED_OVER_S):
            async for piece in response.aiter_raw():
                size += len(piece)
                if size > self._limits.bytes_max:
                    break
        return course.answered

    async def _read(self, target: Target, response: httpx2.Response, outgoing: Outgoing) -> Fetched:
        empty = outgoing.method == "HEAD" or response.status_code in (204, 304)
        unpacker = Unpacker("" if empty else response.headers.get("content-encoding", ""), self._limits.bytes_max)
        async for piece in response.aiter_raw():
            if not unpacker.feed(piece):
                break
        else:
            unpacker.end()
        return _fetched(target, response, bytes(unpacker.data), cut=unpacker.cut)


async def checked_addresses(target: Target, bounds: Bounds, resolve: Resolver) -> list[Address]:
    """Of its host, looked up now: all of them may be connected to. Raises ToolFailed if one may not."""
    if problem := bounds.host_problem(target.host, target.port):
        raise ToolFailed(f"{target.host} is not asked: {problem}")
    literal = addresses.literal(target.host)
    if literal is not None:
        found = [literal]
    elif problem := bounds.name_problem(target.host, target.port):
        raise ToolFailed(f"{target.host} is not fetched: {problem}")
    else:
        found = [_address(text) for text in (await resolve(target.host))[:ADDRESSES_MAX]]
        if not found:
            raise ToolFailed(f"{target.host} has no address")
    if problem := bounds.problem(target.host, target.port, found):
        raise ToolFailed(f"not fetched: {problem}")
    return found


def _fetched(target: Target, response: httpx2.Response, body: bytes, *, cut: bool) -> Fetched:
    status = cast("dict[str, bool]", response.extensions.get("caching", {}))
    return Fetched(
        url=target.shown,
        status=response.status_code,
        content_type=response.headers.get("content-type", ""),
        headers=tuple(response.headers.items()),
        body=body,
        cut=cut,
        cached=status.get("from_cache", False),
    )


def _failure(why: str, outgoing: Outgoing, course: _Course) -> ToolFailed:
    if outgoing.safe or outgoing.only_asks or not course.connected:
        return ToolFailed(why)
    return OutcomeUnknown(f"{why}; whether it took effect is not known: look before you ask again")


def cache_key(target: Target, checked: Sequence[Address]) -> str:
    """One tool may be allowed inside and another not: what came from inside is never found by an outside name."""
    side = "inside" if any(map(addresses.internal, checked)) else "outside"
    return hashlib.sha256(f"{side} {target.url}".encode()).hexdigest()


def _address(text: str) -> Address:
    found = addresses.literal(text)
    if found is None:
        raise ToolFailed(f"the resolver answered {text!r}, which is no address")
    return found


def _basic(userinfo: bytes) -> bytes:
    name, _, password = userinfo.partition(b":")
    return unquote_to_bytes(name) + b":" + unquote_to_bytes(password)


async def look_up(host: str) -> list[str]:
    """Every address of a name, by the system's resolver, in threads of our own: it may hang."""

    def ask(_: object) -> list[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))

    try:
        return await _lookups.run(ask, slow_s=LOOKUP_SLOW_S)
    except OSError as error:
        raise ToolFailed(f"{host} cannot be found: {error.strerror or error}") from error


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked, whatever the name they belong to."""

    def __init__(self, checked: Sequence[Address], connected: list[Address]) -> None:
        self._checked = checked
        self._connected = connected
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failures: list[Exception] = []
        for address in self._checked:
            try:
                stream = await self._backend.connect_tcp(str(address), port, timeout=CONNECT_S)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failures.append(error)
                continue
            self._connected.append(address)  # from here on a request may have arrived
            return stream
        reasons = "; ".join(dict.fromkeys(str(error) or "no answer" for error in failures))
        raise httpcore2.ConnectError(f"cannot connect to {host}:{port}: {reasons}") from failures[-1]

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("Unix sockets are not supported")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Direct(httpx2.AsyncBaseTransport):
    """One request on a connection of its own."""

    def __init__(self, checked: Sequence[Address], tls: ssl.SSLContext | None, connected: list[Address]) -> None:
        self._checked = checked
        self._tls = tls
        self._connected = connected

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=1,
            max_keepalive_connections=0,
            retries=0,
            network_backend=_Pinned(self._checked, self._connected),
        )
        url = request.url
        try:
            response = await pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.content,
                )
            )
        except BaseException:
            await pool.aclose()
            raise
        stream = _Stream(cast("AsyncIterable[bytes]", response.stream), response, pool)
        return httpx2.Response(response.status, headers=response.headers, stream=stream)


class _Stream(httpx2.AsyncByteStream):
    def __init__(
        self, body: AsyncIterable[bytes], response: httpcore2.Response, pool: httpcore2.AsyncConnectionPool
    ) -> None:
        self._body = body
        self._response = response
        self._pool = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()
        await self._pool.aclose()
