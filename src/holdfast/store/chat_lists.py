"""Which chats a listing shows, as SQL: only what is asked for stands in the statement, so that its index can be used.

A state and `archived` are written out, not passed as values: the indexes of the rarer ones hold these chats
alone, and a planner has to see that it may use one.
"""

from collections.abc import Mapping

from holdfast.core.records import State

FilterNames = frozenset[str]  # the names of the filters that have a value

# Chats at work, by their indexes: held, due, or neither.
AT_WORK = """
    SELECT id FROM chats WHERE worker IS NOT NULL
    UNION ALL SELECT id FROM chats WHERE wake_at IS NOT NULL AND state IN ('running', 'stopping')
    UNION ALL SELECT id FROM chats
        WHERE worker IS NULL AND wake_at IS NULL AND state IN ('running', 'stopping')
"""


def where(
    conditions: Mapping[str, str],
    flags: Mapping[bool, str],
    state: State | None,
    archived: bool | None,
    given: FilterNames,
) -> str:
    """A WHERE with what is given, or nothing. `flags`: what an archived chat is, and what another is."""
    wanted = [condition for name, condition in conditions.items() if name in given]
    if archived is not None:
        wanted.append(flags[archived])
    if state is not None:
        wanted.append(f"state = '{State(state)}'")
        if state in (State.RUNNING, State.STOPPING):
            wanted.append(f"id IN ({AT_WORK})")
    return f"WHERE {' AND '.join(wanted)}" if wanted else ""
