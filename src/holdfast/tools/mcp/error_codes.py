"""Codes of errors, as they come out of the SDK: what befell a request, or what its server answered."""

import secrets
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError

from holdfast.tools.mcp.answers import ErrorAnswer, LinksWanted, LoginNeeded, Lost, NotSent, Unrenewed

LINKS_MAX = 4  # that a server wants the person to open before one call

# As what befell a request over HTTP reaches who made it. A server may use the same codes for errors of its own: they
# count with a mark that no server is shown.
NOT_SENT = -32099
NEEDS_LOGIN = -32098
UNRENEWED = -32096
LOST = -32097
REFUSED = mcp_types.INTERNAL_ERROR
MARK = {"holdfast": secrets.token_hex(16)}
# What the SDK itself says, under a code that many servers use for whatever goes wrong, where no answer can come.
_SDK_LOST = ("Connection closed", "SSE stream ")


def told(error: MCPError) -> Exception:
    ours = error.code if error.data == MARK else None
    if ours == NEEDS_LOGIN:
        return LoginNeeded(error.message)
    if ours == NOT_SENT:
        return NotSent(error.message)
    if ours == UNRENEWED:
        return Unrenewed(error.message)
    if ours == LOST or (error.code == mcp_types.CONNECTION_CLOSED and error.message.startswith(_SDK_LOST)):
        return Lost(error.message)
    if error.code == mcp_types.PARSE_ERROR:  # there was an answer, which cannot be read
        return Lost(error.message)
    if error.code == mcp_types.URL_ELICITATION_REQUIRED:
        return LinksWanted(f"{error.message} (code {error.code})", _links(error.data))
    return ErrorAnswer(f"{error.message} (code {error.code})")


def _links(data: Any) -> list[tuple[str, str]]:
    """Of an error that names links to open; what is none is left out."""
    found = data.get("elicitations") if isinstance(data, dict) else None
    return [
        (message, url)
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, dict)
        and isinstance(message := one.get("message"), str)
        and isinstance(url := one.get("url"), str)
    ][:LINKS_MAX]
