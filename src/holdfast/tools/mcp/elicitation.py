"""What a server asks the person in the middle of a call, as a durable question of the chat.

No worker holds a call for a person. So the server is told `cancel`, which the protocol has for "not now", and what
it asked is kept with the chat. The model is told; it calls `server_ask_person`, a question like any other (the chat
waits without a worker, for days if need be), and then the tool again: when the server asks the same once more, it
gets the person's answer, once. The words are the server's and the answer is the person's: no model can write either.

An answer counts for the very question that the person was asked, and for no other. It is spent, on the disk, before
the server has it. A server that goes on to ask something else in the same call is told `cancel`: what it was given
before that may be given again, so that a tool that asks twice comes to its end.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from holdfast.core.codec import decode_json, storable
from holdfast.core.records import External, Frozen, Replay, ToolResult
from holdfast.errors import ToolFailed
from holdfast.mcp_servers import McpServer
from holdfast.tools.base import Delegation, Tool
from holdfast.tools.context import ToolContext

ASK = "ask_person"
WORDS_MAX = 600  # of a question, with how it is answered
STORED_MAX = 700  # of the same, with what JSON adds: a chat keeps texts of 1,000 characters
PROBLEM_MAX = 150
FIELDS_MAX = 12
ASKED_MAX = 4  # in one call
NOTES_MAX = 2 * ASKED_MAX  # of what a call asked: for the model
ASKED_BYTES_MAX = 64 << 10  # of a question with its form, most of which no person is shown
KEPT_MAX = 8  # questions of one server that a chat keeps
EXACT_MAX = 1 << 53  # from there on a float may stand for another whole number than the person wrote
_YES = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_FORMATS = ("email", "uri", "date", "date-time")


class Asked(Frozen):
    """What the person is asked. `after`: the newest answer to the same that was there before it."""

    id: str
    words: str
    after: str = ""


class Reply(Frozen):
    action: str  # accept, decline, cancel
    content: dict[str, Any] | None = None


CANCEL = Reply(action="cancel")


class Asker:
    """For one call. `notes` is what the model is told of it. `beside`: those of all calls under way."""

    def __init__(self, server: McpServer, context: ToolContext, beside: "Sequence[Asker]" = ()) -> None:
        self._server = server
        self._context = context
        self._beside = beside
        self._giving: set[str] = set()  # questions whose answer is being spent
        self._given: list[Asked] = []  # what the server got an answer to in this call
        self._asked = 0
        self.notes: list[str] = []

    async def reply(self, message: str, schema: Mapping[str, Any] | None, url: str | None) -> Reply:
        """Raises ToolFailed where the chat has moved on, and nothing that a server can bring about."""
        try:
            asked = question(self._server.name, message, schema, url)
        except ValueError as error:
            return self._left(str(error))
        answer = self._answer(asked.id)
        known = kept_question(self._server, self._context, asked.id)
        problem = ""
        if known is not None and answer is not None and answer.call_id != known.after:
            try:
                reply = reply_of(answer.content, schema, link=url is not None)
            except ValueError as error:
                problem = plain(f" The person's last answer does not fit: {error}")[:PROBLEM_MAX]
            else:
                if any(one.gives(self._context.chat_id, asked.id) for one in (self, *self._beside)):
                    return self._left("the answer goes to the one who asked the same before")
                await self._spend(asked.id)
                self._given.append(known)
                return reply
        if self._asked == ASKED_MAX:
            return self._left(f"it asks more than {ASKED_MAX} things in one call")
        self._asked += 1
        after = "" if answer is None else answer.call_id
        await self._keep(Asked(id=asked.id, words=" ".join(filter(None, (asked.words, problem))), after=after))
        for given in self._given:
            await self._keep(given)
        self.notes.append(
            f"[MCP server {self._server.name!r} asks the person something, and was told `cancel` for now, so what "
            f"you asked for may not be done. To have the person asked, call {self._server.prefix}{ASK} with question "
            f"{asked.id!r}; then make the same call again, and the server gets the answer. {problem}".rstrip()
            + "]"
        )
        return CANCEL

    def gives(self, chat_id: str, id: str) -> bool:
        return id in self._giving and chat_id == self._context.chat_id

    async def _spend(self, id: str) -> None:
        """An answer counts once, also where the same is asked again while that is written down."""
        self._giving.add(id)
        try:
            await self._context.keep(_key(self._server, id), "")
        finally:
            self._giving.discard(id)

    def _left(self, why: str) -> Reply:
        note = f"[MCP server {self._server.name!r} asked the person something, was told `cancel`: {why}]"
        if note not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(note)
        return CANCEL

    async def _keep(self, asked: Asked) -> None:
        """The oldest of this server's gives way: those of other servers and tools are not its own to push out."""
        key, own = _key(self._server, asked.id), _key(self._server, "")
        kept = [one for one in self._context.kept if one.startswith(own) and one != key]
        for oldest in kept[: max(0, len(kept) + 1 - KEPT_MAX)]:
            await self._context.keep(oldest, "")
        await self._context.keep(key, msgspec.json.encode(asked).decode())

    def _answer(self, id: str) -> ToolResult | None:
        """The newest real answer of a person to this question."""
        name = f"{self._server.prefix}{ASK}"
        for result in self._context.earlier_results():
            if result.name == name and not result.error and result.synthetic is None:
                try:
                    asked = decode_json(self._context.earlier_arguments(result.call_id) or "")
                except ValueError:
                    continue
                if isinstance(asked, dict) and asked.get("question") == id:
                    return result
        return None


