"""Rules that deny a program or a host, and the ways to write a line that does it all the same."""

import pytest

from holdfast.config import PermissionMode, Permissions
from holdfast.tools.permissions.acts import Reach, Whereabouts
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.shell.acts import acts_of

BOXED = Whereabouts(sandboxed=True, looks=False)


def judged(line: str, *rules: str, mode: PermissionMode = "edit", where: Whereabouts = BOXED) -> Decision:
    return rulebook_of(Permissions(mode=mode, rules=rules), None, None).judge(acts_of(line), where)


@pytest.mark.parametrize(
    "line",
    [
        "env rm x",
        "env -i A=b rm x",
        "env -S'rm x'",
        "env --split-string='rm x'",
        "xargs -I {} rm x",
        "nice -n 5 rm x",
        "timeout 5 rm x",
        "find . -exec rm '{}' +",
        "find . -ok rm '{}' +",
        "sh -c 'rm x'",
        "sh -c 'git -c alias.x=!rm x'",
        "script -c'rm x' log",
        "git -c alias.x='!rm y' x",
        "git -c 'alias.x=!cd sub; rm y' x",
        "git -c core.pager='rm x' log",
        "git -c core.sshCommand=rm fetch",
        "git -C sub -c alias.x='!rm y' x",
        "git clone --config=core.sshCommand=rm x",
        "git clone --upload-pack='rm x' y",
        "git rebase -x 'rm x' main",
        "git rebase --exec='rm x' main",
        "git bisect run rm x",
        "git submodule foreach 'rm x'",
        "git filter-branch --tree-filter 'rm x'",
        "git difftool --extcmd='rm x'",
        "git grep -O'rm x' word",
        "busybox rm x",
        "fakeroot rm x",
        "systemd-run rm x",
        "gosu nobody rm x",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
        "coproc rm x",
        "npx rm x",
        "fd -x rm",
        "valgrind /bin/RM x",
    ],
)
def test_a_program_that_is_denied_is_denied_behind_one_that_starts_it(line: str) -> None:
    assert judged(line, "deny run(rm *)").by == "rule deny run(rm *)"
    assert judged(line, "ask run(rm *)").by == "rule ask run(rm *)"


@pytest.mark.parametrize(
    "line",
    [
        "python3 -c 'import os; os.system(\"rm x\")'",
        "python3 -c \"subprocess.run(['rm', 'x'])\"",
        "awk 'BEGIN { system(\"rm x\") }'",
        "tar --to-command='rm x' -xf a.tar",
        "rsync -e 'rm x' a b",
        "vim -c '!rm x'",
        "sed '1e rm x' notes",
        "sort --compress-program=rm notes",
        "rg --pre rm x",
        "make SHELL=/bin/rm",
        "uv run rm x",
        "echo 'rm x' | sh",
        "sh < script",
        "echo rm | xargs",
        "/bin/r? x",  # who knows which program
    ],
)
def test_in_the_sandbox_a_program_that_may_start_what_a_rule_denies_asks(line: str) -> None:
    decision = judged(line, "deny run(rm *)")
    assert (decision.ruling, decision.why) == ("ask", "it might do what the rule `deny run(rm *)` is about")


def test_in_the_sandbox_what_has_nothing_to_do_with_a_rule_does_not_ask() -> None:
    for line in ("make test", "python3 -c 'print(1)'", "git commit -m form", "make test | tee log", "git -c a.b=c x"):
        assert judged(line, "deny run(rm *)", "ask run(git push *)").ruling == "allow", line


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("curl wiki.corp", "wiki.corp:80"),
        ("curl -sSL -o out.html wiki.corp:8080/a", "wiki.corp:8080"),
        ("curl --url=https://wiki.corp/a", "wiki.corp:443"),
        ("curl -xhttp://wiki.corp:3128 http://wiki.corp", "wiki.corp:3128 wiki.corp:80"),
        ("/usr/bin/curl WIKI.corp", "WIKI.corp:80"),
        ("wget -O page wiki.corp/x", "wiki.corp:80"),
        ("ssh wiki.corp", "wiki.corp:22"),
        ("ssh -i key ada@wiki.corp uptime now", "wiki.corp:22"),
        ("ssh -p 2222 wiki.corp", "wiki.corp"),
        ("scp notes ada@wiki.corp:/tmp", "wiki.corp:22"),
        ("rsync -a . wiki.corp:notes", "wiki.corp:22"),
        ("git clone https://wiki.corp/x", "wiki.corp:443"),
        ("git clone git@wiki.corp:ada/x", "wiki.corp:22"),
        ("git clone wiki.corp:x", "wiki.corp:22"),
        ("git push git@wiki.corp:x main", "wiki.corp:22"),
        ("git remote add wiki git@wiki.corp:x", "wiki.corp:22"),
        ("nc wiki.corp 25", "wiki.corp:25"),
        ("ping -c 1 wiki.corp", "wiki.corp"),
        ("http GET wiki.corp a=b", "wiki.corp:80"),
    ],
)
def test_a_program_that_reaches_a_host_says_so(line: str, reached: str) -> None:
    assert " ".join(act.address for act in acts_of(line) if isinstance(act, Reach)) == reached
    assert judged(line, "deny reach(*.corp)").by == "rule deny reach(*.corp)"


@pytest.mark.parametrize(
    "line",
    [
        "env curl wiki.corp",
        "sh -c 'curl wiki.corp'",
        "curl $X wiki.corp",
        "curl https://wiki.corp/$X",
        "curl '{other,wiki}.corp'",
        "curl --connect-to ::wiki.corp:80 http://example.org",
        "ssh -J wiki.corp example.org",
        "socat - TCP:wiki.corp:80",
        "openssl s_client -connect wiki.corp:443",
        "python3 -c 'urlopen(\"https://wiki.corp/x\")'",
    ],
)
def test_a_host_that_is_denied_is_denied_wherever_it_is_named(line: str) -> None:
    assert judged(line, "deny reach(*.corp)").by == "rule deny reach(*.corp)"


def test_what_names_no_host_is_judged_by_no_rule_on_hosts() -> None:
    for line in ("make test", "git commit -m x", "git show HEAD:x", "python3 setup.py", "git push-cart main:dev"):
        assert not any(isinstance(act, Reach) for act in acts_of(line)), line
        assert judged(line, "deny reach(*)").ruling == "allow", line
    assert judged("git push origin main", "deny reach(*)").ruling == "deny", "by a remote that has some host"
    assert not any(isinstance(act, Reach) for act in acts_of("git push origin main:dev"))


def test_a_program_and_the_host_that_it_reaches_are_allowed_together() -> None:
    run = "allow run(ssh example.org uptime)"
    assert judged("ssh example.org uptime", run, mode="ask").ruling == "ask"
    assert judged("ssh example.org uptime", run, "allow reach(example.org:22)", mode="ask").ruling == "allow"
    page = ("allow run(curl -o out.html https://example.org)", "allow reach(example.org)")
    assert judged("curl -o out.html https://example.org", *page, mode="ask").ruling == "allow"


def test_long_lines_and_many_rules_are_judged() -> None:
    """Each of these would take minutes, if it were looked through once more for each rule and word."""
    rules = [f"deny run(p{n} x *)" for n in range(400)] + [f"deny reach(*a*a*a*a*a*a*a*{n})" for n in range(400)]
    for line in (
        f"env {'a ' * 4000}",
        f"perl '{'-a ' * 2600}'",
        f"perl '{'a://' * 2000}'",
        f"curl {'a.b:1 ' * 1300}",
    ):
        assert judged(line, *rules, mode="ask").ruling != "allow"
