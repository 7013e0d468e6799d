"""What "always" offers: exactly the rules that allow what the mode asked about, and nothing where there are none."""

from pathlib import Path

import pytest

from holdfast.core.records import KeptRule
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.shell.acts import acts_of


def offered(root: Path, acts: str | list[Act], *rules: str, mode: str | None = "ask", tool: str = "t") -> Decision:
    book = Rulebook(rules, mode)  # type: ignore[arg-type]
    return book.judge(acts_of(acts) if isinstance(acts, str) else acts, Whereabouts(root=str(root)), tool)


@pytest.mark.parametrize(
    ("acts", "rules"),
    [
        ("git push origin main", ["run(git push origin main)"]),
        ("echo 'a  b' \"it's\"", None),  # harmless, but no rule allows a run under `ask`
        ("make test && git push", ["run(make test)", "run(git push)"]),
        ("make test; make test", ["run(make test)"]),
        ([CallTool(tool="pay")], ["call(pay)"]),
        ([CallTool(server="github", tool="close_issue")], ["call(github/close_issue)"]),
        ([Reach(address="Example.com:443")], ["reach(example.com:443)"]),
        ([Reach(address="[::1]:8080")], ["reach([::1]:8080)"]),
        ([Write(path="notes")], ["write({root}/notes)"]),
        ([Write(path="link")], ["write({root}/real)"]),
        ([Write(path="../{name}/notes")], ["write({root}/notes)"]),
        ([Read(path="/etc/hosts")], ["read(/etc/hosts)"]),
        ([Read(path="notes"), Write(path="notes")], ["write({root}/notes)"]),  # the mode lets it read
    ],
)
def test_the_rules_for_each_act_that_the_mode_asks_about_are_offered_in_full(
    tmp_path: Path, acts: str | list[Act], rules: list[str] | None
) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    if not isinstance(acts, str):
        acts = [Write(path=act.path.format(name=tmp_path.name)) if isinstance(act, Write) else act for act in acts]
    decision = offered(tmp_path, acts)
    assert decision.ruling == "ask"
    if rules is not None:
        assert list(decision.offer) == [f"allow {rule.format(root=tmp_path)}" for rule in rules]
    assert offered(tmp_path, acts, *decision.offer).ruling == "allow", "and with them it is allowed"


@pytest.mark.parametrize(
    "acts",
    [
        "make $(id)",  # run(?)
        "bash",  # to allow it is to allow every program
        "sudo -i",
        "ls -l *",  # a star would mean more than these files
        "cp a 'x*y'",
        "git commit -m 'two\nlines'",
        "touch a\u202eb",
        "make " + "x" * 500,
        "; ".join(f"make {n}" for n in range(11)),
        "cat /etc/hosts*",
        "cd src && touch a",
        "command cd src && make test",  # the rule for what follows would not say in which folder
        ". ./settings; make test",
        "hash -p ./x make; make test",  # nor what `make` is by then
        "alias make=rm; make test",
        "echo 'import os' | python3",  # a rule for python3 would not say what is fed to it
        "python3 < script",
        "make test | xargs rm",
        "rm file?",  # its words are those of `rm 'file?'`, and mean that one file
        "./?",
        "dd of=~/x",
        [Read(path="/etc", extent="below")],  # a rule for the folder would not say how deep
        [Read(path="/etc"), Read(path="/etc", extent="below")],
        [Write(path="a?")],
        [Write(path="a*")],
        [Write(path="a\nb")],
        [Write(path="a ")],
        [Reach(address="example.com")],  # on which port?
        [Reach(address="no host at all")],
        [CallTool(tool="p*")],
        [CallTool(tool="pay"), Run(argv=(), line="$(x)")],  # all of it, or nothing
        [CallTool(tool="pay"), Write(path=".git/config")],  # the floor
    ],
)
def test_where_no_rule_means_this_alone_nothing_is_offered(tmp_path: Path, acts: str | list[Act]) -> None:
    decision = offered(tmp_path, acts)
    assert decision.ruling != "allow"
    assert decision.offer == ()


@pytest.mark.parametrize("before", ["cd src", "cd ./src"])
def test_a_folder_that_a_rule_lets_a_line_change_to_is_in_no_offer(tmp_path: Path, before: str) -> None:
    (tmp_path / "src").mkdir()
    decision = offered(tmp_path, f"{before} && make test", "allow run(cd *)")
    assert (decision.ruling, decision.offer) == ("ask", ())
    assert offered(tmp_path, f"make test && {before}", "allow run(cd *)").offer == ("allow run(make test)",)


def test_what_only_passes_on_what_it_is_fed_is_offered(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("x")
    assert offered(tmp_path, "make test | tail -5").offer == ("allow run(make test)", "allow run(tail -5)")
    assert offered(tmp_path, "sort < names").offer == ("allow run(sort)",)


def test_a_path_in_a_container_is_not_offered_as_if_it_were_one_of_this_machine(tmp_path: Path) -> None:
    acts, rule = [Write(path="/etc/motd")], "allow write(/etc/motd)"
    inside = Rulebook(mode="ask").judge(acts, Whereabouts(root=None, sandboxed=True))
    assert (inside.ruling, inside.offer) == ("ask", ())
    assert offered(tmp_path, list(acts)).offer == (rule,)


@pytest.mark.parametrize(
    ("rules", "mode"),
    [
        (["ask call(pay)"], "ask"),
        (["deny call(pay)"], "ask"),
        (["ask call(t)"], "ask"),  # the tool, by the name that the model calls
        (["allow call(pay)"], "ask"),
        ([], "read"),
        ([], None),
    ],
)
def test_nothing_is_offered_over_a_written_rule_or_where_no_mode_asks(
    tmp_path: Path, rules: list[str], mode: str | None
) -> None:
    assert offered(tmp_path, [CallTool(tool="pay")], *rules, mode=mode).offer == ()


def test_without_permissions_a_shell_asks_and_offers(tmp_path: Path) -> None:
    assert offered(tmp_path, "make test", mode=None).offer == ("allow run(make test)",)


def test_a_written_rule_among_the_acts_takes_the_offer_away(tmp_path: Path) -> None:
    acts: list[Act] = [CallTool(tool="pay"), CallTool(tool="tell")]
    assert offered(tmp_path, acts).offer == ("allow call(pay)", "allow call(tell)")
    assert offered(tmp_path, acts, "ask call(tell)").offer == ()


def test_rules_that_were_kept_allow_what_they_are_all_offers_of(tmp_path: Path) -> None:
    def kept(*rules: str) -> list[KeptRule]:
        return [KeptRule(rule=rule, owner="", made_by="ada", made_at=0, call_id="c") for rule in rules]

    both = ("allow run(make test)", "allow run(git push)")
    for mode, without in (("ask", "ask"), ("edit", "ask"), ("unattended", "deny")):
        decision = offered(tmp_path, "make test && git push", mode=mode)
        assert (decision.ruling, decision.offer) == (without, both)
        assert decision.kept(kept()).ruling == decision.kept(kept(both[0])).ruling == without
        allowed = decision.kept(kept(*both, "allow run(other)"))
        note = "allow by always allow run(make test) (by ada), allow run(git push) (by ada)"
        assert (allowed.ruling, allowed.note) == ("allow", note)
    for rules, mode in ((["deny run(git push)"], "ask"), (["ask run(git push)"], "ask"), ([], "read")):
        decision = offered(tmp_path, "make test && git push", *rules, mode=mode)
        assert decision.kept(kept(*both)) is decision, "they are nothing to a rule, or to a mode that denies"
