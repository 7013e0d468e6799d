"""The program that runs one body for `tools/isolation/process.py`, in a process of its own:

    python -P isolated.py < request

It is run as a file, and takes its import path from the request: a PYTHONPATH would reach what the body starts, too.
It answers with lines of JSON, `["progress", text]` and `["spent", JSON]`, and at last `["result", text]`,
`["error", text]` or, for an OutcomeUnknown, `["unknown", text]`. Before a result come its files, `["file", JSON]`;
before an error that an exception led to come `["raised", name]` and `["trace", text]`. What it asks of the worker is
`["ask", JSON]`, of a number, a verb and its values; the answer comes on a pipe of its own: number, error, value.
"""

import json
import os
import sys
from typing import Any

TRACE_FRAMES_MAX = 12
PROGRESS_CHARS_MAX = 65_536  # of one piece, the newest; the worker keeps less


class Mouth:
    """Of this process: what the body forks, and lets return like itself, has no say."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()

    def say(self, kind: str, text: str) -> None:
        if os.getpid() != self._pid:
            return
        view = memoryview(json.dumps([kind, text.encode("utf-8", "replace").decode()]).encode() + b"\n")
        while view:
            view = view[os.write(self._fd, view) :]


class Ear:
    """Hears the worker's answers, in the event loop. `failed` makes an error of its words."""

    def __init__(self, fd: int, mouth: Mouth, failed: Any) -> None:
        import asyncio  # noqa: PLC0415  from here on, the import path is the worker's

        self._fd = fd
        self._mouth = mouth
        self._failed = failed
        self._rest = b""
        self._number = 0
        self._asked: dict[int, Any] = {}
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._hear)

    async def ask(self, verb: str, *values: str) -> Any:
        self._number += 1
        number = self._number
        answer = self._asked[number] = self._loop.create_future()
        self._mouth.say("ask", json.dumps([number, verb, [_text(value) for value in values]]))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def _hear(self) -> None:
        heard = os.read(self._fd, 65_536)
        if not heard:
            self._loop.remove_reader(self._fd)
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            number, error, value = json.loads(line)
            answer = self._asked.get(number)
            if answer is not None and not answer.done():
                answer.set_exception(self._failed(error)) if error else answer.set_result(value)
        for answer in () if heard else self._asked.values():
            if not answer.done():
                answer.set_exception(self._failed("the worker does not answer any more"))


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def run(request: dict[str, Any], mouth: Mouth) -> str:
    """Its files are said, its text is returned."""
    import asyncio  # noqa: PLC0415  from here on, the import path is the worker's
    import importlib  # noqa: PLC0415

    from holdfast.core.budgets import BudgetLeft  # noqa: PLC0415
    from holdfast.errors import ToolFailed  # noqa: PLC0415
    from holdfast.tools.base import Tool, ToolOutput, call_tool, tool  # noqa: PLC0415
    from holdfast.tools.context import ToolContext, enter  # noqa: PLC0415
    from holdfast.tools.permissions.rulebook import Rulebook  # noqa: PLC0415

    found: Any = importlib.import_module(request["module"])
    for name in request["name"].split("."):
        found = getattr(found, name)
    made = tool(found.function if isinstance(found, Tool) else found)
    made = Tool(
        name=made.name,
        description="",
        schema=made.schema,
        function=made.function,
        validate=made.validate,
        context_parameter=made.context_parameter,
        output_bytes_max=request["output_bytes_max"],
    )

    # The rules are with the worker. What a body would ask of them here is denied.
    class Context(ToolContext):
        """What it spends, the worker counts, as soon as it is said. What it keeps, the worker keeps, and what is left
        only the worker knows: it is asked.
        """

        ear: Ear

        async def keep(self, key: str, text: str) -> None:
            await self.ear.ask("keep", key, text)
            await super().keep(key, text)

        async def budget_left(self) -> BudgetLeft:
            tokens, cost = await self.ear.ask("budget_left")
            return BudgetLeft(tokens=tokens, cost=cost)

        def spent(self, *, tokens: int = 0, cost: float = 0.0) -> None:
            super().spent(tokens=tokens, cost=cost)
            mouth.say("spent", json.dumps([int(tokens), float(cost)]))

    context = Context(
        **request["context"],
        rulebook=Rulebook(mode="read"),
        say=lambda text: mouth.say("progress", str(text)[-PROGRESS_CHARS_MAX:]),
    )

    context._kept_here.update(request["kept"])

    async def run_sync(work: Any) -> Any:
        return work()  # in the main thread, where libraries expect to be

    async def call() -> ToolOutput:
        context.ear = Ear(request["answers_fd"], mouth, ToolFailed)
        enter(context)
        return await call_tool(made, request["arguments"], context, run_sync)

    output = asyncio.run(call())
    for file in output.files:
        mouth.say("file", json.dumps([file.media_type, file.uri, file.name]))
    return output.text


def trace_of(error: BaseException) -> str:
    """Of the body, without what called it here."""
    try:
        from holdfast.tracebacks import traceback_text  # noqa: PLC0415
    except Exception:  # noqa: BLE001  it is what could not be imported
        import traceback  # noqa: PLC0415

        return "".join(traceback.format_exception(error, limit=-TRACE_FRAMES_MAX))
    return traceback_text(error)


def main() -> None:
    request = json.load(sys.stdin.buffer)
    sys.path[:] = request["path"]
    for name in ("fd", "answers_fd"):
        os.set_inheritable(request[name], False)  # it is not for what the body starts
    mouth = Mouth(request["fd"])
    try:
        text = run(request, mouth)
    except BaseException as error:  # noqa: BLE001  whatever it was, the worker waits for an answer
        kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: perhaps holdfast could not be imported
        told = str(error) if "ToolFailed" in kinds else f"{type(error).__name__}: {error}"
        raised = error.__cause__ if "ToolFailed" in kinds else error  # a ToolFailed is what a tool says on purpose
        if raised is not None:
            mouth.say("raised", type(raised).__name__)
            mouth.say("trace", trace_of(raised))
        mouth.say("unknown" if "OutcomeUnknown" in kinds else "error", told)
    else:
        mouth.say("result", text)


if __name__ == "__main__":
    main()
