"""Whether a coding program is there and new enough, in words that say what to install. Asked once, and bounded."""

import re
import shutil
import socket
from pathlib import Path

from holdfast.errors import ToolFailed
from holdfast.system import processes
from holdfast.system.processes import Children
from holdfast.tools.coding_agents.programs import CodingProgram
from holdfast.tools.shell.tool import end_words

VERSION_S = 30.0
VERSION_BYTES_MAX = 4_096
SHOWN_CHARS_MAX = 500
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class InstalledProgram:
    """Looked for before each call. Its version is asked once for each file that it was found as."""

    def __init__(self, program: CodingProgram, root: str) -> None:
        self._program = program
        self._root = root
        self._checked: tuple[str, int] | None = None  # one whose version will do, and when it was written

    async def check(self, environment: dict[str, str], children: Children | None) -> None:
        """Raises ToolFailed."""
        found = self._find(environment["PATH"])
        program = self._program
        if not program.version or not program.oldest or self._checked == found:
            return
        asked = await processes.run(
            [found[0], *program.version],
            children=children,
            deadline_s=VERSION_S,
            bytes_max=VERSION_BYTES_MAX,
            cwd=self._root,
            env=environment,
        )
        told = _VERSION.search(asked.output)
        if asked.timed_out or asked.returncode != 0 or told is None:
            how = f"no answer in {VERSION_S:g} s" if asked.timed_out else end_words(asked.returncode)
            words = asked.output.strip()[:SHOWN_CHARS_MAX]
            raise ToolFailed(f"{program.name} does not tell its version ({how}): {words}{self._advice}")
        if tuple(int(part) for part in told[0].split(".")) < program.oldest:
            oldest = ".".join(map(str, program.oldest))
            raise ToolFailed(f"{program.name} is {told[0]}, and {oldest} or newer is needed.{self._advice}")
        self._checked = found

    @property
    def _advice(self) -> str:
        return f" Install it: {self._program.install}." if self._program.install else ""

    def _find(self, search_path: str) -> tuple[str, int]:
        command = self._program.command[0]
        path = shutil.which(command, path=search_path)
        if path is None:
            where = f"no `{command}` on the PATH of {socket.gethostname()}"
            raise ToolFailed(f"{self._program.name} is not there: {where}.{self._advice}")
        try:
            return path, Path(path).stat().st_mtime_ns
        except OSError as error:
            raise ToolFailed(f"{self._program.name} cannot be looked at: {error}.{self._advice}") from error
