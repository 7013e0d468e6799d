"""docs/comparison.md is true: its figures are counted from its programs, and ours does what it says there."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.provider import Answer, providing
from tests.support.speakers import Call, Responses
from tests.upkeep.comparison import PAGE, lines_of, names_of, programs

TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = programs()
QUESTION = "Refund order 7 if it was late."
LOOKS = Answer(text=("Let me look. ",), calls=(Call("order", ('{"number": 7}',)),))
PAYS = Answer(text=("It was late. ",), calls=(Call("refund", ('{"number": 7, ', '"cents": 1900}')),))
# Where the program is killed, and how the page calls it.
PLACES = {
    "nowhere": "",
    "order": "it looks the order up",
    "ask": "a person is asked",
    "refund": "the refund was paid, and not yet recorded",
}


def answer_to(results: Sequence[str]) -> Answer:
    """What a careful model would do: it believes in a refund only if the tool says so."""
    if len(results) < 2:
        return (LOOKS, PAYS)[len(results)]
    refunded = results[1].startswith("Refunded")
    assert refunded or "unknown" in results[1]
    words = "It is refunded." if refunded else "Please check whether it was refunded."
    return Answer(text=(json.dumps({"answer": words, "refunded": refunded}),))


def rows(name: str) -> list[list[str]]:
    """The rows of the page's tables that begin with this cell, without it."""
    found = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", TEXT, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in found]


def test_the_page_counts_lines_and_names_as_they_are() -> None:
    order, again = rows("")
    assert order == again
    assert sorted([*order, "shop"]) == sorted(PROGRAMS)
    assert rows("lines, without imports") == [[str(lines_of(PROGRAMS[name])) for name in order]]
    assert rows("names to learn") == [[str(len(names_of(PROGRAMS[name]))) for name in order]]


def test_a_name_that_a_program_makes_itself_is_none_to_learn() -> None:
    program = (
        'import sys\nfrom kelp import Frond\ndef leaf(): ...\nFrond(stem=leaf, on={"wave": "rest"}).sway(sys.argv)\n'
    )
    assert names_of(program) == {"Frond", "stem", "wave", "rest", "sway", "on"}
    assert lines_of(program) == 2


@pytest.mark.parametrize("dies_in", PLACES)
def test_our_program_survives_a_kill_as_the_page_says(tmp_path: Path, dies_in: str) -> None:
    (tmp_path / "shop.py").write_text(PROGRAMS["shop"], encoding="utf-8")
    (tmp_path / "support.py").write_text(PROGRAMS["holdfast"], encoding="utf-8")
    with providing(Responses(), answer_to) as provider:
        if dies_in != "nowhere":
            assert run(tmp_path, provider.url, dies_in).returncode == -signal.SIGKILL
        done = run(tmp_path, provider.url)
        assert done.returncode == 0, done.stderr
        asked, paid = len(provider.asked), len((tmp_path / "ledger.txt").read_text(encoding="utf-8").splitlines())
    assert (asked, paid) == (3, 1)
    if dies_in != "nowhere":
        ((said, *_),) = rows(PLACES[dies_in])
        assert f"asked {asked}, paid {paid}" in said.replace("*", "")
    assert done.stdout.splitlines()[-1].endswith(f"refunded={dies_in != 'refund'}"), done.stdout
    assert "Let me look. It was late. " in done.stdout, "a reader who comes back sees the turn from its beginning"


def run(folder: Path, url: str, dies_in: str = "") -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "OPENAI_"))}
    environ = {**kept, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1", "DIE_IN": dies_in}
    return subprocess.run(
        [sys.executable, "support.py", QUESTION, "order-7"],
        cwd=folder, env=environ, input="y\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
