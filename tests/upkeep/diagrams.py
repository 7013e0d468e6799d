"""The generated blocks of ARCHITECTURE.md. `make diagrams` draws them anew from the tables of `core/states.py`."""

import re
from pathlib import Path

from holdfast.core.diagrams import blocks

PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"

_BLOCK = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def names_in(page: str) -> list[str]:
    return [block["name"] for block in _BLOCK.finditer(page)]


def drawn(page: str) -> str:
    """The page with every generated block as the tables have it. A block that nothing draws is a KeyError."""
    texts = blocks()
    return _BLOCK.sub(
        lambda block: f"<!-- generated: {block['name']} -->\n{texts[block['name']]}\n<!-- end -->", page
    )


def main(page: Path = PAGE) -> None:
    page.write_text(drawn(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
