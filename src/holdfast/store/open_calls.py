"""What people and clients have to answer, as they are to see it: the arguments that would run, all of them."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.call_words import excerpt, told_arguments
from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Call, CallState, External, Frozen
from holdfast.errors import InvalidInput
from holdfast.store.chat_lists import AT_WORK
from holdfast.store.rows import CALL_COLUMNS, Row, call_of

OpenCallKind = Literal["approval", "question", "client"]


class OpenCallRecord(Frozen):
    """A call that a person or a client has to answer: in chat `chat_id`, by `approve`, `deny` or `submit`."""

    chat_id: str
    agent: str
    call_id: str
    name: str
    kind: OpenCallKind
    question: str | None
    arguments: str  # those that would run, without secrets
    whole: bool  # False: `arguments` is an excerpt; `read_open_call` has all of it
    digest: str  # names the call with these arguments: who approves it says what was seen
    expires_at: int | None
    offer: tuple[str, ...] = ()  # the rules that `always` would keep; empty: it is not offered


class OpenCallLine(OpenCallRecord):
    """An open call in a listing of those in all chats; its arguments may be an excerpt."""

    pos: int
    owner: str
    title: str | None  # of the chat
    opening: str | None  # of the chat, as in a ChatLine
    parent_id: str | None
    asked_at: int | None  # when the model asked for it

    @property
    def place(self) -> str:
        """Where the next page of the listing begins."""
        return f"{self.pos}.{self.chat_id}"


class OpenCallFilter(Frozen):
    """Which open calls a listing shows. `below`: of this chat and all that was spawned below it."""

    kind: OpenCallKind | None = None
    owner: str | None = None
    below: str | None = None


ALL_OPEN_CALLS = OpenCallFilter()


class AskedCall(NamedTuple):
    """A call as it is stored, with the chat that it is of."""

    chat_id: str
    agent: str
    call: Call


LISTED_CHARS_MAX = 4_000  # of the arguments of a call that is listed among those of all chats
OPEN_CALLS_MAX = 1_000  # of one family, in one answer
ARGUMENTS_BYTES_MAX = 32 << 20  # of responses that are read for one answer; what is beyond is told as an excerpt
_EXCERPT = re.compile(r"… \([\d,]+ characters in all\)\Z")


def asked_of(row: Sequence[Any]) -> AskedCall:
    """A row of OPEN_CALLS: the chat, its agent, then a call's columns."""
    chat_id, agent, *columns = row
    return AskedCall(chat_id, agent, call_of(columns))


class GivenArguments:
    """The arguments that one response gave its calls."""

    def __init__(self, asked: AskedCall | None = None, body: bytes | None = None) -> None:
        self._response = (asked.chat_id, asked.call.batch) if asked is not None else None
        self.size = len(body or b"")
        entry = decode_entry(body) if body is not None else None
        calls = entry.message.calls if isinstance(entry, MessageAdded) else ()
        self._arguments = {part.call_id: part.arguments for part in calls}

    def lacks(self, asked: AskedCall) -> bool:
        return asked.call.arguments is None and self._response != (asked.chat_id, asked.call.batch)

    def of(self, asked: AskedCall) -> str | None:
        known = asked.call.arguments is None and not self.lacks(asked)
        return self._arguments.get(asked.call.id) if known else None


def open_call(asked: AskedCall, given: str | None) -> OpenCallRecord:
    """`given` are the arguments in the response, where these are the ones that count. None: they were not read."""
    call = asked.call
    told = told_arguments(call)
    arguments = told if given is None else given
    kinds: dict[External | None, Literal["question", "client"]] = {
        External.QUESTION: "question",
        External.CLIENT: "client",
    }
    return OpenCallRecord(
        chat_id=asked.chat_id,
        agent=asked.agent,
        call_id=call.id,
        name=call.name,
        kind="approval" if call.state is CallState.ASKING else kinds[call.external],
        question=call.question,
        arguments=arguments,
        whole=given is not None or _EXCERPT.search(told) is None,
        digest=call.digest,
        expires_at=call.expires_at,
        offer=tuple(call.offer.split("\n")) if call.offer is not None and call.state is CallState.ASKING else (),
    )


