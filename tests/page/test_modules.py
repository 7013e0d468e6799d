"""The modules of the page by the compiler's rules, and by ours: where markup may enter it, and what it may load."""

import re
import shutil
from pathlib import Path

from holdfast.server import client_files, page_files
from tests.javascript.types import MODULES, STRICT
from tests.support.client_tools import NODE, TYPESCRIPT, needs_packages, run

SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Func|ContextualFragment"
)
LOADED = re.compile(r"""(?:from|import\()\s*"([^"]+)\"""")
LINES_MAX = 400


@needs_packages
def test_types_hold(tmp_path: Path) -> None:
    shutil.copytree(client_files.FOLDER, tmp_path / "client")
    shutil.copytree(page_files.FOLDER, tmp_path / "page")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    run(NODE, TYPESCRIPT, "--noEmit", *STRICT, *MODULES, "page/app.js", cwd=tmp_path)


def test_markup_enters_the_page_at_one_place() -> None:
    found = {file.name for file in page_files.FOLDER.glob("*.js") if SINKS.search(file.read_text(encoding="utf-8"))}
    assert found == {"html.js"}


def test_a_class_of_the_page_has_its_looks_from_one_file() -> None:
    """All styles are loaded together: a second file that uses the name changes what the first one drew."""
    homes: dict[str, set[str]] = {}
    for file in page_files.FOLDER.glob("*.css"):
        for selectors in re.findall(r"([^{}]+)\{", file.read_text(encoding="utf-8")):
            for name in re.findall(r"(?:^|,)\s*(\.[\w-]+)\s*(?=,|$)", selectors):
                homes.setdefault(name, set()).add(file.name)
    assert len(homes) > 50
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_modules_are_small_and_load_nothing_from_elsewhere() -> None:
    for file in page_files.FOLDER.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LINES_MAX, file.name
        assert all(re.fullmatch(r"\./[a-z_]+\.js|\.\./client/holdfast\.js", name) for name in LOADED.findall(text)), (
            file.name
        )
    for name in ("index.html", *(file.name for file in page_files.FOLDER.glob("*.css"))):
        text = (page_files.FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|//[a-z]|url\(|@import|style=", text.replace("<!--", "")), name
