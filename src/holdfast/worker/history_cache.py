"""A chat's history in a runner's memory: loaded once, extended with what the runner commits, reloaded when cut.

It is a cache with two bounds. The newest messages of each chat are kept, so many (`history_limit`). Older ones
are kept in a room that all chats of a worker share, so many bytes (`history_bytes`): where it is full, the chat
that asked longest ago gives up its own, and what has no place in it is read again for every request. Within the
bounds a step costs the same in a long chat as in a short one: only what is new is read, checked or counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from holdfast.core.codec import decode_entry
from holdfast.core.compaction import BYTES_PER_TOKEN, Window, estimated_message, fitted, summary_message
from holdfast.core.history import make_valid, problems
from holdfast.core.journal import MessageAdded
from holdfast.core.kept_files import kept_in
from holdfast.core.records import NOTHING, ChatRecord, Message, Role, Snapshot, Terms, ToolResult
from holdfast.errors import NotFound, OwnershipLost
from holdfast.store.contract import Store
from holdfast.store.records import HistoryRow
from holdfast.tools.results import as_shown, is_cut
from holdfast.worker.joined_lists import Joined

PAGE_ROWS = 1_000
MESSAGE_BYTES = 1_000  # what a message takes in memory beside its text, roughly


class HistoryRoom:
    """What a worker keeps of histories beside what its runners have at hand: at most `bytes_max`, the last used ones.

    That is the older messages of chats that it drives, and all messages of chats that it drove: most chats come back
    to where they were.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._kept: dict[HistoryCache, int] = {}  # those used longest ago first
        self._put_away: dict[str, HistoryCache] = {}  # of chats that no runner drives here, by their ids

    def keep(self, past: "HistoryCache", size: int) -> None:
        """It has so much to keep. What is too much is given up, by those who used theirs longest ago."""
        self.bytes += size - self._kept.pop(past, 0)
        self._kept[past] = size
        while self.bytes > self.bytes_max:
            first = next(iter(self._kept))
            self.leave(first)
            first.give_up_older()

    def leave(self, past: "HistoryCache") -> None:
        self.bytes -= self._kept.pop(past, 0)
        if self._put_away.get(past.chat_id) is past:
            del self._put_away[past.chat_id]

    def put_away(self, past: "HistoryCache") -> None:
        """Its runner is over."""
        self.leave(past)
        if past.is_whole:
            self._put_away[past.chat_id] = past
            self.keep(past, past.bytes)

    def take(self, store: Store, chat_id: str, limit: int) -> "HistoryCache":
        """For a new runner: what is still here of the chat, or nothing yet."""
        past = self._put_away.get(chat_id)
        if past is None:
            return HistoryCache(store, chat_id, limit, self)
        self.leave(past)
        past.doubt()
        return past


class Moved(Exception):
    """The chat is not what the runner thought: look again and decide again."""


class TermsInForce(NamedTuple):
    """What a client asks of the turn now, and the position of the message that says so. `heeded`: a response has come
    since.
    """

    terms: Terms
    pos: int
    heeded: bool


class BroughtTerms:
    """The last terms that came with a result of a turn, as far as its messages were looked at: each once."""

    def __init__(self, turn_from: int = -1, epoch: int = -1, upto: int = 0) -> None:
        self.turn_from = turn_from
        self.epoch = epoch
        self.upto = upto  # positions before this one were looked at
        self.terms: Terms | None = None
        self.pos = turn_from
        self.heeded = False

    def look(self, messages: Sequence[Message], start: int) -> None:
        for pos, message in enumerate(messages, start):
            if message.terms is not None:
                self.terms, self.pos, self.heeded = message.terms, pos, False
            elif message.role is Role.ASSISTANT:
                self.heeded = True
        self.upto = start + len(messages)


