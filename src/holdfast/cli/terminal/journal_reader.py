"""From a chat's journal to a screen: what each entry and each piece of a stream means to a person."""

import msgspec

from holdfast.cli.terminal.screen import Screen, ToolEnd
from holdfast.cli.words import arguments_of, line, seconds
from holdfast.core import journal as jn
from holdfast.core.codec import decode_delta, decode_entry
from holdfast.core.records import CallState, Cause, Message, Role, ToolCall, ToolResult
from holdfast.errors import RecordError
from holdfast.safe_text import safe
from holdfast.store.records import Item

STOPPING = "stopping; once more leaves at once"


class Reader:
    """`own` are the ids of messages that the person at this terminal wrote just now: they need not be shown them."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._calls: dict[str, ToolCall] = {}
        self._started: dict[str, int] = {}
        self.own: set[str] = set()
        self.show_users = True

    def take(self, item: Item) -> jn.AnyEntry | jn.Delta | None:
        """Shows it, and returns what it was. What newer code wrote is passed over."""
        found = what_is(item)
        if isinstance(found, jn.Delta):
            self._delta(found)
        elif found is not None:
            self._entry(found, item.at)
        return found

    def interrupted(self) -> None:
        self._screen.status(STOPPING)

    def trouble(self, text: str) -> None:
        self._screen.note(safe(text))

    def _delta(self, delta: jn.Delta) -> None:
        if delta.part == "text":
            self._screen.text(delta.text)
        elif delta.part == "arguments" and delta.name:
            self._screen.calling(line(delta.name, 40))
        elif delta.part == "reasoning":
            self._screen.thinking()

    def _entry(self, entry: jn.AnyEntry, at: int) -> None:
        match entry:
            case jn.MessageAdded():
                self._message(entry, entry.message, at)
            case jn.CallsStarted():
                for call_id in entry.call_ids:
                    self._start(call_id, at, entry.arguments.get(call_id))
            case jn.CallChanged():
                self._call(entry)
            case jn.Noted(topic="progress", call_id=None):
                self._screen.status(line(entry.text))
            case jn.Noted(topic="progress"):
                assert entry.call_id is not None
                self._screen.tool_says(entry.call_id, entry.text)
            case jn.Noted(topic="compaction" | "error"):
                self._screen.note(line(entry.text, 300))
            case jn.AttemptFailed():
                self._screen.note(_attempt_failed(entry))
            case jn.PreviewReset():
                self._screen.start_over()
            case jn.StopRequested():
                self._screen.status(STOPPING)
            case jn.MessageQueued():
                message = entry.message
                if message.id not in self.own:
                    self._screen.note(f"queued: {line(message.text)}")
            case jn.MessagesDropped():
                self._screen.note(f"{len(entry.message_ids)} queued dropped: {entry.why}")
            case jn.TurnEnded():
                self._turn_ended(entry)
            case jn.ChatFailed():
                self._screen.error(line(f"failed ({entry.error.code}): {entry.error.message}", 500))
                for cause in entry.error.chain:
                    self._screen.note(f"  {line(cause, 500)}")
            case jn.Compacted():
                self._screen.note("compacted: a summary stands for the older part")
            case jn.CompactionFailed():
                self._screen.note(f"not compacted: {line(entry.error)}")
            case jn.HistoryCut():
                self._screen.note("edited: what came after is cut away")
            case _:
                pass

    def _message(self, entry: jn.MessageAdded, message: Message, at: int) -> None:
        if message.role is Role.ASSISTANT:
            self._screen.answer(message.text)
            if message.finish is not None:
                self._screen.note(f"the answer is not whole: {_UNFINISHED.get(message.finish, message.finish)}")
            for call in message.calls:
                self._calls[call.call_id] = call
            for call_id in entry.started:
                self._start(call_id, at)
        elif message.role is Role.USER:
            if self.show_users and message.id not in self.own:
                self._screen.user(message.text)
        else:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    self._result(part, entry.call_state, at)

    def _start(self, call_id: str, at: int, arguments: str | None = None) -> None:
        call = self._calls.get(call_id)
        self._started[call_id] = at
        if call is not None:
            self._screen.tool_started(call_id, line(call.name, 60), arguments_of(arguments or call.arguments), at)

    def _result(self, result: ToolResult, state: CallState | None, at: int) -> None:
        call = self._calls.pop(result.call_id, None)
        began = self._started.pop(result.call_id, None)
        mark = "failed" if result.error and state is CallState.DONE else str(state or "done")
        end = ToolEnd(
            name=line(result.name, 60),
            arguments=arguments_of(call.arguments) if call is not None else "",
            mark=mark,
            result=safe(result.content),
            took_ms=at - began if began is not None else None,
        )
        self._screen.tool_ended(result.call_id, end)

    def _call(self, entry: jn.CallChanged) -> None:
        if entry.state is CallState.EXTERNAL and entry.child_id is not None:
            self._screen.status(f"{line(entry.name, 40)} works in {entry.child_id}")
        elif entry.state is CallState.PLANNED and entry.detail is not None:
            self._started.pop(entry.call_id, None)
            self._screen.note(f"{line(entry.name, 40)}: {line(entry.detail)}")

    def _turn_ended(self, entry: jn.TurnEnded) -> None:
        if entry.cause is Cause.USER:
            self._screen.note("stopped")
        elif entry.cause is not None and entry.cause is not Cause.SUPERSEDED:
            detail = f": {line(entry.detail)}" if entry.detail else ""
            self._screen.note(f"the turn was cut short ({entry.cause}){detail}")


_UNFINISHED = {
    "length": "the model reached its limit of tokens (max_tokens)",
    "refused": "the model, or a filter of its provider, refused",
    "other": "the model broke off, for a reason of its own",
}


def _attempt_failed(entry: jn.AttemptFailed) -> str:
    after = ""
    if entry.retry_in_ms is not None:
        after = f"; again in {seconds(entry.retry_in_ms)}"
        if entry.next_model is not None and entry.next_model != entry.model:
            after += f" with {line(entry.next_model, 60)}"
    return f"{line(entry.model, 60)}: {line(entry.error, 300)}{after}"


def what_is(item: Item) -> jn.AnyEntry | jn.Delta | None:
    """None: newer code wrote it."""
    try:
        return decode_delta(item.body) if item.seq is None else decode_entry(item.body)
    except RecordError:
        return None


def as_json(chat_id: str, item: Item) -> bytes:
    """One line for a program: the entry as it is stored, with its cursor; pieces of a stream are `delta`s."""
    head: dict[str, object] = {"chat": chat_id, "id": item.cursor, "at": item.at}
    if item.seq is not None:
        head["seq"] = item.seq
    else:
        head |= {"kind": "delta", "attempt": item.attempt, "k": item.k}
    return msgspec.json.encode(head)[:-1] + b"," + item.body[1:]