def open_call_line(row: Row) -> OpenCallLine:
    """A row of `open_call_listing`."""
    *asked, owner, title, opening, parent_id, asked_at = row
    found = asked_of(asked)
    told = open_call(found, None)
    known = {name: getattr(told, name) for name in OpenCallRecord.__struct_fields__}
    if len(told.arguments) > LISTED_CHARS_MAX:
        known |= {"arguments": excerpt(told.arguments, LISTED_CHARS_MAX), "whole": False}
    whose = {"owner": owner, "title": title, "opening": opening, "parent_id": parent_id}
    return OpenCallLine(**known, **whose, pos=found.call.pos, asked_at=asked_at)


def place_of(before: str) -> tuple[str, int]:
    """The chat and the position that a page ended with. Raises InvalidInput."""
    pos, _, chat_id = before.partition(".")
    if not chat_id or not pos.isascii() or not pos.isdigit() or len(pos) > 15:
        raise InvalidInput("before", f"{before[:80]!r} is not the `next` of a page of open calls")
    return chat_id, int(pos)


# Chats that wait, or are at work while one of their calls waits, each by its index: those that rest are not looked
# at. The order of the joins is written out: from the few to what is known of them. What is told of a call is read for
# those of the page alone.
_LISTED = f"""
WITH busy (id) AS MATERIALIZED (SELECT id FROM chats WHERE state = 'waiting' UNION {AT_WORK}),
page (id, batch, pos) AS MATERIALIZED (
    SELECT chats.id, calls.batch, calls.pos FROM busy CROSS JOIN chats CROSS JOIN calls
    WHERE chats.id = busy.id AND calls.chat_id = chats.id AND calls.batch = chats.batch
    AND (calls.state = 'asking' OR (calls.state = 'external' AND calls.external IN ('client', 'question')))
    {{conditions}}
    ORDER BY chats.id DESC, calls.pos LIMIT {{limit}}
)
SELECT chats.id, chats.agent, {", ".join(f"calls.{name}" for name in CALL_COLUMNS)}, chats.owner, chats.title,
       {{opening}}, chats.parent_id,
       (SELECT at FROM journal WHERE journal.chat_id = calls.chat_id AND journal.seq = calls.batch)
FROM page CROSS JOIN chats CROSS JOIN calls
WHERE chats.id = page.id AND calls.chat_id = page.id AND calls.batch = page.batch AND calls.pos = page.pos
ORDER BY chats.id DESC, calls.pos
"""
_BELOW = """
chats.id IN (WITH RECURSIVE family (id, depth) AS (
    SELECT id, depth FROM chats WHERE id = {below}
    UNION SELECT child.id, child.depth FROM chats AS child JOIN family ON child.parent_id = family.id
    WHERE child.depth > family.depth
) SELECT id FROM family)
"""
_CONDITIONS = {
    "kind": "CASE WHEN calls.state = 'asking' THEN 'approval' ELSE calls.external END = {kind}",
    "owner": "chats.owner = {owner}",
    "below": _BELOW,
    "chat": "(chats.id < {chat} OR (chats.id = {chat} AND calls.pos > {pos}))",
}


def open_call_listing(given: frozenset[str], mark: Callable[[str], str], opening: str) -> str:
    """The statement, with the conditions on what is given. `mark`: where the value of a name goes. `opening`: what
    selects the first words of a chat.
    """
    wanted = "".join(f" AND {condition}" for name, condition in _CONDITIONS.items() if name in given)
    text = _LISTED.replace("{conditions}", wanted).replace("{opening}", opening)
    for name in ("kind", "owner", "below", "chat", "pos", "limit"):
        text = text.replace(f"{{{name}}}", mark(name))
    return text
