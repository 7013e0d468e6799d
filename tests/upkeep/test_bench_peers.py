"""The bench beside peers reads right what it reports: of traces, of a ledger, and where databases are. Its page says
what was measured, and no more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.benchmarks import MILLION, PAGE, kept_peers, page
from bench.peers.ledger import done_twice, entries
from bench.peers.running import traced_in

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_written_and_synced_is_counted_in_files_alone(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(
        '71 write(7</var/tmp/peer.db-wal>, ""..., 4096) = 4096\n'
        '71 pwrite64(7</var/tmp/peer.db>, ""..., 100, 8192) = 100\n'
        '72 pwrite64(7</var/tmp/peer.db>, ""..., 10, 8192 <unfinished ...>\n'
        "72 <... pwrite64 resumed>) = 10\n"
        '73 pwritev(9</var/lib/wal>, [{iov_base=""..., iov_len=5}, {iov_base=""..., iov_len=2}], 2, 0) = 7\n'
        '71 write(3<socket:[88]>, ""..., 70000) = 70000\n'
        '71 write(4<pipe:[89]>, ""..., 70000) = 70000\n'
        '71 write(1</dev/pts/1>, ""..., 70000) = 70000\n'
        '71 write(5</var/tmp/ledger>, ""..., 70000) = 70000\n'
        "71 fdatasync(7</var/tmp/peer.db-wal>) = 0\n"
        "72 fsync(7</var/tmp/peer.db> <unfinished ...>\n"
        "72 <... fsync resumed>) = 0\n"
    )
    found = traced_in(trace, tmp_path / "there-was-no-server")
    assert (found.syncs, found.written_bytes) == (2, 4096 + 100 + 10 + 7)


def test_the_ledger_tells_what_was_done_twice_and_ignores_a_torn_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("model chat-0 0 10 1\ntool chat-0 0 20 1\ntool chat-0 0 30 2\nmodel chat-0 1 40 2\ntool cha")
    assert done_twice(entries(ledger)) == (0, 1)


def test_a_bench_keeps_its_databases_on_a_disk() -> None:
    script = (
        "from bench.figures import keep_on_disk; keep_on_disk()\n"
        "from tests.support.scratch import scratch_folder; print(scratch_folder())"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environ, check=True, capture_output=True)
    assert said.stdout.decode().strip() == "/var/tmp"


def test_the_page_of_benchmarks_is_what_the_bench_makes_of_the_figures_it_kept() -> None:
    assert PAGE.read_text() == page(kept_peers(), json.loads(MILLION.read_text()))
