"""Cells: the calls of a response, as the runner that handles them commits them; and a call whose outcome was lost."""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.call_words import unknown_text
from holdfast.core.cells.families import spawn_child
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.records import Call, CallState, External, Replay, State, Synthetic, ToolResult
from holdfast.core.states import CallEvent


def start_calls(draft: Draft, event: cmd.StartCalls) -> None:
    for call_id in event.call_ids:
        call = draft.call(call_id)
        arguments = event.arguments.get(call_id, call.arguments)
        told = draft.told(event.told.get(call_id, event.arguments.get(call_id))) or call.told
        draft.move(
            call, CallEvent.START, started_at=draft.now, starts=call.starts + 1, arguments=arguments, told=told
        )
    draft.tell(journal.CallsStarted(call_ids=event.call_ids, arguments={**event.arguments, **event.told}))


def ask_approval(draft: Draft, event: cmd.AskApproval) -> None:
    """Whoever is asked is told what would run, which may not be what the model asked for."""
    told = event.arguments if event.told is None else event.told
    call = draft.move(
        draft.call(event.call_id),
        CallEvent.ASK,
        question=event.question,
        arguments=event.arguments,
        told=told,
        expires_at=event.expires_at,
    )
    draft.tell_of_call(call, question=event.question, arguments=told)


def delegate(draft: Draft, event: cmd.Delegate) -> None:
    call_id, spawn = event.call_id, event.spawn
    child_id = spawn.id if spawn is not None else event.child_id
    if (event.external is External.CHILD) != (child_id is not None):
        raise Refusal("wrong_message", "a call waits for a child exactly when it names one")
    if event.external is External.TIMER and event.expires_at is None:
        raise Refusal("wrong_message", "a timer needs the time at which it rings")
    call = draft.call(call_id)
    told = event.arguments if event.told is None else event.told
    call = draft.move(
        call,
        CallEvent.DELEGATE,
        external=event.external,
        arguments=call.arguments if event.arguments is None else event.arguments,
        told=told or call.told,
        question=event.question,
        child_id=child_id,
        child_turn=event.child_turn,
        expires_at=event.expires_at,
    )
    draft.tell_of_call(call, external=call.external, question=call.question, child_id=call.child_id, arguments=told)
    if spawn is not None:
        spawn_child(draft, call, spawn)
    if call.child_id is not None:
        draft.effects["awaited"] = call


def refuse_call(draft: Draft, event: cmd.Refuse) -> None:
    call = draft.call(event.call_id)
    if event.denied:
        draft.answer_synthetically(call, CallEvent.DENY, Synthetic.DENIED, event.content)
    else:
        draft.answer_synthetically(call, CallEvent.REFUSE, Synthetic.REFUSED, event.content)
    draft.settle()


def record_outcome(draft: Draft, event: cmd.Outcome) -> None:
    call = draft.call(event.call_id)
    if call.state is not CallState.STARTED:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; only a started call has an outcome")
    if event.unknown:
        starts_max = draft.limits.call_starts_max if event.again and draft.chat.state is State.RUNNING else 0
        lose(draft, call, event.content, rerun=call.replay is not Replay.UNSAFE and call.starts < starts_max)
    else:
        moved = draft.move(call, CallEvent.FINISH)
        draft.answer(moved, ToolResult(call_id=call.id, name=call.name, content=event.content, error=event.error))
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    if event.spawn is not None:
        spawn_child(draft, call, event.spawn)
    draft.settle()


def lose(draft: Draft, call: Call, why: str = "", *, rerun: bool) -> None:
    """It was started, and nobody knows what came of it: it runs again, a person is asked, or the model is told.

    A stop asks nobody: what it does not know it tells the model.
    """
    if rerun:
        moved = draft.move(call, CallEvent.REVERT, started_at=None)
        draft.tell_of_call(moved, detail=f"runs again: {why}" if why else "runs again")
    elif call.on_unknown == "ask" and draft.chat.state is not State.STOPPING:
        question = unknown_text(call, why)
        moved = draft.move(call, CallEvent.DOUBT, external=External.QUESTION, question=question)
        draft.tell_of_call(moved, external=moved.external, question=moved.question)
    else:
        draft.answer_synthetically(call, CallEvent.LOSE, Synthetic.UNKNOWN, unknown_text(call, why))
