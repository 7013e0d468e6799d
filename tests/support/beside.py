"""The check and the tests at once: `python -m tests.support.beside CHECK … -- TESTS …`, for `make test`.

The checker of types is one process that works for more than a minute where it has no cache, as in a fresh clone; the
tests use the other core meanwhile. What the tests print is printed as it comes. What the check prints is shown if it
fails; the tests are then stopped as by Ctrl-C. The exit code is 0 if both ended well.
"""

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence


def run(check: Sequence[str], tests: Sequence[str]) -> int:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        checking = subprocess.Popen(check, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        testing = subprocess.Popen(tests)
        watching = threading.Thread(target=stop_if_it_fails, args=(checking, testing))
        watching.start()
        code = wait(testing)
        watching.join()
        if checking.returncode != 0:
            said.seek(0)
            sys.stdout.write(f"\n{said.read()}\nmake check failed: what it said is above\n")
            return checking.returncode
        return code


def stop_if_it_fails(checking: subprocess.Popen[bytes], testing: subprocess.Popen[bytes]) -> None:
    if checking.wait() != 0 and testing.poll() is None:
        testing.send_signal(signal.SIGINT)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Whoever presses Ctrl-C presses it for all of us; who is asked to end says so itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    end = sys.argv.index("--")
    sys.exit(run(sys.argv[1:end], sys.argv[end + 1 :]))
