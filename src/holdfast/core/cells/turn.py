"""Cells: a turn, as its runner commits it: responses, lost attempts, waiting, its end, its failure; and its retry."""

from msgspec import Raw

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.messages import check_spoken
from holdfast.core.change import Refusal
from holdfast.core.codec import encode
from holdfast.core.draft import Draft, next_expiry
from holdfast.core.records import (
    Cause,
    ChatRecord,
    Failure,
    Message,
    Phase,
    Role,
    State,
    ToolCall,
    ToolResult,
    fence_of,
)
from holdfast.core.spending import SpendingKind
from holdfast.core.states import OPEN, OUTSIDE, RUNNABLE, CallMove, OwnerMove


def respond(draft: Draft, command: cmd.Respond) -> None:
    message, chat = command.message, draft.chat
    if chat.phase is not Phase.MODEL:
        raise Refusal("not_the_models_turn", f"what is next is {chat.phase}, not a model response")
    calls = check_response(message)
    if len(calls) > draft.limits.batch_calls_max:
        raise Refusal("limit", f"{len(calls)} calls in one response; the limit is {draft.limits.batch_calls_max}")
    plans = {plan.id: plan for plan in command.plans}
    if plans.keys() != calls:
        raise Refusal("wrong_message", "every call of a response needs one plan")
    _check_attempt(chat, command.attempt)
    started = tuple([plan.id for plan in command.plans if plan.start])
    decisions = {plan.id: plan.decision for plan in command.plans if plan.start and plan.decision}
    draft.add_response(
        message, attempt=command.attempt, previewed=command.previewed, started=started, decisions=decisions
    )
    draft.open_batch(message, plans)
    draft.spend(SpendingKind.STEP, command.tokens, command.cost, command.bill, model=message.model or "")
    draft.set(
        step=chat.step + 1,
        attempt_ended=command.attempt,
        phase=Phase.CALLS if draft.calls else Phase.REST,
    )
    for call_id in started:
        draft.move(draft.call(call_id), CallMove.START, started_at=draft.now, starts=1)
    if not draft.calls:
        draft.step_boundary()


def ask_again(draft: Draft, command: cmd.AskAgain) -> None:
    message = command.message
    check_spoken(message)
    if message.synthetic is None:
        raise Refusal("wrong_message", "the model is asked again by a synthetic user message")
    _check_nothing_open(draft)
    if draft.chat.phase is not Phase.REST or draft.chat.turn_started_at is None:
        raise Refusal("model_is_next", "there is no response here to ask again about")
    draft.add_user_message(message.id, Raw(encode(message)))
    draft.set(phase=Phase.MODEL)


def record_lost_attempt(draft: Draft, command: cmd.AttemptLost) -> None:
    _check_attempt(draft.chat, command.attempt)
    draft.end_attempts(command.attempt)
    draft.spend(SpendingKind.LOST, command.tokens, command.cost, command.bill, model=command.model)
    draft.tell(
        journal.AttemptFailed(
            attempt=command.attempt,
            model=command.model,
            error=command.error,
            code=command.code,
            provider=command.provider,
            status=command.status,
            request_id=command.request_id,
            retry_in_ms=command.retry_in_ms,
            next_model=command.next_model,
            duration_ms=command.duration_ms,
            tokens=command.tokens,
        )
    )
    draft.tell(journal.PreviewReset(attempt=command.attempt))


def note(draft: Draft, command: cmd.Note) -> None:
    if command.trace is not None:
        draft.tell(command.trace)
        return
    if command.tokens or command.cost:
        draft.spend(SpendingKind.TOOL, command.tokens, command.cost, command.bill, model=command.tool)
    draft.tell(
        journal.Noted(
            topic=command.topic,
            text=command.text,
            call_id=command.call_id,
            tokens=command.tokens,
            cost=command.cost,
        )
    )


