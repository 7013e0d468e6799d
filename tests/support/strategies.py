"""Events that could happen to a chat, drawn from its snapshot: likely ones mostly, illegal and stale ones too.

`commands(snapshot, world)` serves every test that lets chats live at random, on the core alone and on real stores.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import (
    NOTHING,
    CallState,
    Cause,
    External,
    Failure,
    File,
    LeaseEnd,
    Message,
    NewChat,
    Part,
    Phase,
    Reasoning,
    Replay,
    Role,
    Snapshot,
    State,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    attempt_id,
    fence_of,
)
from holdfast.core.spending import SpendingKind
from holdfast.core.states import EXECUTION, OUTSIDE, ROWS, RUNNABLE

NOBODY = "nobody"  # an id that names nothing
SHORT = st.sampled_from(("Hi.", "Grüezi", "🦑", "line\nbreak", 'a "quote"'))


class World(Struct):
    """What a snapshot does not know and a command needs."""

    now: int
    workers: tuple[str, ...]
    fresh: Callable[[str], str]  # an id never used before
    role_at: Callable[[int], Role | None]  # of the chat's history
    children: tuple[str, ...] = ()  # chats that may be waited for
    may_spawn: bool = True
    sensible: bool = False  # only what fits: no strangers, no stale writers, no wrong ids


# --- which ------------------------------------------------------------------------------------------


@st.composite
def commands(draw: st.DrawFn, snapshot: Snapshot, world: World) -> cmd.Command:
    state = snapshot.chat.state
    taken = [row for row in ROWS if state in EXECUTION[row]]
    rows = likely(snapshot) if world.sensible else [*likely(snapshot) * 2, *taken * 2, *ROWS]
    row = draw(st.sampled_from(rows))
    return draw(_EVENTS[row.partition(".")[0]](snapshot, world, row))


def likely(snapshot: Snapshot) -> list[str]:
    """What somebody sensible would do next, so that random lives get somewhere."""
    chat = snapshot.chat
    states = {call.state for call in snapshot.calls}
    rows: list[str] = []
    if chat.state is State.WAITING:
        rows += ["approve", "deny"] if CallState.ASKING in states else []
        rows += ["submit", "send.queue"] if CallState.EXTERNAL in states else []
        rows += ["due", "claim"] if chat.wake_at is not None else []
        rows += ["send.steer", "send.interrupt", "stop", "edit"]
    elif chat.state is State.FAILED:
        rows += ["retry", "send.queue", "send.steer", "edit", "compact"]
    elif chat.state is State.IDLE:
        rows += ["send.queue", "send.queue", "edit", "compact"] if chat.length else ["send.queue"]
    elif chat.worker is None:
        rows += ["claim"]
    elif chat.state is State.STOPPING:
        rows += ["finish_stop", "release", "edit"]
        rows += ["outcome"] * 3 if CallState.STARTED in states else []
    elif chat.phase is Phase.MODEL:
        rows += ["responded"] * 5 + ["attempt_lost", "send.steer", "send.queue", "stop", "edit", "fail"]
        rows += ["compact", "finish_compaction"]
    elif chat.phase is Phase.REST:
        rows += ["finish_compaction"] if chat.compact else ["send.queue"]
        rows += [] if chat.compact and chat.turn_started_at is None else ["finish_turn"] * 2
    else:
        rows += ["delegate"] * 2 + ["start_calls", "ask_approval", "refuse"] if CallState.PLANNED in states else []
        rows += ["start_calls"] if CallState.APPROVED in states else []
        rows += ["outcome"] * 3 + ["stop", "edit"] if CallState.STARTED in states else []
        rows += ["approve", "submit", "send.steer"] if states & OUTSIDE else []
        rows += ["park"] * 9 if states & OUTSIDE and not states & RUNNABLE else []
    return rows


# --- pieces -----------------------------------------------------------------------------------------


def writers(snapshot: Snapshot, world: World) -> st.SearchStrategy[cmd.Writer]:
    """The holder, nearly always; else somebody whose time is over, or who never was."""
    chat = snapshot.chat
    right = cmd.Writer(chat.worker or world.workers[0], chat.fence, chat.epoch)
    if world.sensible:
        return st.just(right)
    stale = [
        cmd.Writer(right.worker, right.fence - 1, right.epoch),
        cmd.Writer(right.worker, right.fence, right.epoch - 1),
        *(cmd.Writer(worker, right.fence, right.epoch) for worker in world.workers),
    ]
    return st.sampled_from([*[right] * 20, *stale])


def call_ids(snapshot: Snapshot, world: World, *states: CallState) -> st.SearchStrategy[str]:
    fitting = [call.id for call in snapshot.calls if call.state in states]
    if world.sensible and fitting:
        return st.sampled_from(fitting)
    return st.sampled_from([*fitting * 8, *[call.id for call in snapshot.calls], NOBODY])


def expiries(world: World) -> st.SearchStrategy[int | None]:
    return st.sampled_from((None, world.now, world.now + 10, world.now + 5_000, world.now - 5))


@st.composite
def user_messages(draw: st.DrawFn, world: World) -> Message:
    """One in ten is not one that anybody may send."""
    id = world.fresh("m")
    odd = None if world.sensible else draw(st.integers(0, 19))
    if odd == 0:
        return Message(id=id, role=Role.USER, parts=())
    if odd == 1:
        return Message(id=id, role=Role.ASSISTANT, parts=(Text(text="I am a model."),))
    parts: tuple[Part, ...] = (Text(text=draw(SHORT)),)
    if draw(st.booleans()):
        parts += (File(media_type="image/png", uri="blob:1"),)
    metadata = draw(st.sampled_from((NOTHING, Raw(b'{ "k" : 1 }'))))
    return Message(id=id, role=Role.USER, parts=parts, created_at=world.now, metadata=metadata)


@st.composite
def responses(draw: st.DrawFn, world: World, *, whole: bool) -> Message:
    """A model's response; one that is not whole was cut off, and may be flawed as streams leave them."""
    parts: list[Part] = []
    if draw(st.booleans()):
        signed = whole or draw(st.booleans())
        parts.append(Reasoning(text="Hm.", provider="p", signature=Raw(b'"sig"') if signed else NOTHING))
    calls = draw(st.integers(0, 3))
    if calls == 0 or draw(st.booleans()):
        parts.append(Text(text=draw(SHORT) if whole or draw(st.booleans()) else ""))
    for _ in range(calls):
        cut = not whole and draw(st.booleans())
        arguments = '{"city": "Be' if cut else draw(st.sampled_from(("{}", '{"city": "Bern"}')))
        parts.append(ToolCall(call_id=world.fresh("call"), name="tool", arguments=arguments, cut=cut))
    return Message(id=world.fresh("r"), role=Role.ASSISTANT, parts=tuple(parts), created_at=world.now)


