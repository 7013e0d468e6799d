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

_LISTS = ("args", "inherit", "agents", "tools", "scopes", "login_reach")
_OF_URL = ("headers", "headers_env", "client_id", "client_secret_env", "scopes", "redirect_port", "login_reach")
_OF_COMMAND = ("args", "env", "inherit", "cwd")

ReplayClass = Literal["pure", "idempotent", "unsafe"]


class _Named(Struct, frozen=True):
    name: str


class McpServer(_Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that is started here (`command`), or a server that is reached over HTTP (`url`).

    A program gets a minimal environment, `env`, and those variables of this process that `inherit` names. `headers`
    go with every request; `headers_env` says in which variable of this process a header's value stands.

    Where a server reached over HTTP wants a login by OAuth, a person gives it with `holdfast mcp login`. `client_id`,
    and the variable with its secret, are for an authorization server that registers no clients by itself,
    `redirect_port` for one that knows our redirect URI beforehand (0: any). `scopes` are asked for. `login_reach`
    names hosts inside, beside the server's own, that a login may lead to.

    `tools` names those of its tools that are used; None is all of them. `resources`: where it has some, the model can
    list and read them, by tools that `tools` has to name, too, where it names any; `prompts`: a person can call them,
    `/server:prompt`. `elicitation`: it may ask the person something in the middle of a call, as a question of the
    chat. A call is `unsafe` unless `replay` says otherwise for its tool, or `trust_hints` believes what the server
    says of it. `needs_approval` is for all tools, or for those it names. `agents`, in the file only, says who gets
    it; None is every agent.
    """

    command: str = ""
    args: Sequence[str] = ()
    env: dict[str, str] = {}
    inherit: Sequence[str] = ()
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    headers_env: dict[str, str] = {}
    client_id: str = ""
    client_secret_env: str = ""
    scopes: Sequence[str] = ()
    redirect_port: int = 0
    login_reach: Sequence[str] = ()
    agents: Sequence[str] | None = None
    tools: Sequence[str] | None = None
    resources: bool = True
    prompts: bool = True
    elicitation: bool = False
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
        for field in (*_LISTS, "needs_approval"):
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
        foreign = _OF_URL if self.command else _OF_COMMAND
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
        if not 0 <= self.redirect_port < 65536:
            return f"redirect_port is a port, or 0 for any, not {self.redirect_port}"
        if self.client_secret_env and not self.client_id:
            return "client_secret_env is the secret of a client_id, which is missing"
        for field in _LISTS:
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

    def client_secret(self, environ: Mapping[str, str] | None = None) -> str | None:
        """Raises ConfigError for a variable that is not set."""
        return self._of_host(self.client_secret_env, environ) if self.client_secret_env else None

    @property
    def takes_login(self) -> bool:
        """Whether a login by OAuth can be for it: a header, or a name in its URL, that says who asks comes first."""
        named = "@" in urlsplit(self.url).netloc
        keyed = any(key.lower() == "authorization" for key in (*self.headers, *self.headers_env))
        return bool(self.url) and not named and not keyed

    def _of_host(self, name: str, environ: Mapping[str, str] | None) -> str:
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise ConfigError(f"MCP server {self.name!r}: environment variable {name} is not set")
        return found
