"""A fork: a new chat with a copy of another's committed history. The source is not touched."""

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import journal
from holdfast.core.change import Change, Line, Refused
from holdfast.core.codec import encode
from holdfast.core.records import (
    CallState,
    ChatRecord,
    Message,
    Role,
    Snapshot,
    Synthetic,
    ToolResult,
    last_attempt_of,
)


def fork(
    source: Snapshot, new_id: str, end: int, now: int, *, owner: str | None = None
) -> tuple[Change, ...] | Refused:
    """The changes that make the new chat: its creation, and results for calls that are still open in the source.

    Between the two stand the copied positions, 0 to `end`, which take one journal number each. `end` is the end of a
    group: a response and its results are copied together or not at all. Approvals and the queue are never copied.
    """
    if not 0 <= end <= source.chat.length:
        why = f"there is no position {end} in a history of {source.chat.length}"
        return Refused(reason="no_such_message", state=source.chat.state, command="fork", message=why)
    open_calls = [call for call in source.open_calls if call.pos < end]
    copied = end - len(open_calls)
    tainted = source.chat.tainted_from
    chat = ChatRecord(
        id=new_id,
        agent=source.chat.agent,
        owner=source.chat.owner if owner is None else owner,
        metadata=source.chat.metadata,
        active_tools=source.chat.active_tools,
        client_tools=source.chat.client_tools,
        title=source.chat.title,
        tainted_from=tainted if tainted is not None and tainted < end else None,
        forked_from=source.chat.id,
        forked_at=end,
        created_at=now,
        updated_at=now,
        version=1,
        seq=1,
        length=end,
        # Copied messages name the attempts they came from: the fork's own are numbered above them.
        fence=source.chat.fence,
        attempt_ended=last_attempt_of(source.chat.fence),
    )
    created = Change(
        before=None,
        after=Snapshot(chat=chat),
        lines=(Line(journal.ChatCreated(agent=chat.agent, forked_from=source.chat.id)),),
    )
    lines = []
    for call in open_calls:
        result = ToolResult(
            call_id=call.id,
            name=call.name,
            content="Not carried over: this call was still open where the conversation was forked.",
            error=True,
            synthetic=Synthetic.NOT_CARRIED_OVER,
        )
        message = Message(id=f"{call.id}.result", role=Role.TOOL, parts=(result,), created_at=now)
        entry = journal.MessageAdded(raw=Raw(encode(message)), call_state=CallState.CANCELLED)
        lines.append(Line(entry, call.pos, Role.TOOL, message.id))
    filled = Snapshot(chat=replace(chat, seq=1 + copied + len(lines)))
    return created, Change(before=created.after, after=filled, lines=tuple(lines))