def ask_tool(server: McpServer) -> Tool:
    """Hands the server's question to the person, in the server's words."""

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        known = kept_question(server, context, str(arguments.get("question")))
        if known is None:
            raise ToolFailed(
                f"That is no open question of MCP server {server.name!r}: make the call that it asked in again."
            )
        return Delegation(external=External.QUESTION, question=storable(known.words))

    def validate(arguments: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = msgspec.convert(decode_json(arguments or "{}"), dict[str, Any])
        except ValueError as error:
            raise ToolFailed(f"The arguments do not fit: {error}") from None
        return found

    def never(**_: Any) -> None:
        raise ToolFailed("This tool is answered from outside; it has no body to call.")

    return Tool(
        name=f"{server.prefix}{ASK}",
        description=f"Ask the person what MCP server {server.name} wants to know. Only for a question that it asked.",
        schema=Raw(
            b'{"type":"object","properties":{"question":{"type":"string","description":"Its id, as the tool said"}},'
            b'"required":["question"],"additionalProperties":false}'
        ),
        function=never,
        validate=validate,
        acts=lambda _: (),
        replay=Replay.PURE,
        delegate=delegate,
    )


def kept_question(server: McpServer, context: ToolContext, id: str) -> Asked | None:
    try:
        return msgspec.json.decode(context.kept.get(_key(server, id), ""), type=Asked)
    except ValueError:
        return None


def _key(server: McpServer, id: str) -> str:
    return f"mcp.{server.name}.{id}"


# --- words --------------------------------------------------------------------------------------------


def question(server: str, message: str, schema: Mapping[str, Any] | None, url: str | None) -> Asked:
    """Raises ValueError for what no person is asked."""
    try:
        all_of_it = msgspec.json.encode([message, schema, url], order="sorted")
    except (RecursionError, OverflowError):
        raise ValueError("its form cannot be shown") from None
    if len(all_of_it) > ASKED_BYTES_MAX:  # before it is looked at letter by letter
        raise ValueError(f"with {len(all_of_it):,} bytes it is too long for a question")
    how = _how(_fields(schema)) if url is None else _link(url)
    words = f"MCP server {server!r} asks: {plain(message)}\n{how}"
    if len(words) > WORDS_MAX or len(msgspec.json.encode(words).decode()) > STORED_MAX:
        raise ValueError(f"with {len(words):,} characters it is too long for a question; {WORDS_MAX} fit")
    return Asked(id=f"q_{hashlib.blake2b(all_of_it, digest_size=6).hexdigest()}", words=words)


def plain(text: str) -> str:
    """In one line, and without what a terminal would obey: the words of a server are not laid out by it."""
    return " ".join("".join(char if char.isprintable() else " " for char in storable(text)).split())


def _link(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError("its link is none of http")
    if "@" in parts.netloc or "\\" in url:  # to a browser the host ends at a backslash
        raise ValueError("its link hides where it leads to behind a name")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    return f"Open {url} (it leads to {host}) if you trust it, and answer `done` when you are through, or `decline`."


def _fields(schema: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Flat, and of simple kinds, as the protocol has it. Raises ValueError."""
    found = (schema or {}).get("properties")
    fields: dict[str, Mapping[str, Any]] = {}
    if isinstance(found, dict):
        fields = {name: kind for name, kind in found.items() if isinstance(kind, dict)}
    if isinstance(found, dict) and (len(fields) != len(found) or len(fields) > FIELDS_MAX):
        raise ValueError("its form cannot be shown")
    for kind in fields.values():
        known = kind.get("type") in ("string", "integer", "number", "boolean")
        if not (known or (kind.get("type") == "array" and _choices(kind))):
            raise ValueError("its form has fields that are no texts, numbers, choices or yes and no")
    return fields


def _how(fields: Mapping[str, Mapping[str, Any]]) -> str:
    if not fields:
        return "Answer `yes`, or `decline`."
    shown = [f"{plain(name)}: {_kind(kind)}" for name, kind in fields.items()]
    if len(fields) == 1:
        return f"Answer with {shown[0]}; or `decline`."
    return f"Answer with a JSON object of {', '.join(shown)}; or `decline`."


def _kind(kind: Mapping[str, Any]) -> str:
    if choices := _choices(kind):
        shown = ", ".join(f"{plain(one)} ({plain(title)})" if title else plain(one) for one, title in choices.items())
        return f"{'some' if kind['type'] == 'array' else 'one'} of {shown}"
    if kind["type"] == "string" and kind.get("format") in _FORMATS:
        return f"a text ({kind['format']})"
    names = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "yes or no"}
    return names[str(kind["type"])]


def _choices(kind: Mapping[str, Any]) -> dict[str, str]:
    """What can be chosen, each with what the server calls it, if it does."""
    items = kind.get("items") if kind.get("type") == "array" else kind
    if not isinstance(items, dict):
        return {}
    for several in (items.get("oneOf"), items.get("anyOf")):
        if isinstance(several, list):
            return {
                str(one["const"]): str(one.get("title", ""))
                for one in several
                if isinstance(one, dict) and "const" in one
            }
    listed = items.get("enum")
    return {str(one): "" for one in listed} if isinstance(listed, list) else {}


def reply_of(text: str, schema: Mapping[str, Any] | None, *, link: bool = False) -> Reply:
    """What a person wrote, as the form wants it. Raises ValueError that says what does not fit: what is neither a yes
    nor a no agrees to nothing.
    """
    said = text.strip()
    word = said.lower().strip("`.!")
    if word == "decline":
        return Reply(action="decline")
    fields = _fields(schema)
    if not fields:
        agreed = True if link and word == "done" else _YES.get(word)
        if agreed is None:
            raise ValueError(f"it is `{'done' if link else 'yes'}` or `decline`")
        empty: dict[str, Any] = {}
        return Reply(action="accept" if agreed else "decline", content=empty if agreed and not link else None)
    required = (schema or {}).get("required")
    needed = [name for name in required if name in fields] if isinstance(required, list) else []
    given: Any = None
    if said.startswith("{"):
        given = decode_json(said)
    elif len(fields) == 1:
        given = {next(iter(fields)): said}
    if not isinstance(given, dict):
        raise ValueError(f"it is a JSON object with {', '.join(fields)}")
    if unknown := [name for name in given if name not in fields]:
        raise ValueError(f"there is no field {str(unknown[0])[:50]!r}")
    if missing := [name for name in needed if given.get(name) in (None, "")]:
        raise ValueError(f"{missing[0]} is missing")
    content = {name: _value(name, fields[name], value) for name, value in given.items() if value is not None}
    return Reply(action="accept", content=content)


def _value(name: str, kind: Mapping[str, Any], value: Any) -> Any:
    """As the field has it: a person writes 3 and yes. Raises ValueError."""
    match kind["type"]:
        case "boolean":
            found = value if isinstance(value, bool) else _YES.get(str(value).strip().lower())
            if found is None:
                raise ValueError(f"{name} is yes or no")
            return found
        case "integer" | "number":
            return _number(name, kind, value)
        case "array":
            listed = value if isinstance(value, list) else [one.strip() for one in str(value).split(",")]
            few = _bound(kind, "minItems", 0) <= len(listed) <= _bound(kind, "maxItems", float("inf"))
            if not few or any(one not in _choices(kind) for one in map(str, listed)):
                raise ValueError(f"{name} is {_kind(kind)}, as many as it wants")
            return [str(one) for one in listed]
    choices = _choices(kind)
    if not isinstance(value, str) or (choices and value not in choices):
        raise ValueError(f"{name} is {_kind(kind)}")
    if not _bound(kind, "minLength", 0) <= len(value) <= _bound(kind, "maxLength", float("inf")):
        raise ValueError(f"{name} is a text of another length")
    return value


def _number(name: str, kind: Mapping[str, Any], value: Any) -> int | float:
    """A whole one as it was written, however long: it may be the number of an account. Raises ValueError."""
    whole = kind["type"] == "integer"
    number = _written(value)
    if whole and isinstance(number, float) and number.is_integer() and abs(number) < EXACT_MAX:
        number = int(number)
    exact = isinstance(number, int) or (not whole and isfinite(number))
    if not exact or not _bound(kind, "minimum", float("-inf")) <= number <= _bound(kind, "maximum", float("inf")):
        raise ValueError(f"{name} is a {'whole ' if whole else ''}number in its bounds")
    if (choices := _choices(kind)) and str(number) not in choices:
        raise ValueError(f"{name} is {_kind(kind)}")
    return number


def _written(value: Any) -> int | float:
    """NaN for what is no number."""
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
        with suppress(ValueError):
            return float(value)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known else float("nan")


def _bound(kind: Mapping[str, Any], name: str, without: float) -> float:
    found = kind.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else without
