"""What the demo shows, computed from the journal and the ledger of side effects; nothing here knows the answer."""

from collections import Counter
from collections.abc import Iterator

from holdfast.cli.commands.demo_worker import BATCH, FIRST
from holdfast.cli.words import line
from holdfast.core import journal as jn
from holdfast.core.history import problems
from holdfast.core.records import Frozen, Message, Role, Snapshot, State, Synthetic, ToolResult
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of


class Evidence(Frozen):
    chat: Snapshot  # at the end
    messages: list[Message]  # at the end
    before: list[Item]  # the journal just before the kill
    items: list[Item]  # the journal at the end
    ledger: list[tuple[str, str, str, int]]  # what, tool, key, process
    first_pid: int
    first_code: int | None
    second_pid: int
    killed_at: int
    stranded: int  # chats for which promise 7 does not hold


class Row(Frozen):
    at_s: float  # since the kill
    text: str
    fate: str = ""
    colour: str = ""


class Check(Frozen):
    text: str
    holds: bool


# --- the timeline -------------------------------------------------------------------------------------


def timeline(evidence: Evidence) -> Iterator[Row]:
    killed = False
    kept = {item.seq for item in evidence.before}
    for item in evidence.items:
        if not killed and item.seq not in kept:
            killed = True
            yield Row(at_s=0.0, text=f"kill -9 {evidence.first_pid}", fate="the worker is gone", colour="red")
        for text, fate, colour in _told(event_of(item).body, durable=not killed):
            yield Row(at_s=(item.at - evidence.killed_at) / 1000, text=text, fate=fate, colour=colour)


def _told(entry: object, *, durable: bool) -> Iterator[tuple[str, str, str]]:
    kept = ("durable", "green") if durable else ("", "")
    if isinstance(entry, jn.MessageAdded):
        message = entry.message
        yield from _message(message, kept)
    elif isinstance(entry, jn.CallChanged) and entry.detail is not None:
        yield f"{entry.name}", entry.detail, "cyan"
    elif isinstance(entry, jn.TurnEnded):
        yield "the turn is over", *kept


def _message(message: Message, kept: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    if message.role is Role.TOOL:
        for part in message.parts:
            if isinstance(part, ToolResult) and part.synthetic is Synthetic.UNKNOWN:
                yield f"{part.name} = {line(part.content, 34)}", "not run again", "yellow"
            elif isinstance(part, ToolResult):
                yield f"{part.name} = {line(part.content, 34)}", *kept
    else:
        yield f"{message.role}: {line(message.text, 46)}", *kept
        for call in message.calls:
            yield f"  calls {call.name}", *kept


# --- the verdict --------------------------------------------------------------------------------------


def judge(evidence: Evidence) -> list[Check]:
    begins = Counter(name for what, name, _, _ in evidence.ledger if what == "begins")
    results = {part.name: part for message in evidence.messages for part in message.parts
               if isinstance(part, ToolResult)}  # fmt: skip
    pure, idempotent, unsafe = BATCH
    reserved = [key for what, name, key, _ in evidence.ledger if (what, name) == ("reserves", idempotent)]
    keys = {key for what, name, key, _ in evidence.ledger if (what, name) == ("begins", idempotent)}
    unknown = results[unsafe].synthetic is Synthetic.UNKNOWN if unsafe in results else False
    return [
        Check(
            text=f"process {evidence.first_pid} died of signal 9, and process {evidence.second_pid} went on",
            holds=evidence.first_code == -9 and _finished_by(evidence) == {evidence.second_pid},
        ),
        Check(
            text=f"all {len(evidence.before)} entries of the journal from before the kill are there, byte for byte",
            holds=evidence.items[: len(evidence.before)] == evidence.before,
        ),
        Check(text=f"the finished call {FIRST} was not run again: {_times(begins[FIRST])}", holds=begins[FIRST] == 1),
        Check(
            text=f"the pure {pure} was simply run again: {_times(begins[pure])}, one result",
            holds=begins[pure] == 2 and pure in results,
        ),
        Check(
            text=f"the idempotent {idempotent} was run again under the same key: {_times(begins[idempotent])}, "
            f"{len(reserved)} reservation",
            holds=begins[idempotent] == 2 and len(keys) == 1 and len(reserved) == 1,
        ),
        Check(
            text=f"the unsafe {unsafe} began once and never again: {_times(begins[unsafe])}; the model was told "
            "that its outcome is unknown",
            holds=begins[unsafe] == 1 and unknown,
        ),
        Check(text="the history is one that every provider accepts", holds=problems(evidence.messages) == []),
        Check(
            text=f"the chat came to its end, and {evidence.stranded} chats are stranded",
            holds=evidence.chat.chat.state is State.IDLE and evidence.chat.chat.cause is None
            and evidence.stranded == 0,
        ),
    ]  # fmt: skip


def _finished_by(evidence: Evidence) -> set[int]:
    """The processes that finished tools of the batch."""
    return {pid for what, name, _, pid in evidence.ledger if what == "done" and name in BATCH}


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