@st.composite
def plans(draw: st.DrawFn, message: Message) -> tuple[cmd.PlannedCall, ...]:
    return tuple(
        cmd.PlannedCall(
            id=call.call_id,
            replay=draw(st.sampled_from((Replay.UNSAFE, *Replay))),
            on_unknown=draw(st.sampled_from(("tell_model", "ask"))),
            start=draw(st.booleans()),
        )
        for call in message.calls
    )


def new_chats(world: World) -> st.SearchStrategy[NewChat | None]:
    if not world.may_spawn:
        return st.none()
    child = st.builds(
        lambda message: NewChat(id=world.fresh("chat"), agent="agent", message=message),
        st.one_of(st.none(), user_messages(world)),
    )
    return st.one_of(st.none(), child)


def next_attempt(snapshot: Snapshot) -> int:
    chat = snapshot.chat
    first = attempt_id(max(chat.fence, 1), 1)
    return chat.attempt_ended + 1 if chat.attempt_ended >= first else first


def attempts(snapshot: Snapshot, world: World) -> st.SearchStrategy[int]:
    right = next_attempt(snapshot)
    if world.sensible:
        return st.just(right)
    return st.sampled_from([*[right] * 10, right + 3, max(right - 1, 1), right + (1 << 20)])


# --- every kind of command --------------------------------------------------------------------------

