"""`holdfast permissions`: which rules are in force, and what would become of a line."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.app import App
from holdfast.cli.commands import permissions
from holdfast.store import open_store
from tests.cli.conftest import Desk, Done
from tests.support.chats import close_all_hands, unique
from tests.support.kept import PAY, asking, keep

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
    assert json.loads(done.out) == {"mode": "ask", "rules": rules, "kept": []}
    (desk.folder / "holdfast.toml").unlink()
    assert desk.run("permissions", "list").out == "no permissions are set: a shell asks, other tools do not\n"


def test_an_always_is_kept_listed_and_revoked(quick: Callable[..., Done], tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/holdfast.db"

    async def ask(*rules: str) -> tuple[str, str]:
        async with open_store(database) as store:
            found = await asking(store, *rules)
            close_all_hands()
            return found

    chat, _ = asyncio.run(ask(PAY))
    place = (chat, "--database", database)
    assert f"(always: {PAY})" in quick("chats", "show", *place).out
    for wrong, words in (
        (("--always", "everyone"), "--always is 'everyone'; it can be chat, agent, owner"),
        (("--for", "8h"), "--for says how long --always is meant"),
        (("--always", "chat", "--for", "soon"), "--for soon is no age"),
    ):
        done = quick("chats", "approve", *place, *wrong)
        assert (done.code, words in done.err) == (2, True), done.err
    assert quick("chats", "approve", *place, "--always", "chat", "--for", "8h").code == 0
    (kept,) = json.loads(quick("permissions", "list", "--database", database, "--json").out)["kept"]
    assert (kept["rule"], kept["chat_id"], kept["owner"], kept["made_by"]) == (PAY, chat, "ada", "terminal")
    assert kept["expires_at"] == kept["made_at"] + 8 * 3_600_000
    listed = quick("permissions", "list", "--database", database).out.splitlines()[1]
    assert listed.split("\t")[:5] == [kept["id"], PAY, f"chat {chat}", "ada", "terminal"]
    revoke = ("permissions", "revoke", kept["id"], "--database", database)
    assert quick(*revoke).out == f"{kept['id']} is revoked: {PAY}\n"
    assert "no kept rule" in quick(*revoke).err
    assert len(quick("permissions", "list", "--database", database).out.splitlines()) == 1


async def test_kept_rules_of_an_agent_are_found_behind_those_of_others_and_a_cut_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with open_store(url) as store:
        for agent in ("first", "first", "other", "other", "other"):
            await keep(store, f"allow call({unique('tool')})", always="agent", agent=agent)
        close_all_hands()
    monkeypatch.setattr(permissions, "KEPT_SHOWN", 2)
    monkeypatch.setattr(permissions, "KEPT_PAGE", 2)
    assert [rule.agent for rule in await permissions._kept(App(url), "first")] == ["first"] * 2
    assert capsys.readouterr().err == ""
    assert [rule.agent for rule in await permissions._kept(App(url), None)] == ["other"] * 2
    assert capsys.readouterr().err == "holdfast: only the newest 2 kept rules are shown, there are more\n"
