"""Cells: what comes from outside for an open call, from a person, a client or the clock."""

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.instants import iso
from holdfast.core.records import Call, CallState, External, KeptRule, Synthetic, Terms, ToolResult
from holdfast.core.skill_texts import SKILL_TOOL, unmarked
from holdfast.core.states import OUTSIDE, CallMove


def approve(draft: Draft, command: cmd.Approve) -> None:
    asked = draft.call(command.call_id)
    if command.digest is not None and asked.state is CallState.ASKING and command.digest != asked.digest:
        raise Refusal("call_changed", f"call {asked.id!r} has other arguments than those that were shown: look again")
    call = draft.move(asked, CallMove.APPROVE, answered_by=command.by, question=None, offer=None, expires_at=None)
    _check_in_time(draft, asked)
    kept = _kept(draft, asked, command) if command.always is not None else ()
    words = f"always for this {command.always}: {', '.join(rule.rule for rule in kept)}" if kept else None
    draft.effects["kept"] = kept
    draft.tell_of_call(call, by=command.by, detail=words)
    draft.settle()


def _kept(draft: Draft, asked: Call, command: cmd.Approve) -> tuple[KeptRule, ...]:
    if asked.offer is None:
        words = "is one that no rule can be kept for: only a mode's question that a rule can answer offers that"
        raise Refusal("nothing_to_keep", f"call {asked.id!r} {words}. Approve it without `always`")
    chat = draft.chat
    return tuple(
        KeptRule(
            rule=rule,
            owner=chat.owner,
            agent=chat.agent if command.always == "agent" else None,
            chat_id=chat.id if command.always == "chat" else None,
            life=chat.life if command.always == "chat" else 0,
            made_by=command.by,
            made_at=draft.now,
            expires_at=None if command.always_ms is None else draft.now + command.always_ms,
            call_id=asked.id,
        )
        for rule in asked.offer.split("\n")
    )


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


def finish_external(draft: Draft, call: Call, content: str, *, error: bool, by: str, untrusted: bool = False) -> None:
    result = ToolResult(call_id=call.id, name=call.name, content=content, error=error, untrusted=untrusted)
    _finish(draft, call, result, by)


def _finish(draft: Draft, call: Call, result: ToolResult, by: str, terms: Terms | None = None) -> None:
    if call.state is not CallState.EXTERNAL:
        raise Refusal("call_state", f"call {call.id!r} is {call.state} and waits for no answer from outside")
    if call.name == SKILL_TOOL:  # what a forked skill says in the end activates nothing
        result = replace(result, content=unmarked(result.content))
    draft.answer(draft.move(call, CallMove.FINISH, answered_by=by), result, terms)


def _check_in_time(draft: Draft, call: Call) -> None:
    """Silence until the expiry was an answer, though a sibling still runs, or `Due` has not come yet."""
    if (over_at := time_over_at(draft, call)) is not None:
        raise Refusal("call_state", f"the time to answer call {call.id!r} was over at {iso(over_at)}")


def time_over_at(draft: Draft, call: Call) -> int | None:
    """When the time to answer it was over, if it is."""
    expires_at = call.expires_at
    return expires_at if expires_at is not None and expires_at <= draft.now else None