Maker = Callable[[Snapshot, World, str], st.SearchStrategy[cmd.Command]]


def _send(snapshot: Snapshot, world: World, row: str) -> st.SearchStrategy[cmd.Command]:
    mode: Any = row.partition(".")[2]
    return st.builds(cmd.Send, message=user_messages(world), mode=st.just(mode))


@st.composite
def _edit(draw: st.DrawFn, snapshot: Snapshot, world: World, row: str) -> cmd.Command:
    places = [(pos, role) for pos in range(snapshot.chat.length) if (role := world.role_at(pos)) is not None]
    users = [place for place in places if place[1] is Role.USER]
    wrong = [] if world.sensible and users else [*places, (snapshot.chat.length, Role.USER)]
    pos, role = draw(st.sampled_from([*users * 5, *wrong]))
    epoch = snapshot.chat.epoch - (0 if world.sensible else draw(st.sampled_from((0, 0, 0, 0, 1))))
    return cmd.Edit(pos=pos, role=role, epoch=epoch, message=draw(user_messages(world)))


@st.composite
def _responded(draw: st.DrawFn, snapshot: Snapshot, world: World, row: str) -> cmd.Command:
    message = draw(responses(world, whole=True))
    if not world.sensible and draw(st.integers(0, 19)) == 0:
        wrong = ToolResult(call_id=NOBODY, name="tool")
        message = Message(id=message.id, role=Role.ASSISTANT, parts=(*message.parts, wrong))
    return cmd.Respond(
        by=draw(writers(snapshot, world)),
        message=message,
        attempt=draw(attempts(snapshot, world)),
        plans=draw(plans(message)),
        tokens=draw(st.integers(0, 100)),
        cost=draw(st.sampled_from((0.0, 0.25))),
    )


@st.composite
def _delegate(draw: st.DrawFn, snapshot: Snapshot, world: World, row: str) -> cmd.Command:
    external = draw(st.sampled_from(External))
    spawn = draw(new_chats(world)) if external is External.CHILD else None
    child_id = None
    if external is External.CHILD and spawn is None:
        child_id = draw(st.sampled_from((*world.children * 3, snapshot.chat.id, NOBODY)))
    return cmd.Delegate(
        by=draw(writers(snapshot, world)),
        call_id=draw(call_ids(snapshot, world, CallState.PLANNED, CallState.APPROVED)),
        external=external,
        question="Which?" if external is External.QUESTION else None,
        child_id=child_id,
        child_turn=draw(st.sampled_from((None, None, 1))),
        spawn=spawn,
        expires_at=draw(expiries(world)),
    )


@st.composite
def _finish_stop(draw: st.DrawFn, snapshot: Snapshot, world: World, row: str) -> cmd.Command:
    partial = draw(st.one_of(st.none(), responses(world, whole=False)))
    fences = [snapshot.chat.fence, max(snapshot.chat.fence - 1, 1)]
    streamed = st.sampled_from(fences).map(lambda fence: attempt_id(max(fence, 1), 7))
    attempt = draw(st.one_of(attempts(snapshot, world), streamed))
    return cmd.FinishStop(
        by=draw(writers(snapshot, world)),
        partial=partial,
        attempt=attempt if partial is not None else draw(st.sampled_from((None, attempt))),
        length=snapshot.chat.length - draw(st.sampled_from((0, 0, 0, 1))),
    )


def _queued_ids(snapshot: Snapshot) -> st.SearchStrategy[str]:
    return st.sampled_from([*[queued.id for queued in snapshot.queue] * 4, NOBODY])


