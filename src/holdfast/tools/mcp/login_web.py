"""The requests of a login to an MCP server. Every URL behind the first comes from the server, so none is trusted.

It is asked through the guard of `fetch` (tools/web/client.py), over TLS, at public addresses, on no redirect that
leaves its origin; the declared server itself, and hosts that the declaration names (`login_reach`), may be inside and
without TLS. Answers are bounded in size and time.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.core.codec import decode_json
from holdfast.errors import ConfigError, McpLoginFailed, ToolFailed
from holdfast.mcp_servers import McpServer
from holdfast.tools.permissions.host_patterns import address_text
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.web.client import Fetched, FetchLimits, Outgoing, Target, Web

REQUEST_S = 15.0  # for one request, with all that comes back
ANSWER_BYTES_MAX = 256 << 10
SAID_CHARS_MAX = 300
_PORTS = {"http": 80, "https": 443}


class LoginWeb:
    """For one server. Raises McpLoginFailed for whatever another party does."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        own = urlsplit(server.url)
        reach = (address_text(own.hostname or "", own.port or _PORTS.get(own.scheme, 0)), *server.login_reach)
        try:
            self._rulebook = Rulebook([f"allow reach({host})" for host in reach])
        except ConfigError as error:
            raise ConfigError(f"MCP server {server.name!r}: login_reach: {error}") from None
        self._web = Web(FetchLimits(bytes_max=ANSWER_BYTES_MAX, time_s=REQUEST_S), resolve=None, ssl_context=None)

    async def metadata(self, url: str) -> dict[str, Any] | None:
        """None: there is none."""
        got = await self.ask(url, Outgoing(headers=(("accept", "application/json"),)))
        if origin_of(got.url) != origin_of(url):
            raise self.failed(f"{short(url)} leads to another origin, {short(got.url)}")
        if got.status >= 500 or got.status == 429:
            raise self.failed(f"{short(url)} answered with HTTP status {got.status}")
        # A page of a site that has one for every path is no metadata, and what says that it is has to be.
        if got.status != 200 or (decoded(got) is None and "json" not in got.content_type.lower()):
            return None
        return self.object(got, "metadata")

    async def ask(self, url: str, outgoing: Outgoing) -> Fetched:
        try:
            got = await self._web.ask(self.checked(url), outgoing, rulebook=self._rulebook)
        except ToolFailed as error:
            if isinstance(error, McpLoginFailed):
                raise
            raise self.failed(f"{short(url)}: {short(str(error))}") from error
        if got.cut:
            raise self.failed(f"{short(url)} answered with more than {ANSWER_BYTES_MAX:,} bytes")
        return got

    def checked(self, url: str) -> str:
        """A URL of the server's: with TLS, unless the declaration names its host, and without a name and password."""
        try:
            target = Target(url)
        except ToolFailed as error:
            raise self.failed(f"{short(url)}: {error}") from None
        if target.userinfo or (target.scheme != "https" and not self._rulebook.names(target.host, target.port)):
            words = "a login goes over https, to no user of the URL; login_reach names other hosts"
            raise self.failed(f"{short(url)} is not asked: {words}")
        return url

    def object(self, got: Fetched, what: str) -> dict[str, Any]:
        found = decoded(got)
        if found is None:
            raise self.failed(f"the {what} that {short(got.url)} gives is no JSON object")
        return found

    def failed(self, words: str) -> McpLoginFailed:
        return McpLoginFailed(self._server.name, words)


def origin_of(url: str) -> str:
    """As the guard sees it: both must mean the same host. Nothing of what is no URL."""
    try:
        target = Target(url)
    except ToolFailed:
        return ""
    host = address_text(target.host, target.port)
    usual = target.port == _PORTS[target.scheme]
    return f"{target.scheme}://{host.removesuffix(f':{target.port}') if usual else host}"


def decoded(got: Fetched) -> dict[str, Any] | None:
    try:
        found = decode_json(got.body.decode())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def text_in(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def texts_in(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = found.get(name)
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def short(text: str) -> str:
    """For people: in one line, and not too much of it."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return plain if len(plain) <= SAID_CHARS_MAX else f"{plain[:SAID_CHARS_MAX]}…"