def park(draft: Draft, command: cmd.Park) -> None:
    runnable = [call.id for call in draft.calls if call.state in RUNNABLE]
    outside = tuple(call.id for call in draft.calls if call.state in OUTSIDE)
    if runnable:
        raise Refusal("runnable", f"calls {', '.join(runnable)} are runnable")
    if not outside:
        raise Refusal("nothing_outside", "no call waits for a person, a client, a child or the clock")
    wake_at = next_expiry(draft.calls)
    draft.own(OwnerMove.REST)
    draft.set(state=State.WAITING, wake_at=wake_at, unclean=0, silent="")
    draft.tell(journal.TurnWaiting(call_ids=outside, wake_at=wake_at))


def finish_turn(draft: Draft, command: cmd.FinishTurn) -> None:
    chat = draft.chat
    _check_nothing_open(draft)
    if command.cause not in _CAUSES_OF_A_RUNNER:
        raise Refusal("wrong_cause", f"a runner does not end a turn because of {command.cause}")
    if chat.phase is not Phase.REST and command.cause is None:
        raise Refusal("model_is_next", "the model still owes a response to the last message")
    if chat.compact and chat.turn_started_at is None:
        raise Refusal("compaction_is_next", "the compaction that this chat was woken for is still owed")
    answer_seq = chat.batch if command.cause is None else None  # the last response was all it had to say
    draft.end_turn_and_go_on(command.cause, command.detail, answer_seq, unclean=0, silent="")


# A stop comes from a user, a handover from a release or a lost lease; none of them is a turn's own end.
_CAUSES_OF_A_RUNNER = (None, Cause.BUDGET, Cause.DEADLINE)


def fail(draft: Draft, command: cmd.Fail) -> None:
    fail_with(draft, command.error)


def fail_with(draft: Draft, error: Failure) -> None:
    draft.answer_all("the turn failed", lost=True)
    draft.end_turn(State.FAILED, error.cause, error.code)
    draft.rest(State.FAILED)
    owed = Phase.REST if draft.chat.phase is Phase.REST else Phase.MODEL
    draft.set(error=error, compact=False, phase=owed)
    draft.tell(journal.ChatFailed(error=error))


def retry(draft: Draft, command: cmd.Retry | cmd.Compact) -> None:
    """The turn goes on where it failed: what was committed is not asked for again."""
    draft.unarchive()
    draft.set(error=None, cause=None, unclean=0, silent="", turn_started_at=draft.now, turn_ms=0)
    draft.tell(journal.ChatRetried())
    draft.run()


def go_on(draft: Draft, command: cmd.GoOn) -> None:
    """As another turn, from where the budget ended the last one: same history, same terms, and a turn's worth of
    budget. What bounds chat, family or owner bounds it as before.
    """
    chat = draft.chat
    if chat.cause is not Cause.BUDGET:
        raise Refusal("no_budget_ended_it", "its last turn was not ended by a budget: send a message instead")
    draft.unarchive()
    draft.open_turn(turn_from=chat.turn_from)
    draft.run()


def check_response(message: Message) -> set[str]:
    """The ids of its calls."""
    if message.role is not Role.ASSISTANT:
        raise Refusal("wrong_message", f"a response is an assistant message, not one of role {message.role}")
    if ToolResult in map(type, message.parts):
        raise Refusal("wrong_message", "a response holds no tool results")
    ids = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
    unique = set(ids)
    if len(unique) != len(ids):
        raise Refusal("wrong_message", "every call of a response needs an id of its own")
    return unique


def _check_attempt(chat: ChatRecord, attempt: int) -> None:
    if fence_of(attempt) != chat.fence:
        raise Refusal("wrong_message", f"attempt {attempt} was not made under fence {chat.fence}")
    if attempt <= chat.attempt_ended:
        raise Refusal("wrong_message", f"attempt {attempt} is over; the last one to end was {chat.attempt_ended}")


def _check_nothing_open(draft: Draft) -> None:
    open_calls = [call.id for call in draft.calls if call.state in OPEN]
    if open_calls:
        raise Refusal("open_calls", f"calls {', '.join(open_calls)} have no result yet")
