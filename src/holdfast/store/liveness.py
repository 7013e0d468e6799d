"""Promise 7 as one query, the same on both stores: what no chat may be, with a reason code for each way.

A lease counts as live until it is ended, which needs no clock: who went silent is for observers to end.

Every worker asks it every few seconds, so what it costs must not grow with the chats that are well. Most ways
to be stranded show in the chat's own row, and an index holds the rows that are so, which is none. Two take a
look at another table: whether a person or a client is asked in a chat that waits, and whether messages are queued in
one that rests. These are looked at some at a time, in turn; `doctor` looks at all of them.
"""

SWEPT_MAX = 500  # chats that wait, and chats with a queue, in one sweep

_OPEN_OUTSIDE = (
    "SELECT 1 FROM calls WHERE calls.chat_id = chats.id AND calls.batch = chats.batch "
    "AND calls.state IN ('asking', 'external')"
)

# Not a way to be stranded, but as bad: every write to such a chat fails. Code that joined the rows it had looked at,
# not those it had changed, left lines that no write of the chat tells of.
JOURNAL_AHEAD = "journal_ahead_of_chat"

# The next chats in the order of their ids, and whether they are so: one look into the journal's index for each.
NEXT_TORN = """
SELECT id, state, EXISTS (SELECT 1 FROM journal WHERE journal.chat_id = chats.id AND journal.seq > chats.seq) AS ahead
FROM chats WHERE id > {after} ORDER BY id LIMIT {limit}
"""

UNDER_DEAD_LEASE = "running_under_dead_lease"

# Reason code -> the condition that makes a chat a violation. The first that holds is the one reported.
REASONS: dict[str, str] = {
    "running_without_owner_or_wake_at": (
        "chats.state IN ('running', 'stopping') AND chats.worker IS NULL AND chats.wake_at IS NULL"
    ),
    "running_with_owner_and_wake_at": (
        "chats.state IN ('running', 'stopping') AND chats.worker IS NOT NULL AND chats.wake_at IS NOT NULL"
    ),
    UNDER_DEAD_LEASE: (
        "chats.state IN ('running', 'stopping') AND chats.worker IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.id = chats.worker AND workers.ended IS NULL)"
    ),
    "waiting_but_owned": "chats.state = 'waiting' AND chats.worker IS NOT NULL",
    "waiting_for_nobody": f"chats.state = 'waiting' AND NOT EXISTS ({_OPEN_OUTSIDE})",
    "waiting_without_wake_at_for_an_expiry": (
        "chats.state = 'waiting' AND chats.wake_at IS NULL "
        f"AND EXISTS ({_OPEN_OUTSIDE} AND calls.expires_at IS NOT NULL)"
    ),
    "resting_but_owned": "chats.state IN ('idle', 'failed') AND chats.worker IS NOT NULL",
    "resting_with_wake_at": "chats.state IN ('idle', 'failed') AND chats.wake_at IS NOT NULL",
    "idle_with_queued_messages": (
        "chats.state = 'idle' AND EXISTS (SELECT 1 FROM queue WHERE queue.chat_id = chats.id)"
    ),
}


# Every chat that could be one, each by an index: those in `chats_unwatched` and `chats_restless` are.
_LOOKED_AT = """
    SELECT id FROM chats WHERE worker IS NULL AND wake_at IS NULL AND state IN ('running', 'stopping')
    UNION ALL SELECT id FROM chats
        WHERE state IN ('idle', 'failed') AND (worker IS NOT NULL OR wake_at IS NOT NULL)
    UNION ALL SELECT id FROM chats WHERE worker IS NOT NULL
    UNION ALL {waiting}
    UNION ALL {queued}
"""

_ALL_WAITING = "SELECT id FROM chats WHERE state = 'waiting'"
_ALL_QUEUED = "SELECT chat_id FROM queue"

# The next ones in the order of their ids, behind the last that was looked at.
NEXT_WAITING = "SELECT id FROM chats WHERE state = 'waiting' AND id > {after} ORDER BY id LIMIT {limit}"
NEXT_QUEUED = "SELECT DISTINCT chat_id FROM queue WHERE chat_id > {after} ORDER BY chat_id LIMIT {limit}"


def liveness_query(*, waiting: str = _ALL_WAITING, queued: str = _ALL_QUEUED) -> str:
    looked_at = _LOOKED_AT.format(waiting=waiting, queued=queued)
    cases = "\n".join(f"        WHEN {condition} THEN '{reason}'" for reason, condition in REASONS.items())
    return (
        "SELECT id, state, reason FROM (\n    SELECT chats.id AS id, chats.state AS state, CASE\n"
        f"{cases}\n    END AS reason\n    FROM chats WHERE chats.id IN ({looked_at})\n) "
        "AS checked WHERE reason IS NOT NULL ORDER BY id"
    )
