"""`make run` on a fresh clone: who waits sees what it is busy with, and what goes wrong is told."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def wheel(folder: Path, name: str) -> str:
    """A package that holds nothing, and the line of a lock that names it."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    texts = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for path, text in texts.items()}
    record = "".join(f"{path},sha256={digest.decode().rstrip('=')},\n" for path, digest in digests.items())
    with zipfile.ZipFile(file, "w") as packed:
        for path, text in {**texts, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            packed.writestr(path, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile, with locks of two packages that lie beside it."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "wheels").mkdir()
    here = "--no-index\n--find-links ./wheels\n"
    lines = [wheel(tmp_path / "wheels", name) for name in ("kelp", "rock", "storm")]
    (tmp_path / "requirements.lock").write_text(here + lines[0] + lines[1])
    (tmp_path / "requirements-weights.lock").write_text(here + lines[2])
    return tmp_path


def make(clone: Path) -> "subprocess.CompletedProcess[str]":
    """Not as a part of the make that runs the tests: that one would say which folder it enters."""
    command = ["make", ".venv/.runnable", f"PYTHON={sys.executable}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=clone, env=environ, timeout=110, check=False, capture_output=True, text=True)


@pytest.mark.long
def test_each_package_is_a_line_as_it_is_installed(clone: Path) -> None:
    done = make(clone)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Installing the locked dependencies into .venv")
    assert [line.partition("-")[0] for line in lines if " of " in line] == [
        "  1 of 2  kelp",
        "  2 of 2  rock",
        "  1 of 1  storm",
    ]
    assert (clone / ".venv" / ".runnable").exists()


def test_a_package_that_cannot_be_had_ends_it_with_what_pip_said(clone: Path) -> None:
    (clone / "wheels" / "rock-1.0-py3-none-any.whl").unlink()
    done = make(clone)
    assert done.returncode != 0
    assert "rock" in done.stderr
    assert "The packages could not be installed; what pip said is above" in done.stderr
    assert not (clone / ".venv" / ".runnable").exists()
