"""The shell tool: one command line, run by the shell, ended with all that it started.

The command runs in a session of its own under the worker's guard (`system/processes.py`), with a minimal environment,
no terminal and nothing to read. Its output streams to clients while it runs; head and tail of it are the result, with
the exit code. A stop or the deadline ends the whole of it. Whether it may run at all is the rulebook's to say
(`tools/permissions/rulebook.py`).

`through` runs it inside of something else, such as `("docker", "exec", "-i", NAME)`. Then a kill reaches only the
client, so the command carries a mark of its own in there, and a second exec ends by it what the client left. That
needs `sh`, `env`, `tr`, `grep` and /proc inside. What lingers in there: whatever runs when the worker is killed (the
guard cannot reach it), when the container's server does not answer, when it cleared its environment or belongs to
another user; and what a command that ended by itself left in the background.
"""

import asyncio
import codecs
import errno
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from holdfast.core.records import OnUnknown, Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.ids import new_id
from holdfast.stops import ended_within
from holdfast.system import processes
from holdfast.system.sandbox import Sandbox
from holdfast.tools.base import OUTPUT_BYTES_MAX, Tool, ToolOutput, tool
from holdfast.tools.confinement import Confined, Confinement
from holdfast.tools.context import ToolContext, tool_context
from holdfast.tools.permissions.acts import Act, Reach, Whereabouts, Write
from holdfast.tools.permissions.paths import forbidden_in
from holdfast.tools.shell.acts import acts_of

SHELL_DEADLINE_S = 1800.0
OWN_END_S = 5.0  # the shell ends its command at its deadline, and tells what it said; a body that fails to is cut off
PROGRESS_BYTES_MAX = 262_144  # beyond that clients hear no more of it while it runs; see worker/progress.py
INSIDE_VARIABLE = "HOLDFAST_INSIDE"
INSIDE_S = 10.0

# $1 is the entry to look for. A round tells whether it found any. Its own processes do not carry the mark. One grep
# for all processes comes first: two programs for each of some hundreds would take longer than a caller waits.
_END_INSIDE = """
round() {
  found=1
  for file in $(grep -lF "$2" /proc/[0-9]*/environ 2>/dev/null); do
    if tr '\\0' '\\n' 2>/dev/null <"$file" | grep -qxF "$2"; then
      pid=${file#/proc/}
      kill -"$1" "${pid%/environ}" 2>/dev/null && found=0
    fi
  done 2>/dev/null
  return $found
}
round TERM "$1" || exit 0
tries=0
while round 0 "$1"; do
  tries=$((tries + 1))
  if [ $tries -gt 20 ]; then round KILL "$1"; fi
  if [ $tries -gt 60 ]; then exit 1; fi
  sleep 0.1 2>/dev/null || sleep 1
done
"""


def shell_tool(
    *,
    root: str | Path,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = SHELL_DEADLINE_S,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
    bash: bool = False,
    through: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    contained: bool = False,
    name: str = "shell",
    replay: Replay | str = Replay.UNSAFE,
    on_unknown: OnUnknown = "tell_model",
) -> Tool:
    """A tool that runs command lines in `root`. What runs unasked is for `Permissions` to say; without any, nothing.

    `environment` is added to the minimal one. With `through`, `root` is a folder in there. With a `sandbox`, a
    command has its root and what the sandbox says, and nothing else of this machine; where there can be none, a
    person is asked. `contained` is your word for the same, as of a container made for it. Under the mode `edit` what
    is in either, and without network, does not ask.
    """
    if through and sandbox is not None:
        raise ConfigError(f"tool {name!r}: a sandbox is for commands that run here; with `through`, that is theirs")
    if not through and not Path(root).is_dir():
        raise ConfigError(f"tool {name!r}: its root {str(root)!r} is not a folder: make it, or name another")
    shell = "bash" if bash else "/bin/sh"
    confinement = None if sandbox is None else Confinement(sandbox, root)
    if confinement is not None:
        confinement.settle()
    runner = _Shell(str(root), environment or {}, output_bytes_max, shell, tuple(through), confinement)

    async def run(
        command: Annotated[str, Field(description="The command line.")],
        timeout_s: Annotated[
            float | None,
            Field(gt=0, le=deadline_s, description=f"End it after so many seconds; {deadline_s:g} if not given."),
        ] = None,
    ) -> str | ToolOutput:
        reaches = any(isinstance(act, Reach) for act in acts_of(command))
        try:
            text = await runner.run(command, tool_context(), deadline_s if timeout_s is None else timeout_s)
        except ToolFailed as error:
            error.untrusted = reaches
            raise
        return ToolOutput(text=text, untrusted=True) if reaches else text

    made: Tool = tool(
        name=name,
        replay=replay,
        deadline_s=deadline_s + OWN_END_S,
        output_bytes_max=output_bytes_max + 1_000,  # its words about the end are not output
        needs_approval=False if confinement is None else confinement.approval(name, False),
        acts=_acts,
        on_unknown=on_unknown,
        description=(
            f"Run a command line with {shell} in {root}. Standard output and error come back as one text, then the "
            f"exit code. It cannot ask anything, ends after {deadline_s:g} s at the latest, and nothing it starts "
            "outlives it."
            f"{_told_of(sandbox)}"
        ),
    )(run)
    place = Whereabouts(
        root=None if through else str(Path(root).absolute()),
        search_path=runner.search_path,
        sandboxed=contained or holds(sandbox),
    )
    return replace(made, whereabouts=place)


