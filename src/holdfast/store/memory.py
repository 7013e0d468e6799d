"""Memory as the database has it: blocks, facts, episodes, proposals, and the index of past chats.

A call's write is one transaction with the record of the call: repeated, it is answered as done. A block is edited on
its newest text, under a lock of its agent and owner, so that of two who edit at once neither loses a word. Whether a
chat is tainted is read in the transaction that writes.

Where a value is decided in several statements it is written once, as a generator that says what it needs; each store
runs it in one transaction, and asks it again from the start where its outcome is not known.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import memory as core
from holdfast.core.codec import check_text, encode
from holdfast.core.memory import (
    Block,
    Edit,
    EditLimits,
    Found,
    MemoryKind,
    MemoryRecord,
    PassageKind,
    ShownMemory,
    Snapshot,
    Source,
)
from holdfast.core.records import ChatRecord, Frozen
from holdfast.core.search_terms import CLEAN, agent_term, chat_term, kind_term, owner_key, query_terms, terms_of
from holdfast.errors import InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.faults import reach
from holdfast.ids import new_id
from holdfast.store.budgets import StepRunner, Steps
from holdfast.store.checks import page_size
from holdfast.store.memory_blocks import BlockTexts, BlockVersion, block_of, check_name, provenance
from holdfast.store.memory_statements import (
    PASSAGE_COLUMNS,
    ChatRow,
    MemoryStatements,
    block_values,
    memory_of,
    memory_values,
    passage_of,
)
from holdfast.store.rows import Row

T = TypeVar("T")
ALL_KINDS: tuple[PassageKind, ...] = ("fact", "episode", "message")
PASSAGES_TOGETHER_MAX = 40  # of one transaction
PASSAGES_DROPPED_MAX = 5  # of one transaction, for which every writer of a SQLite file waits: 10 to 20 ms for each
COUNTED_MAX = 100
_NO_EPOCH = -1  # of a chat in whose index another life's messages are: it is made anew, from the start
_EDIT: msgspec.json.Decoder[Edit] = msgspec.json.Decoder(Edit)


class Allowed(NamedTuple):
    """What an agent lets its chats write."""

    block_chars: int = core.BLOCK_CHARS_MAX
    facts: int = core.FACTS_MAX


class Proposed(Frozen):
    """The detail of a proposal."""

    block: str
    edit: Edit


class Piece(NamedTuple):
    """A passage that goes into the index."""

    pos: int
    role: str
    ref: str
    at: int
    tainted: bool
    text: str


class Ahead(NamedTuple):
    """When a chat is due next, and whether older code indexed something."""

    due_at: int | None
    old_passages: bool


class _Living(NamedTuple):
    """A chat as it is in the transaction that writes."""

    tainted: bool
    turn: int
    epoch: int


def check_whose(owner: str, agent: str) -> None:
    """What a person gives; a chat's own were looked at when it was made."""
    check_text("owner", owner, bytes_max=512)
    check_text("agent", agent, bytes_max=512)
    if not agent:
        raise InvalidInput("agent", "is empty: say whose memory, by the agent's name")


def check_edit(edit: Edit) -> None:
    """No text of it is longer than any block: whether it fits is seen where it is applied, as no proposal was."""
    for field, text in msgspec.to_builtins(edit).items():
        if isinstance(text, str):
            check_text(field, text, bytes_max=core.BLOCK_CHARS_MAX * 4)


def check_fact(text: str) -> str:
    check_text("text", text, bytes_max=core.FACT_CHARS_MAX * 4)
    text = text.strip()
    if not text or len(text) > core.FACT_CHARS_MAX:
        raise InvalidInput("text", f"a fact has 1 to {core.FACT_CHARS_MAX:,} characters: this has {len(text):,}")
    return text


