"""What is measured of one peer, in one round: each part on a fresh database."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from msgspec import Struct

from bench.peers import ledger
from bench.peers.peers import Peer
from bench.peers.running import Failed, Run, Seen, Servers, can_trace, traced_in, tracing
from bench.peers.servers import restate
from tests.support.postgres import SUPERUSER, PostgresServer

HELD_CYCLE = 10
TRACED_CYCLES = 50


class Scale(Struct, frozen=True, kw_only=True):
    short: int = 50
    long: int = 500
    chats: int = 200
    cycles_each: int = 20
    at_once: int = 32


class Measured(Struct, kw_only=True):
    """None: this peer has no such figure."""

    short_ms: float | None = None  # a cycle of one chat
    long_ms: float | None = None
    first_ms: float | None = None  # the first 50 cycles of the long chat
    last_ms: float | None = None
    cpu_ms: float | None = None  # a cycle of the long chat
    many_a_second: float | None = None  # cycles, with many chats at once
    many_cpu_ms: float | None = None
    kib_a_cycle: float | None = None  # written to disk
    syncs_a_cycle: float | None = None
    peak_mib: float | None = None
    start_s: float | None = None
    recovery_s: float | None = None
    asked_twice: int | None = None
    ran_twice: int | None = None
    why_not: str = ""


class Place(Struct, frozen=True):
    """A fresh database, what serves it, and a ledger."""

    database: str
    ledger: Path
    servers: Servers
    words: list[str]


@contextlib.contextmanager
def place(peer: Peer, server: PostgresServer) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="holdfast-peers-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        words: list[str] = []
        pids: list[int] = []
        database = ""
        if peer.server:
            found = stack.enter_context(restate(folder))
            words, pids = found.words(), [found.pid]
        elif peer.database == "postgres":
            database, pids = server.create_database(), server.pids[:1]
            with psycopg.connect(server.url("postgres", user=SUPERUSER), autocommit=True) as administrator:
                administrator.execute("CHECKPOINT")  # what its making wrote is not the peer's
        else:
            database = f"sqlite:///{folder / 'peer.db'}"
        yield Place(database, folder / "ledger", Servers(pids), words)


def measure(peer: Peer, server: PostgresServer, scale: Scale) -> Measured:
    """One round. What fails is left out, with the reason."""
    found = Measured()
    for part in (_short, _long, _many, _recovery):
        try:
            with place(peer, server) as where:
                part(peer, where, scale, found)
        except Failed as error:
            found.why_not = f"{part.__name__.strip('_')}: {error}"
    try:
        if can_trace():
            _traced(peer, server, found)
    except Failed as error:
        found.why_not = f"traced: {error}"
    return found


def _run(peer: Peer, where: Place, *words: str, traced: Path | None = None) -> Seen:
    with Run(peer, where.database, where.ledger, where.servers, *where.words, *words, traced=traced) as run:
        return run.to_its_end()


def _short(peer: Peer, where: Place, scale: Scale, found: Measured) -> None:
    seen = _run(peer, where, "--cycles", str(scale.short))
    found.short_ms, found.start_s = ledger.mean_ms(seen.lines), seen.started_s


def _long(peer: Peer, where: Place, scale: Scale, found: Measured) -> None:
    seen = _run(peer, where, "--cycles", str(scale.long))
    found.long_ms = ledger.mean_ms(seen.lines)
    found.first_ms, found.last_ms = ledger.ages_ms(seen.lines)
    found.cpu_ms = 1e3 * seen.cpu_s / scale.long
    found.peak_mib = seen.peak_bytes / 1024 / 1024


def _many(peer: Peer, where: Place, scale: Scale, found: Measured) -> None:
    words = ("--chats", str(scale.chats), "--at-once", str(scale.at_once), "--cycles", str(scale.cycles_each))
    seen = _run(peer, where, *words)
    found.many_a_second = ledger.rate(seen.lines)
    found.many_cpu_ms = 1e3 * seen.cpu_s / (scale.chats * scale.cycles_each)


def _traced(peer: Peer, server: PostgresServer, found: Measured) -> None:
    """Of the adapter and of what serves it, in a cycle. What a start takes is in both runs."""
    runs = []
    for cycles in (TRACED_CYCLES, 2 * TRACED_CYCLES):
        with place(peer, server) as where:
            own, served = where.ledger.parent / "trace", where.ledger.parent / "served"
            with tracing(where.servers, served) as allowed:
                if not allowed:
                    return
                _run(peer, where, "--cycles", str(cycles), traced=own)
            runs.append(traced_in(own, served))
    found.syncs_a_cycle = (runs[1].syncs - runs[0].syncs) / TRACED_CYCLES
    found.kib_a_cycle = (runs[1].written_bytes - runs[0].written_bytes) / 1024 / TRACED_CYCLES


def _recovery(peer: Peer, where: Place, scale: Scale, found: Measured) -> None:
    """Killed with -9 in the middle of a tool, and started again at once: until it does something."""
    if not peer.recovers:
        return
    cycles = ("--cycles", str(2 * HELD_CYCLE))
    words = (*where.words, *cycles)
    with Run(peer, where.database, where.ledger, where.servers, *words, "--hold", str(HELD_CYCLE)) as run:
        run.until("tool", HELD_CYCLE)
        killed_at = run.kill()
    with Run(peer, where.database, where.ledger, where.servers, *words, "--resume") as again:
        found.recovery_s = again.first_line_at() - killed_at
        if peer.server:
            again.until("model", 2 * HELD_CYCLE)
        else:
            again.to_its_end()
    found.asked_twice, found.ran_twice = ledger.done_twice(ledger.entries(where.ledger))
