"""`make bench-peers`: streams, every peer in turns, so many rounds, and one table at the end.

`python -m bench.peers Restate DBOS` measures those whose names begin so; `--rounds 1`, `--small` for a look. What was
found is kept in `build/peers`; `make benchmarks` writes docs/benchmarks.md from it.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator

import msgspec

from bench.figures import keep_on_disk
from bench.peers.kept import Kept
from bench.peers.measuring import Measured, Scale, measure
from bench.peers.peers import PEERS, Peer
from bench.peers.report import aims, streams, table
from bench.peers.running import BUILD
from bench.peers.servers import version_of
from bench.peers.streaming import FAST_TOKENS, Streamed, stream_all
from tests.clients.install import NotInstalled
from tests.support.postgres import PostgresServer

SMALL = Scale(short=10, long=60, chats=20, cycles_each=3, at_once=8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="holdfast beside its peers")
    parser.add_argument("names", nargs="*", help="how the names of the peers begin; without: all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--small", action="store_true", help="a look at whether all of it runs: its figures say nothing"
    )
    asked = parser.parse_args()
    keep_on_disk()
    peers = [peer for peer in PEERS if not asked.names or peer.name.startswith(tuple(asked.names))]
    if not peers:
        print(f"no peer is named so; there are: {', '.join(peer.name for peer in PEERS)}", file=sys.stderr)
        return 2
    for each in (signal.SIGINT, signal.SIGTERM):  # either ends all that was started, in the background, too
        signal.signal(each, signal.default_int_handler)
    whole = not asked.names and not asked.small  # all of them, in earnest
    BUILD.mkdir(parents=True, exist_ok=True)
    made = ""
    try:
        for kept in run(peers, asked.rounds, SMALL if asked.small else Scale(), streaming=not asked.names):
            made = f"{kept.conditions}\n\n{table(kept)}\n\n{streams(kept)}\n\n{aims(kept)}"
            (BUILD / "table.md").write_text(f"{made}\n")
            if whole:
                (BUILD / "figures.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    except KeyboardInterrupt:
        so_far = f"so far: {BUILD / 'table.md'}" if made else "there is no table"
        print(f"stopped: what was started has ended; {so_far}", file=sys.stderr)
        return 130
    print(f"\n{made}")
    if whole:
        print("\n`make benchmarks` writes docs/benchmarks.md from this")
    return 0


def run(peers: list[Peer], rounds: int, scale: Scale, *, streaming: bool) -> Iterator[Kept]:
    """In turns, so that a noisy minute hits all of them.

    Gives what there is after each round: what fails later does not lose it.
    """
    found: dict[str, list[Measured]] = {peer.name: [] for peer in peers}
    streamed: dict[str, list[Streamed]] = {}
    versions = {peer.name: version_of(peer.lock) for peer in peers if peer.lock is not None}
    with PostgresServer() as server:
        if streaming:
            print("  streams", flush=True)
            streamed = stream_all(server, (1, 10) if scale is SMALL else tuple(FAST_TOKENS))
        for number in range(rounds):
            for peer in peers:
                began = time.monotonic()
                try:
                    measured = measure(peer, server, scale)
                except NotInstalled as error:
                    measured = Measured(why_not=str(error))
                found[peer.name].append(measured)
                said = f"; {measured.why_not}" if measured.why_not else ""
                took = f"{time.monotonic() - began:.0f} s"
                print(f"  round {number + 1} of {rounds}: {peer.name} ({took}){said}", flush=True)
            yield Kept(conditions=conditions(number + 1), versions=versions, peers=found, streaming=streamed)


def conditions(rounds: int) -> str:
    today, load = time.strftime("%Y-%m-%d", time.gmtime()), os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {f'median of {rounds} rounds' if rounds > 1 else 'one round'}, {today}; "
        f"load at the end {load:.1f}."
    )


if __name__ == "__main__":
    sys.exit(main())
