"""Cells: the calls of a response, as the runner that handles them commits them; and a call whose outcome was lost."""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.call_words import SPENT, spent_text, unknown_text
from holdfast.core.cells.families import spawn_child
from holdfast.core.change import Refusal
from holdfast.core.codec import decode_keepsakes, encode
from holdfast.core.draft import Draft
from holdfast.core.records import Call, CallState, External, Replay, State, Synthetic, ToolResult
from holdfast.core.spending import SpendingKind
from holdfast.core.states import CallMove


def start_calls(draft: Draft, command: cmd.StartCalls) -> None:
    for call_id in command.call_ids:
        call = draft.call(call_id)
        arguments = command.arguments.get(call_id, call.arguments)
        told = draft.told(command.told.get(call_id, command.arguments.get(call_id))) or call.told
        draft.move(call, CallMove.START, started_at=draft.now, starts=call.starts + 1, arguments=arguments, told=told)
    shown = {**command.arguments, **command.told}
    draft.tell(journal.CallsStarted(call_ids=command.call_ids, arguments=shown, decisions=command.decisions))


def ask_approval(draft: Draft, command: cmd.AskApproval) -> None:
    """The person who is asked is told what would run, which may not be what the model asked for."""
    told = command.arguments if command.told is None else command.told
    call = draft.move(
        draft.call(command.call_id),
        CallMove.ASK,
        question=command.question,
        arguments=command.arguments,
        told=told,
        expires_at=command.expires_at,
        offer="\n".join(command.offer) or None,
    )
    draft.tell_of_call(call, question=command.question, arguments=told, decision=command.decision)


def delegate(draft: Draft, command: cmd.Delegate) -> None:
    call_id, spawn = command.call_id, command.spawn
    child_id = spawn.id if spawn is not None else command.child_id
    if (command.external is External.CHILD) != (child_id is not None):
        raise Refusal("wrong_message", "a call waits for a child exactly when it names one")
    if command.external is External.TIMER and command.expires_at is None:
        raise Refusal("wrong_message", "a timer needs the time at which it rings")
    call = draft.call(call_id)
    told = command.arguments if command.told is None else command.told
    call = draft.move(
        call,
        CallMove.DELEGATE,
        external=command.external,
        arguments=call.arguments if command.arguments is None else command.arguments,
        told=told or call.told,
        question=command.question,
        child_id=child_id,
        child_turn=command.child_turn,
        expires_at=command.expires_at,
    )
    draft.tell_of_call(
        call,
        external=call.external,
        question=call.question,
        child_id=call.child_id,
        arguments=told,
        decision=command.decision,
    )
    if spawn is not None:
        spawn_child(draft, call, spawn)
    if call.child_id is not None:
        draft.effects["awaited"] = call


def refuse_call(draft: Draft, command: cmd.Refuse) -> None:
    call = draft.call(command.call_id)
    move, kind = (CallMove.DENY, Synthetic.DENIED) if command.denied else (CallMove.REFUSE, Synthetic.REFUSED)
    draft.answer_synthetically(
        call, move, kind, command.content, decision=command.decision, untrusted=command.untrusted
    )
    draft.settle()


def record_outcome(draft: Draft, command: cmd.Outcome) -> None:
    call = draft.call(command.call_id)
    if call.state is not CallState.STARTED:
        raise Refusal("call_state", f"call {call.id!r} is {call.state}; only a started call has an outcome")
    if command.tokens or command.cost:
        draft.spend(SpendingKind.TOOL, command.tokens, command.cost, command.bill, model=call.name)
        words = spent_text(command.tokens, command.cost)
        draft.tell(journal.Noted(topic=SPENT, text=words, call_id=call.id, tokens=command.tokens, cost=command.cost))
    if command.unknown:
        starts_max = draft.limits.call_starts_max if command.again and draft.chat.state is State.RUNNING else 0
        rerun = call.replay is not Replay.UNSAFE and call.starts < starts_max
        lose(draft, call, command.content, rerun=rerun, untrusted=command.untrusted)
    else:
        moved = draft.move(call, CallMove.FINISH)
        result = ToolResult(
            call_id=call.id,
            name=call.name,
            content=command.content,
            error=command.error,
            files=command.files,
            untrusted=command.untrusted,
        )
        draft.answer(moved, result)
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    if command.spawn is not None:
        spawn_child(draft, call, command.spawn)
    draft.settle()


def keep(draft: Draft, command: cmd.Keep) -> None:
    """The newest is last: where there are too many, those go that were kept, or changed, longest ago."""
    limits = draft.limits
    if not command.key or max(len(command.key), len(command.text)) > limits.keepsake_chars_max:
        raise Refusal("limit", f"what is kept has a key, and up to {limits.keepsake_chars_max:,} characters")
    kept = decode_keepsakes(draft.chat.keepsakes)
    kept.pop(command.key, None)
    if command.text:
        kept[command.key] = command.text
    give_way = [key for key in kept if key not in command.spared and key != command.key]
    for key in give_way[: max(0, len(kept) - limits.keepsakes_max)]:
        del kept[key]
    if len(kept) > limits.keepsakes_max:
        raise Refusal("limit", f"other calls that run keep {limits.keepsakes_max} things already")
    draft.set(keepsakes=encode(kept).decode() if kept else "")


def lose(draft: Draft, call: Call, why: str = "", *, rerun: bool, untrusted: bool = False) -> None:
    """It was started, and no worker knows what came of it: it runs again, a person is asked, or the model is told.
    `untrusted`: why, it says in words from outside.

    A stop asks no person: what it does not know it tells the model.
    """
    if rerun:
        moved = draft.move(call, CallMove.REVERT, started_at=None)
        draft.tell_of_call(moved, detail=f"runs again: {why}" if why else "runs again")
    elif call.on_unknown == "ask" and draft.chat.state is not State.STOPPING:
        question = unknown_text(call, why)
        moved = draft.move(call, CallMove.DOUBT, external=External.QUESTION, question=question)
        draft.tell_of_call(moved, external=moved.external, question=moved.question)
    else:
        draft.answer_synthetically(
            call, CallMove.LOSE, Synthetic.UNKNOWN, unknown_text(call, why), untrusted=untrusted
        )
