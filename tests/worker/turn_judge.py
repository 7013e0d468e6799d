"""What must hold after random turns, judged from outside: the clients' notes, what readers saw, and the evidence.

`judge` returns everything that is wrong, in sentences. Nothing here knows how a runner works.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.core import history
from holdfast.core.codec import decode_delta, decode_entry
from holdfast.core.journal import (
    AnyEntry,
    Compacted,
    Delta,
    HistoryCut,
    MessageAdded,
    PreviewReset,
    StopRequested,
    TurnEnded,
    TurnStarted,
)
from holdfast.core.records import Cause, Message, Role, Snapshot, State, Synthetic, ToolResult
from holdfast.store.contract import Store
from holdfast.store.records import Item
from tests.support import invariants
from tests.worker.clients import Clients, Followed
from tests.worker.evidence import Line
from tests.worker.toolbox import SAFE

Numbered = list[tuple[int, AnyEntry]]


async def judge(store: Store, clients: Clients, evidence: Sequence[Line]) -> list[str]:
    live = {lease.worker for lease in await store.list_workers() if lease.ended is None}
    found = [f"{violation}" for violation in await store.find_violations()]
    found += [f"{count} repairs were needed: {reason}" for reason, count in (await store.read_repairs()).items()]
    found += [f"request {line.n} was not valid: {line.wrong}" for line in evidence if line.wrong]
    asked = {line.n: line for line in evidence if line.what == "asked"}
    told: dict[str, Numbered] = {}
    for followed, snapshot in await clients.snapshots():
        entries = told[followed.chat.id] = [
            (i.seq, decode_entry(i.body)) for i in followed.items if i.seq is not None
        ]
        messages = await followed.chat.messages()
        wrong = [
            *invariants.promise_7(snapshot, live),
            *invariants.consistency(snapshot),
            *invariants.journal_problems(snapshot, entries),
            *_at_rest(snapshot),
            *_history(messages, snapshot),
            *_messages_kept(followed, snapshot, entries, messages, clients),
            *_steps(entries, asked, followed),
            *_stops(followed, entries),
            *_kept_partials(followed, entries, evidence),
            *_readings(followed.items),
            *_results(entries, evidence, followed),
        ]
        found += [f"chat {followed.number}{' (fork)' * followed.is_fork}: {what}" for what in wrong]
    return found + _no_step_asked_twice(told.values(), evidence) + _bodies(evidence, clients)


def _at_rest(snapshot: Snapshot) -> list[str]:
    chat = snapshot.chat
    if chat.state in (State.IDLE, State.FAILED):
        return []
    calls = [(call.name, str(call.state)) for call in snapshot.calls]
    return [f"it never came to rest: {chat.state}/{chat.phase}, held by {chat.worker}, calls {calls}"]


# --- history ---------------------------------------------------------------------------------------

_STORED_AS_IT_CAME = ("is empty", "holds an empty or unsigned", "are not a JSON object")


def _history(messages: Sequence[Message], snapshot: Snapshot) -> list[str]:
    """What a model said is stored as it said it; a request leaves out what no provider takes back."""
    wrong = [p for p in history.problems(messages) if not any(flaw in p for flaw in _STORED_AS_IT_CAME)]
    wrong += history.problems(history.make_valid(messages))
    if len(messages) != snapshot.chat.length:
        wrong.append(f"the history has {len(messages)} messages and is said to have {snapshot.chat.length}")
    return wrong


class Replay:
    """History as the journal tells it, entry by entry."""

    def __init__(self) -> None:
        self._slots: list[Message | str] = []  # a call's id keeps the place of its result
        self._compacted: list[int] = []  # how far each summary reaches

    def take(self, entry: AnyEntry) -> None:
        if isinstance(entry, HistoryCut):
            del self._slots[entry.length :]
            self._compacted = [upto for upto in self._compacted if upto <= entry.length]
        if isinstance(entry, Compacted):
            self._compacted.append(entry.upto)
        if not isinstance(entry, MessageAdded) or entry.off_history:
            return
        message = entry.message
        if message.role is Role.TOOL:
            for result in (part for part in message.parts if isinstance(part, ToolResult)):
                if result.call_id in self._slots:
                    self._slots[self._slots.index(result.call_id)] = message
        else:
            self._slots += [message, *(call.call_id for call in message.calls)]

    @property
    def covered(self) -> int:
        """Positions that a summary stands for."""
        return max(self._compacted, default=0)

    def request(self, covered: int | None = None) -> list[str]:
        """The messages that a model is asked with now, by id. `covered`: where it is known from elsewhere."""
        start = self.covered if covered is None else covered
        known = [slot for slot in self._slots[start:] if isinstance(slot, Message)]
        summary = [f"summary.{start}"] if start else []
        return summary + [message.id for message in history.make_valid(known)]

    def is_boundary(self, pos: int) -> bool:
        """Whether history can be cut here without parting a call from its results."""
        after = self._slots[pos] if pos < len(self._slots) else None
        return 0 < pos <= len(self._slots) and (
            after is None or (isinstance(after, Message) and after.role != "tool")
        )


# --- steps -----------------------------------------------------------------------------------------


def _added(entries: Numbered) -> Iterable[tuple[int, MessageAdded, Message]]:
    for number, entry in entries:
        if isinstance(entry, MessageAdded):
            yield number, entry, entry.message


def _number_of(message: Message) -> str | None:
    """Which request it answers."""
    text = message.text
    return text[1 : text.index(">")] if text.startswith("<") and ">" in text else None


def _steps(entries: Numbered, asked: dict[str, Line], followed: Followed) -> list[str]:
    """Every response stands once, right behind the history that the model was asked with."""
    found: list[str] = []
    seen: Counter[str] = Counter()
    replay = Replay()
    for number, entry in entries:
        if isinstance(entry, MessageAdded) and (message := entry.message).role is Role.ASSISTANT:
            n = _number_of(message)
            # A fork's journal does not tell of the summaries that it was given; what it says itself must do.
            unknown = followed.is_fork and message.stopped is not None
            due = replay.request(message.covered if followed.is_fork else None)
            if n is not None and n in asked:
                seen[n] += 1
                if entry.attempt is not None and not unknown and asked[n].ids != due:
                    found.append(f"entry {number}: response {n} answers {asked[n].ids}, not {due}")
            elif message.stopped is None and message.text:
                found.append(f"entry {number}: nobody asked for {message.text!r}")
        if isinstance(entry, Compacted) and not replay.is_boundary(entry.upto):
            found.append(f"entry {number}: a summary reaches up to {entry.upto}, in the middle of a group")
        if isinstance(entry, Compacted) and entry.upto < replay.covered:
            found.append(f"entry {number}: a summary reaches up to {entry.upto}, an earlier one to {replay.covered}")
        replay.take(entry)
    return found + [f"response {n} was committed {count} times" for n, count in seen.items() if count > 1]


def _no_step_asked_twice(told: Iterable[Numbered], evidence: Sequence[Line]) -> list[str]:
    """Once a response is complete and committed, the model is never asked the same again."""
    asked = [line for line in evidence if line.what == "asked"]
    place = {line.n: at for at, line in enumerate(asked)}
    found: list[str] = []
    for entries in told:
        for _, entry, message in _added(entries):
            n = _number_of(message) if message.role is Role.ASSISTANT and entry.attempt is not None else None
            if n is None or n not in place or message.stopped is not None:
                continue
            first = asked[place[n]]
            later = asked[place[n] + 1 :]
            again = [line.n for line in later if (line.ids, line.summary) == (first.ids, first.summary)]
            found += [f"response {n} was committed, and the model asked the same again as {m}" for m in again]
    return found


# --- messages --------------------------------------------------------------------------------------


def _messages_kept(
    followed: Followed, snapshot: Snapshot, entries: Numbered, messages: Sequence[Message], clients: Clients
) -> list[str]:
    """Each message that was taken is in history or the queue, was given back, was cut by an edit, or answered."""
    entered = Counter(message.id for _, _, message in _added(entries) if message.role is Role.USER)
    at = {message.id: number for number, _, message in _added(entries)}
    cuts = [number for number, entry in entries if isinstance(entry, HistoryCut)]
    here = {message.id for message in messages}
    queued = {message.id for message in snapshot.queue}
    answers = {part.content for m in messages for part in m.parts if isinstance(part, ToolResult)}
    answers |= {part.content for _, _, m in _added(entries) for part in m.parts if isinstance(part, ToolResult)}
    found: list[str] = []
    if len(cuts) != followed.edits:
        found.append(f"{followed.edits} edits were acknowledged, and history was cut {len(cuts)} times")
    for sent in clients.sent:
        if sent.chat_id != followed.chat.id:
            continue
        fates = [sent.id in queued, sent.id in clients.dropped, entered[sent.id] > 0, sent.text in answers]
        if sent.refused:
            if any(fates):
                found.append(f"{sent.id} was refused, and is there")
            continue
        if sum(fates) != 1 or entered[sent.id] > 1:
            found.append(f"{sent.id} was taken: queued, dropped, entered, answered are {fates}, {entered[sent.id]}x")
        if entered[sent.id] and sent.id not in here and not any(cut > at[sent.id] for cut in cuts):
            found.append(f"{sent.id} left history, and nobody edited")
    return found


# --- stops -----------------------------------------------------------------------------------------


def _stops(followed: Followed, entries: Numbered) -> list[str]:
    """A user's stop ends its turn with cause `user`; nothing else ever does."""
    found: list[str] = []
    stopping: Cause | None = None
    user_stops = 0
    for number, entry in entries:
        if isinstance(entry, StopRequested):
            stopping = Cause.USER if stopping is Cause.USER else entry.cause
            user_stops += entry.cause is Cause.USER
        elif isinstance(entry, TurnStarted):
            stopping = None  # what was stopped was a compaction without a turn
        elif isinstance(entry, TurnEnded):
            if stopping is not None and entry.cause is not stopping:
                found.append(f"entry {number}: a turn that was stopped by {stopping} ended with cause {entry.cause}")
            if stopping is None and entry.cause is Cause.USER:
                found.append(f"entry {number}: a turn ended as if the user had stopped it")
            stopping = None
        elif isinstance(entry, MessageAdded) and not followed.is_fork:
            message = entry.message
            if message.role is Role.ASSISTANT and message.stopped is not stopping:
                found.append(f"entry {number}: a response says {message.stopped}, the stop says {stopping}")
    if user_stops > followed.stops:
        found.append(f"{user_stops} stops by a user, who asked for {followed.stops}")
    return found


