"""`make benchmarks`: writes docs/benchmarks.md and its pictures from what the benches have kept.

`make bench-peers` and `make bench BENCH_ARGS=million` leave their figures in `build`; they are kept beside the
pictures in docs/benchmarks, so that the page can be written again, word for word, from what was measured.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.peers.kept import Kept
from bench.peers.report import aims, draw, draw_streams, legend, streams, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "docs" / "benchmarks"
PEERS, MILLION = FOLDER / "peers.json", FOLDER / "million.json"
MADE = {ROOT / "build" / "peers" / "figures.json": PEERS, ROOT / "build" / "million.json": MILLION}
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for made, kept in MADE.items():
        if made.exists():
            shutil.copyfile(made, kept)
        elif not kept.exists():
            print(f"there is no {made.relative_to(ROOT)} yet: `make bench-peers` and", file=sys.stderr)
            print("`make bench BENCH_ARGS=million` measure what the page tells", file=sys.stderr)
            return 2
    peers = kept_peers()
    draw(peers, FOLDER / "peers.png")
    draw_streams(peers, FOLDER / "streams.png")
    PAGE.write_text(page(peers, json.loads(MILLION.read_text())))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


def kept_peers() -> Kept:
    return msgspec.json.decode(PEERS.read_bytes(), type=Kept)


def page(peers: Kept, many: dict[str, Any]) -> str:
    return _PAGE.format(
        conditions=peers.conditions,
        table=table(peers),
        legend=legend(),
        aims=aims(peers),
        streams=streams(peers),
        million="\n\n".join(_million(STORES[name], of) for name, of in many.items()),
    )


def _million(store: str, found: dict[str, Any]) -> str:
    few, many = f"{found['few']:,} chats", f"{found['many']:,} chats"
    rows = [
        f"| {store}, {found['date']}, ms | {few}: p50 | p99 | {many}: p50 | p99 | p50, times |",
        f"|---{'|---:' * 5}|",
    ]
    for act, row in found["rows"].items():
        cells = [f"{value:,.2f}" for value in (*row["few"], *row["many"])]
        rows.append(f"| {act} | {' | '.join(cells)} | {row['many'][0] / row['few'][0]:.1f} |")
    return "\n".join(rows)


_PAGE = """\
# Benchmarks

What holdfast costs, beside what you might pick instead and beside the bare drivers, in one run on one machine. The
tables and pictures are written by the bench (`make benchmarks`); nothing on this page is typed by hand but the words.

<!-- shown: they take a quarter of an hour of a quiet machine -->
```
make bench-peers                     # everything but the last chapter
make bench BENCH_ARGS=million        # the last chapter
make benchmarks                      # this page, from what those two have kept
```

{conditions}

## One workload, every peer

A *cycle* is one response of a model and the tool that it calls; both have to be durable before the next begins. The
model and the tool do nothing, so that all that is measured is what durability costs. Each peer runs in an environment
of its own, from a lock file, as its own documentation would have you run it, and the databases lie on a disk. The
peers take turns, so that a noisy minute hits all of them. Compare within this table, never with a figure from
elsewhere: on a shared machine the ratios hold, the milliseconds do not.

![milliseconds of a cycle and cycles a second, as bars](benchmarks/peers.png)

{table}

{legend}

## What we want of it

{aims}

What is missed is missed in this run, and is what to work on next. Two things limit a single chat: a cycle is two
commits that wait for the disk, and between them Python has to run the model call, the tool and two decisions of the
core. Many chats share commits, so there it is the CPU of a cycle that counts.

Where that goes, by samples of the thread that has the interpreter, 32 chats at once on SQLite: both commits 25 % (14
of it decisions of the core), the model call 16 %, who waits for the turn and folds it 13 %, the tool and what stands
around it 10 %, the request and the history behind it 7 %, the thread that writes 3 %, the event loop and everything
else the rest. No function has more than 3 % of its own: there is no spot left to mend, only Python to run less of.
What would bring more: the core compiled, which is pure and typed; a response and its tool's result in one commit,
which we do not do, since a crash between the two would lose a response that was paid for. What was tried: the journal
clustered by chat and number wrote 5.45 pages a commit instead of 5.75, and took the same time in two rounds (1.01 and
1.02 ms a cycle); the open batch in the chat's row would save a page at most, and was not built. uvloop takes 8 to
10 % less CPU of a cycle, and makes no difference that could be told from noise to requests, tokens and readers; our
tests do not hold on it, so it is no setting. A shorter switch interval of the interpreter makes no difference at all.

## Streams

Text on its whole way: from a model through the journal and the server to clients that read events over HTTP, one
client a chat. *As fast as they come* is a model that never waits; the delay is from the model's word to the client's
socket at 50 tokens a second and chat. Text of all chats is written to the journal together, about every 50 ms.

![tokens a second, and the delay from model to client](benchmarks/streams.png)

{streams}

## A million chats

One database with a million chats against one with a thousand, both open at once and taking turns. Each owner has a
hundred chats, one in ten waits for an answer, and each resting chat has a passage in the search of its owner's past.
The two rows at the end of each table look at every chat by their nature: a search that finds nothing in all chats of
all owners, which ends at its deadline at the latest, and what `holdfast doctor` asks of all.

{million}
"""

if __name__ == "__main__":
    sys.exit(main())
