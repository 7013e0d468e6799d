"""What people and clients have to answer, as they are to see it: the arguments that would run, all of them."""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.call_words import told_arguments
from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Call, CallState, External, Frozen
from holdfast.store.rows import call_of


class OpenCallRecord(Frozen):
    """A call that a person or a client has to answer: in chat `chat_id`, by `approve`, `deny` or `submit`."""

    chat_id: str
    agent: str
    call_id: str
    name: str
    kind: Literal["approval", "question", "client"]
    question: str | None
    arguments: str  # those that would run, without secrets
    whole: bool  # False: `arguments` is an excerpt; `read_open_call` has all of it
    digest: str  # names the call with these arguments: who approves it says what was seen
    expires_at: int | None
    offer: tuple[str, ...] = ()  # the rules that `always` would keep; empty: it is not offered


class AskedCall(NamedTuple):
    """A call as it is stored, with the chat that it is of."""

    chat_id: str
    agent: str
    call: Call


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
