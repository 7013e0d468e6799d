"""Cells: what comes from outside for an open call, from a person, a client or the clock."""

from holdfast.core import commands as cmd
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.instants import iso
from holdfast.core.records import Call, CallState, External, Synthetic, Terms, ToolResult
from holdfast.core.states import OUTSIDE, CallMove


def approve(draft: Draft, command: cmd.Approve) -> None:
    asked = draft.call(command.call_id)
    if command.digest is not None and asked.state is CallState.ASKING and command.digest != asked.digest:
        raise Refusal("call_changed", f"call {asked.id!r} has other arguments than those that were shown: look again")
    call = draft.move(asked, CallMove.APPROVE, answered_by=command.by, question=None, expires_at=None)
    _check_in_time(draft, asked)
    draft.tell_of_call(call, by=command.by)
    draft.settle()


def deny(draft: Draft, command: cmd.Deny) -> None:
    words = f' They said: "{command.words}"' if command.words else ""
    call = draft.call(command.call_id)
    if call.state is not CallState.ASKING:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; a person denies what a person was asked")
    draft.answer_synthetically(
        call,
        CallMove.DENY,
        Synthetic.DENIED,
        f"Denied: a person refused this call.{words}",
        answered_by=command.by,
        question=None,
    )
    draft.settle()


def submit(draft: Draft, command: cmd.Submit) -> None:
    call = draft.call(command.call_id)
    if call.external not in (External.CLIENT, External.QUESTION):
        raise Refusal("call_state", f"call {call.id!r} is not one that a client answers")
    result = ToolResult(
        call_id=call.id, name=call.name, content=command.content, error=command.error, files=command.files
    )
    _finish(draft, call, result, command.by, command.terms)
    _check_in_time(draft, call)
    draft.settle()


def due(draft: Draft, command: cmd.Command) -> None:
    for call in draft.calls:
        if call.state not in OUTSIDE or time_over_at(draft, call) is None:
            continue
        if call.external is External.TIMER:
            finish_external(draft, call, "The time has come.", error=False, by="timer")
        elif call.state is CallState.ASKING:
            draft.answer_synthetically(
                call, CallMove.DENY, Synthetic.EXPIRED, "Denied: nobody answered the approval in time."
            )
        else:
            draft.answer_synthetically(call, CallMove.CANCEL, Synthetic.EXPIRED, "Expired: nobody answered in time.")
    draft.settle()


def finish_external(draft: Draft, call: Call, content: str, *, error: bool, by: str) -> None:
    _finish(draft, call, ToolResult(call_id=call.id, name=call.name, content=content, error=error), by)


def _finish(draft: Draft, call: Call, result: ToolResult, by: str, terms: Terms | None = None) -> None:
    if call.state is not CallState.EXTERNAL:
        raise Refusal("call_state", f"call {call.id!r} is {call.state} and waits for no answer from outside")
    draft.answer(draft.move(call, CallMove.FINISH, answered_by=by), result, terms)


def _check_in_time(draft: Draft, call: Call) -> None:
    """Silence until the expiry was an answer, though a sibling still runs, or `Due` has not come yet."""
    if (over_at := time_over_at(draft, call)) is not None:
        raise Refusal("call_state", f"the time to answer call {call.id!r} was over at {iso(over_at)}")


def time_over_at(draft: Draft, call: Call) -> int | None:
    """When the time to answer it was over, if it is."""
    expires_at = call.expires_at
    return expires_at if expires_at is not None and expires_at <= draft.now else None
