"""A wall clock that a test moves under running processes: a real server's, a real worker's.

libfaketime stands between a program and its C library; the program reads the wall clock as a file says, from one
call to the next. Boot time and monotonic time stay what they are, as when somebody sets the clock of a machine.
"""

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.scratch import scratch_folder

LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"


class WallClock:
    """`with WallClock() as clock:` a process started with `clock.environment` reads it; `clock.set_ahead_s` moves it.

    It may be read by anybody: a server does not run as the user who runs the tests.
    """

    def __init__(self) -> None:
        package = find_spec("libfaketime")
        assert package is not None, "libfaketime is not installed"
        assert package.origin is not None
        self._folder = Path(tempfile.mkdtemp(prefix="hfclock-", dir=scratch_folder()))
        self._folder.chmod(0o755)
        self._file = self._folder / "ahead"
        self._library = self._folder / "libfaketime.so.1"
        shutil.copyfile(Path(package.origin).parent / LIBRARY, self._library)
        self.set_ahead_s(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # a step is seen by the very next call
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",  # the times of files stay as they are
        }

    def set_ahead_s(self, seconds: float) -> None:
        """Ahead of the true time; less than nothing: behind it. Whole or not at all, for who reads meanwhile."""
        new = self._folder / "new"
        new.write_text(f"{seconds:+g}\n")
        new.chmod(0o644)
        new.replace(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
