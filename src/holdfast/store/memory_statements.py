"""The statements on memory, once for both stores: `{name}` is where a value goes. And its rows as records."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.core.memory import MemoryRecord, Passage
from holdfast.core.search_terms import is_prefix
from holdfast.store.rows import Row

FORM = 2  # of terms; the index of those in an older one says the number, too
RANKED_MAX = 500  # passages of a search that are looked at more closely
MEMORY_COLUMNS: tuple[str, ...] = MemoryRecord.__struct_fields__
PASSAGE_COLUMNS = ("chat_id", "owner", "agent", "kind", "ref", "pos", "role", "at", "tainted", "text")
_CHAT_COLUMNS = "chat_id, life, owner, agent, snapshot, mark, due_at, tries, epoch, indexed_to, told_to, problem"


class ChatRow(NamedTuple):
    """A row of `memory_chats`. `mark`: the last turn that began; `told_to`: the turn that its episode goes up to."""

    chat_id: str
    life: int
    owner: str
    agent: str
    snapshot: str
    mark: int
    due_at: int | None
    tries: int
    epoch: int
    indexed_to: int
    told_to: int
    problem: str


def memory_of(row: Sequence[Any]) -> MemoryRecord:
    values: dict[str, Any] = dict(zip(MEMORY_COLUMNS, row, strict=True))
    return MemoryRecord(**values | {"tainted": bool(values["tainted"])})


def memory_values(record: MemoryRecord) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(record, name) for name in MEMORY_COLUMNS}
    return values | {"tainted": int(record.tainted)}


def passage_of(row: Sequence[Any]) -> Passage:
    kind, ref, chat_id, pos, role, at, tainted, text, title = row
    return Passage(
        kind=kind, ref=ref, chat_id=chat_id, pos=pos, role=role, at=at, tainted=bool(tainted), text=text, title=title
    )


def matched_by_fts5(
    owner: str, scopes: Sequence[str], terms: Sequence[str], *, every: bool, without: str = ""
) -> str:
    """`owner`: its key, with which every term begins. Terms hold letters and digits only, so nothing in them can be
    an operator or end its quotes. `without`: a term that what is found does not have.
    """
    words = [f'"{owner}{term}"*' if is_prefix(term) else f'"{owner}{term}"' for term in terms]
    looked_for = f"({(' AND ' if every else ' OR ').join(words)})"
    found = " AND ".join((*(f'"{owner}{scope}"' for scope in scopes), looked_for))
    return f'({found}) NOT "{owner}{without}"' if without else found


def matched_by_tsquery(
    owner: str, scopes: Sequence[str], terms: Sequence[str], *, every: bool, without: str = ""
) -> str:
    words = [f"'{owner}{term}':*" if is_prefix(term) else f"'{owner}{term}'" for term in terms]
    looked_for = f"({(' & ' if every else ' | ').join(words)})"
    found = " & ".join((*(f"'{owner}{scope}'" for scope in scopes), looked_for))
    return f"{found} & !'{owner}{without}'" if without else found


# A chat's rows go in slices, and code that knows no memory leaves them: what is left of one that is deleted is
# nobody's any more, also where another chat has its id.
_THERE = (
    "({table}.chat_id = '' OR EXISTS "
    "(SELECT 1 FROM chats WHERE chats.id = {table}.chat_id AND chats.life = {table}.life))"
)
_MEMORIES_THERE = _THERE.replace("{table}", "memories")
# What a newer fact replaced is in force again where the newer one went with its chat.
_NOT_REPLACED = (
    "(memories.superseded_by = '' OR NOT EXISTS (SELECT 1 FROM memories AS newer "
    f"WHERE newer.id = memories.superseded_by AND {_THERE.replace('{table}', 'newer')}))"
)
_IN_FORCE = f"memories.ended_at IS NULL AND {_NOT_REPLACED}"
_OF = "owner = {owner} AND agent = {agent}"

_PAGE = (
    f"SELECT {', '.join(MEMORY_COLUMNS)} FROM memories "
    "WHERE (CAST({owner} AS TEXT) IS NULL OR owner = {owner}) AND (CAST({agent} AS TEXT) IS NULL OR agent = {agent}) "
    "AND (CAST({kind} AS TEXT) IS NULL OR kind = {kind}) "
    "AND (CAST({chat_id} AS TEXT) IS NULL OR chat_id = {chat_id}) "
    f"AND (CAST({{all}} AS INTEGER) = 1 OR ({_IN_FORCE})) AND (CAST({{clean}} AS INTEGER) = 0 OR tainted = 0) "
    f"AND (CAST({{before}} AS TEXT) IS NULL OR id < {{before}}) AND {_MEMORIES_THERE} "
    "ORDER BY id DESC LIMIT {limit}"
)

_NEWEST = (
    f"SELECT memories.id FROM memories WHERE {_OF} AND kind = {{kind}} AND tainted = 0 AND {_IN_FORCE} "
    f"AND chat_id <> {{but}} AND {_MEMORIES_THERE} ORDER BY id DESC LIMIT {{limit}}"
)

# What the facts of a chat and of those below it had replaced.
_REPLACED_BY_CHAT = f"""
WITH RECURSIVE going (id) AS (
    SELECT id FROM chats WHERE id = {{chat_id}}
    UNION SELECT chats.id FROM chats JOIN going ON chats.parent_id = going.id
)
SELECT {", ".join(f"older.{name}" for name in MEMORY_COLUMNS)} FROM memories AS newer
JOIN memories AS older ON older.id = newer.replaces AND older.superseded_by = newer.id
WHERE newer.chat_id IN (SELECT id FROM going) AND newer.kind = 'fact' AND older.ended_at IS NULL
AND older.chat_id NOT IN (SELECT id FROM going) AND older.id > {{after}}
ORDER BY older.id LIMIT {{limit}}
"""

_OWED = (
    f"SELECT {', '.join(f'memory_chats.{name}' for name in _CHAT_COLUMNS.split(', '))} "
    "FROM memory_chats JOIN chats ON chats.id = memory_chats.chat_id "
    "WHERE memory_chats.due_at <= {now} AND chats.state IN ('idle', 'failed') AND chats.life = memory_chats.life "
    "AND memory_chats.agent IN ({agents}) ORDER BY memory_chats.due_at LIMIT {limit}"
)

# Passages have no life: those of messages are of the life that has indexed them.
_FOUND = f"""
FROM {{from}} LEFT JOIN chats ON chats.id = found.chat_id
WHERE found.owner = {{owner}} AND (CAST({{agent}} AS TEXT) IS NULL OR found.agent = {{agent}})
AND (found.chat_id = '' OR chats.id IS NOT NULL) AND (found.kind <> 'message' OR found.chat_id <> {{but}})
AND CASE WHEN found.kind = 'message' THEN EXISTS (
    SELECT 1 FROM memory_chats WHERE memory_chats.chat_id = found.chat_id AND memory_chats.life = chats.life
    AND memory_chats.indexed_to > found.pos
) ELSE EXISTS (
    SELECT 1 FROM memories WHERE memories.id = found.ref AND {_IN_FORCE}
    AND (memories.chat_id = '' OR memories.life = chats.life)
) END
AND found.kind IN ({{kinds}})
"""
_SEARCH = (
    "SELECT found.kind, found.ref, found.chat_id, found.pos, found.role, found.at, found.tainted, found.text, "
    f"chats.title {_FOUND} AND (CAST({{outside}} AS INTEGER) = 1 OR found.tainted = 0) "
    "ORDER BY {rank}, found.id DESC LIMIT {limit}"
)
_COUNT_OUTSIDE = f"SELECT count(*) FROM (SELECT 1 {_FOUND} AND found.tainted = 1 LIMIT {{limit}}) AS hits"


class SearchForm(NamedTuple):
    """How a store looks for terms: FROM what, in which order; and how it takes them in."""

    tables: str
    rank: str
    terms: str


class MemoryStatements:
    """With one store's marks. `listed` makes a set of a JSON list of texts, `numbers` one of numbers."""

    def __init__(
        self,
        named: Callable[[str], str],
        listed: str,
        numbers: str,
        form: SearchForm,
        matched: Callable[..., str],
        *,
        lock: str | None = None,
        share: str = "",
        skips: str = "",
    ) -> None:
        def made(statement: str, **pieces: str) -> str:
            for name, piece in pieces.items():
                statement = statement.replace(f"{{{name}}}", piece)
            return re.sub(r"\{(\w+)\}", lambda found: named(found[1]), statement)

        def insert(table: str, columns: Sequence[str], rest: str = "") -> str:
            marks = ", ".join(f"{{{name}}}" for name in columns)
            return made(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) {rest}")

        self.matched = matched
        self.lock_scope = None if lock is None else made(lock)
        self.chat = made(f"SELECT life, tainted_from, turn, epoch FROM chats WHERE id = {{chat_id}}{share}")

        # what a call wrote
        self.read_write = made("SELECT answer FROM memory_writes WHERE chat_id = {chat_id} AND call_id = {call_id}")
        self.put_write = insert("memory_writes", ("chat_id", "call_id", "answer", "at"))
        self.drop_writes = made("DELETE FROM memory_writes WHERE chat_id = {chat_id}")

        # blocks
        block = "id, owner, agent, name, version, lines_made, created_at, updated_at"
        self.block = made(f"SELECT {block} FROM memory_blocks WHERE {_OF} AND name = {{name}}")
        self.block_by_id = made(f"SELECT {block} FROM memory_blocks WHERE id = {{id}}")
        self.blocks = made(
            f"SELECT {block} FROM memory_blocks WHERE (CAST({{owner}} AS TEXT) IS NULL OR owner = {{owner}}) "
            "AND (CAST({agent} AS TEXT) IS NULL OR agent = {agent}) AND id > {after} ORDER BY id LIMIT {limit}"
        )
        self.insert_block = insert("memory_blocks", block.split(", "))
        self.move_block = made(
            "UPDATE memory_blocks SET version = {version}, lines_made = {lines_made}, updated_at = {updated_at} "
            "WHERE id = {id} AND version = {was} RETURNING id"
        )
        self.drop_block = tuple(
            made(statement)
            for statement in (
                "DELETE FROM memory_lines WHERE block_id = {id}",
                "DELETE FROM memory_versions WHERE block_id = {id}",
                "DELETE FROM memory_blocks WHERE id = {id}",
            )
        )
        self.version = made(
            "SELECT version, lines, made_by, at FROM memory_versions WHERE block_id = {id} AND version >= {version} "
            "ORDER BY version LIMIT 1"
        )
        self.versions = made(
            "SELECT version, lines, made_by, at FROM memory_versions WHERE block_id = {id} AND version < {before} "
            "ORDER BY version DESC LIMIT {limit}"
        )
        self.insert_version = insert("memory_versions", ("block_id", "version", "lines", "made_by", "at"))
        self.drop_versions = made("DELETE FROM memory_versions WHERE block_id = {id} AND version < {version}")
        lines_there = _THERE.replace("{table}", "memory_lines")
        self.lines = made(
            "SELECT line, text, chat_id FROM memory_lines WHERE block_id = {id} AND line IN ({numbers}) "
            f"AND {lines_there}",
            numbers=numbers,
        )
        self.line_sources = made(
            "SELECT line, chat_id, life, turn, call_id, made_by, at FROM memory_lines WHERE block_id = {id} "
            "AND line IN ({numbers})",
            numbers=numbers,
        )
        self.insert_line = insert(
            "memory_lines",
            ("block_id", "line", "text", "chat_id", "life", "turn", "call_id", "made_by", "at"),
        )
        self.drop_lines = made(
            "DELETE FROM memory_lines WHERE block_id = {id} AND line NOT IN ({numbers})", numbers=numbers
        )

        # facts, episodes, proposals
        self.insert_memory = insert("memories", MEMORY_COLUMNS, "ON CONFLICT (id) DO NOTHING")
        self.read_memory = made(
            f"SELECT {', '.join(MEMORY_COLUMNS)} FROM memories WHERE id = {{id}} AND {_MEMORIES_THERE}"
        )
        self.memories = made(
            f"SELECT {', '.join(MEMORY_COLUMNS)} FROM memories WHERE id IN ({{listed}}) AND {_MEMORIES_THERE} "
            "ORDER BY id DESC",
            listed=listed.replace("{}", "{ids}"),
        )
        self.page = made(_PAGE)
        self.newest = made(_NEWEST)
        self.count = made(
            f"SELECT count(*) FROM memories WHERE {_OF} AND kind = {{kind}} AND tainted = {{tainted}} "
            f"AND {_IN_FORCE} AND {_MEMORIES_THERE}"
        )
        self.supersede = made(
            f"UPDATE memories SET superseded_by = {{by}} WHERE id = {{id}} AND {_IN_FORCE} RETURNING id"
        )
        self.supersede_episodes = made(
            "UPDATE memories SET superseded_by = {by} WHERE chat_id = {chat_id} AND kind = 'episode' "
            "AND superseded_by = '' AND id <> {by} RETURNING id"
        )
        self.replaced_by = made("SELECT id FROM memories WHERE superseded_by = {id} AND owner = {owner}")
        self.replaced_by_chat = made(_REPLACED_BY_CHAT)
        self.end = made("UPDATE memories SET ended_at = {at} WHERE id = {id} AND ended_at IS NULL RETURNING id")
        self.clear = made("UPDATE memories SET tainted = 0, cleared_by = {by}, cleared_at = {at} WHERE id = {id}")
        self.drop_memory = made("DELETE FROM memories WHERE id = {id}")

        # the index
        marks = ", ".join(f"{{{name}}}" for name in PASSAGE_COLUMNS)
        self.insert_passage = made(
            f"INSERT INTO memory_passages ({', '.join(PASSAGE_COLUMNS)}, terms, form) "
            f"VALUES ({marks}, {form.terms}, {FORM})"
        )
        # Those that older code made: a search does not look for their terms, or not for all that it could.
        self.has_old_passages = f"SELECT 1 FROM memory_passages WHERE form < {FORM} LIMIT 1"
        self.old_passages = made(
            f"SELECT id, {', '.join(PASSAGE_COLUMNS)} FROM memory_passages WHERE form < {FORM} "
            f"ORDER BY id LIMIT {{limit}}{skips}"
        )
        self.renew_passage = made(f"UPDATE memory_passages SET terms = {form.terms}, form = {FORM} WHERE id = {{id}}")
        self.is_in_force = made(f"SELECT 1 FROM memories WHERE id = {{id}} AND {_IN_FORCE}")
        self.drop_passages_of = made("DELETE FROM memory_passages WHERE ref = {id} AND kind <> 'message'")
        self.drop_passages_from = made(
            "DELETE FROM memory_passages WHERE id IN (SELECT id FROM memory_passages "
            "WHERE chat_id = {chat_id} AND kind = 'message' AND pos >= {pos} LIMIT {limit}) RETURNING id"
        )
        # A message is cut away with all that follow it, so what stands before one that is there still is there, too.
        # By those of the model, whose ids are ours: who edits a message may give it the id that it had.
        self.last_valid_passage = made(
            "SELECT passage.pos FROM memory_passages AS passage JOIN journal ON journal.chat_id = passage.chat_id "
            "AND journal.pos = passage.pos AND journal.ref = passage.ref WHERE passage.chat_id = {chat_id} "
            "AND passage.kind = 'message' AND passage.role = 'assistant' AND passage.pos < {length} "
            "ORDER BY passage.pos DESC LIMIT 1"
        )
        search = {
            "from": form.tables,
            "rank": form.rank,
            "kinds": listed.replace("{}", "{kinds}"),
        }
        self.search = made(_SEARCH, **search)
        self.count_outside = made(_COUNT_OUTSIDE, **search)

        # chats
        self.chat_row = made(f"SELECT {_CHAT_COLUMNS} FROM memory_chats WHERE chat_id = {{chat_id}}")
        self.insert_chat = insert("memory_chats", _CHAT_COLUMNS.split(", "))
        self.drop_chat = made(
            "DELETE FROM memory_chats WHERE chat_id = {chat_id} AND life <> {life} RETURNING chat_id"
        )
        self.mark_turn = made(
            "UPDATE memory_chats SET mark = {mark}, due_at = {due_at}, tries = 0, problem = '', "
            "told_to = CASE WHEN told_to < {mark} THEN told_to ELSE {mark} - 1 END "
            "WHERE chat_id = {chat_id} AND mark <= {mark}"
        )
        self.owed = made(_OWED, agents=listed.replace("{}", "{agents}"))
        self.take = made(
            "UPDATE memory_chats SET due_at = {until}, tries = tries + 1 "
            "WHERE chat_id = {chat_id} AND mark = {mark} AND tries = {tries} AND due_at = {due_at} RETURNING chat_id"
        )
        self.move_index = made(
            "UPDATE memory_chats SET indexed_to = {indexed_to}, epoch = {epoch} WHERE chat_id = {chat_id} "
            "AND indexed_to = {was} RETURNING chat_id"
        )
        self.settle = made(
            "UPDATE memory_chats SET due_at = {due_at}, told_to = {told_to}, problem = {problem}, tries = {tries} "
            "WHERE chat_id = {chat_id} AND mark = {mark} AND due_at = {taken}"
        )
        self.ahead = (
            f"SELECT min(due_at), EXISTS (SELECT 1 FROM memory_passages WHERE form < {FORM}) "
            "FROM memory_chats WHERE due_at IS NOT NULL"
        )

        # the end of an owner
        self.nothing = "DELETE FROM memories WHERE id = '' AND id <> '' RETURNING id"
        some = "LIMIT 500"
        self.owners_blocks = made(f"SELECT id, agent FROM memory_blocks WHERE owner = {{owner}} {some}")
        self.forget_memories = made(
            f"DELETE FROM memories WHERE id IN (SELECT id FROM memories WHERE owner = {{owner}} {some}) RETURNING id"
        )
        self.forget_passages = made(
            "DELETE FROM memory_passages WHERE id IN "
            "(SELECT id FROM memory_passages WHERE owner = {owner} LIMIT 5) RETURNING id"
        )
        self.forget_chats = made(
            "DELETE FROM memory_chats WHERE chat_id IN "
            f"(SELECT chat_id FROM memory_chats WHERE owner = {{owner}} {some}) RETURNING chat_id"
        )


def block_values(row: Row) -> dict[str, Any]:
    names = ("id", "owner", "agent", "name", "version", "lines_made", "created_at", "updated_at")
    return dict(zip(names, row, strict=True))
