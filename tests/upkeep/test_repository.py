"""The tracked files speak of the project alone: no machine's paths, no registry's address."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Put together at run time, so that this file does not hold what it looks for.
REGISTRIES = ["pypi" + ".org", "python" + "hosted", "files.python" + "hosted.org", "npm" + "js.org"]
FOLDERS = ["work", "root", "home", "Users"]

# Only at the start of a path: `tests/work/` and `https://example.org/home/` are nobody's machine.
LEAK = re.compile(rf"{'|'.join(map(re.escape, REGISTRIES))}|(?<![\w.~)}}-])/(?:{'|'.join(FOLDERS)})/")


def leaks(text: str) -> list[tuple[int, str]]:
    return [
        (number, found.group())
        for number, line in enumerate(text.splitlines(), start=1)
        for found in LEAK.finditer(line)
    ]


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
    except FileNotFoundError:
        pytest.skip("git is not installed, so there is no list of tracked files")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"not a git checkout, so there is no list of tracked files: {error.stderr.strip()}")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    if not files:
        pytest.skip("this git checkout tracks no files yet")
    return [file for file in files if file.is_file()]


def test_no_tracked_file_names_a_registry_or_a_path_of_a_developers_machine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in tracked_files()
        for line, what in leaks(file.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_there_is_no_lock_file_that_records_registries() -> None:
    assert not (ROOT / "uv.lock").exists()


@pytest.mark.parametrize(
    "text",
    [
        *(f"--index-url https://{host}/simple" for host in REGISTRIES),
        *(f"see /{folder}/me/notes" for folder in FOLDERS),
        *(f"/{folder}/me" for folder in FOLDERS),
        f'open("/{FOLDERS[0]}/x")',
        f"file:///{FOLDERS[1]}/x",
    ],
)
def test_a_registry_or_a_machines_path_is_found(text: str) -> None:
    assert leaks(f"first line\n{text}\n")[0][0] == 2


@pytest.mark.parametrize(
    "text",
    [
        "tests/work/test_x.py",
        "https://example.org/home/page",
        f"~/{FOLDERS[0]}/",
        '"{base}/home/"',
        "the root/home/work of it",
        "/tmp/x",
        "GET /users/7",
        "a /working/ day",
    ],
)
def test_other_paths_and_addresses_are_no_finding(text: str) -> None:
    assert leaks(text) == []
