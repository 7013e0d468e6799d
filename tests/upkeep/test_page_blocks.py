"""Every block of every page has a test that runs it, every link leads somewhere, and the index lists every page.

That the blocks do what they say is seen by `tests/pages`.
"""

import re
from pathlib import Path

import pytest

from tests.pages.blocks import DOCS, ROOT, Block, blocks_in, blocks_of, dead_links, faults_of, pages


@pytest.mark.parametrize("page", pages())
def test_every_block_of_a_page_is_run_or_says_why_not(page: str) -> None:
    blocks = blocks_of(page)
    assert [fault for block in blocks for fault in faults_of(block)] == []
    fences = (ROOT / page).read_text(encoding="utf-8").count("```")
    assert fences == 2 * len(blocks), "a fence that is indented, or not closed"


@pytest.mark.parametrize("page", [*pages(), "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    assert dead_links(ROOT / page) == []


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)\)", index)}
    missing = {*DOCS.rglob("*.md")} - {DOCS / "README.md"} - listed
    assert missing == set(), "docs/README.md lists every page by what people want to do: add a line there"


def test_a_link_to_a_page_or_a_heading_that_there_is_not_is_found(tmp_path: Path) -> None:
    page = tmp_path / "kelp.md"
    page.write_text("# Kelp\n\n[a](#kelp) [b](#root) [c](frond.md) [d](kelp.md#kelp) `[e](f)`\n", encoding="utf-8")
    assert dead_links(page) == ["#root", "frond.md"]


def read(*lines: str) -> list[Block]:
    return blocks_in("docs/kelp.md", "\n".join(lines) + "\n")


def test_a_block_that_no_test_runs_is_a_fault() -> None:
    (nameless,) = read("```", "holdfast run", "```")
    assert "needs a marker" in faults_of(nameless)[0]
    (hidden,) = read("<!-- shown: it takes too long -->", "```sh", "holdfast demo", "```")
    assert "a sh block is run" in faults_of(hidden)[0]
    (elsewhere,) = read("<!-- elsewhere: tests/upkeep/test_readme.py -->", "```sh", "holdfast demo", "```")
    assert "no test that names this page" in faults_of(elsewhere)[0]
    (reasoned,) = read("<!-- shown: needs the network -->", "```text", "pip install holdfast", "```")
    assert faults_of(reasoned) == []
