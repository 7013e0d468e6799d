"""Programs of the distribution, for tests. `python -m tests.support.distribution` sees to it that they are there.

Each comes from wherever this machine has it. Those that are missing root gets as the distribution's packages. Tests
that need one are skipped where that fails.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = {"promtool": "prometheus", "ffmpeg": "ffmpeg", "pgbouncer": "pgbouncer"}
INSTALL_S = 300.0  # for each step
WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # some are kept where only root looks


def find(name: str) -> str | None:
    """The program, if there is one."""
    return shutil.which(name, path=WHERE)


def missing(name: str) -> str:
    """Why a test is skipped."""
    return f"no {name} here, and none could be installed: install the package {PACKAGES[name]}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install(names: list[str]) -> None:
    said = ""
    if os.getuid() == 0 and shutil.which("apt-get") is not None:
        say(f"Installing {', '.join(names)} for the tests that need them")
        environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        packages = [PACKAGES[name] for name in names]
        for step in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *packages]):
            try:
                done = subprocess.run(
                    ["apt-get", *step], env=environ, timeout=INSTALL_S, check=False, capture_output=True, text=True
                )
                said = done.stderr[-2000:]
            except subprocess.TimeoutExpired as error:
                said = str(error)
    for name in names:
        if find(name) is None:
            say(f"{missing(name)}\n{said}")


if __name__ == "__main__" and (wanted := [name for name in PACKAGES if find(name) is None]):
    install(wanted)
