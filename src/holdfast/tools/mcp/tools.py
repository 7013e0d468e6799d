"""What an MCP server lists, as tools of ours. What they answer is in `answers.py`.

A tool is named `server_tool`. The name depends on the two names alone, so that it is the same in every process and
after every restart. Nothing that a server says of its tools is trusted with more than their description, unless the
declaration says so.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from holdfast.core.codec import decode_json, storable
from holdfast.core.records import Frozen, Replay
from holdfast.errors import ToolFailed
from holdfast.log_context import logger
from holdfast.mcp_servers import McpServer
from holdfast.tools import results
from holdfast.tools.base import Tool, ToolOutput
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.elicitation import ask_tool
from holdfast.tools.permissions.acts import CallTool

log = logger("holdfast.mcp")

TOOLS_MAX = 256  # of one server
NAME_MAX = 64  # what every provider accepts
DESCRIPTION_MAX = 4_096
SCHEMA_BYTES_MAX = 65_536
SHOWN_MAX = 5  # names of tools that are left out, in the log
OWN_END_S = 5.0  # a call ends itself at its deadline and says which; a body that fails to is cut off
_SIGN = re.compile(r"[^A-Za-z0-9_-]")

Run = Callable[["Listed", dict[str, Any], ToolContext], Awaitable[ToolOutput]]


Verb = Literal["tools/call", "resources/list", "resources/read"]


class Listed(Frozen):
    """A tool as its server lists it; or one of ours for what else the server has, by another verb of the protocol."""

    name: str
    verb: Verb = "tools/call"
    description: str = ""
    schema: Raw = Raw(b'{"type":"object","properties":{}}')
    read_only: bool = False  # what the server says; believed only where it is trusted
    idempotent: bool = False


# Of a server that has resources. A tool of its own by the same name comes before these.
RESOURCE_TOOLS = (
    Listed(
        name="list_resources",
        verb="resources/list",
        description="List what can be read with read_resource: URIs, and templates of URIs. A page at a time.",
        schema=Raw(
            b'{"type":"object","properties":{"cursor":{"type":"string","description":"Of the next page, as the last '
            b'one gave it"}},"additionalProperties":false}'
        ),
    ),
    Listed(
        name="read_resource",
        verb="resources/read",
        description="Read a resource by its URI.",
        schema=Raw(
            b'{"type":"object","properties":{"uri":{"type":"string"}},"required":["uri"],"additionalProperties":false}'
        ),
    ),
)


def tool_name(server: McpServer, name: str) -> str:
    """Where the tool's own name cannot be kept, it gets a tail by which it is told from its like."""
    plain = f"{server.prefix}{_SIGN.sub('_', name)}"
    if plain == f"{server.prefix}{name}" and len(plain) <= NAME_MAX:
        return plain
    tail = hashlib.blake2b(storable(name).encode(), digest_size=4).hexdigest()
    return f"{plain[: NAME_MAX - len(tail) - 1]}_{tail}"


def replay_of(server: McpServer, listed: Listed) -> Replay:
    if listed.verb != "tools/call":
        return (
            Replay.PURE
        )  # to read is what the protocol has them for; who does not believe that sets resources = false
    if listed.name in server.replay:
        return Replay(server.replay[listed.name])
    if server.trust_hints and listed.read_only:
        return Replay.PURE
    if server.trust_hints and listed.idempotent:
        return Replay.IDEMPOTENT
    return Replay.UNSAFE


def tools_of(server: McpServer, listing: Sequence[Listed], run: Run) -> dict[str, Tool]:
    """By name, in the order of their names: a server that lists them in another order tells the model nothing new."""
    found: dict[str, Tool] = {}
    left_out: dict[str, list[str]] = {}
    for listed in sorted(listing, key=lambda listed: (listed.verb != "tools/call", listed.name)):
        if server.tools is not None and listed.name not in server.tools:
            continue
        name = tool_name(server, listed.name)
        if why := _refused(listed, found, name):
            left_out.setdefault(why, []).append(name)
            continue
        found[name] = _tool(server, listed, name, run)
    for why, names in left_out.items():  # in one line: there may be a hundred thousand
        shown = ", ".join(names[:SHOWN_MAX])
        extra = {"action": "mcp_tool_left_out", "server": server.name, "tool": shown, "why": why}
        log.warning("%s tools left out", f"{len(names):,}", extra=extra)
    for unknown in sorted(set(server.tools or ()) - {listed.name for listed in listing}):
        extra = {"action": "mcp_tool_missing", "server": server.name, "tool": unknown[:NAME_MAX]}
        log.warning("a tool that the declaration names is not listed", extra=extra)
    if server.elicitation:
        asking = ask_tool(server)
        found.setdefault(asking.name, asking)
    return dict(sorted(found.items()))


def _refused(listed: Listed, found: Mapping[str, Tool], name: str) -> str | None:
    if len(found) >= TOOLS_MAX:
        return f"it has more than {TOOLS_MAX} tools; name those that are wanted with tools=[…]"
    if name in found or name == results.NAME:
        return "another tool has the same name"
    if len(bytes(listed.schema)) > SCHEMA_BYTES_MAX:
        return f"its schema has more than {SCHEMA_BYTES_MAX:,} bytes"
    return None


def _tool(server: McpServer, listed: Listed, name: str, run: Run) -> Tool:
    async def elsewhere(arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        return await run(listed, arguments, context)

    async def by_hand(**arguments: Any) -> ToolOutput:
        return await run(listed, arguments, ToolContext())

    asks = server.needs_approval
    return Tool(
        name=name,
        description=storable(listed.description)[:DESCRIPTION_MAX],
        schema=listed.schema,
        function=by_hand,
        validate=_any_object,
        replay=replay_of(server, listed),
        deadline_s=server.call_s + OWN_END_S,
        output_bytes_max=server.output_bytes_max,
        needs_approval=asks if isinstance(asks, bool) else listed.name in asks,
        acts=lambda _: [CallTool(server=server.name, tool=listed.name)],
        on_unknown=server.on_unknown,
        untrusted=True,
        recalls=server.elicitation and listed.verb == "tools/call",
        elsewhere=elsewhere,
    )


def _any_object(arguments: str) -> dict[str, Any]:
    """The server knows what fits; here it has to be an object at all."""
    try:
        found: dict[str, Any] = msgspec.convert(decode_json(arguments or "{}"), dict[str, Any])
    except ValueError as error:
        raise ToolFailed(f"The arguments do not fit: {error}") from None
    return found
