"""The documentation is true: every block of every page is run, or compared with what is printed.

What a marker before a block means is in `tests/pages/blocks.py`. A page that names a provider speaks with one at the
wire; PostgreSQL is a real one.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pages.blocks import Block, blocks_in, blocks_of, pages
from tests.pages.stage import DATABASE, fits, stage
from tests.support.provider import Answer, Choice, in_order, providing
from tests.support.speakers import Anthropic, Call, Responses

CARRIED_OUT = ("run", "file", "serves", "stays", "ends", "output")
WITH_BLOCKS = [page for page in pages() if any(block.fate in CARRIED_OUT for block in blocks_of(page))]


def spawns(results: Sequence[str]) -> Answer:
    """Gives its task to another agent, and waits for it."""
    match results:
        case []:
            return Answer(calls=(Call("spawn_agent", ('{"agent": "researcher", "task": "Is kelp a plant?"}',)),))
        case [spawned]:
            (child,) = re.findall(r"chat_\w+", spawned)
            return Answer(calls=(Call("wait_agent", (f'{{"agent_id": "{child}"}}',)),))
    return Answer(text=("No: kelp is ", "an alga."))


# What a page's provider answers, by the tool results in the request. Where none is named: a word.
ANSWERS: dict[str, dict[str, Choice]] = {
    "docs/how-to/agents.md": {
        "anthropic": in_order(
            Answer(calls=(Call("weather", ('{"city": "Bern"}',)),)),
            Answer(calls=(Call("order", ('{"item": "umbrella"}',)),)),
            Answer(text=("I ordered ", "an umbrella.")),
        )
    },
    "docs/how-to/sub-agents.md": {"anthropic": spawns},
    "docs/how-to/turns.md": {"anthropic": in_order(Answer(text=('{"weather": ', '"rain"}')))},
}
PLAIN = in_order(Answer(text=("Well ", "done.")))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    blocks = blocks_of(page)
    text = "".join(block.text for block in blocks)
    said = {}
    if DATABASE in text:
        said[DATABASE] = request.getfixturevalue("postgres_url")
    with ExitStack() as leaving:
        environ: dict[str, str] = {}
        for name, speaker, version in (("anthropic", Anthropic(), ""), ("openai", Responses(), "/v1")):
            if f"{name}:" in text:
                choose = ANSWERS.get(page, {}).get(name, PLAIN)
                url = leaving.enter_context(providing(speaker, choose)).url + version
                environ |= {f"{name.upper()}_BASE_URL": url, f"{name.upper()}_API_KEY": "a key of the page"}
        place = leaving.enter_context(stage(tmp_path, environ, said))
        for block in blocks:
            place.carry_out(block)


# --- the mechanism itself ----------------------------------------------------------------------------


def read(*lines: str) -> list[Block]:
    return blocks_in("docs/kelp.md", "\n".join(lines) + "\n")


def test_a_program_that_fails_and_output_that_differs_are_found(tmp_path: Path) -> None:
    with stage(tmp_path, {}, {}) as place:
        said, other, broken = read(
            "```sh", "export KELP=green", "echo $KELP", "```",
            "<!-- output -->", "```text", "brown", "```",
            "```python", "raise ValueError('torn')", "```",
        )  # fmt: skip
        place.carry_out(said)
        assert place.environ["KELP"] == "green"
        with pytest.raises(AssertionError, match=r"docs/kelp\.md:6: what is printed is\ngreen"):
            place.carry_out(other)
        with pytest.raises(AssertionError, match="ValueError: torn"):
            place.carry_out(broken)
        (ends,) = read("```sh", "exit 3", "```")
        with pytest.raises(AssertionError, match="ended with 3"):
            place.carry_out(ends)


def test_python_blocks_share_names_and_may_await(tmp_path: Path) -> None:
    with stage(tmp_path, {}, {}) as place:
        for block in read(
            "<!-- file: frond.py -->", "```python", "LENGTH = 3", "```",
            "```python", "import asyncio", "from frond import LENGTH", "await asyncio.sleep(0)", "```",
            "```python", "print(LENGTH)", "```",
        ):  # fmt: skip
            place.carry_out(block)
        assert place.printed == "3\n"


def test_dots_stand_for_anything() -> None:
    assert fits("a … c\n…\nz", "a long c\nmore\nand more\nz\n")
    assert not fits("a … c", "a long d")
