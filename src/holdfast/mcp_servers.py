"""A tool server that speaks the Model Context Protocol, as it is declared: in code, or in `holdfast.toml`.

    McpServer("time", command="mcp-server-time", args=["--local-timezone", "UTC"])

    [mcp.time]
    command = "mcp-server-time"
    args = ["--local-timezone", "UTC"]

Plain data; nothing here connects. `tools/mcp/connection.py` does.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from holdfast.errors import ConfigError

CONNECT_S = 30.0
LIST_S = 30.0
CALL_S = 120.0
PING_S = 10.0
OUTPUT_BYTES_MAX = 1 << 20
# So that `server_tool` is a name that every provider accepts, whatever is left of it for the tool.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")

ReplayClass = Literal["pure", "idempotent", "unsafe"]


class _Named(Struct, frozen=True):
    name: str


class McpServer(_Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that is started here (`command`), or a server that is reached over HTTP (`url`).

    A program gets a minimal environment, `env`, and those variables of this process that `inherit` names. `headers`
    go with every request; `headers_env` says in which variable of this process a header's value stands.

    `tools` names those of its tools that are used; None is all of them. A call is `unsafe` unless `replay` says
    otherwise for its tool, or `trust_hints` believes what the server says of it. `needs_approval` is for all tools,
    or for those it names. `agents`, in the file only, says who gets it; None is every agent.
    """

    command: str = ""
    args: Sequence[str] = ()
    env: dict[str, str] = {}
    inherit: Sequence[str] = ()
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    headers_env: dict[str, str] = {}
    agents: Sequence[str] | None = None
    tools: Sequence[str] | None = None
    replay: dict[str, ReplayClass] = {}
    trust_hints: bool = False
    needs_approval: bool | Sequence[str] = False
    on_unknown: Literal["tell_model", "ask"] = "tell_model"
    connect_s: float = CONNECT_S
    list_s: float = LIST_S
    call_s: float = CALL_S
    ping_s: float = PING_S
    output_bytes_max: int = OUTPUT_BYTES_MAX

    def __post_init__(self) -> None:
        for field in ("args", "inherit", "agents", "tools", "needs_approval"):
            if isinstance(value := getattr(self, field), list):
                structs.force_setattr(self, field, tuple(value))
        if problem := self._problem():
            raise ConfigError(f"MCP server {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        if not _NAME.fullmatch(self.name):
            return "its name begins its tools' names: up to 32 letters, digits, _ and -, beginning with no sign"
        if bool(self.command) == bool(self.url):
            return "give either command, for a program to start, or url, for a server to reach"
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            return f"url must begin with http:// or https://, it is {self.place!r}"
        foreign = ("headers", "headers_env") if self.command else ("args", "env", "inherit", "cwd")
        if given := [field for field in foreign if getattr(self, field)]:
            return f"{given[0]} is not for a server with {'command' if self.command else 'url'}"
        for field in ("connect_s", "list_s", "call_s", "ping_s"):
            if getattr(self, field) <= 0:
                return f"{field} must be above 0, it is {getattr(self, field):g}"
        if self.output_bytes_max < 2:
            return "output_bytes_max must be at least 2: head and tail need a byte each"
        for tool, kind in self.replay.items():
            if kind not in ("pure", "idempotent", "unsafe"):
                return f"replay of {tool!r} is {kind!r}; it can be 'pure', 'idempotent' or 'unsafe'"
        for field in ("args", "inherit", "agents", "tools"):
            if isinstance(getattr(self, field), str):
                return f"{field} is a list of texts, not one text"
        return None

    def __repr__(self) -> str:
        """Without what may be secret."""
        return f"McpServer({self.name!r}, {self.place!r})"

    @property
    def prefix(self) -> str:
        """How the names of its tools begin."""
        return f"{self.name}_"

    @property
    def transport(self) -> str:
        return "stdio" if self.command else "http"

    @property
    def place(self) -> str:
        """Where it is, for people: no user, password or query of its URL."""
        if self.command:
            return self.command
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def variables(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a program gets beside the minimal environment. Raises ConfigError for one that is not set."""
        return {**{name: self._of_host(name, environ) for name in self.inherit}, **self.env}

    def all_headers(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Raises ConfigError for a variable that is not set."""
        return {**self.headers, **{key: self._of_host(name, environ) for key, name in self.headers_env.items()}}

    def _of_host(self, name: str, environ: Mapping[str, str] | None) -> str:
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise ConfigError(f"MCP server {self.name!r}: environment variable {name} is not set")
        return found
