"""Ids: ours, with a prefix, in order of time."""

import re
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
