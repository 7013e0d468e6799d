"""After a crash: is everything sound, and does work go on?

`find_faults` looks at every chat of a store. `Successor` is the worker that comes after: it takes over what the dead
left behind and brings every chat to rest, as a runner would.
"""

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.history import problems
from holdfast.core.journal import AnyEntry
from holdfast.core.records import CallState, External, Phase, Snapshot, State, attempt_id
from holdfast.store.contract import Store
from holdfast.store.records import Answer
from holdfast.system.clock import FakeClock
from tests.support import invariants
from tests.support.chats import Hand, assistant, history, unique

ROUNDS_MAX = 30
BACKOFF_MS = 20_000  # above the longest that a chat rests after its worker was lost


async def all_chats(store: Store) -> list[Snapshot]:
    found: list[Snapshot] = []
    before = None
    while page := await store.list_chats(before=before):
        found += [await store.read_chat(line.id) for line in page]
        before = page[-1].id
    return found


async def numbered_journal(store: Store, chat_id: str) -> list[tuple[int, AnyEntry]]:
    entries: list[tuple[int, AnyEntry]] = []
    after = None
    while True:
        page = await store.read_journal(chat_id, after)
        entries += [(item.seq, decode_entry(item.body)) for item in page.items if item.seq is not None]
        after = page.cursor
        if not page.more:
            return entries


async def find_faults(store: Store) -> list[str]:
    """What is wrong in any chat, by the invariants that know nothing of how it came about."""
    live = {lease.worker for lease in await store.list_workers() if lease.ended is None}
    found = [f"{violation}" for violation in await store.find_violations()]
    for snapshot in await all_chats(store):
        chat_id = snapshot.chat.id
        entries = await numbered_journal(store, chat_id)
        wrong = invariants.everything(snapshot, await history(store, chat_id), entries, live)
        found += [f"chat {chat_id}: {what}" for what in wrong]
    return found


class Successor:
    """Finishes every chat there is, on its own: claims, answers for people and clients, ends turns."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.hand = Hand(store, unique("successor"))
        self.attempts = 0

    async def finish_everything(self) -> None:
        """Leaves every chat at rest with a history that a provider accepts, or says what it could not finish."""
        try:
            for _ in range(ROUNDS_MAX):
                chats = [snapshot for snapshot in await all_chats(self.store) if not _at_rest(snapshot)]
                if not chats:
                    break
                await self._round(chats)
            else:
                raise AssertionError(f"after {ROUNDS_MAX} rounds these are not at rest: {chats}")
        finally:
            self.hand.close()
        for snapshot in await all_chats(self.store):
            wrong = problems(await history(self.store, snapshot.chat.id))
            assert wrong == [], f"the history of {snapshot.chat.id}: {wrong}"

    async def _round(self, chats: list[Snapshot]) -> None:
        self.clock.advance(BACKOFF_MS)
        self.hand.line.renew(self.hand.name)
        await self.store.sweep()
        for snapshot in chats:
            if snapshot.chat.state is State.WAITING:
                await self._answer(snapshot)
        agents = {snapshot.chat.agent for snapshot in chats}
        for snapshot in await self.hand.claim(*agents):
            self.hand.snapshot = snapshot
            while self._holds():
                await self.hand.commit(*self._next_step())

    async def _answer(self, snapshot: Snapshot) -> Answer | None:
        """Be the person, or the client, that one of its calls waits for."""
        for call in snapshot.calls:
            if call.state is CallState.ASKING:
                return await self.store.submit(snapshot.chat.id, cmd.Approve(call_id=call.id))
            if call.state is CallState.EXTERNAL and call.external in (External.CLIENT, External.QUESTION):
                return await self.store.submit(snapshot.chat.id, cmd.Submit(call_id=call.id, content="answered"))
        return None

    def _holds(self) -> bool:
        return self.hand.held.chat.worker == self.hand.name

    def _next_step(self) -> list[cmd.Command]:
        snapshot, by = self.hand.held, self.hand.by
        chat = snapshot.chat
        if chat.state is State.STOPPING:
            return [cmd.FinishStop(by=by)]
        if chat.phase is Phase.CALLS:
            runnable = [call.id for call in snapshot.calls if call.state in (CallState.PLANNED, CallState.APPROVED)]
            if not runnable:
                return [cmd.Park(by=by)]
            started = cmd.StartCalls(by=by, call_ids=tuple(runnable))
            return [started, *(cmd.Outcome(by=by, call_id=id, content="run by the successor") for id in runnable)]
        if chat.compact:
            return [cmd.FinishCompaction(by=by, error="not now")]
        if chat.phase is Phase.MODEL:
            self.attempts += 1
            attempt = attempt_id(chat.fence, self.attempts)
            return [cmd.Respond(by=by, message=assistant("I take it from here"), attempt=attempt)]
        return [cmd.FinishTurn(by=by)]


def _at_rest(snapshot: Snapshot) -> bool:
    return snapshot.chat.state in (State.IDLE, State.FAILED)