class Memories:
    """Of one store. Each verb is one transaction, unless it says otherwise, and raises as the store's verbs do."""

    def __init__(self, runner: StepRunner, statements: MemoryStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._texts = BlockTexts(runner, statements)
        self._now_ms = now_ms

    # --- what a chat is shown -------------------------------------------------------------------------------------

    async def enter(self, chat: ChatRecord, facts: int, episodes: int) -> Snapshot:
        """At the first step of each turn, and where a worker takes one over. What the chat is shown is decided when
        it enters for the first time, and never again; from each turn on it is owed that it is indexed and told of,
        and again where a turn that had failed goes on. Raises NotFound.
        """
        found = await self._runner.named_rows(self._sql.chat_row, chat_id=chat.id)
        if found and (row := ChatRow(*found[0])).life == chat.life and _is_owed(row, chat, self._now_ms()):
            return msgspec.json.decode(row.snapshot, type=Snapshot)
        return await self._runner.run_steps(lambda: self._entering(chat, facts, episodes))

    def _entering(self, chat: ChatRecord, facts: int, episodes: int) -> Steps[Snapshot]:
        yield from self._living(chat)
        left = yield self._sql.drop_chat, {"chat_id": chat.id, "life": chat.life}
        if left:  # by older code that deleted the chat before: its calls had the names of those to come
            yield self._sql.drop_writes, {"chat_id": chat.id}
        found = yield self._sql.chat_row, {"chat_id": chat.id}
        reach("memory.before")
        if found:
            mark = {"chat_id": chat.id, "mark": chat.turn, "due_at": self._now_ms()}
            yield self._sql.mark_turn, mark
            reach("memory.after")
            return msgspec.json.decode(ChatRow(*found[0]).snapshot, type=Snapshot)
        of = {"owner": chat.owner, "agent": chat.agent}
        blocks = yield self._sql.blocks, of | {"after": "", "limit": core.BLOCKS_MAX}
        kept: dict[str, tuple[str, ...]] = {}
        for kind, limit in (("fact", facts), ("episode", episodes)):
            rows = yield self._sql.newest, of | {"kind": kind, "but": chat.id, "limit": limit}
            kept[kind] = tuple(id for (id,) in rows)
        versions = tuple((values["id"], values["version"]) for values in map(block_values, blocks))
        snapshot = Snapshot(blocks=versions, facts=kept["fact"], episodes=kept["episode"])
        row = ChatRow(
            chat_id=chat.id,
            life=chat.life,
            owner=chat.owner,
            agent=chat.agent,
            snapshot=encode(snapshot).decode(),
            mark=chat.turn,
            due_at=self._now_ms(),
            tries=0,
            epoch=_NO_EPOCH if left else chat.epoch,
            indexed_to=0,
            told_to=0,
            problem="",
        )
        yield self._sql.insert_chat, row._asdict()
        reach("memory.after")
        return snapshot

    async def shown(self, snapshot: Snapshot) -> ShownMemory:
        """The texts of a snapshot, without those that were deleted since. Several reads."""
        blocks = []
        for block_id, version in snapshot.blocks:
            found = await self._runner.named_rows(self._sql.block_by_id, id=block_id)
            if found:
                blocks.append((block_values(found[0])["name"], await self._texts.read(block_id, version)))
        facts = await self._some(snapshot.facts)
        episodes = await self._some(snapshot.episodes)
        return ShownMemory(
            blocks=tuple(sorted(blocks)),
            facts=tuple((one.id, one.text) for one in facts if core.may_show("fact", one.tainted, "unasked")),
            episodes=tuple(
                (one.chat_id, one.text) for one in episodes if core.may_show("episode", one.tainted, "unasked")
            ),
        )

    async def _some(self, ids: Sequence[str]) -> list[MemoryRecord]:
        if not ids:
            return []
        return [memory_of(row) for row in await self._runner.named_rows(self._sql.memories, ids=_listed(ids))]

    # --- what a call writes: once, however often it is asked -------------------------------------------------------

    async def edit_by_call(self, chat: ChatRecord, call_id: str, name: str, edit: Edit, allowed: Allowed) -> str:
        """What the model is told. In a tainted chat it is kept as a proposal. Raises Unfit, LimitReached, NotFound,
        InvalidInput.
        """
        check_name(name)
        check_edit(edit)
        drawn = new_id("block"), new_id("mem")

        def work(source: Source, tainted: bool, now: int) -> Steps[str]:
            if tainted:
                return (yield from self._propose(drawn[1], chat, source, name, edit, now))
            limits = EditLimits(chars=allowed.block_chars)
            block = yield from self._texts.edit(drawn[0], chat.owner, chat.agent, name, edit, source, limits, now)
            return f"Block {name} is now (version {block.version}):\n{block.text or '(empty)'}"

        return await self._once(chat, call_id, work)

    async def remember_by_call(
        self, chat: ChatRecord, call_id: str, text: str, replaces: str, allowed: Allowed
    ) -> str:
        """What the model is told. Raises LimitReached, NotFound, InvalidInput."""
        text = check_fact(text)
        id = new_id("mem")

        def work(source: Source, tainted: bool, now: int) -> Steps[str]:
            record = MemoryRecord(
                id=id,
                kind="fact",
                owner=chat.owner,
                agent=chat.agent,
                text=text,
                created_at=now,
                tainted=tainted,
                replaces=replaces,
                **provenance(source),
            )
            yield from self._add_fact(record, min(allowed.facts, core.FACTS_MAX))
            if tainted:
                return (
                    f"Kept as {id}. This chat has read content from outside, so it is marked as such, and is not "
                    "shown in other chats by itself until a person has looked at it."
                )
            return f"Remembered as {id}." + (f" It stands for {replaces} from now on." if replaces else "")

        return await self._once(chat, call_id, work)

    async def forget_by_call(self, chat: ChatRecord, call_id: str, id: str) -> str:
        """It is not shown any more; people still see it, and can delete it. Raises NotFound, RefusedError."""

        def work(_: Source, tainted: bool, now: int) -> Steps[str]:
            if tainted:
                raise RefusedError(
                    "this chat has read content from outside, and what that may have asked for is not forgotten: a "
                    "person can do it",
                    reason="tainted",
                    state="",
                    command="forget",
                )
            yield from self._fact_of(id, chat.owner, chat.agent)
            yield self._sql.end, {"id": id, "at": now}
            yield self._sql.drop_passages_of, {"id": id}
            return f"Forgotten: {id}."

        return await self._once(chat, call_id, work)

    async def _once(self, chat: ChatRecord, call_id: str, work: Callable[[Source, bool, int], Steps[str]]) -> str:
        def steps() -> Steps[str]:
            yield from self._locked(chat.owner, chat.agent)
            now_is = yield from self._living(chat)
            key = {"chat_id": chat.id, "call_id": call_id}
            if done := (yield self._sql.read_write, key):
                answer: str = done[0][0]
                return answer
            now = self._now_ms()
            reach("memory.before")
            source = Source(chat_id=chat.id, life=chat.life, turn=now_is.turn, call_id=call_id)
            # What the model had read when it made the call counts, even if an edit has cut that away since.
            answer = yield from work(source, now_is.tainted or chat.tainted_from is not None, now)
            reach("memory.written")
            yield self._sql.put_write, key | {"answer": answer, "at": now}
            reach("memory.after")
            return answer

        return await self._runner.run_steps(steps)

    # --- pieces of transactions -------------------------------------------------------------------------------------

    def _locked(self, owner: str, agent: str) -> Steps[None]:
        """One after the other, for an agent and an owner; SQLite has one writer."""
        if self._sql.lock_scope is not None:
            yield self._sql.lock_scope, {"scope": f"{len(owner)}:{owner}:{agent}"}

    def _living(self, chat: ChatRecord) -> Steps["_Living"]:
        """It is not deleted before this transaction ends."""
        found = yield self._sql.chat, {"chat_id": chat.id}
        if not found or found[0][0] != chat.life:
            raise NotFound("chat", chat.id)
        _, tainted_from, turn, epoch = found[0]
        return _Living(tainted=tainted_from is not None, turn=turn, epoch=epoch)

    def _fact_of(self, id: str, owner: str, agent: str) -> Steps[MemoryRecord]:
        found = yield self._sql.read_memory, {"id": id}
        record = memory_of(found[0]) if found else None
        if record is None or (record.owner, record.agent, record.kind) != (owner, agent, "fact"):
            raise NotFound("fact", id)
        return record

    def _add_fact(self, record: MemoryRecord, limit: int) -> Steps[None]:
        """Those that wait for a person have a limit of their own: what a page says cannot fill the memory."""
        made_room: list[Row] = []
        if record.replaces:
            yield from self._fact_of(record.replaces, record.owner, record.agent)
        yield self._sql.insert_memory, memory_values(record)
        if record.replaces and not record.tainted:
            made_room = yield from self._supersede(record)
        of = {"owner": record.owner, "agent": record.agent, "kind": "fact", "tainted": int(record.tainted)}
        ((count,),) = yield self._sql.count, of
        what, advice = "facts", "forget some, or replace one"
        if record.tainted:
            what, advice = "facts from outside", "a person has to accept or drop some"
            limit = min(limit, core.FACTS_FROM_OUTSIDE_MAX)
        if count > limit and not made_room:
            raise LimitReached(f"{what} of an agent and an owner", count - 1, limit, advice)
        yield from self._index(record)

    def _supersede(self, record: MemoryRecord) -> Steps[list[Row]]:
        """No search looks at the fact that it replaces: many of them would leave no room for those in force."""
        older = yield self._sql.supersede, {"id": record.replaces, "by": record.id}
        for (id,) in older:
            yield self._sql.drop_passages_of, {"id": id}
        return older

    def _supersede_episodes(self, record: MemoryRecord) -> Steps[None]:
        """Those before it count never again, unlike a fact: they go with their chat, so no search looks at them."""
        older = yield self._sql.supersede_episodes, {"chat_id": record.chat_id, "by": record.id}
        for (id,) in older:
            yield self._sql.drop_passages_of, {"id": id}

    def _index(self, record: MemoryRecord) -> Steps[None]:
        scope = {"chat_id": record.chat_id, "owner": record.owner, "agent": record.agent}
        yield self._sql.drop_passages_of, {"id": record.id}
        for text in core.passages(record.text):
            values = {"kind": record.kind, "ref": record.id, "pos": 0, "role": "", "at": record.created_at}
            yield self._sql.insert_passage, self._passage(scope, values, record.tainted, text)

    def _passage(self, scope: dict[str, Any], values: dict[str, Any], tainted: bool, text: str) -> dict[str, Any]:
        own = (
            agent_term(scope["agent"]),
            kind_term(values["kind"]),
            *(() if tainted else (CLEAN,)),
            *((chat_term(scope["chat_id"]),) if values["kind"] == "message" else ()),
        )
        key = owner_key(scope["owner"])
        terms = " ".join(f"{key}{term}" for term in (*own, *terms_of(text)))
        return {**scope, **values, "tainted": int(tainted), "text": text, "terms": terms}

    def _propose(self, id: str, chat: ChatRecord, source: Source, name: str, edit: Edit, now: int) -> Steps[str]:
        of = {"owner": chat.owner, "agent": chat.agent}
        ((count,),) = yield self._sql.count, of | {"kind": "proposal", "tainted": 1}
        if count >= core.PROPOSALS_MAX:
            advice = "a person has to accept or drop some"
            raise LimitReached("proposals of an agent and an owner", count, core.PROPOSALS_MAX, advice)
        words = msgspec.to_builtins(edit)
        record = MemoryRecord(
            id=id,
            kind="proposal",
            text=f"{name}: {words.get('text') or words.get('new') or ''}"[: core.FACT_CHARS_MAX],
            detail=encode(Proposed(block=name, edit=edit)).decode(),
            created_at=now,
            tainted=True,
            owner=chat.owner,
            agent=chat.agent,
            **provenance(source),
        )
        yield self._sql.insert_memory, memory_values(record)
        return (
            f"Not applied: this chat has read content from outside. The edit is kept as the proposal {id} until a "
            "person accepts or drops it."
        )

    async def before_deletion(self, chat_id: str) -> None:
        """What its facts and those of its family replaced counts again without them, and is found again. Before they
        are gone: where it is not deleted then, or a process dies here, a search drops what is not in force.
        """
        after, of = "", {"chat_id": chat_id, "limit": PASSAGES_TOGETHER_MAX}
        while rows := await self._runner.named_rows(self._sql.replaced_by_chat, after=after, **of):
            for record in map(memory_of, rows):
                await self._runner.run_steps(lambda one=record: self._indexing(one))  # type: ignore[misc]
                after = record.id

    def _indexing(self, record: MemoryRecord) -> Steps[None]:
        yield from self._locked(record.owner, record.agent)
        if (yield self._sql.read_memory, {"id": record.id}):
            yield from self._index(record)

    # --- people -----------------------------------------------------------------------------------------------------

    async def edit_block(self, owner: str, agent: str, name: str, edit: Edit, *, by: str = "") -> Block:
        """Raises Unfit, LimitReached, InvalidInput."""
        check_whose(owner, agent)
        check_name(name)
        check_edit(edit)
        drawn = new_id("block")

        def steps() -> Steps[Block]:
            yield from self._locked(owner, agent)
            source = Source(made_by=by or "a person")
            return (
                yield from self._texts.edit(drawn, owner, agent, name, edit, source, EditLimits(), self._now_ms())
            )

        return await self._runner.run_steps(steps)

    async def remove_block(self, owner: str, agent: str, name: str) -> None:
        """With all its versions. Raises NotFound."""
        block = await self.block(owner, agent, name)

        await self._runner.run_steps(lambda: self._dropping(owner, agent, block.id))
        await self._runner.forget(self._sql.nothing)

    async def add_fact(
        self, owner: str, agent: str, text: str, *, by: str = "", replaces: str = "", id: str | None = None
    ) -> MemoryRecord:
        """A person's: it is not tainted. Asked for again under its id, it is there once. Raises InvalidInput,
        NotFound, LimitReached.
        """
        check_whose(owner, agent)
        text = check_fact(text)
        drawn = id or new_id("mem")

        def steps() -> Steps[MemoryRecord]:
            yield from self._locked(owner, agent)
            if found := (yield self._sql.read_memory, {"id": drawn}):
                return memory_of(found[0])
            record = MemoryRecord(
                id=drawn,
                kind="fact",
                owner=owner,
                agent=agent,
                text=text,
                made_by=by or "a person",
                created_at=self._now_ms(),
                replaces=replaces,
            )
            yield from self._add_fact(record, core.FACTS_MAX)
            return record

        return await self._runner.run_steps(steps)

    async def accept(self, id: str, *, by: str) -> MemoryRecord:
        """A person looked at it: what was tainted is shown like any other, a proposal is applied to the newest text.
        Raises NotFound, Unfit, LimitReached.
        """
        record = await self.read(id)
        done: list[MemoryRecord] = []  # by an earlier try, whose end is unknown
        drawn = new_id("block")

        def steps() -> Steps[MemoryRecord]:
            yield from self._locked(record.owner, record.agent)
            found = yield self._sql.read_memory, {"id": id}
            if not found and done:
                return done[-1]
            if not found:
                raise NotFound("memory", id)
            now, before = self._now_ms(), memory_of(found[0])
            if before.chat_id:  # what is written now goes with the chat, if that is being deleted
                there = yield self._sql.chat, {"chat_id": before.chat_id}
                if not there or there[0][0] != before.life:
                    raise NotFound("memory", id)
            after = replace(before, tainted=False, cleared_by=by, cleared_at=now)
            if before.kind == "proposal":
                proposed = msgspec.json.decode(before.detail, type=Proposed)
                source = Source(
                    chat_id=before.chat_id,
                    life=before.life,
                    turn=before.turn,
                    call_id=before.call_id,
                    made_by=by,
                )
                of = (before.owner, before.agent, proposed.block)
                yield from self._texts.edit(drawn, *of, proposed.edit, source, EditLimits(), now)
                yield self._sql.drop_memory, {"id": id}
            elif before.tainted:
                yield self._sql.clear, {"id": id, "by": by, "at": now}
                yield from self._index(after)
                if before.replaces:
                    yield from self._supersede(before)
            else:
                after = before
            done.append(after)
            return after

        return await self._runner.run_steps(steps)

    async def forget(self, id: str) -> MemoryRecord:
        """It is gone, and so are the facts that it replaced. Raises NotFound."""
        record = await self.read(id)

        def steps() -> Steps[None]:
            yield from self._locked(record.owner, record.agent)
            going = [id]
            while going:
                one = going.pop()
                older = yield self._sql.replaced_by, {"id": one, "owner": record.owner}
                going += [before for (before,) in older]
                yield self._sql.drop_passages_of, {"id": one}
                yield self._sql.drop_memory, {"id": one}

        await self._runner.run_steps(steps)
        await self._runner.forget(self._sql.nothing)  # out of every file, too
        return record

    async def forget_owner(self, owner: str) -> None:
        """All of it, in slices: what was not asked for by a chat's deletion goes here."""
        while blocks := await self._runner.named_rows(self._sql.owners_blocks, owner=owner):
            for block_id, agent in blocks:
                await self._runner.run_steps(lambda id=block_id, of=agent: self._dropping(owner, of, id))  # type: ignore[misc]
        for statement in (self._sql.forget_passages, self._sql.forget_memories, self._sql.forget_chats):
            while await self._runner.run_steps(lambda one=statement: _alone(one, {"owner": owner})):  # type: ignore[misc]
                pass
        await self._runner.forget(self._sql.nothing)

    def _dropping(self, owner: str, agent: str, block_id: str) -> Steps[None]:
        """Not beside an edit, whose lines would be left without their block."""
        yield from self._locked(owner, agent)
        for statement in self._sql.drop_block:
            yield statement, {"id": block_id}

    # --- looking ----------------------------------------------------------------------------------------------------

    async def blocks(
        self, owner: str | None = None, agent: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[Block]:
        """As they are now: `after` is the id of the last one of the page before. Several reads."""
        values = {"owner": owner, "agent": agent, "after": after, "limit": page_size(limit)}
        found = map(block_values, await self._runner.named_rows(self._sql.blocks, **values))
        return [block_of(one, await self._texts.read(one["id"], one["version"]), "") for one in found]

    async def block(self, owner: str, agent: str, name: str) -> Block:
        """Raises NotFound."""
        found = await self._runner.named_rows(self._sql.block, owner=owner, agent=agent, name=name)
        if not found:
            raise NotFound("block", name)
        values = block_values(found[0])
        return block_of(values, await self._texts.read(values["id"], values["version"]), "")

    async def versions(self, block: Block, *, before: int | None = None, limit: int = 20) -> list[BlockVersion]:
        """Newest first."""
        return await self._texts.versions(block, 1 << 62 if before is None else before, page_size(limit))

    async def page(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        kind: MemoryKind | None = None,
        chat_id: str | None = None,
        everything: bool = False,
        clean: bool = False,
        before: str | None = None,
        limit: int = 100,
    ) -> list[MemoryRecord]:
        """Newest first. `everything`: also what was replaced or forgotten. `clean`: nothing that is tainted."""
        values: dict[str, Any] = {"owner": owner, "agent": agent, "kind": kind, "chat_id": chat_id, "before": before}
        values |= {"all": int(everything), "clean": int(clean), "limit": page_size(limit)}
        return [memory_of(row) for row in await self._runner.named_rows(self._sql.page, **values)]

    async def read(self, id: str) -> MemoryRecord:
        """Raises NotFound."""
        found = await self._runner.named_rows(self._sql.read_memory, id=id)
        if not found:
            raise NotFound("memory", id)
        return memory_of(found[0])

    async def search(
        self,
        query: str,
        *,
        owner: str,
        agent: str | None = None,
        kinds: Sequence[PassageKind] = ALL_KINDS,
        outside: bool = False,
        but: str = "",
        limit: int = 10,
    ) -> Found:
        """Passages that have all words of the query, then some of them. `agent` None: of all agents of the owner.
        `outside`: also what content from outside may speak through. `but`: a chat whose messages are left out. No
        query is malformed; one without a word finds nothing. Up to three reads.
        """
        terms = query_terms(query)
        if not terms:
            return Found(passages=())
        limit = max(1, min(limit, core.FOUND_MAX))
        values = {"owner": owner, "agent": agent, "kinds": _listed(kinds), "but": but}
        scopes = [
            *(() if agent is None else (agent_term(agent),)),
            *(kind_term(kind) for kind in kinds if len(kinds) == 1),
        ]
        shown = [*scopes, *(() if outside else (CLEAN,))]
        without = chat_term(but) if but else ""
        key = owner_key(owner)
        every = self._sql.matched(key, shown, terms, every=True, without=without)
        some = self._sql.matched(key, shown, terms, every=False, without=without)
        asked = values | {"outside": int(outside), "limit": limit}
        rows = await self._runner.named_rows(self._sql.search, match=every, **asked)
        if len(rows) < limit and len(terms) > 1:
            seen = set(rows)
            more = await self._runner.named_rows(self._sql.search, match=some, **asked)
            rows = [*rows, *(row for row in more if row not in seen)][:limit]
        left_out = 0
        if not outside:
            whole = self._sql.matched(key, scopes, terms, every=True, without=without)
            counted = await self._runner.named_rows(self._sql.count_outside, match=whole, limit=COUNTED_MAX, **values)
            left_out = counted[0][0]
        return Found(passages=tuple(passage_of(row) for row in rows), outside=left_out)

    # --- for the service --------------------------------------------------------------------------------------------

    async def owed(self, agents: Sequence[str], now: int, limit: int) -> list[ChatRow]:
        """Chats of these agents that rest and are to be indexed or told of, the longest due first."""
        values = {"agents": _listed(agents), "now": now, "limit": limit}
        return [ChatRow(*row) for row in await self._runner.named_rows(self._sql.owed, **values)]

    async def take(self, row: ChatRow, until: int) -> bool:
        """False: another worker did, or a turn began. Until then no other looks at it again."""
        values = {"chat_id": row.chat_id, "mark": row.mark, "tries": row.tries, "due_at": row.due_at}
        return bool(await self._runner.run_steps(lambda: _alone(self._sql.take, values | {"until": until})))

    async def index(
        self, chat: ChatRecord, pieces: Sequence[Piece], *, was: int, upto: int, anew: bool = False, start: int = 0
    ) -> bool:
        """Positions from `was` up to, but without, `upto`. `anew`: from `start` on the history is another by now, and
        what was found of it goes first, in slices. False: another worker did, or the history was cut while it was
        read. Raises NotFound.
        """
        while anew and await self._runner.run_steps(lambda: self._dropping_passages(chat, was, start)):
            pass

        def steps() -> Steps[bool]:
            if (yield from self._living(chat)).epoch != chat.epoch:
                return False
            moved = {"chat_id": chat.id, "was": was, "indexed_to": upto, "epoch": chat.epoch}
            if not (yield self._sql.move_index, moved):
                return False
            rest = {"chat_id": chat.id, "pos": start, "limit": PASSAGES_DROPPED_MAX}
            while anew and (yield self._sql.drop_passages_from, rest):
                pass
            scope = {"chat_id": chat.id, "owner": chat.owner, "agent": chat.agent}
            for piece in pieces:
                values = {"kind": "message", "ref": piece.ref, "pos": piece.pos, "role": piece.role, "at": piece.at}
                yield self._sql.insert_passage, self._passage(scope, values, piece.tainted, piece.text)
            return True

        return await self._runner.run_steps(steps)

    def _dropping_passages(self, chat: ChatRecord, was: int, start: int) -> Steps[bool]:
        """True: there is more to drop. Not where another worker has done it, and indexed what there is now."""
        if (yield from self._living(chat)).epoch != chat.epoch:
            return False
        found = yield self._sql.chat_row, {"chat_id": chat.id}
        if not found or (row := ChatRow(*found[0])).epoch == chat.epoch or row.indexed_to != was:
            return False
        of = {"chat_id": chat.id, "pos": start, "limit": PASSAGES_DROPPED_MAX}
        return len((yield self._sql.drop_passages_from, of)) == PASSAGES_DROPPED_MAX

    async def still_indexed_to(self, chat: ChatRecord) -> int:
        """Up to where the index tells of the history as it is now: most of what begins an epoch cuts little of it, or
        nothing.
        """
        values = {"chat_id": chat.id, "length": chat.length}
        found = await self._runner.named_rows(self._sql.last_valid_passage, **values)
        return int(found[0][0]) + 1 if found else 0

    async def renew_index(self) -> bool:
        """Terms that older code made are made anew, of a slice of passages: what another worker has in hand
        is left to it. That code kept facts that count no more: they go. False: there were none.
        """
        if not await self._runner.named_rows(self._sql.has_old_passages):
            return False

        def steps() -> Steps[bool]:
            rows = yield self._sql.old_passages, {"limit": PASSAGES_DROPPED_MAX}
            for id, *row in rows:
                old = dict(zip(PASSAGE_COLUMNS, row, strict=True))
                if old["kind"] == "fact" and not (yield self._sql.is_in_force, {"id": old["ref"]}):
                    yield self._sql.drop_passages_of, {"id": old["ref"]}
                    continue
                made = self._passage(old, old, bool(old["tainted"]), old["text"])
                yield self._sql.renew_passage, {"id": id, "terms": made["terms"]}
            return True

        return await self._runner.run_steps(steps)

    async def tell(self, chat: ChatRecord, row: ChatRow, text: str) -> MemoryRecord | None:
        """The episode of a chat, in place of the one before; and nothing is owed for this turn any more. None: what
        it tells of was cut away meanwhile, and with it perhaps the taint; it stays owed. Raises NotFound.
        """
        id = new_id("mem")

        def steps() -> Steps[MemoryRecord | None]:
            now_is = yield from self._living(chat)
            if now_is.epoch != chat.epoch:
                return None
            reach("memory.before")
            record = MemoryRecord(
                id=id,
                kind="episode",
                owner=chat.owner,
                agent=chat.agent,
                text=text,
                chat_id=chat.id,
                life=chat.life,
                turn=now_is.turn,
                created_at=self._now_ms(),
                tainted=now_is.tainted,
            )
            yield self._sql.insert_memory, memory_values(record)
            yield from self._supersede_episodes(record)
            yield from self._index(record)
            reach("memory.written")
            yield self._sql.settle, _settled(row, None, told_to=row.mark)
            reach("memory.after")
            return record

        return await self._runner.run_steps(steps)

    async def settle(
        self, row: ChatRow, due_at: int | None, *, tries: int = 0, problem: str = "", told_to: int | None = None
    ) -> None:
        """Nothing more is to be done before then; None: before the next turn. Where the row is not as it was taken
        any more, what is owed since stays so.
        """
        values = _settled(row, due_at, tries=tries, problem=problem, told_to=told_to)
        await self._runner.run_steps(lambda: _alone(self._sql.settle, values))

    async def ahead(self) -> Ahead:
        """One read, for who asks it each minute."""
        ((due_at, old),) = await self._runner.named_rows(self._sql.ahead)
        return Ahead(due_at=due_at, old_passages=bool(old))


def _is_owed(row: ChatRow, chat: ChatRecord, now: int) -> bool:
    """What this turn says is owed already, and no worker has begun with it. A compaction at rest says nothing."""
    if row.mark != chat.turn:
        return row.mark > chat.turn
    waits = row.due_at is not None and row.due_at <= now and not row.tries
    return waits or chat.turn_started_at is None


def _alone(statement: str, values: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], list[Row], list[Row]]:
    return (yield statement, values)


def _settled(
    row: ChatRow, due_at: int | None, *, tries: int = 0, problem: str = "", told_to: int | None = None
) -> dict[str, Any]:
    told = row.told_to if told_to is None else told_to
    values = {"chat_id": row.chat_id, "mark": row.mark, "taken": row.due_at, "due_at": due_at, "told_to": told}
    return values | {"tries": tries, "problem": problem[:500]}


def _listed(values: Sequence[str]) -> str:
    return encode(list(values)).decode()
