"""The core's limits. Everything that could grow has one; reaching it is an error that names it."""

from holdfast.core.records import Frozen


class Limits(Frozen):
    message_bytes_max: int = 8 << 20
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 32 << 20
    batch_calls_max: int = 128
    call_starts_max: int = 3  # of an idempotent call whose outcome the worker does not know each time
    unclean_claims_max: int = 5
    # From so many on a chat is a suspect, and no worker takes two suspects at the same time: a worker that dies with
    # one has no second to blame, so a chat that kills its workers does not take its neighbours with it.
    suspect_claims_min: int = 3
    metadata_bytes_max: int = 64 << 10
    title_chars_max: int = 200
    active_tools_max: int = 1_000
    client_tools_max: int = 128  # that a client declares for a chat, and again for a turn
    client_tools_bytes_max: int = 256 << 10
    depth_max: int = 8  # of sub-agents below sub-agents
    # Open children: running, stopping or waiting. Those of one chat are counted by the only runner that makes them;
    # those of a family in the transaction that makes one more.
    children_open_max: int = 32
    children_per_turn_max: int = 256
    family_open_max: int = 256
    given_messages_max: int = 10_000  # of a conversation that a chat is created with
    chat_files_bytes_max: int = 1 << 30  # of the files that a chat's messages name
    kept_rules_max: int = 1_000  # of one owner that have not ended
    schedules_max: int = 10_000  # of one owner
    keepsakes_max: int = 32  # that tools keep in a chat: the oldest gives way
    keepsake_chars_max: int = 1_000
    excerpt_chars_max: int = 500  # of a call's arguments, where people are told of it


LIMITS = Limits()

# After the n-th unclean claim the chat rests this long before the next one: the first crash costs nothing.
UNCLEAN_BACKOFF_MS = (0, 1_000, 5_000, 15_000)


def unclean_backoff_ms(unclean: int) -> int:
    return UNCLEAN_BACKOFF_MS[min(unclean, len(UNCLEAN_BACKOFF_MS)) - 1] if unclean else 0
