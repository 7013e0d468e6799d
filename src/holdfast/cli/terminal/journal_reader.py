"""From a chat's journal to a screen: what each update of the fold means to a person."""

import msgspec

from holdfast.cli.terminal.screen import Screen, ToolEnd
from holdfast.cli.words import arguments_of, line, seconds
from holdfast.core import journal as jn
from holdfast.core import updates as up
from holdfast.core.call_words import SPENT
from holdfast.core.fold import Fold
from holdfast.core.records import UNFINISHED, CallState, Cause, Failure, Message, Role
from holdfast.safe_text import safe
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of
from holdfast.tools.plan import plan_lines, plan_of

STOPPING = "stopping; once more leaves at once"


class Reader:
    """`own` are the ids of messages that the person at this terminal wrote just now: they need not be shown them."""

    def __init__(self, screen: Screen, *, verbose: bool = False) -> None:
        self._screen = screen
        self._verbose = verbose  # of what failed, every attempt
        self._fold = Fold()
        self.own: set[str] = set()
        self.show_users = True

    def take(self, item: Item) -> jn.AnyEntry | jn.Delta | jn.UnknownEntry:
        """Shows it, and returns what it was. What newer code wrote is passed over."""
        event = event_of(item)
        for update in self._fold.take(event):
            self._show(update, event.body)
        return event.body

    def recall(self, item: Item) -> None:
        """What came before, and was shown before or elsewhere: what comes next may speak of it."""
        self._fold.take(event_of(item))

    def begin_anew(self) -> None:
        """What comes next is of another chat, or of another place in this one."""
        self._fold = Fold()

    def interrupted(self) -> None:
        self._screen.status(STOPPING)

    def trouble(self, text: str) -> None:
        self._screen.note(safe(text))

    def _show(self, update: up.Update, body: object) -> None:
        match update:
            case up.TextAdded():
                self._screen.text(update.text)
            case up.Restarted(dropped=dropped) if dropped:
                self._screen.take_back(dropped)
            case up.ReasoningAdded():
                self._screen.thinking()
            case up.Responded():
                self._responded(update.message)
            case up.CallDrafted():
                self._screen.calling(line(update.call.name, 40))
            case up.CallBegan():
                self._call_began(update.call)
            case up.CallProgress():
                self._screen.tool_says(update.call.id, update.text)
            case up.CallDone():
                self._call_done(update.call)
            case up.Retrying():
                if isinstance(body, jn.AttemptFailed):
                    self._screen.note(_attempt_failed(body))
                self._screen.status("asking again")
            case up.Finished():
                self._finished(update.turn)
            case up.Happened():
                self._happened(update.entry)
            case _:
                pass

    def _responded(self, message: Message) -> None:
        self._screen.answered()
        if message.finish is not None:
            self._screen.note(f"the answer is not whole: {UNFINISHED.get(message.finish, message.finish)}")

    def _call_began(self, call: up.CallView) -> None:
        if call.child_id is not None:
            self._screen.status(f"{line(call.name, 40)} works in {call.child_id}")
        elif call.state is CallState.STARTED and call.name:  # without a name: it was asked for before we looked
            self._screen.tool_started(call.id, line(call.name, 60), arguments_of(call.arguments), call.began_at or 0)

    def _call_done(self, call: up.CallView) -> None:
        if call.state is CallState.DONE and (items := plan_of(call.name, call.arguments)) is not None:
            self._screen.plan(call.id, [safe(each) for each in plan_lines(items)])
            return
        end = ToolEnd(
            name=line(call.name, 60),
            arguments=arguments_of(call.arguments) if call.arguments else "",
            mark="failed" if call.error and call.state is CallState.DONE else str(call.state),
            result=safe(call.result or ""),
            took_ms=(call.ended_at or 0) - call.began_at if call.began_at is not None else None,
        )
        self._screen.tool_ended(call.id, end)

    def _finished(self, turn: up.TurnView) -> None:
        if turn.cause is Cause.USER:
            self._screen.note("stopped")
        elif turn.cause is not None and turn.cause is not Cause.SUPERSEDED:
            detail = f": {line(turn.detail)}" if turn.detail else ""
            self._screen.note(f"the turn was cut short ({turn.cause}){detail}")
        if turn.error is not None:
            self._failed(turn.error)

    def _failed(self, error: Failure) -> None:
        self._screen.error(line(f"failed ({error.code}): {error.message}", 500))
        if error.advice:
            self._screen.note(f"  {line(error.advice, 500)}")
        for cause in error.chain if self._verbose else ():
            self._screen.note(f"  {line(cause, 500)}")

    def _happened(self, entry: jn.AnyEntry) -> None:
        match entry:
            case jn.MessageAdded(message=message):
                self._said_elsewhere(message)
            case jn.CallChanged(detail=detail) if detail is not None:
                self._screen.note(f"{line(entry.name, 40)}: {line(detail)}")
            case jn.Noted(topic="progress"):
                self._screen.status(line(entry.text))
            case jn.Noted(topic="compaction" | "error"):
                self._screen.note(line(entry.text, 300))
            case jn.Noted(topic=topic) if topic == SPENT:
                self._screen.note(f"spent {line(entry.text)}")
            case jn.ChatHandedOver(worker=worker, cause=cause):
                self._screen.note(f"worker {line(worker, 60)} {jn.HANDED_OVER.get(cause, f'left: {cause}')}")
                self._screen.status("waiting for a worker")
            case jn.ChatTakenOver(worker=worker):
                self._screen.status(f"worker {line(worker, 60)} goes on with it")
            case jn.AttemptFailed(next_model=str()):  # else the turn's failure says it
                self._screen.note(_attempt_failed(entry))
            case jn.ChatFailed(error=error):
                self._failed(error)
            case jn.StopRequested():
                self._screen.status(STOPPING)
            case jn.MessageQueued(message=message, mode=mode):
                if message.id not in self.own:
                    place = "goes into this turn, before its next step" if mode == "steer" else "queued"
                    self._screen.note(f"{place}: {line(message.text)}")
            case jn.MessagesDropped():
                self._screen.note(f"{len(entry.message_ids)} queued dropped: {entry.why}")
            case jn.Compacted():
                self._screen.note("compacted: a summary stands for the older part")
            case jn.CompactionFailed():
                self._screen.note(f"not compacted: {line(entry.error)}")
            case jn.HistoryCut():
                self._screen.note("edited: what came after is cut away")
            case _:
                pass

    def _said_elsewhere(self, message: Message) -> None:
        """A user's message, or one of a conversation that this chat began with."""
        if message.role is Role.ASSISTANT:
            self._screen.text(message.text)
            self._screen.answered()
        elif self.show_users and message.id not in self.own:
            self._screen.user(message.text)


def _attempt_failed(entry: jn.AttemptFailed) -> str:
    after = ""
    if entry.retry_in_ms is not None:
        after = f"; again in {seconds(entry.retry_in_ms)}"
        if entry.next_model is not None and entry.next_model != entry.model:
            after += f" with {line(entry.next_model, 60)}"
    who = "" if entry.error.startswith(entry.model) else f"{line(entry.model, 60)}: "
    return f"{who}{line(entry.error, 300)}{after}"


def as_json(chat_id: str, item: Item) -> bytes:
    """One line for a program: the entry as it is stored, with its cursor; pieces of a stream are `delta`s."""
    head: dict[str, object] = {"chat": chat_id, "id": item.cursor, "at": item.at}
    if item.seq is not None:
        head["seq"] = item.seq
    else:
        head |= {"kind": "delta", "attempt": item.attempt, "k": item.k}
    return msgspec.json.encode(head)[:-1] + b"," + item.body[1:]