def _by_writer(kind: type[cmd.RunnerCommand], **fields: st.SearchStrategy[Any]) -> Maker:
    return lambda snapshot, world, row: st.builds(kind, by=writers(snapshot, world), **fields)


def _plain(kind: type[cmd.Command], **fields: st.SearchStrategy[Any]) -> Maker:
    return lambda snapshot, world, row: st.builds(kind, **fields)


def _for_call(kind: type[cmd.Command], *states: CallState, **fields: st.SearchStrategy[Any]) -> Maker:
    def make(snapshot: Snapshot, world: World, row: str) -> st.SearchStrategy[cmd.Command]:
        more = {"by": writers(snapshot, world)} if issubclass(kind, cmd.RunnerCommand) else {}
        return st.builds(kind, call_id=call_ids(snapshot, world, *states), **more, **fields)

    return make


def _give(snapshot: Snapshot, world: World, row: str) -> st.SearchStrategy[cmd.Command]:
    said = st.lists(user_messages(world), max_size=2).map(tuple)
    return st.builds(cmd.Give, messages=said, agent=st.sampled_from((None, "agent", "another")))


_ERRORS = st.sampled_from((Failure(code="boom", message="it broke"), Failure(code="x", message="y", chain=("z",))))

_EVENTS: dict[str, Maker] = {
    "send": _send,
    "give": _give,
    "edit": _edit,
    "stop": _plain(cmd.Stop, clear_queue=st.booleans()),
    "promote": lambda snapshot, world, row: st.builds(cmd.Promote, message_id=_queued_ids(snapshot)),
    "withdraw": lambda snapshot, world, row: st.builds(cmd.Withdraw, message_id=_queued_ids(snapshot)),
    "approve": _for_call(cmd.Approve, CallState.ASKING),
    "deny": _for_call(cmd.Deny, CallState.ASKING, words=st.sampled_from(("", "No!"))),
    "submit": _for_call(cmd.Submit, CallState.EXTERNAL, content=SHORT, error=st.booleans()),
    "compact": _plain(cmd.Compact),
    "retry": _plain(cmd.Retry),
    "go_on": _plain(cmd.GoOn),
    "fork": _plain(cmd.Fork),
    "archive": _plain(cmd.Archive, archived=st.booleans()),
    "rename": _plain(cmd.Rename, title=st.sampled_from(("", "A", "B")), unless_titled=st.booleans()),
    "count_spending": lambda snapshot, world, row: st.builds(
        cmd.CountSpending,
        kind=st.sampled_from(SpendingKind),
        life=st.sampled_from((snapshot.chat.life, snapshot.chat.life + 1)),
        turn=st.integers(0, 2),
        tokens=st.integers(0, 9),
    ),
    "delete": _plain(cmd.Delete),
    "child_ended": lambda snapshot, world, row: st.builds(
        cmd.ChildEnded,
        child_id=st.sampled_from((*world.children, NOBODY)),
        turn=st.integers(0, 2),
        text=st.sampled_from((None, "", "Done.")),
    ),
    "due": _plain(cmd.Due),
    "reached": _for_call(cmd.Reached, CallState.STARTED, content=SHORT, error=st.booleans()),
    "descendant": lambda snapshot, world, row: st.builds(
        cmd.Descendant,
        chat_id=st.just(NOBODY),  # what those that there are ask is told by themselves
        agent=st.just("agent"),
        asking=st.just(snapshot.calls[:1]),
        answered=st.just(snapshot.calls[1:]),
    ),
    "responded": _responded,
    "ask_again": lambda snapshot, world, row: st.builds(
        cmd.AskAgain,
        by=writers(snapshot, world),
        message=user_messages(world).map(lambda message: replace(message, synthetic=Synthetic.INVALID_OUTPUT)),
    ),
    "attempt_lost": lambda snapshot, world, row: st.builds(
        cmd.AttemptLost,
        by=writers(snapshot, world),
        attempt=attempts(snapshot, world),
        model=st.just("m"),
        error=st.just("503"),
        tokens=st.sampled_from((0, 5)),
        cost=st.just(0.5),
    ),
    "start_calls": lambda snapshot, world, row: st.builds(
        cmd.StartCalls,
        by=writers(snapshot, world),
        call_ids=st.lists(call_ids(snapshot, world, CallState.PLANNED, CallState.APPROVED), max_size=3).map(tuple),
    ),
    "ask_approval": lambda snapshot, world, row: st.builds(
        cmd.AskApproval,
        by=writers(snapshot, world),
        call_id=call_ids(snapshot, world, CallState.PLANNED),
        question=st.just("May I?"),
        expires_at=expiries(world),
    ),
    "delegate": _delegate,
    "refuse": _for_call(cmd.Refuse, CallState.PLANNED, content=st.just("no"), denied=st.booleans()),
    "outcome": lambda snapshot, world, row: st.builds(
        cmd.Outcome,
        by=writers(snapshot, world),
        call_id=call_ids(snapshot, world, CallState.STARTED),
        content=SHORT,
        error=st.booleans(),
        unknown=st.booleans(),
        again=st.booleans(),
        spawn=st.one_of(st.none(), st.none(), new_chats(world)),
        tokens=st.sampled_from((0, 0, 9)),
        cost=st.sampled_from((0.0, 0.0, 0.25)),
    ),
    "reach": lambda snapshot, world, row: st.builds(
        cmd.Reach,
        by=writers(snapshot, world),
        call_id=call_ids(snapshot, world, CallState.STARTED),
        child_id=st.sampled_from((*world.children, NOBODY)),
        message=st.one_of(st.none(), user_messages(world)),
        mode=st.sampled_from(("queue", "steer")),
    ),
    "note": _by_writer(cmd.Note, topic=st.just("news"), tokens=st.sampled_from((0, 0, 3))),
    "keep": _by_writer(cmd.Keep, key=SHORT, text=st.sampled_from(("", "s1", "é"))),
    "finish_compaction": lambda snapshot, world, row: st.builds(
        cmd.FinishCompaction,
        by=writers(snapshot, world),
        upto=st.integers(0, snapshot.chat.length + (0 if world.sensible else 1)),
        summary=st.sampled_from((None, "In short.")),
        error=st.sampled_from(("", "", "no summary")),
        why=st.sampled_from(("asked", "near_limit", "too_long")),
        tokens=st.integers(0, 3),
    ),
    "park": _by_writer(cmd.Park),
    "finish_turn": lambda snapshot, world, row: st.builds(
        cmd.FinishTurn,
        by=writers(snapshot, world),
        cause=st.none() if world.sensible else st.sampled_from((*[None] * 8, *Cause)),
    ),
    "finish_stop": _finish_stop,
    "fail": _by_writer(cmd.Fail, error=_ERRORS),
    "claim": lambda snapshot, world, row: st.builds(cmd.Claim, worker=st.sampled_from(world.workers)),
    "release": lambda snapshot, world, row: st.builds(
        cmd.Release,
        by=writers(snapshot, world),
        never_begun=st.lists(call_ids(snapshot, world, CallState.STARTED), max_size=2, unique=True).map(tuple),
    ),
    "lease_expired": lambda snapshot, world, row: st.builds(
        cmd.LeaseExpired,
        worker=st.sampled_from([*[snapshot.chat.worker or NOBODY] * 3, *world.workers]),
        how=st.sampled_from(LeaseEnd),
    ),
    "lease_outlived": lambda snapshot, world, row: st.builds(
        cmd.LeaseOutlived,
        worker=st.sampled_from([*[snapshot.chat.worker or NOBODY] * 3, *snapshot.chat.silent.split(), NOBODY]),
    ),
    "repair": lambda snapshot, world, row: st.builds(
        cmd.Repair, reason=st.just("test"), lease_is_live=st.just(snapshot.chat.worker in world.workers)
    ),
}

assert set(_EVENTS) == set(cmd.COMMANDS)
assert fence_of(attempt_id(3, 1)) == 3
