"""Chats in every state, as they come about: named, and told as stories. For tests that must try everything."""

from collections.abc import Callable

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import Cause, External, LeaseEnd, NewChat, Phase, Queued, Replay, Snapshot, State
from tests.support.story import Story, user

HOUR_MS = 3_600_000

Telling = Callable[[], Story]


def created() -> Story:
    return Story(None)


def answered() -> Story:
    return Story().claimed().says(text="Well.").finishes()


def archived() -> Story:
    story = answered()
    story.does(cmd.Archive())
    return story


def unclaimed() -> Story:
    return Story()


def model_next() -> Story:
    return Story().claimed()


def model_next_with_queue() -> Story:
    story = model_next()
    story.sends("q1")
    story.sends("s1", "steer")
    return story


def said() -> Story:
    return model_next().says()


def said_with_queue() -> Story:
    story = said()
    story.sends("q1")
    return story


def calls_planned() -> Story:
    return model_next().calls("a", "b")


def call_started_beside_planned() -> Story:
    return calls_planned().starts("a")


def call_started_with_queue() -> Story:
    story = model_next().calls("a", start=True)
    story.sends("q1")
    return story


def call_asking_beside_started() -> Story:
    return calls_planned().asks("a").starts("b")


def call_approved() -> Story:
    story = calls_planned().asks("a")
    story.does(cmd.Approve(call_id="a"))
    return story


def call_external_beside_started() -> Story:
    return calls_planned().delegates("a", expires_in_ms=HOUR_MS).starts("b")


def only_outside() -> Story:
    return calls_planned().asks("a").delegates("b", "question")


def lost_and_backing_off() -> Story:
    return model_next().lost().claimed().lost()


def nearly_given_up() -> Story:
    story = model_next()
    for _ in range(4):
        story.lost().claimed()
    return story


def compacting() -> Story:
    story = answered()
    story.does(cmd.Compact())
    return story.claimed()


def waiting_for_child() -> Story:
    story = model_next().calls("a", "b").delegates("b")
    child = NewChat(id="child", agent="agent", message=user("task"))
    story.does(cmd.Delegate(by=story.by, call_id="a", external=External.CHILD, spawn=child))
    return story


def stopped(telling: Telling) -> Story:
    story = telling()
    story.stops()
    return story


def interrupted(telling: Telling) -> Story:
    story = telling()
    story.sends("i1", "interrupt")
    return story


def waiting(*, expires_in_ms: int | None = None, queued: bool = False, external: str = "client") -> Story:
    story = calls_planned().asks("a", expires_in_ms).delegates("b", external, expires_in_ms)
    if queued:
        story.sends("q1")
    return story.parks()


def waiting_for_one(external: str, *, expires_in_ms: int | None = None) -> Story:
    story = model_next().calls("a")
    return story.delegates("a", external, expires_in_ms).parks()


def waiting_for_approval() -> Story:
    return model_next().calls("a").asks("a").parks()


def failed(*, queued: bool = False) -> Story:
    story = model_next()
    if queued:
        story.sends("q1")
        story.sends("q2", "steer")
    return story.fails()


def failed_after_answer() -> Story:
    return said().fails()


def failed_and_archived() -> Story:
    story = failed()
    story.does(cmd.Archive())
    return story


def given_up_in_silence(*, archived: bool = False) -> Story:
    """The fifth worker that it lost, and the one before, only went silent."""
    story = model_next().lost().claimed().lost().claimed().lost()
    for worker in ("w2", "w1"):
        story.claimed(worker).lost(LeaseEnd.SILENT)
    if archived:
        story.does(cmd.Archive())
    return story


def ended_by_budget() -> Story:
    story = model_next()
    story.does(cmd.FinishTurn(by=story.by, cause=Cause.BUDGET, detail="max_tokens: 9 of 9 tokens"))
    return story


