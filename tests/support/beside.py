"""The check and the tests at once: `python -m tests.support.beside CHECK … -- TOOLS … -- TESTS …`, for `make test`.

The checker of types is one process that works for minutes where it has no cache, as in a fresh clone; the other core
installs what the tests need meanwhile, and runs them. What these stages print is printed as it comes. What the check
prints is shown if it fails; what runs beside it is then stopped as by Ctrl-C. The exit code is 0 if all ended well.
"""

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence


def run(check: Sequence[str], *stages: Sequence[str]) -> int:
    """Each stage begins if the one before ended well, and the check has not failed by then."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        checking = subprocess.Popen(check, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        beside = _Beside()
        watching = threading.Thread(target=beside.stop_if_it_fails, args=(checking,))
        watching.start()
        code = beside.run(stages)
        watching.join()
        if checking.returncode != 0:
            said.seek(0)
            sys.stdout.write(f"\n{said.read()}\nmake check failed: what it said is above\n")
            return checking.returncode
        return code


class _Beside:
    """What runs beside the check, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, stages: Sequence[Sequence[str]]) -> int:
        code = 0
        for stage in stages:
            with self._lock:
                if code != 0 or self._stopped:
                    return code
                self._process = subprocess.Popen(stage)
            code = wait(self._process)
        return code

    def stop_if_it_fails(self, checking: subprocess.Popen[bytes]) -> None:
        if checking.wait() == 0:
            return
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Whoever presses Ctrl-C presses it for all of us; who is asked to end says so itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def commands(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The check, the tools and the tests: what stands between the first two `--` and around them."""
    first = words.index("--")
    second = words.index("--", first + 1)
    return list(words[:first]), list(words[first + 1 : second]), list(words[second + 1 :])


if __name__ == "__main__":
    sys.exit(run(*commands(sys.argv[1:])))
