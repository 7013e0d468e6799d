"""Ids: ours, with a prefix, in order of time."""

import re
import subprocess
import sys
import time

import pytest

from holdfast.ids import new_id


def test_an_id_says_what_it_names() -> None:
    assert re.fullmatch(r"chat_[0-9a-hjkmnp-tv-z]{26}", new_id("chat"))


def test_ids_are_all_different() -> None:
    assert len({new_id("m") for _ in range(10_000)}) == 10_000


def test_an_id_made_later_sorts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for ms in (0, 1, 1_700_000_000_000, 1_700_000_000_001, (1 << 48) - 1):
        monkeypatch.setattr(time, "time_ns", lambda ms=ms: ms * 1_000_000)
        ids.append(new_id("m"))
    assert ids == sorted(ids)


def test_an_id_needs_no_escaping_in_urls_json_and_sql() -> None:
    assert re.fullmatch(r"[a-z0-9_]+", new_id("call"))


def test_a_forked_process_makes_ids_of_its_own() -> None:
    script = (
        "import os, time; time.time_ns = lambda: 1; from holdfast.ids import new_id; new_id('m'); "
        "child = os.fork(); child and os.waitpid(child, 0); print(*(new_id('m') for _ in range(300)), flush=True)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    made = run.stdout.split()
    assert len(made) == 600
    assert len(set(made)) == 600
