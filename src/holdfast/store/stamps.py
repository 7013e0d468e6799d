"""Stamps: how a write proves that what its writer knew is in the chat's past.

Worker, fence, epoch and version are counters. They order writes of one past, and prove nothing: after a restore, a
failover that lost a claim, or a chat made again under a deleted one's id, all of them can be equal to those that a
stale runner knows. So each write of a chat leaves a new random number in its row (`stamp`). Equal stamps mean the
same past, and every compare-and-swap compares them.

A runner's commit that misses may still be applied, if what is there now came after what the runner knew: another
sent a message meanwhile. Two more numbers in the row prove that. `claim_stamp` is that of the claim, and stays while
the chat is held: the same claim is in both pasts. `line_stamp` is that of the last write that told the journal
something, and the line keeps it: where line `seq` of the runner's snapshot still has that stamp, all that led to it
is there. What tells nothing (a stop asked for twice, a compaction noted) may be undone without misleading a reader.

Stamps are drawn in `decisions.py` and nowhere else; the core does not know of them. 0 is a stamp of code that knew
none.
"""

import enum

from holdfast.core.records import ChatRecord
from holdfast.errors import StaleWriter, WentBack


class Past(enum.Enum):
    SAME = "same"  # what was known is in it
    OTHER = "other"  # another chat under this id, or another claim of this one
    UNDONE = "undone"  # what was known to be written is not there: the database went back


def is_proven(seen: ChatRecord, known: ChatRecord) -> bool:
    """Without a look at the journal."""
    return (seen.stamp, seen.version) == (known.stamp, known.version)


def judge(seen: ChatRecord, known: ChatRecord, line: int | None) -> Past:
    """What `seen` is to a runner who knew `known` before it was read. `line`: the stamp that line `known.seq` of the
    journal has now, None where there is no such line.
    """
    if is_proven(seen, known):
        return Past.SAME
    if seen.life != known.life:
        return Past.OTHER
    if seen.version < known.version or seen.fence < known.fence or line not in (known.line_stamp, 0):
        return Past.UNDONE
    if seen.claim_stamp != known.claim_stamp:
        return Past.OTHER if seen.fence > known.fence else Past.UNDONE
    return Past.SAME


def check_past(seen: ChatRecord, known: ChatRecord, line: int | None) -> None:
    """As `judge`. Raises StaleWriter, WentBack."""
    match judge(seen, known, line):
        case Past.OTHER:
            raise StaleWriter(
                f"the chat is held by {seen.worker or 'no worker'} under fence {seen.fence}, not under the claim "
                f"that was made with fence {known.fence}"
            )
        case Past.UNDONE:
            raise WentBack(
                known.id,
                f"version {known.version} of the chat was written, under fence {known.fence}, and is not in the past "
                f"of what is there now (version {seen.version}, fence {seen.fence}): the database went back",
            )
