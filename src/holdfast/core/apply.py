"""`apply(snapshot, command, now)`: one command, decided by the tables of `states.py`, carried out by `cells/`.

Returns a `Change` (the snapshot after, and the journal lines that tell of it) or a `Refused` that names state and
command; a refusal changes nothing. Time comes in as `now`; ids come in with the commands.
"""

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells import CELLS
from holdfast.core.cells.messages import begin
from holdfast.core.change import Change, Refusal, Refused
from holdfast.core.draft import Draft
from holdfast.core.history import problems
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import ChatRecord, NewChat, Role, Snapshot
from holdfast.core.states import AT_REST, EXECUTION
from holdfast.errors import InvalidInput, LimitReached


def row_of(command: cmd.Command) -> str:
    return f"send.{command.mode}" if isinstance(command, cmd.Send) else command.name


def apply(snapshot: Snapshot, command: cmd.Command, now: int, limits: Limits = LIMITS) -> Change | Refused:
    row = row_of(command)
    state = snapshot.chat.state
    cell = EXECUTION[row].get(state)
    draft = Draft(snapshot, now, limits)
    try:
        if isinstance(command, cmd.RunnerCommand):
            _check_writer(snapshot.chat, command)
            draft.effects["by_runner"] = True
            draft.work(command.by.worked_ms)
        if isinstance(command, cmd.Send):
            _check_unmoved(snapshot.chat, command.length)
        if isinstance(command, cmd.Stop) and command.turn not in (None, snapshot.chat.turn):
            raise Refusal("moved_on", f"the chat is in turn {snapshot.chat.turn}, not in turn {command.turn}")
        if cell is None:
            raise Refusal("state", f"a chat that is {state} does not take {row}")
        CELLS[cell.do](draft, command)
        if isinstance(command, cmd.Send | cmd.Edit):
            draft.effects["sent"] = command.message.id
        if isinstance(command, cmd.Send) and (command.tainted or command.message.from_outside):
            draft.taint(snapshot.chat.length)
        if isinstance(command, cmd.Edit) and command.message.from_outside:
            draft.taint(command.pos)
    except Refusal as refusal:
        return Refused(reason=refusal.reason, state=state, command=row, message=str(refusal))
    change = draft.finish()
    assert change.after.chat.state in cell.to, f"{row} in {state}: {change.after.chat.state} is not in the table"
    return change


def create(new: NewChat, now: int, limits: Limits = LIMITS, *, parent_turn: int | None = None) -> Change:
    """A new chat; with a first message it is running. Raises InvalidInput for a message that no user sends."""
    chat = ChatRecord(
        id=new.id,
        agent=new.agent,
        owner=new.owner,
        metadata=new.metadata,
        active_tools=new.active_tools,
        client_tools=new.client_tools,
        title=new.title,
        parent_id=new.parent_id,
        parent_call=new.parent_call,
        root_id=new.root_id,
        parent_turn=parent_turn,
        depth=new.depth,
        purses=new.purses,
        tainted_from=0 if new.tainted else None,
        created_at=now,
        updated_at=now,
    )
    draft = Draft(Snapshot(chat=chat), now, limits)
    draft.tell(journal.ChatCreated(agent=new.agent, parent_id=new.parent_id))
    _check_given(new, limits)
    for message in new.past:
        draft.add_given(message)
    if new.message is not None:
        try:
            begin(draft, cmd.Send(message=new.message))
        except Refusal as refusal:
            raise InvalidInput("message", str(refusal)) from refusal
        draft.effects["sent"] = new.message.id
        if new.message.from_outside:
            draft.taint(len(new.past))
    for message in new.since:
        draft.add_given(message)
    return replace(draft.finish(), before=None)


def _check_given(new: NewChat, limits: Limits) -> None:
    """What was said elsewhere has to be a history that a provider accepts, and to leave the model something to do."""
    given = (*new.past, *new.since)
    if len(given) > limits.given_messages_max:
        raise LimitReached("given messages", len(given), limits.given_messages_max, "give fewer, or a summary")
    if not given:
        return
    if any(message.role is Role.SYSTEM or message.synthetic is not None for message in given):
        raise InvalidInput("past", "holds user, assistant and tool messages only; instructions are the agent's")
    if new.since and (new.message is None or new.since[-1].role is not Role.TOOL):
        raise InvalidInput("since", "follows a message, and ends with the results that the model is to go on from")
    whole = [*new.past, *([new.message] if new.message is not None else []), *new.since]
    if found := problems(whole):
        raise InvalidInput("past", f"is not a history that a provider accepts: {'; '.join(found[:5])}")


def _check_unmoved(chat: ChatRecord, length: int | None) -> None:
    if length is not None and (chat.state not in AT_REST or chat.length != length):
        raise Refusal("moved_on", f"the chat is {chat.state} with {chat.length} positions, not at rest with {length}")


def _check_writer(chat: ChatRecord, command: cmd.RunnerCommand) -> None:
    by = command.by
    if chat.worker != by.worker or chat.fence != by.fence:
        raise Refusal(
            "stale_writer",
            f"the chat is held by {chat.worker or 'no worker'} under fence {chat.fence}, "
            f"not by {by.worker} under fence {by.fence}",
        )
    if command.name not in cmd.EPOCH_FREE and chat.epoch != by.epoch:
        raise Refusal("stale_epoch", f"the chat's epoch is {chat.epoch}, the write was made for {by.epoch}")
