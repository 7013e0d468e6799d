"""`holdfast permissions`: which rules are in force, and what would become of a line."""

import json

from tests.cli.conftest import Desk

SETTINGS = """
[permissions]
rules = ["allow run(ls *)", "deny run(sudo *)", "deny write(**) for scripted"]
"""


def test_a_line_is_explained_act_by_act_and_not_run(desk: Desk) -> None:
    (desk.folder / "holdfast.toml").write_text(SETTINGS)
    done = desk.run("permissions", "explain", "ls && touch made; sudo ls")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "deny",
            "  allow  run(ls)  rule allow run(ls *)",
            "  allow  read(.)  mode ask",
            "  ask    run(touch made)  mode ask: no rule allows it",
            "  deny   run(sudo ls)  the rule `deny run(sudo *)` says deny",
        ],
    )
    assert not (desk.folder / "made").exists()


def test_the_rules_in_force_are_listed_for_an_agent(desk: Desk) -> None:
    (desk.folder / "holdfast.toml").write_text(SETTINGS)
    done = desk.run("permissions", "list", "--agent", "assistant", "--json")
    rules = [{"rule": rule, "from": "settings"} for rule in ("allow run(ls *)", "deny run(sudo *)")]
    assert json.loads(done.out) == {"mode": "ask", "rules": rules}
    (desk.folder / "holdfast.toml").unlink()
    assert desk.run("permissions", "list").out == "no permissions are set: a shell asks, other tools do not\n"