def _kept_partials(followed: Followed, entries: Numbered, evidence: Sequence[Line]) -> list[str]:
    """Where one worker saw a stop through, all that it had heard of the response is in history."""
    said: dict[str, str] = {}
    for line in evidence:
        if line.what == "said":
            said[line.n] = said.get(line.n, "") + line.text
    failed = {line.n for line in evidence if line.what == "failed"}
    kept = {_number_of(m): m.text for _, _, m in _added(entries) if m.role is Role.ASSISTANT}
    found: list[str] = []
    replay = Replay()
    for number, entry in entries:
        if isinstance(entry, StopRequested) and number in followed.whole_stops:
            ids = replay.request()
            n = next((line.n for line in reversed(evidence) if line.what == "asked" and line.ids == ids), "")
            cut = any(isinstance(entry, HistoryCut) for at, entry in entries if at >= number - 2)
            void = cut or n in failed or n.partition(".")[0] not in followed.whole_stops[number]
            if said.get(n) and not void and not kept.get(n, "").startswith(said[n]):
                found.append(f"entry {number}: {said[n]!r} was said before the stop, kept is {kept.get(n)!r}")
        replay.take(entry)
    return found


# --- readers ---------------------------------------------------------------------------------------


class Preview(Struct):
    """What a client shows of the response that is being streamed."""

    attempt: int
    deltas: list[Delta] = []