def holds(sandbox: Sandbox | None) -> bool:
    """Whether what runs in it can do nothing that a rule is about, beyond the root."""
    return sandbox is not None and not (sandbox.network or sandbox.readable or sandbox.writable)


def _acts(arguments: dict[str, Any]) -> Sequence[Act]:
    return acts_of(arguments["command"])


def _told_of(sandbox: Sandbox | None) -> str:
    """For the model, which would otherwise look for what is not there."""
    if sandbox is None:
        return ""
    network = "" if sandbox.network else ", and there is no network"
    return f" It runs in a sandbox: it can write there and in /tmp, which is empty at each start{network}."


class _Shell:
    def __init__(
        self,
        root: str,
        environment: Mapping[str, str],
        bytes_max: int,
        shell: str,
        through: tuple[str, ...],
        confinement: Confinement | None,
    ) -> None:
        self._root = root
        self._environment = dict(environment)
        self._bytes_max = bytes_max
        self._shell = shell
        self._through = through
        self._confinement = confinement

    @property
    def search_path(self) -> str:
        """Where programs are found."""
        return processes.environment(self._environment)["PATH"]

    async def run(self, command: str, context: ToolContext, deadline_s: float) -> str:
        if "\x00" in command:
            raise ToolFailed("A command line cannot hold a NUL character.")
        if not self._through:
            for act in acts_of(command):  # whatever the rules say and a person approved
                if isinstance(act, Write) and (why := forbidden_in(act, self._root)) is not None:
                    raise ToolFailed(f"Denied: {why}.")
        try:
            run = self._run_inside if self._through else self._run_here
            done = await run(command, context, deadline_s)
        except OSError as error:
            raise self._told(error, command) from error
        output = done.output if done.output.endswith("\n") or not done.output else f"{done.output}\n"
        if done.timed_out:
            raise ToolFailed(f"{output}[timed out after {deadline_s:g} s; it was ended]")
        return f"{output}[{end_words(done.returncode)}]"

    def _told(self, error: OSError, command: str) -> Exception:
        """What the system refused to start, in words for the model where it can do something about it."""
        if error.errno == errno.E2BIG:
            size = len(command.encode())
            return ToolFailed(f"Nothing was run: {size:,} bytes are too long for a command line. Use a file.")
        if not self._through and not Path(self._root).is_dir():
            return ToolFailed(f"Nothing was run: the folder {self._root} is not there any more.")
        return error

    async def _run_here(self, command: str, context: ToolContext, deadline_s: float) -> processes.Ended:
        confined = Confined() if self._confinement is None else await self._confinement.begin(context)
        return await processes.run(
            [*confined.prefix, self._shell, "-c", "--", command],  # one that begins with a dash is no option of its
            children=context.children,
            deadline_s=deadline_s,
            bytes_max=self._bytes_max,
            cwd=self._root,
            env=processes.environment(self._environment),
            heard=_Telling(context).hear,
            view=confined.view,
        )

    async def _run_inside(self, command: str, context: ToolContext, deadline_s: float) -> processes.Ended:
        entry = f"{INSIDE_VARIABLE}={new_id('inside')}"
        settings = [f"{name}={value}" for name, value in self._environment.items()]
        # In a shell of its own, so that no command line can be read as part of the change of folder.
        inside = f"cd {shlex.quote(self._root)} && exec {shlex.quote(self._shell)} -c -- {shlex.quote(command)}"
        endings: list[asyncio.Task[bool]] = []
        try:
            return await processes.run(
                [*self._through, "env", *settings, entry, "sh", "-c", inside],
                children=context.children,
                deadline_s=deadline_s,
                bytes_max=self._bytes_max,
                heard=_Telling(context).hear,
                cut_off=lambda: endings.append(self._end_inside(entry, context)),
            )
        finally:
            if endings:  # begun at the same time as the end of the client, and as bounded
                await asyncio.wait(endings)

    def _end_inside(self, entry: str, context: ToolContext) -> "asyncio.Task[bool]":
        """The wait for it, from now on: it is brought to its end even if its caller waits no more."""
        work = processes.run(
            [*self._through, "sh", "-c", _END_INSIDE, "sh", entry],
            children=context.children,
            deadline_s=INSIDE_S,
            bytes_max=1_000,
        )
        loop = asyncio.get_running_loop()
        ending = loop.create_task(_quietly(work))
        processes.keep(ending)
        return loop.create_task(ended_within(ending, processes.FREE_S))


async def _quietly(work: Any) -> None:
    with suppress(OSError, ToolFailed):  # its client is gone, or the guard is: the docs say what lingers then
        await work


class _Telling:
    """Passes output on as progress: as text, whole characters, up to a limit."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._told = 0

    def hear(self, data: bytes) -> None:
        if self._told < PROGRESS_BYTES_MAX:
            self._told += len(data)
            self._context.progress(self._decoder.decode(data))


def end_words(returncode: int | None) -> str:
    if returncode is None:
        return "it ended, but the system has not let go of it"
    if returncode < 0:
        return f"ended by {processes.cause_of(returncode)}"
    if returncode - 128 in signal.valid_signals():  # as shells report the last of their own children
        return f"exit code {returncode}, as after {processes.cause_of(128 - returncode)}"
    return f"exit code {returncode}"
