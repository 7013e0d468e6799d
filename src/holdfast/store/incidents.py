"""What befell the database under us: counted, logged, shown by health for a while, and kept for who looks later.

`WENT_BACK`: something is missing that had been written, so that chats go on from less. `FAILED_OVER`: another server,
or another branch of its history, is in the database's place. Whether anything is lost by that cannot be told from
here: with a synchronous standby nothing is. What a runner misses of its own chat is told as the first, besides.
"""

import logging
from collections import Counter
from typing import Literal

from holdfast.system.clock import SystemClock

log = logging.getLogger("holdfast.store")

Incident = Literal["database_went_back", "database_failed_over"]
WENT_BACK: Incident = "database_went_back"
FAILED_OVER: Incident = "database_failed_over"
INCIDENTS = (WENT_BACK, FAILED_OVER)

_WORDS: dict[Incident, str] = {
    WENT_BACK: "the database went back in time: %s",
    FAILED_OVER: "another server took the database's place: %s",
}


def note_of(incident: Incident) -> str:
    """The key in the table `meta` under which the instant of the last one is kept."""
    return f"{incident.removeprefix('database_')}_at"


class Incidents:
    """Of one store. From any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._noticed_ms: dict[Incident, int] = {}  # by boot time
        self.unkept: set[Incident] = set()  # which the database does not know of yet

    def tell(self, incident: Incident, why: str, **about: str) -> None:
        """Here and now; the next sweep keeps it for who looks later."""
        self.counts[incident] += 1
        self._noticed_ms[incident] = SystemClock().boot_ms()
        self.unkept.add(incident)
        log.warning(_WORDS[incident], why, extra={"action": incident, "error": why, **about})

    def age_s(self, incident: Incident) -> float | None:
        """Since this process noticed the last one; None: it never did."""
        noticed_ms = self._noticed_ms.get(incident)
        return None if noticed_ms is None else (SystemClock().boot_ms() - noticed_ms) / 1000
