"""`make test` checks and tests at once: neither hides what the other found."""

from pathlib import Path

import pytest

from tests.support import beside

WELL = ("sh", "-c", "echo checked")
BADLY = ("sh", "-c", "echo a type is wrong; exit 2")


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def test_a_check_that_fails_stops_the_tests_and_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tests = shell(f"trap 'echo stopped; exit 5' INT; touch {tmp_path}/begun; while :; do sleep 0.02; done")
    check = shell(f"until [ -e {tmp_path}/begun ]; do sleep 0.02; done; echo a type is wrong; exit 2")
    assert beside.run(check, tests) == 2
    told = capfd.readouterr().out
    assert told.index("stopped") < told.index("a type is wrong")


def test_a_check_that_fails_is_a_failure_though_the_tests_ended_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert beside.run(BADLY, shell("echo 3 passed")) == 2
    assert "a type is wrong" in capfd.readouterr().out


@pytest.mark.parametrize("code", [0, 1])
def test_with_a_check_that_is_good_the_tests_have_the_last_word(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert beside.run(WELL, shell(f"echo {code} failed; exit {code}")) == code
    assert capfd.readouterr().out == f"{code} failed\n"


def test_what_the_tests_need_is_installed_first_and_beside_the_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check = shell(f"until [ -e {tmp_path}/installed ]; do sleep 0.02; done")
    assert beside.run(check, shell(f"echo installed; touch {tmp_path}/installed"), shell("echo 3 passed")) == 0
    assert capfd.readouterr().out == "installed\n3 passed\n"


def test_without_what_they_need_no_test_begins(capfd: pytest.CaptureFixture[str]) -> None:
    assert beside.run(WELL, shell("echo no browser; exit 3"), shell("echo 3 passed")) == 3
    assert capfd.readouterr().out == "no browser\n"


def test_behind_a_check_that_failed_no_test_begins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    installing = shell(f"trap 'exit 0' INT; touch {tmp_path}/begun; while :; do sleep 0.02; done")
    check = shell(f"until [ -e {tmp_path}/begun ]; do sleep 0.02; done; exit 2")
    assert beside.run(check, installing, shell("echo 3 passed")) == 2
    assert "3 passed" not in capfd.readouterr().out


def test_the_words_of_the_tests_may_hold_dashes_of_their_own() -> None:
    assert beside.commands(["check", "--", "make", "tools", "--", "pytest", "--", "a.py"]) == (
        ["check"],
        ["make", "tools"],
        ["pytest", "--", "a.py"],
    )
