"""`holdfast budgets` and `holdfast usage`: set, listed, removed, and who spent what."""

import json

from tests.cli.conftest import Desk


def test_budgets_are_set_listed_and_removed_and_usage_is_shown(desk: Desk) -> None:
    assert desk.run("run", "--agent", "scripted", "hello").code == 0
    assert desk.run("budgets", "set", "ann").code == 2
    done = desk.run("budgets", "set", "ann", "--day-tokens", "2000")
    assert (done.code, done.out) == (0, "set for 'ann': workers heed it within seconds\n")
    assert done.err == ""
    assert "--app checks" in desk.run("budgets", "set", "bob", "--cost", "1").err
    assert desk.run("budgets", "remove", "bob").code == 0
    listed = json.loads(desk.run("budgets", "list", "--json").out)
    assert [(line["owner"], line["limits"]["day_tokens"]) for line in listed["budgets"]] == [("ann", 2000)]
    assert "2,000" in desk.run("budgets", "list").out
    (total,) = json.loads(desk.run("usage", "--by", "kind", "--json").out)
    assert total["kind"] == "step"
    assert total["lines"] >= 1
    assert desk.run("usage", "--by", "kind").out.split()[-4] == "step"
    assert json.loads(desk.run("usage", "--owner", "nobody", "--json").out) == []
    assert desk.run("usage", "--by", "shoes").code == 2
    for option, day in (
        ("--day", "today"),
        ("--day", "2026-02-30"),
        ("--since", "2026-99-99"),
        ("--since", "20261117"),
    ):
        refused = desk.run("usage", option, day)
        assert (refused.code, refused.err) == (2, f"holdfast: {day!r} is no day: write it as 2026-11-17\n")
    assert desk.run("budgets", "remove", "ann").code == 0
    assert "there is no" in desk.run("budgets", "remove", "ann").err
