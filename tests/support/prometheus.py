"""Prometheus' own tool for tests. `python -m tests.support.prometheus` sees to it that there is one.

`promtool` comes from wherever this machine has it: HOLDFAST_TEST_PROMTOOL, or the system's. If there is none, root
gets the distribution's package. Tests with it are skipped where that fails.
"""

import os
import shutil
import subprocess
import sys

NONE = "no promtool here, and none could be installed; HOLDFAST_TEST_PROMTOOL=PATH names one"
INSTALL_S = 300.0  # for each step
CHECK_S = 60.0


def find() -> str | None:
    """The program, if there is one."""
    return os.environ.get("HOLDFAST_TEST_PROMTOOL") or shutil.which("promtool")


def promtool(program: str, *arguments: str, given: str = "") -> tuple[int, str]:
    """Its exit code, and all that it said."""
    done = subprocess.run(
        [program, *arguments], input=given, timeout=CHECK_S, check=False, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install() -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        say(NONE)
        return
    say("Installing promtool for the tests of the alert rules")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    for step in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", "prometheus"]):
        try:
            done = subprocess.run(
                ["apt-get", *step], env=environ, timeout=INSTALL_S, check=False, capture_output=True, text=True
            )
            said = done.stderr[-2000:]
        except subprocess.TimeoutExpired as error:
            said = str(error)
    if find() is None:
        say(f"{NONE}\n{said}")


if __name__ == "__main__" and find() is None:
    install()
