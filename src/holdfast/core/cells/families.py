"""Cells: parents, children, and the chat at the top of a family."""

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.call_words import excerpt, told_arguments
from holdfast.core.cells.answers import finish_external
from holdfast.core.cells.messages import check_user
from holdfast.core.change import Refusal
from holdfast.core.codec import decode_object, encode
from holdfast.core.draft import Draft
from holdfast.core.records import STOPS, Call, CallState, NewChat, State, ToolResult
from holdfast.core.states import CallMove


def child_ended(draft: Draft, command: cmd.ChildEnded) -> None:
    content = command.text if command.text is not None else "The sub-agent ended without a recorded answer."
    error = command.error or command.text is None
    if not content.strip():
        content = "It ended, and said nothing."  # an empty result reads like one that was lost
    for call in draft.calls:
        waits = call.state is CallState.EXTERNAL and call.child_id == command.child_id
        if waits and (call.child_turn or 0) <= command.turn:
            by, untrusted = command.child_id, command.untrusted
            finish_external(draft, call, content, error=error, by=by, untrusted=untrusted)
    draft.settle()


def reach(draft: Draft, command: cmd.Reach) -> None:
    call = draft.call(command.call_id)
    if call.state is not CallState.STARTED:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; only a started call reaches a child")
    if command.message is not None:
        check_user(command.message)
    draft.effects["reach"] = command


def reached(draft: Draft, command: cmd.Reached) -> None:
    call = draft.move(draft.call(command.call_id), CallMove.FINISH)
    result = ToolResult(call_id=call.id, name=call.name, content=command.content, error=command.error)
    draft.answer(call, result)
    draft.settle()


def tell_of_descendant(draft: Draft, command: cmd.Descendant) -> None:
    for call in command.answered:
        draft.tell(
            journal.DescendantAnswered(
                chat_id=command.chat_id, call_id=call.id, name=call.name, state=call.state, by=call.answered_by
            )
        )
    for call in command.asking:
        draft.tell(
            journal.DescendantAsking(
                chat_id=command.chat_id,
                agent=command.agent,
                call_id=call.id,
                name=call.name,
                state=call.state,
                external=call.external,
                question=call.question,
                arguments=excerpt(told_arguments(call), draft.limits.excerpt_chars_max),
                expires_at=call.expires_at,
            )
        )


def spawn_child(draft: Draft, call: Call, new: NewChat) -> None:
    """A child chat, created in this transaction. Who its parent is, is known here and nowhere better."""
    if new.message is not None:
        check_user(new.message)
    chat = draft.chat
    draft.effects["spawned"] = replace(
        new,
        metadata=_inherited(chat.metadata, new.metadata),
        owner=chat.owner,  # what a chat has others do for it is its owner's
        parent_id=chat.id,
        parent_call=call.id,
        root_id=chat.root_id or chat.id,
        depth=chat.depth + 1,
        tainted=chat.tainted_from is not None,
    )
    draft.set(spawned=chat.spawned + 1)
    if chat.state is State.STOPPING and draft.stop_cause in STOPS:
        # The stop has already gone through the children and would miss this one.
        draft.effects["stop_children"] = (new.id,)
        draft.effects["stop_cause"] = draft.stop_cause


def _inherited(parents: Raw, own: Raw) -> Raw:
    """A child's metadata: what holds of its parent, such as that no person is there to answer, holds of it."""
    if own in (parents, _NO_METADATA):
        return parents
    return Raw(encode({**decode_object(parents, "chat's metadata"), **decode_object(own, "chat's metadata")}))


_NO_METADATA = Raw(b"{}")