SITUATIONS: dict[State, dict[str, Telling]] = {
    State.IDLE: {
        "just created": created,
        "answered": answered,
        "archived": archived,
        "ended by a budget": ended_by_budget,
    },
    State.RUNNING: {
        "nobody's yet": unclaimed,
        "the model is next": model_next,
        "the model is next, with a queue": model_next_with_queue,
        "the model has said it all": said,
        "the model has said it all, with a queue": said_with_queue,
        "calls planned": calls_planned,
        "a call started beside a planned one": call_started_beside_planned,
        "a pure call started": lambda: model_next().calls("a", start=True, replay=Replay.PURE),
        "a call started, with a queue": call_started_with_queue,
        "a call asks while another runs": call_asking_beside_started,
        "a call approved": call_approved,
        "a call is outside while another runs": call_external_beside_started,
        "all calls are outside": only_outside,
        "a call waits for a child": waiting_for_child,
        "lost twice": lost_and_backing_off,
        "lost four times": nearly_given_up,
        "compacting": compacting,
    },
    State.STOPPING: {
        "stopped before anybody came": lambda: stopped(unclaimed),
        "stopped while the model speaks": lambda: stopped(model_next),
        "stopped while a call runs": lambda: stopped(call_started_beside_planned),
        "stopped while a call runs, with a queue": lambda: stopped(call_started_with_queue),
        "stopped while a child runs": lambda: stopped(waiting_for_child),
        "stopped while a call is outside": lambda: stopped(call_external_beside_started),
        "stopped after four lost workers": lambda: stopped(nearly_given_up),
        "interrupted": lambda: interrupted(model_next),
        "interrupted while a call runs": lambda: interrupted(call_started_beside_planned),
        "interrupted after four lost workers": lambda: interrupted(nearly_given_up),
    },
    State.WAITING: {
        "for an approval": waiting_for_approval,
        "for an approval and a client": waiting,
        "for an approval and a client, both expiring": lambda: waiting(expires_in_ms=HOUR_MS),
        "with a queue": lambda: waiting(queued=True),
        "for an approval and an answer": lambda: waiting(external="question"),
        "for an answer": lambda: waiting_for_one("question"),
        "for a client that may be late": lambda: waiting_for_one("client", expires_in_ms=HOUR_MS),
        "for a timer": lambda: waiting_for_one("timer", expires_in_ms=HOUR_MS),
        "for a timer, and an approval without end": lambda: _timer_and_approval(),
        "for a child and a client": lambda: waiting_for_child().parks(),
        "for a child": lambda: _only_child(),
    },
    State.FAILED: {
        "failed": failed,
        "failed with a queue": lambda: failed(queued=True),
        "failed after the answer": failed_after_answer,
        "failed and archived": failed_and_archived,
        "given up in silence": given_up_in_silence,
        "given up in silence, and archived": lambda: given_up_in_silence(archived=True),
    },
}


def _timer_and_approval() -> Story:
    return calls_planned().asks("a").delegates("b", "timer", HOUR_MS).parks()


def _only_child() -> Story:
    story = model_next().calls("a")
    child = NewChat(id="child", agent="agent", message=user("task"))
    story.does(cmd.Delegate(by=story.by, call_id="a", external=External.CHILD, spawn=child))
    return story.parks()


# --- what must not come about, for the sweeper to repair --------------------------------------------


def broken() -> dict[State, dict[str, Snapshot]]:
    """Snapshots for which promise 7 does not hold, by reason."""
    queued = Queued(id="q1", rank=0, mode="queue", body=Raw(b'{"id":"q1","role":"user","parts":[]}'))
    idle, running, failure = answered().snapshot, model_next().snapshot, failed().snapshot
    stopping, waits = stopped(model_next).snapshot, waiting().snapshot
    open_call = calls_planned().snapshot
    return {
        State.IDLE: {
            "held": _with(idle, worker="w1"),
            "wakes": _with(idle, wake_at=1),
            "queue": replace(idle, queue=(queued,)),
            "open calls and a queue": replace(
                _with(open_call, state=State.IDLE, phase=Phase.REST, worker=None, turn_started_at=None),
                queue=(queued,),
            ),
        },
        State.RUNNING: {
            "stranded": _with(running, worker=None),
            "both": _with(running, wake_at=1),
            "dead holder": running,
        },
        State.STOPPING: {
            "stranded": _with(stopping, worker=None),
            "both": _with(stopping, wake_at=1),
        },
        State.WAITING: {
            "held": _with(waits, worker="w1"),
            "never expires": _with(waiting(expires_in_ms=HOUR_MS).snapshot, wake_at=None),
            "nobody outside": _with(said().snapshot, state=State.WAITING, worker=None),
            "runnable": _with(open_call, state=State.WAITING, worker=None),
        },
        State.FAILED: {
            "held": _with(failure, worker="w1", cause=Cause.CRASH),
            "wakes": _with(failure, wake_at=1),
        },
    }


def _with(snapshot: Snapshot, **fields: object) -> Snapshot:
    return replace(snapshot, chat=replace(snapshot.chat, **fields))
