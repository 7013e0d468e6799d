"""`@tool(isolation="process")`: a body in a process of its own, so that even one that blocks can be ended.

This is the worker's side; `tools/isolation/program.py` is the program. The process imports the function's module and
gets the arguments as JSON on its standard input; it answers in lines of JSON on a pipe of its own, so what the body
prints is not mistaken for an answer. What only the worker can do it asks for (`questions.py`), and hears the answer
on a second pipe. It is a child like any other (`system/processes.py`): its own session, under the
guard, with a minimal environment. What it prints is kept only to tell why it died. `deps` stay in the worker: they
are objects.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pydantic_core

from holdfast.core.records import File
from holdfast.errors import ConfigError, OutcomeUnknown, ToolFailed
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.sandbox import Sandbox
from holdfast.tools.base import FILES_BYTES_MAX, FILES_MAX, ToolOutput
from holdfast.tools.confinement import Approval, Confined, Confinement
from holdfast.tools.context import ToolContext
from holdfast.tools.isolation import program
from holdfast.tools.isolation.questions import Questions
from holdfast.tracebacks import RaisedElsewhere

PRINTED_BYTES_MAX = 8_192
LEAVE_S = 1.0  # for the process to end by itself once it has answered


class Isolated:
    """A function, and how it is called in another process."""

    def __init__(
        self,
        function: Callable[..., Any],
        context_parameter: str | None,
        output_bytes_max: int,
        environment: Sequence[str],
        sandbox: Sandbox | None,
    ) -> None:
        self._confinement = None if sandbox is None else Confinement(sandbox, None, lambda: _code_of(function))
        self._module, self._name = _address(function)
        self._context_parameter = context_parameter
        self._bytes_max = output_bytes_max
        self._environment = tuple(environment)

    def approval(self, name: str, own: bool | Approval) -> bool | Approval:
        """For the tool's `needs_approval`."""
        return own if self._confinement is None else self._confinement.approval(name, own)

    async def run(self, values: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Raises ToolFailed with what the body raised, OutcomeUnknown with what ended its process."""
        printed = Kept(PRINTED_BYTES_MAX)
        extra = {name: os.environ[name] for name in self._environment if name in os.environ}
        confined = Confined() if self._confinement is None else await self._confinement.begin(context)
        with ExitStack() as opened:
            ours, theirs = _pipe(opened)
            ear, mouth = _pipe(opened)
            heard, told = _pipe(opened)
            with tempfile.TemporaryFile() as request:
                request.write(self._request(values, context, theirs, heard))
                request.seek(0)
                spec = ProcessSpec(
                    [*confined.prefix, sys.executable, "-P", program.__file__],
                    processes.environment(extra),
                    None if self._confinement is None else "/tmp",
                    stdin=request.fileno(),
                    stdout=mouth,
                    stderr=mouth,
                    pass_fds=(theirs, heard),
                    view=confined.view,
                )
                child = await processes.start_covered(spec, children=context.children)
            opened.pop_all()
        for fd in (theirs, mouth, heard):
            os.close(fd)
        questions = Questions(context, told)
        # JSON may need six bytes for one; what a file is made of needs one.
        answers = _Answers(context, questions, max(8 * self._bytes_max, FILES_BYTES_MAX) + 65_536)
        readers = PipeReader(ours, None, answers.hear), PipeReader(ear, printed)
        try:
            return await _answer(child, answers, readers[0], printed)
        finally:
            try:
                await child.end()
            finally:
                for reader in readers:
                    reader.close()
                await questions.close()

    def _request(self, values: dict[str, Any], context: ToolContext, fd: int, answers_fd: int) -> bytes:
        arguments = {name: value for name, value in values.items() if name != self._context_parameter}
        request = {
            "fd": fd,
            "answers_fd": answers_fd,
            "kept": dict(context.kept),
            "path": sys.path,
            "module": self._module,
            "name": self._name,
            "output_bytes_max": self._bytes_max,
            "arguments": pydantic_core.to_json(arguments).decode(),
            "context": {
                "call_id": context.call_id,
                "chat_id": context.chat_id,
                "owner": context.owner,
                "metadata": dict(context.metadata),
            },
        }
        return msgspec.json.encode(request)


def _pipe(opened: ExitStack) -> tuple[int, int]:
    """Its ends are closed with what was opened."""
    ends = os.pipe()
    for fd in ends:
        opened.callback(os.close, fd)
    return ends


async def _answer(child: processes.Child, answers: "_Answers", reader: PipeReader, printed: Kept) -> ToolOutput:
    exit = asyncio.ensure_future(child.exited())
    try:
        await asyncio.wait((exit, answers.final), return_when=asyncio.FIRST_COMPLETED)
        if not answers.final.done():
            await reader.ended(LEAVE_S)  # its last words are in the pipe
        else:
            await asyncio.wait((exit,), timeout=LEAVE_S)
    finally:
        exit.cancel()
    if answers.final.done():
        return ToolOutput(text=answers.final.result(), files=tuple(answers.files))
    await child.end()
    said = printed.text.strip()
    raise OutcomeUnknown(f"The tool's process {_end_of(child.returncode)}, and gave no answer.\n{said}".strip())


class _Answers:
    """What the process says: progress, what it spent, questions, and at last a result or an error."""

    def __init__(self, context: ToolContext, questions: Questions, line_max: int) -> None:
        self._context = context
        self._questions = questions
        self._line_max = line_max
        self._begun = bytearray()  # of a line whose end is still to come
        self.files: list[File] = []
        self._story: dict[str, str] = {}  # what its process tells of the exception behind an error
        self.final: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.final.add_done_callback(lambda final: final.cancelled() or final.exception())

    def hear(self, data: bytes) -> None:
        """Each byte is looked at once: a file is megabytes in one line, and comes in small pieces."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = bytes(self._begun + end)
            self._begun.clear()
            self._take(line)
        self._begun += rest
        if len(self._begun) > self._line_max:
            self._begun.clear()
            self._fail(OutcomeUnknown("The tool's process said more than it may."))

    def _take(self, line: bytes) -> None:
        try:
            kind, text = msgspec.json.decode(line, type=tuple[str, str])
        except msgspec.MsgspecError:
            self._fail(OutcomeUnknown("The tool's process said what cannot be read."))
            return
        if kind == "progress":
            self._context.progress(text)
        elif kind == "spent":
            self._take_spending(text)
        elif kind == "ask":
            if not self._questions.ask(text):
                self._fail(OutcomeUnknown("The tool's process asked what cannot be answered, or too much at once."))
        elif kind in ("raised", "trace"):
            self._story[kind] = text
        elif kind == "file":
            self._take_file(text)
        elif kind == "error":
            self._fail(ToolFailed(text))
        elif kind == "unknown":
            self._fail(OutcomeUnknown(text))
        elif not self.final.done():
            self.final.set_result(text)

    def _take_spending(self, text: str) -> None:
        try:
            tokens, cost = msgspec.json.decode(text, type=tuple[int, float])
            self._context.spent(tokens=tokens, cost=cost)
        except (msgspec.MsgspecError, ValueError):
            self._fail(OutcomeUnknown("The tool's process said what cannot be read."))

    def _take_file(self, text: str) -> None:
        try:
            media_type, uri, name = msgspec.json.decode(text, type=tuple[str, str, str | None])
        except msgspec.MsgspecError:
            self._fail(OutcomeUnknown("The tool's process said what cannot be read."))
            return
        if len(self.files) < FILES_MAX and len(uri) + sum(len(file.uri) for file in self.files) <= FILES_BYTES_MAX:
            self.files.append(File(media_type=media_type, uri=uri, name=name))

    def _fail(self, error: ToolFailed) -> None:
        if "trace" in self._story:
            error.__cause__ = RaisedElsewhere(self._story.get("raised", "Exception"), self._story["trace"])
        if not self.final.done():
            self.final.set_exception(error)


def _code_of(function: Callable[..., Any]) -> list[str]:
    """What its process reads to import it: where modules are looked for, and its own, which may lie where nothing
    else is to be seen.
    """
    package = function.__module__.partition(".")[0]
    found = getattr(sys.modules.get(package), "__file__", None)
    own = [] if found is None else [found if Path(found).stem != "__init__" else str(Path(found).parent)]
    return [*sys.path, *own]


def _address(function: Callable[..., Any]) -> tuple[str, str]:
    """Where another process finds it: a module, and a name in it."""
    name = function.__qualname__
    advice = "isolation='process' imports the function in another process: define it at the top of a module"
    if "<" in name:
        raise ConfigError(f"tool {function.__name__!r} is made inside of a function. {advice}")
    if function.__module__ != "__main__":
        return function.__module__, name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name), name
    file = getattr(main, "__file__", None)
    if file is None:
        raise ConfigError(f"tool {function.__name__!r} is defined in an interactive session. {advice} in a file")
    return Path(file).stem, name  # its folder is on sys.path, which goes along


def _end_of(returncode: int | None) -> str:
    if returncode is None:
        return "does not end"
    return (
        f"was ended by {processes.cause_of(returncode)}" if returncode < 0 else f"ended with exit code {returncode}"
    )
