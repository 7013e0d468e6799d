"""What a runner should do next, from the snapshot alone: so a runner can be dropped and rebuilt at any instant."""

from holdfast.core.records import Call, CallState, Cause, ChatRecord, Frozen, Phase, Snapshot, State
from holdfast.core.states import OUTSIDE


class Budget(Frozen):
    """What a turn, a chat and a family may use. None: no limit. Reaching one ends the turn with cause `budget`.

    `seconds` are those in which a worker worked on it. Waiting for people, clients, children or a worker costs
    nothing; neither does what a crash undid.
    """

    steps: int = 200
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    chat_tokens: int | None = None  # of the chat, in all its turns
    chat_cost: float | None = None
    family_tokens: int | None = None  # of the chat and of all chats below it, where no chat is above it
    family_cost: float | None = None


class AskModel(Frozen):
    """The model owes a response."""


class RunCalls(Frozen):
    """These calls can be acted on: planned ones to be prepared, approved ones to be started."""

    calls: tuple[Call, ...]


class AwaitBodies(Frozen):
    """Nothing to begin; bodies that this runner started are still running."""


class ParkChat(Frozen):
    """Only a person, a client, a child or the clock can go on."""


class EndTurn(Frozen):
    cause: Cause | None = None
    detail: str | None = None


class EndStop(Frozen):
    """End what runs, then commit what was cut off."""


class CompactNow(Frozen):
    """A compaction is owed."""


class Leave(Frozen):
    """The chat is not this runner's any more."""


Action = AskModel | RunCalls | AwaitBodies | ParkChat | EndTurn | EndStop | CompactNow | Leave


def next_action(snapshot: Snapshot, worker: str, budget: Budget, worked_ms: int) -> Action:
    """`worked_ms`: how long the runner has worked since the commit that left this snapshot."""
    chat = snapshot.chat
    if chat.worker != worker or chat.state not in (State.RUNNING, State.STOPPING):
        return Leave()
    if chat.state is State.STOPPING:
        return EndStop()
    if chat.phase is Phase.CALLS:
        return _next_for_calls(snapshot)
    if chat.compact:
        return CompactNow()
    if chat.phase is Phase.REST:
        return EndTurn()
    if (exhausted := exhausted_budget(snapshot, budget, worked_ms)) is not None:
        return EndTurn(cause=Cause.BUDGET, detail=exhausted)
    return AskModel()


_READY = (CallState.PLANNED, CallState.APPROVED)


def _next_for_calls(snapshot: Snapshot) -> Action:
    """At a step limit open calls are still run and answered: a budget gates the next model response only."""
    ready = [call for call in snapshot.calls if call.state in _READY]
    if ready:
        return RunCalls(calls=tuple(ready))
    if CallState.STARTED in [call.state for call in snapshot.calls]:
        return AwaitBodies()
    assert any(call.state in OUTSIDE for call in snapshot.calls), "phase calls with every call answered"
    return ParkChat()


def exhausted_budget(snapshot: Snapshot, budget: Budget, worked_ms: int) -> str | None:
    chat = snapshot.chat
    if chat.step >= budget.steps:
        return f"max_steps: {chat.step} of {budget.steps} model responses"
    if budget.tokens is not None and chat.turn_tokens >= budget.tokens:
        return f"max_tokens: {chat.turn_tokens:,} of {budget.tokens:,} tokens"
    worked_s = (chat.turn_ms + worked_ms) / 1000
    if budget.seconds is not None and worked_s >= budget.seconds:
        return f"max_seconds: {worked_s:.0f} of {budget.seconds:g} s"
    if budget.cost is not None and chat.turn_cost >= budget.cost:
        return f"max_cost: {chat.turn_cost:.4f} of {budget.cost:g}"
    return _exhausted_chat(chat, budget)


def seconds_left(snapshot: Snapshot, budget: Budget, worked_ms: int) -> float | None:
    """Of the turn's time. None: it has no limit."""
    return None if budget.seconds is None else budget.seconds - (snapshot.chat.turn_ms + worked_ms) / 1000


def _exhausted_chat(chat: ChatRecord, budget: Budget) -> str | None:
    """In its own row. What chats below it used is looked up when a call draws (`core/budgets.py`)."""
    limits = [("chat", budget.chat_tokens, budget.chat_cost)]
    if chat.root_id is None:
        limits.append(("family", budget.family_tokens, budget.family_cost))
    for name, tokens, cost in limits:
        if tokens is not None and chat.chat_tokens >= tokens:
            return f"{name}_tokens: {chat.chat_tokens:,} of {tokens:,} tokens"
        if cost is not None and chat.chat_cost >= cost:
            return f"{name}_cost: {chat.chat_cost:.4f} of {cost:g}"
    return None
