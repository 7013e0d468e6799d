"""A chat's history in a runner's memory: loaded once, extended with what the runner commits, reloaded when cut.

It is a cache with a bound: of a long chat the newest messages are kept, and older ones are read again for every
request. Within the bound a step costs the same in a long chat as in a short one: only what is new is read, checked or
counted.
"""

from collections.abc import Mapping

from holdfast.core.codec import decode_entry, decode_message
from holdfast.core.compaction import Window, estimated_message, summary_message
from holdfast.core.history import make_valid, problems
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Message, Role, Snapshot
from holdfast.errors import NotFound, OwnershipLost
from holdfast.store.base import HistoryRow, Store

PAGE_ROWS = 1_000


class Moved(Exception):
    """The chat is not what the runner thought: look again and decide again."""


class Past:
    """What is read belongs to the snapshot it is read for; Moved: an edit has cut it meanwhile."""

    def __init__(self, store: Store, chat_id: str, limit: int) -> None:
        self._store = store
        self._chat_id = chat_id
        self._limit = limit
        self._epoch = -1
        self._start = 0  # positions before this one are in the summary
        self._summary: Message | None = None
        self._summary_text = ""
        self._first = 0  # position of the first message in memory
        self._messages: list[Message] = []
        self._sizes: list[int] = []  # estimated tokens of the first of them, as far as they were asked for
        self._older: list[Message] | None = None  # those before them, just read to be counted and about to be sent
        self._ahead: dict[int, Message] = {}  # results that came before an earlier call's
        self._checked = 0  # positions before this one are valid together
        self._needs_mending = False  # stored wrong, whoever did that: mended for every request

    @property
    def size(self) -> int:
        return len(self._messages) + len(self._ahead)

    @property
    def start(self) -> int:
        """Positions before this one are shown as a summary."""
        return self._start

    @property
    def summary(self) -> str:
        """What stands for them."""
        return self._summary_text

    @property
    def opening(self) -> list[Message]:
        """How the conversation begins, as far as it is in memory."""
        return self._messages[:4]

    @property
    def _known(self) -> int:
        """Positions before this one were seen."""
        return self._first + len(self._messages)

    def learn(self, snapshot: Snapshot, messages: Mapping[int, Message]) -> None:
        """What the runner itself just committed, by position. What does not fit is read from the store later."""
        if snapshot.chat.epoch != self._epoch:
            return
        for pos, message in messages.items():
            if self._known <= pos < snapshot.chat.length:
                self._ahead[pos] = message
        while self._known in self._ahead:
            self._messages.append(self._ahead.pop(self._known))

    async def messages(self, snapshot: Snapshot) -> list[Message]:
        """All of it, valid for a provider, with a summary in front where the beginning was compacted."""
        await self._catch_up(snapshot)
        if problems(self._messages[max(0, self._checked - self._first) :]):
            self._needs_mending = True
        self._checked = self._known
        older = self._older if self._older is not None else await self._read(self._start, self._first)
        whole, self._older = [*older, *self._messages], None
        self._trim()
        if self._needs_mending:
            whole = make_valid(whole)
        return whole if self._summary is None else [self._summary, *whole]

    async def window(self, snapshot: Snapshot, fixed: int) -> Window:
        """The next request, as it is counted and cut. `fixed`: tokens of what is sent beside the messages."""
        await self._catch_up(snapshot)
        older = self._older = await self._read(self._start, self._first)
        self._sizes += map(estimated_message, self._messages[len(self._sizes) :])
        chat = snapshot.chat
        return Window(
            start=self._start,
            messages=[*older, *self._messages],
            sizes=[*map(estimated_message, older), *self._sizes],
            fixed=fixed,
            summary=estimated_message(self._summary) if self._summary is not None else 0,
            turn_from=chat.turn_from if chat.turn_started_at is not None else None,
        )

    def begin_at(self, upto: int, summary: str) -> None:
        """From now on the summary stands for the positions before `upto`. Committed, or at least what is sent."""
        assert self._start <= upto <= self._known
        gone = max(0, upto - self._first)
        del self._messages[:gone]
        del self._sizes[:gone]
        self._first = max(self._first, upto)
        self._set_start(upto, summary)

    def _set_start(self, upto: int, summary: str) -> None:
        self._start, self._summary_text, self._older = upto, summary, None
        self._summary = summary_message(upto, summary) if upto else None

    async def response_of(self, snapshot: Snapshot, call_id: str) -> Message | None:
        """The response that asked for a call, which may still be open."""
        if snapshot.chat.epoch == self._epoch and (known := self._asking(call_id)) is not None:
            return known
        place = snapshot.calls[0].pos - 1 if snapshot.calls else -1
        asked = await self._at(place) if place >= 0 else None
        return asked if asked is not None and any(part.call_id == call_id for part in asked.calls) else None

    def _asking(self, call_id: str) -> Message | None:
        asked = (message for message in reversed(self._messages) if message.role is Role.ASSISTANT)
        return next((message for message in asked if any(part.call_id == call_id for part in message.calls)), None)

    async def turn(self, snapshot: Snapshot) -> list[Message]:
        """The messages of the current turn that are in memory, in order."""
        await self._catch_up(snapshot)
        return self._messages[max(0, snapshot.chat.turn_from - self._first) :]

    async def turn_opener(self, snapshot: Snapshot) -> Message | None:
        """The user message that began the current turn."""
        await self._catch_up(snapshot)
        pos = snapshot.chat.turn_from
        if self._first <= pos < self._known:
            return self._messages[pos - self._first]
        return await self._at(pos)

    async def _catch_up(self, snapshot: Snapshot) -> None:
        chat = snapshot.chat
        if chat.epoch != self._epoch:
            await self._begin_anew(chat.epoch)
        start = self._known
        while self._known < chat.length:
            rows = await self._store.read_history(self._chat_id, start=start, limit=PAGE_ROWS)
            if not rows:
                await self._check_gap(snapshot)
                return
            self.learn(snapshot, {row.pos: _message_of(row) for row in rows})
            start = rows[-1].pos + 1

    async def _check_gap(self, snapshot: Snapshot) -> None:
        """What is missing is the result of an open call, or was cut off by an edit since the snapshot."""
        if self._known not in {call.pos for call in snapshot.open_calls}:
            try:
                found = await self._store.follow_chat(snapshot)
            except (OwnershipLost, NotFound) as error:
                raise Moved(str(error)) from error
            if found.chat.epoch != snapshot.chat.epoch:
                raise Moved("its history was edited")

    async def _begin_anew(self, epoch: int) -> None:
        compaction = await self._store.read_compaction(self._chat_id)
        upto, summary = (compaction.upto, compaction.summary) if compaction is not None else (0, "")
        self._set_start(upto, summary)
        self._first = self._checked = upto
        self._messages, self._sizes, self._ahead, self._needs_mending = [], [], {}, False
        self._epoch = epoch

    def _trim(self) -> None:
        """Oldest out first."""
        over = len(self._messages) - self._limit
        if over > 0:
            del self._messages[:over]
            del self._sizes[:over]
            self._first += over

    async def _read(self, start: int, end: int) -> list[Message]:
        found: list[Message] = []
        while start < end:
            rows = await self._store.read_history(self._chat_id, start=start, limit=min(PAGE_ROWS, end - start))
            found += [_message_of(row) for row in rows if row.pos < end]
            if not rows:
                break
            start = rows[-1].pos + 1
        return found

    async def _at(self, pos: int) -> Message | None:
        for row in await self._store.read_history(self._chat_id, start=pos, limit=1):
            if row.pos == pos:
                return _message_of(row)
        return None


def _message_of(row: HistoryRow) -> Message:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return decode_message(entry.message)
