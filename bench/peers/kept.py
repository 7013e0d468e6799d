"""What a run of the bench leaves, as one file: the figures of all rounds, and of the streams."""

import statistics

from msgspec import Struct, structs

from bench.peers.measuring import Measured
from bench.peers.streaming import Streamed


class Kept(Struct, frozen=True, kw_only=True):
    conditions: str
    versions: dict[str, str]  # of those that come from a registry
    peers: dict[str, list[Measured]]
    streaming: dict[str, list[Streamed]]

    def medians(self) -> dict[str, Measured]:
        """Of each figure by itself."""
        return {name: _median(rounds) for name, rounds in self.peers.items()}


def _median(rounds: list[Measured]) -> Measured:
    found = Measured(why_not="; ".join(sorted({each.why_not for each in rounds if each.why_not})))
    for field in structs.fields(Measured):
        values = [value for each in rounds if isinstance(value := getattr(each, field.name), int | float)]
        if values:
            setattr(found, field.name, statistics.median(values))
    return found
