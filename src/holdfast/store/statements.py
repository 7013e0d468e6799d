"""What both stores have under the same names: statements that take the same values, and who runs them.

Each store's `sql` module is a `Statements`; what a verb of one statement makes of the answer is written once, in
`sql_store.py` and `recovery.py`.
"""

from typing import Any, Protocol

from holdfast.core.records import State
from holdfast.store.chat_lists import FilterNames
from holdfast.store.records import Lane
from holdfast.store.rows import Row


def marked(statement: str, mark: str) -> str:
    """`{}` is where a value goes; each store has a mark of its own for that."""
    return statement.replace("{}", mark)


class Statements(Protocol):
    OPEN_CALLS: str
    READ_ENTRY: str
    COUNT_CHILDREN: str
    SUB_AGENTS: str
    READ_COMPACTION: str
    READ_COMPACTIONS: str
    LOCATE_MESSAGE: str
    READ_DELTAS: str
    NEXT_WITH_LEFTOVERS: str
    NEXT_EXPIRED: str
    PUT_NOTE: str
    READ_OWNER: str
    READ_MARKS: str
    READ_NOTES: str
    PROVE_WRITING: str
    LIST_WORKERS: str
    HELD_CHATS: str
    RETIRE_WORKER: str
    LOST_IN_SILENCE: str
    UNKNOWN_HOLDERS: str
    DROP_WORKER: str
    NEXT_TORN: str
    READ_REPAIRS: str

    def list_open_calls(self, given: frozenset[str]) -> str: ...

    def list_chats(self, state: State | None, archived: bool | None, given: FilterNames) -> str: ...


class StatementRunner(Protocol):
    """Each call is a transaction of its own, and ends at the store's deadline."""

    async def rows(self, statement: str, *values: Any) -> list[Row]: ...

    async def named_rows(self, statement: str, **values: Any) -> list[Row]: ...

    async def scan(self, statement: str, lane: Lane, **values: Any) -> list[Row]:
        """For a statement that may read whole tables."""

    async def write_alone(self, statement: str, *values: Any) -> list[Row]:
        """For a statement that changes nothing when it is repeated."""

    async def forget(self, statement: str, *values: Any) -> list[Row]:
        """The same for one that deletes what is to be gone from every file of the store."""
