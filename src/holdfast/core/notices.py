"""Notices: what happened to a chat that a program outside wants to hear of, derived from the change that made it.

A notice is thin: it names the chat, the turn, the calls, and says nothing that a model or a person wrote. What was
said is read with a token, by who may. The end of a sub-agent's turn is its parent's business and no notice; what a
sub-agent asks a person is one, because a person has to act.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from msgspec import Raw

from holdfast.core import journal
from holdfast.core.change import Change
from holdfast.core.codec import encode
from holdfast.core.records import Call, CallState, Cause, Frozen, State
from holdfast.core.states import awaits_reply

NoticeKind = Literal[
    "turn.ended",  # it is over: done, stopped, cut short
    "turn.failed",
    "turn.waiting",  # for a person or a client
    "budget.reached",
    "schedule.skipped",
    "schedule.paused",
    "ping",  # a test of one endpoint
]
# What an endpoint can choose from: a ping reaches the one that is tested, whatever it chose.
NOTICE_KINDS: tuple[NoticeKind, ...] = tuple(kind for kind in get_args(NoticeKind) if kind != "ping")


class Notice(Frozen):
    """`data` is its JSON object: ids, names and figures. `owner` decides who hears of it."""

    id: str = ""  # drawn by the store; the same however often it is sent
    kind: NoticeKind
    owner: str
    chat_id: str = ""
    turn: int = 0
    life: int = 0  # of the chat
    at: int
    data: Raw = Raw(b"{}")


def notices_of(change: Change) -> list[Notice]:
    """Nearly every change makes none: a step is not told of."""
    return [notice for n, line in enumerate(change.lines) for notice in _of_entry(change, n, line.entry)]


def _of_entry(change: Change, n: int, entry: journal.Entry) -> Iterator[Notice]:
    if isinstance(entry, journal.TurnEnded):
        told = {"turn": entry.turn, "state": entry.state}
        if entry.cause is not None:
            told["cause"] = entry.cause
        if change.after.chat.parent_id is None:
            failed = entry.state is State.FAILED
            error = {"error": entry.detail} if failed and entry.detail else {}
            yield _notice(change, n, "turn.failed" if failed else "turn.ended", told | error)
        if entry.cause is Cause.BUDGET:
            reached = {"reached": entry.detail} if entry.detail else {}  # the budget, its figure and its limit
            yield _notice(change, n, "budget.reached", {"turn": entry.turn, **reached})
    elif isinstance(entry, journal.TurnWaiting):
        asked = [_asked(call) for call in change.after.calls if awaits_reply(call)]
        if asked:
            yield _notice(change, n, "turn.waiting", {"turn": change.after.chat.turn, "calls": asked})


def _asked(call: Call) -> dict[str, Any]:
    kind = "approval" if call.state is CallState.ASKING else str(call.external)
    told: dict[str, Any] = {"call_id": call.id, "tool": call.name, "kind": kind, "digest": call.digest}
    return told if call.expires_at is None else told | {"expires_at": call.expires_at}


def _notice(change: Change, n: int, kind: NoticeKind, told: Mapping[str, Any]) -> Notice:
    chat = change.after.chat
    data: dict[str, Any] = {"chat_id": chat.id, "agent": chat.agent}
    if chat.owner:
        data["owner"] = chat.owner
    if chat.root_id is not None:
        data["root_id"] = chat.root_id
    data["seq"] = chat.seq - len(change.lines) + 1 + n
    return Notice(
        kind=kind,
        owner=chat.owner,
        chat_id=chat.id,
        turn=int(told["turn"]),
        life=chat.life,
        at=chat.updated_at,
        data=Raw(encode(data | dict(told))),
    )
