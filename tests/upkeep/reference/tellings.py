"""Short stories of chats, told by the core itself: the examples of the reference are taken from their journals.

Each goes through the same commands as in production, so an example is what a reader would be told.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw

from holdfast.core import commands as cmd
from holdfast.core import journal as jn
from holdfast.core.apply import apply
from holdfast.core.change import Change
from holdfast.core.codec import encode
from holdfast.core.records import External, Failure, NewChat, Part, Reasoning, Text, ToolCall, attempt_id
from tests.support.situations import broken
from tests.support.story import START, Story, assistant, user

WEATHER = ToolCall(call_id="call_1", name="weather", arguments='{"city":"Bern"}')
REFUND = ToolCall(call_id="call_1", name="refund", arguments='{"order":7}')


class Telling(Story):
    """A story with readable words, and with the pieces of text that were streamed before each of its entries."""

    def __init__(self, text: str = "Weather in Bern?", *, claimed: bool = True, agent: str | None = None) -> None:
        super().__init__(None, chat_id="chat_1")
        if agent is not None:
            self.does(cmd.Give(agent=agent))
        self.streamed: list[tuple[int, int, jn.Delta]] = []  # behind this entry, of this attempt
        self.sends("msg_1", text=text)
        if claimed:
            self.claimed("w1")

    def streams(self, *pieces: str, part: Any = "text", **fields: Any) -> "Telling":
        """What the model says in the attempt that is next to be committed."""
        attempt = attempt_id(self.chat.fence, self.attempts + 1)
        for piece in pieces:
            self.streamed.append((len(self.journal), attempt, jn.Delta(part=part, text=piece, **fields)))
        return self

    def responds(self, *parts: Part, start: bool = False) -> "Telling":
        message = assistant(f"msg_{len(self.journal) + 1}", *parts)
        self.does(self.response(message, [call.call_id for call in message.calls] if start else ()))
        return self

    def events(self) -> Iterator[jn.Event]:
        """As a store would give them to the fold."""
        for seq, entry in enumerate(self.journal, start=1):
            yield jn.Event(cursor=f"{seq}", at=self.now, body=entry, raw=encode(entry), seq=seq)
            here = [(attempt, delta) for behind, attempt, delta in self.streamed if behind == seq]
            for k, (attempt, delta) in enumerate(here):
                cursor = f"{seq}.{attempt}.{k}"
                yield jn.Event(cursor=cursor, at=self.now, body=delta, raw=encode(delta), attempt=attempt, k=k)


def answered() -> Telling:
    told = (
        Telling()
        .streams("The city is Bern.", part="reasoning")
        .streams('{"city":', part="arguments", name="weather", call_id="call_1")
    )
    told.responds(
        Reasoning(text="The city is Bern.", provider="anthropic", signature=Raw(b'"seal"')), WEATHER, start=True
    )
    told.does(cmd.Note(by=told.by, topic="progress", text="asking the station", call_id="call_1"))
    told.returns("call_1", "Rain in Bern.")
    told.streams("Take an ", "umbrella.").responds(Text(text="Take an umbrella."))
    told.finishes()
    return told


def named() -> Telling:
    return Telling(agent="forecaster")


def archived_and_renamed() -> Telling:
    told = answered()
    told.does(cmd.Rename(title="Weather in Bern"))
    told.does(cmd.Archive())
    return told


def edited() -> Telling:
    told = answered()
    message = user("msg_9", "Weather in Basel?")
    role = told.store.positions(told.chat_id)[0].role
    told.does(cmd.Edit(pos=0, role=role, epoch=told.chat.epoch, message=message))
    return told


def compacted(error: str = "") -> Telling:
    told = answered()
    told.does(cmd.Compact())
    told.claimed("w1")
    summary = None if error else "The user asked for the weather in Bern: rain."
    told.does(cmd.FinishCompaction(by=told.by, upto=0 if error else 2, summary=summary, error=error, tokens=210))
    return told


def stopped() -> Telling:
    told = Telling().streams("Let me ")
    told.sends("msg_2", text="And in Basel?")
    told.sends("msg_3", text="And in Chur?")
    told.does(cmd.Promote(message_id="msg_3"))
    told.does(cmd.Stop(clear_queue=True))
    told.finishes_stop()
    return told


def approved() -> Telling:
    told = Telling("Refund order 7.").responds(REFUND)
    told.does(cmd.AskApproval(by=told.by, call_id="call_1", question="refund wants to run"))
    told.parks()
    told.does(cmd.Approve(call_id="call_1", by="ann"))
    told.claimed("w1")
    told.starts("call_1")
    told.returns("call_1", "Refunded.")
    told.responds(Text(text="It is refunded."))
    told.finishes()
    return told


def asked_below() -> Telling:
    """A sub-agent asks; the chat at the top tells of it."""
    told = Telling("Refund order 7.").responds(
        ToolCall(call_id="call_1", name="clerk", arguments='{"task":"refund"}')
    )
    child = NewChat(id="chat_2", agent="clerk", message=user("msg_5", "refund"))
    told.does(cmd.Delegate(by=told.by, call_id="call_1", external=External.CHILD, spawn=child))
    told.parks()
    told.chat_id = "chat_2"
    told.claimed("w1")
    told.responds(ToolCall(call_id="call_2", name="refund", arguments='{"order":7}'))
    told.does(cmd.AskApproval(by=told.by, call_id="call_2", question="refund wants to run"))
    told.parks()
    told.does(cmd.Approve(call_id="call_2", by="ann"))
    told.chat_id = "chat_1"
    return told


def retried() -> Telling:
    told = Telling().streams("It ra")
    told.does(
        cmd.AttemptLost(
            by=told.by, attempt=told.next_attempt(), model="anthropic:claude-sonnet-5-5", error="Overloaded",
            code="overloaded", provider="anthropic", status=529, retry_in_ms=1_000, duration_ms=420,
            next_model="anthropic:claude-sonnet-5-5",
        )
    )  # fmt: skip
    told.streams("It is ", "dry.")
    told.now += 2_000
    told.does(cmd.LeaseExpired(worker="w1", heard_at=told.now - 700))
    told.claimed("w2")
    told.streams("It snows.").responds(Text(text="It snows."))
    told.finishes()
    return told


def failed() -> Telling:
    told = Telling()
    trace = jn.Traced(
        source="tool", name="weather", error="KeyError", turn=1,
        text="Traceback (most recent call last):\n…\nKeyError: 'Bern'",
        call_id="call_1",
    )  # fmt: skip
    told.does(cmd.Note(by=told.by, topic="trace", trace=trace))
    told.does(cmd.Fail(by=told.by, error=Failure(code="authentication", message="the key was refused")))
    told.does(cmd.Retry())
    return told


def repaired() -> Sequence[jn.Entry]:
    """What the sweeper mends has no story: it must not come about."""
    for snapshots in broken().values():
        for reason, snapshot in snapshots.items():
            outcome = apply(snapshot, cmd.Repair(reason=reason), START)
            if isinstance(outcome, Change):
                return [line.entry for line in outcome.lines]
    raise AssertionError("nothing to repair")


def all_of_them() -> list[Telling]:
    return [
        answered(), stopped(), approved(), asked_below(), retried(), failed(), edited(), archived_and_renamed(),
        named(), compacted(), compacted(error="the model did not answer within 120 s"),
    ]  # fmt: skip
