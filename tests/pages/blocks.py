"""The fenced blocks of the documentation, and what a test does with each.

A comment in the line before a block says it; no reader of the page sees it:

    (none)                  a `python` block is run, with the names of those before it; a `sh` block is run by a shell
    <!-- file: NAME -->     it is written to a file of this name, beside the other files of the page
    <!-- serves: URL -->    a command that stays: it is started, and waited for until it answers there
    <!-- stays -->          the same for one that answers nowhere, such as a worker
    <!-- ends: CODE -->     a `sh` block whose last command ends with this exit code
    <!-- output -->         what the block before it printed; `…` stands for anything
    <!-- elsewhere: TEST --> run by a test of its own, which names the page
    <!-- shown: WHY -->     neither run nor compared, and why; never a `python` or `sh` block
"""

import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUN = ("python", "sh")
Fate = Literal["run", "file", "serves", "stays", "ends", "output", "elsewhere", "shown"]
_FATES = ("file", "serves", "stays", "ends", "output", "elsewhere", "shown")

# Pages of which every block is run by a test of their own, which says more than that they run.
OF_THEIR_OWN = {
    "README.md": "tests/upkeep/test_readme.py",
    "docs/comparison.md": "tests/upkeep/test_comparison.py",
    "docs/how-to/javascript.md": "tests/javascript/test_howto.py",
    "docs/how-to/observability.md": "tests/upkeep/test_observability_howto.py",
    "docs/how-to/openai-sdk.md": "tests/server/test_openai_howto.py",
    "docs/how-to/tenants.md": "tests/worker/test_tenants_howto.py",
}

_BLOCK = re.compile(r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```(?P<language>[\w-]*)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(Struct, frozen=True):
    page: str
    line: int
    language: str
    text: str
    fate: Fate
    note: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README and everything under docs, as paths from the root."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def blocks_of(page: str) -> list[Block]:
    return blocks_in(page, (ROOT / page).read_text(encoding="utf-8"))


def blocks_in(page: str, text: str) -> list[Block]:
    """In their order. One without a marker that is neither `python` nor `sh` is `shown`, for no reason."""
    found = []
    for match in _BLOCK.finditer(text):
        kind, _, note = (match["marker"] or "").partition(": ")
        line = text[: match.start()].count("\n") + (2 if match["marker"] else 1)
        if kind not in _FATES:
            kind, note = ("run" if match["language"] in RUN else "shown"), ""
        if page in OF_THEIR_OWN:
            kind, note = "elsewhere", OF_THEIR_OWN[page]
        found.append(Block(page, line, match["language"], match["text"], kind, note))  # type: ignore[arg-type]
    return found


def faults_of(block: Block) -> list[str]:
    """What keeps a block from being known to be true."""
    match block.fate:
        case "shown" if block.language in RUN:
            return [f"{block.place}: a {block.language} block is run; what no test can run is a text"]
        case "shown" if len(block.note.split()) < 3:
            return [
                f"{block.place}: a {block.language or 'nameless'} block needs a marker that says "
                "what a test does with it; tests/pages/blocks.py lists them"
            ]
        case "elsewhere":
            test = ROOT / block.note
            if not test.is_file() or Path(block.page).name not in test.read_text(encoding="utf-8"):
                return [f"{block.place}: {block.note} is no test that names this page"]
        case "file" if not block.note:
            return [f"{block.place}: the file has no name"]
    return []


def dead_links(page: Path) -> list[str]:
    """Links to files that are not there, and to headings that no page has. Links to other sites are not looked at."""
    found = []
    plain = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", plain):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            found.append(link)
    return found


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