def _readings(items: Sequence[Item]) -> list[str]:
    """A reader that dropped and came back saw every entry once, in order, and no preview that was not true."""
    found: list[str] = []
    preview: Preview | None = None
    ended = 0  # attempts up to this one are over
    next_seq = 1
    for item in items:
        if item.seq is None:
            assert item.attempt is not None
            if preview is not None and preview.attempt != item.attempt:
                found.append(f"attempt {preview.attempt} was shown, and not taken back before {item.attempt} began")
            if preview is None or preview.attempt != item.attempt:
                preview = Preview(item.attempt)
            if item.attempt <= ended or item.k != len(preview.deltas):
                found.append(f"a reader got delta {item.attempt}/{item.k} after {ended}/{len(preview.deltas)}")
            preview.deltas.append(decode_delta(item.body))
            continue
        if item.seq != next_seq:
            found.append(f"a reader got entry {item.seq} where {next_seq} was next")
        next_seq = item.seq + 1
        entry = decode_entry(item.body)
        if isinstance(entry, MessageAdded) and entry.attempt is not None:
            message = entry.message
            if preview is not None:
                found += (
                    _unlike(preview, message)
                    if preview.attempt == entry.attempt
                    else [f"attempt {preview.attempt} was shown, and not taken back before {entry.attempt} was said"]
                )
            ended, preview = max(ended, entry.attempt), None
        elif isinstance(entry, PreviewReset):
            ended, preview = max(ended, entry.attempt), None
        elif isinstance(entry, TurnEnded):
            preview = None
    return found + ([f"attempt {preview.attempt} is shown for ever"] if preview is not None else [])