class HistoryCache:
    """What is read belongs to the snapshot it is read for; Moved: an edit has cut it meanwhile.

    Where results may take only so much (`fit_results`), it holds and counts them as the model is shown them.
    """

    def __init__(self, store: Store, chat_id: str, limit: int, room: HistoryRoom | None = None) -> None:
        self._store = store
        self.chat_id = chat_id
        self._limit = limit
        self._room = room or HistoryRoom(0)
        self._epoch = -1
        self._doubted = False  # others may have written since: look before believing it
        self._start = 0  # positions before this one are in the summary
        self._summary: Message | None = None
        self._summary_text = ""
        self._first = 0  # position of the first message in memory
        # These four are only appended to, or replaced as a whole: what a request shows of them stays as it is.
        self._messages: list[Message] = []
        self._sizes: list[int] = []  # estimated tokens of the first of them, as far as they were asked for
        self._older: list[Message] | None = []  # those before them; None: to be read again
        self._older_sizes: list[int] = []
        self._older_size = 0  # the sum of them
        self._ahead: dict[int, Message] = {}  # results that came before an earlier call's
        self._opener: tuple[int, Message] | None = None  # of a turn that began before all that is here: its position
        self._brought = BroughtTerms()
        self._terms: TermsInForce | None = None  # as they were looked for last, in this snapshot:
        self._terms_of: Snapshot | None = None
        self._checked = 0  # positions before this one are valid together
        self._results_max: int | None = None  # tokens that the results of one response may take
        self._fitted = 0  # positions before this one are as they are shown
        self._needs_mending = False  # stored wrong, by other code: mended for every request
        self._result_chars: int | None = None  # a longer result is here without its middle
        self.leaves_out = False  # of some results there is more than what is here
        self.names_files = False  # some of them name bytes that a model is to be sent

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
        """What the runner itself just committed, by position. What does not fit is read from the store later, and so
        is what stands behind a past in doubt: the look at its end would find the runner's own words there.
        """
        if snapshot.chat.epoch != self._epoch or self._doubted:
            return
        for pos, message in messages.items():
            if self._known <= pos < snapshot.chat.length:
                self._look_for_files(message)
                self._ahead[pos] = self._as_shown(message)
        while self._known in self._ahead:
            self._messages.append(self._ahead.pop(self._known))

    def _look_for_files(self, message: Message) -> None:
        if not self.names_files and message.role is not Role.ASSISTANT:
            self.names_files = bool(kept_in((message,)))

    def cut_results(self, chars: int | None) -> None:
        """From now on results with more characters than that are shown without their middles."""
        if chars != self._result_chars:
            self._result_chars = chars
            self._epoch = -1

    def _as_shown(self, message: Message) -> Message:
        if message.role is Role.TOOL:
            self.leaves_out = self.leaves_out or is_cut(message, self._result_chars)
            return as_shown(message, self._result_chars)
        return message

    def fit_results(self, tokens: int) -> None:
        """From now on no response's results are shown with more than so much. It never grows again: what a provider
        refused once is not shown to it again in the next turn.
        """
        if self._results_max is None or tokens < self._results_max:
            self._results_max = tokens
            self._epoch = -1  # what is here may be shortened already, and is read again as it is stored

    def _fit(self) -> None:
        """What is new, but for the results of a response that has not got all of them."""
        if self._results_max is None:
            return
        start = max(0, self._fitted - self._first)
        end = len(self._messages)
        while end > start and self._messages[end - 1].role is Role.TOOL:
            end -= 1
        if end > start and len(self._messages) - end >= len(self._messages[end - 1].calls):
            end = len(self._messages)
        else:
            end = max(start, end - 1)
        new = self._messages[start:end]
        shown = fitted(new, self._results_max)
        if shown != new:
            self._messages = [*self._messages[:start], *shown, *self._messages[end:]]
            self._sizes = self._sizes[:start]
        self._fitted = self._first + end

    async def messages(self, snapshot: Snapshot) -> Sequence[Message]:
        """All of it, valid for a provider, with a summary in front where the beginning was compacted."""
        await self._catch_up(snapshot)
        self._fit()
        if problems(self._messages[max(0, self._checked - self._first) :]):
            self._needs_mending = True
        self._checked = self._known
        whole: Sequence[Message] = Joined(await self._older_ones(), self._messages)
        self._trim()
        if self._needs_mending:
            whole = make_valid(whole)
        return whole if self._summary is None else Joined((self._summary,), whole)

    async def window(self, snapshot: Snapshot, fixed: int) -> Window:
        """The next request, as it is counted and cut. `fixed`: tokens of what is sent beside the messages."""
        await self._catch_up(snapshot)
        self._fit()
        older = await self._older_ones()
        self._sizes += map(estimated_message, islice(self._messages, len(self._sizes), None))
        chat = snapshot.chat
        return Window(
            start=self._start,
            messages=Joined(older, self._messages),
            sizes=Joined(self._older_sizes, self._sizes),
            size=self._older_size + sum(self._sizes),
            fixed=fixed,
            summary=estimated_message(self._summary) if self._summary is not None else 0,
            turn_from=chat.turn_from if chat.turn_started_at is not None else None,
        )

    def begin_at(self, upto: int, summary: str) -> None:
        """From now on the summary stands for the positions before `upto`. Committed, or at least what is sent."""
        assert self._start <= upto <= self._known
        if self._older is not None:
            self._older = self._older[upto - self._start :]
            self._set_older_sizes(self._older_sizes[upto - self._start :])
        gone = max(0, upto - self._first)
        self._messages, self._sizes = self._messages[gone:], self._sizes[gone:]
        self._first = max(self._first, upto)
        self._set_start(upto, summary)

    def _set_start(self, upto: int, summary: str) -> None:
        self._start, self._summary_text = upto, summary
        self._summary = summary_message(upto, summary) if upto else None

    async def response_of(self, snapshot: Snapshot, call_id: str) -> Message | None:
        """The response that asked for a call, which may still be open."""
        if snapshot.chat.epoch == self._epoch and not self._doubted and (known := self._asking(call_id)) is not None:
            return known
        place = snapshot.calls[0].pos - 1 if snapshot.calls else -1
        asked = await self._at(place) if place >= 0 else None
        return asked if asked is not None and any(part.call_id == call_id for part in asked.calls) else None

    def _asking(self, call_id: str) -> Message | None:
        asked = (message for message in reversed(self._messages) if message.role is Role.ASSISTANT)
        return next((message for message in asked if any(part.call_id == call_id for part in message.calls)), None)

    def results(self) -> Iterator[ToolResult]:
        """Of calls, newest first, as far as they are in memory. From any thread: nothing is changed in place."""
        ahead = [message for _, message in sorted(self._ahead.items(), reverse=True)]
        for message in chain(ahead, reversed(self._messages), reversed(self._older or [])):
            if message.role is Role.TOOL and isinstance(result := message.parts[0], ToolResult):
                yield result

    def arguments(self, call_id: str) -> str | None:
        """Of an earlier call, as the model wrote them; None if it is not in memory. From any thread, as `results`."""
        for message in chain(reversed(self._messages), reversed(self._older or [])):
            for call in message.calls:
                if call.call_id == call_id:
                    return call.arguments
        return None

    def in_view(self) -> Iterator[Message]:
        """What the model is shown after the summary, oldest first, as far as it is in memory."""
        yield from self._older or ()
        yield from self._messages
        for _, message in sorted(self._ahead.items()):
            yield message

    async def between(self, snapshot: Snapshot, start: int, end: int) -> list[Message]:
        """At these positions, whatever a summary stands for. What is known is not asked for again."""
        if start >= end:
            return []
        if snapshot.chat.epoch != self._epoch or self._doubted or self._known < end:
            await self._catch_up(snapshot)
        before = await self._read(start, min(end, self._first)) if start < self._first else []
        return [*before, *self._messages[max(0, start - self._first) : max(0, end - self._first)]]

    async def whole_result(self, call_id: str) -> ToolResult | None:
        """As it is stored; None if it is not among those in memory."""
        pos = self._position(f"{call_id}.result")
        found = await self._at(pos) if pos is not None else None
        result = found.parts[0] if found is not None else None
        return result if isinstance(result, ToolResult) and result.call_id == call_id else None

    def _position(self, message_id: str) -> int | None:
        for first, messages in ((self._first, self._messages), (self._start, self._older or [])):
            for at in range(len(messages) - 1, -1, -1):
                if messages[at].id == message_id:
                    return first + at
        return None

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
        if self._older is not None and self._start <= pos < self._first:
            return self._older[pos - self._start]
        if self._opener is None or self._opener[0] != pos:
            found = await self._at(pos)
            self._opener = (pos, found) if found is not None else None
        return self._opener[1] if self._opener is not None else None

    async def terms(self, snapshot: Snapshot) -> TermsInForce | None:
        """Those of the message that began the current turn, or of the last result that its client brought since."""
        if self._terms_of is not snapshot or self._doubted:
            self._terms = await self._look_for_terms(snapshot)
            self._terms_of = snapshot
        return self._terms

    async def _look_for_terms(self, snapshot: Snapshot) -> TermsInForce | None:
        opener = await self.turn_opener(snapshot)
        if opener is None:
            return None
        chat, brought = snapshot.chat, self._brought
        if (brought.turn_from, brought.epoch) != (chat.turn_from, self._epoch) or brought.upto > self._known:
            brought = self._brought = BroughtTerms(chat.turn_from, self._epoch, upto=chat.turn_from)
        if brought.upto < self._first and (opener.client_tools or opener.metadata != NOTHING):
            brought.look(await self._read(brought.upto, self._first), brought.upto)  # summarised in mid-turn
        brought.upto = max(brought.upto, self._first)
        brought.look(self._messages[brought.upto - self._first :], brought.upto)
        if brought.terms is None:
            return TermsInForce(opener.asked, chat.turn_from, heeded=chat.step > 0)
        return TermsInForce(brought.terms, brought.pos, brought.heeded)

    async def _catch_up(self, snapshot: Snapshot) -> None:
        chat = snapshot.chat
        rows: list[HistoryRow] | None = []
        if chat.epoch != self._epoch or (self._doubted and (rows := await self._still_holds()) is None):
            await self._begin_anew(chat)
        self._doubted = False
        start = self._known
        while self._known < chat.length:
            rows = rows or await self._store.read_history(self.chat_id, start=start, limit=PAGE_ROWS)
            if not rows:
                await self._check_gap(snapshot)
                return
            self.learn(snapshot, {row.pos: _message_of(row) for row in rows})
            start, rows = rows[-1].pos + 1, []

    async def _still_holds(self) -> list[HistoryRow] | None:
        """What comes behind what we have, if that is how the chat's history begins: no two messages have the same id,
        and what is before a message never changes while the epoch is the same. The summary is read again, and so are
        results at the end: they have the id of their call, whatever answered it.
        """
        self._forget_last_results()
        if not self._messages:
            return None
        rows = await self._store.read_history(self.chat_id, start=self._known - 1, limit=PAGE_ROWS)
        if [(row.pos, row.message_id) for row in rows[:1]] != [(self._known - 1, self._messages[-1].id)]:
            return None
        compaction = await self._store.read_compaction(self.chat_id)
        upto, summary = (compaction.upto, compaction.summary) if compaction is not None else (0, "")
        if not self._start <= upto <= self._known:
            return None
        self.begin_at(upto, summary)
        return rows[1:]

    def _forget_last_results(self) -> None:
        end = len(self._messages)
        while end > 0 and self._messages[end - 1].role is Role.TOOL:
            end -= 1
        if end < len(self._messages):
            self._messages, self._sizes = self._messages[:end], self._sizes[:end]
            # They are checked, and fitted, together with the response that asked for them.
            self._checked = min(self._checked, self._known - 1)
            self._fitted = min(self._fitted, self._known - 1)

    async def _check_gap(self, snapshot: Snapshot) -> None:
        """What is missing is the result of an open call, or was cut off by an edit since the snapshot."""
        if self._known not in {call.pos for call in snapshot.open_calls}:
            try:
                found = await self._store.follow_chat(snapshot)
            except (OwnershipLost, NotFound) as error:
                raise Moved(str(error)) from error
            if found.chat.epoch != snapshot.chat.epoch:
                raise Moved("its history was edited")

    async def _begin_anew(self, chat: ChatRecord) -> None:
        # A summary stands for what comes before a message that is sent: there is none of a history of one.
        compaction = await self._store.read_compaction(self.chat_id) if chat.length > 1 else None
        upto, summary = (compaction.upto, compaction.summary) if compaction is not None else (0, "")
        self._set_start(upto, summary)
        self._first = self._checked = self._fitted = upto
        self._messages, self._sizes, self._ahead, self._needs_mending = [], [], {}, False
        self._opener = None
        self._older = []
        self._set_older_sizes([])
        self._room.leave(self)
        self._epoch = chat.epoch

    async def _older_ones(self) -> list[Message]:
        """Those between the summary and what is always kept."""
        if self._older is None:
            self._older = [self._as_shown(message) for message in await self._read(self._start, self._first)]
            if self._results_max is not None:
                self._older = fitted(self._older, self._results_max)
            self._set_older_sizes(list(map(estimated_message, self._older)))
        return self._older

    def _set_older_sizes(self, sizes: list[int]) -> None:
        self._older_sizes, self._older_size = sizes, sum(sizes)

    def _trim(self) -> None:
        """The oldest go where there is room for them, all or none of them, and results with what asked for them."""
        over = self._after_results(max(0, len(self._messages) - self._limit))
        if over > 0:
            self._sizes += map(estimated_message, islice(self._messages, len(self._sizes), None))
            if self._older is not None:
                self._older += self._messages[:over]
                self._older_sizes += self._sizes[:over]
                self._older_size += sum(self._sizes[:over])
            self._messages, self._sizes = self._messages[over:], self._sizes[over:]
            self._first += over
            self._room.keep(self, _bytes(len(self._older), self._older_size)) if self._older else self._room.leave(
                self
            )

    def _after_results(self, over: int) -> int:
        """The next place that parts no response from its results. The last one's stay, however many they are."""
        after = over
        while after < len(self._messages) and self._messages[after].role is Role.TOOL:
            after += 1
        if after < len(self._messages):
            return after
        while over > 0 and self._messages[over].role is Role.TOOL:
            over -= 1
        return over

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it would have to be read again."""
        return self._epoch >= 0 and self._older is not None and bool(self._messages) and not self._ahead

    @property
    def bytes(self) -> int:
        """What all of it takes in memory, roughly."""
        self._sizes += map(estimated_message, islice(self._messages, len(self._sizes), None))
        count = len(self._older_sizes) + len(self._sizes)
        return _bytes(count, self._older_size + sum(self._sizes))

    def give_up_older(self) -> None:
        """They are read again when they are needed."""
        self._older = None
        self._set_older_sizes([])

    def doubt(self) -> None:
        """Another runner takes it over."""
        self._doubted = True

    async def _read(self, start: int, end: int) -> list[Message]:
        found: list[Message] = []
        while start < end:
            rows = await self._store.read_history(self.chat_id, start=start, limit=min(PAGE_ROWS, end - start))
            found += [_message_of(row) for row in rows if row.pos < end]
            for message in found[-len(rows) :]:
                self._look_for_files(message)
            if not rows:
                break
            start = rows[-1].pos + 1
        return found

    async def _at(self, pos: int) -> Message | None:
        row = await self._row_at(pos)
        return _message_of(row) if row is not None else None

    async def _row_at(self, pos: int) -> HistoryRow | None:
        rows = await self._store.read_history(self.chat_id, start=pos, limit=1)
        return rows[0] if rows and rows[0].pos == pos else None


def _bytes(count: int, tokens: int) -> int:
    return count * MESSAGE_BYTES + BYTES_PER_TOKEN * tokens


def _message_of(row: HistoryRow) -> Message:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return entry.message