def _unlike(preview: Preview, message: Message) -> list[str]:
    shown = "".join(delta.text for delta in preview.deltas if delta.part == "text")
    found = [] if message.text.startswith(shown) else [f"{shown!r} was shown, {message.text!r} is what was said"]
    for call in message.calls:
        text = "".join(delta.text for delta in preview.deltas if delta.call_id == call.call_id)
        if not call.arguments.startswith(text):
            found.append(f"{text!r} was shown as arguments, they are {call.arguments!r}")
    known = {None, *(call.call_id for call in message.calls)}
    return found + [f"a call {d.name} was shown, and is not there" for d in preview.deltas if d.call_id not in known]


# --- bodies ----------------------------------------------------------------------------------------


def _bodies(evidence: Sequence[Line], clients: Clients) -> list[str]:
    entered = [line for line in evidence if line.what == "entered"]
    times = Counter(line.call_id for line in entered)
    approved = {call_id for followed in clients.followed for call_id in followed.approved}
    denied = {call_id for followed in clients.followed for call_id in followed.denied}
    found: list[str] = []
    for line in entered:
        what = f"{line.tool} {line.call_id}"
        if times[line.call_id] > 1 and line.tool not in SAFE:
            found.append(f"{what} was entered {times[line.call_id]} times")
        if line.tool.startswith("ask_") and line.call_id not in approved:
            found.append(f"{what} ran, and nobody approved")
        if line.call_id in denied:
            found.append(f"{what} ran, and was denied")
        if line.key != f"{line.chat_id}:{line.call_id}":
            found.append(f"{what} got the key {line.key}")
    return sorted(set(found))


def _results(entries: Numbered, evidence: Sequence[Line], followed: Followed) -> list[str]:
    """What the model is told of a call is true: a result was really given, "never ran" never ran."""
    if followed.is_fork:
        return []
    entered = {line.call_id for line in evidence if line.what == "entered"}
    found: list[str] = []
    for number, _, message in _added(entries):
        for result in (part for part in message.parts if isinstance(part, ToolResult)):
            ran = result.call_id in entered
            did = f" did {result.call_id}" in result.content
            if did and not ran:
                found.append(f"entry {number}: {result.content!r}, and nobody did it")
            if "I was cancelled" in result.content:
                found.append(f"entry {number}: what a body said because it was cancelled became its result")
            never = "Never ran" in result.content or result.synthetic in (Synthetic.DENIED, Synthetic.REFUSED)
            if ran and never:
                found.append(f"entry {number}: {result.content!r}, but {result.name} was entered")
    return found
