"""Runs the Python blocks of one page, one after the other, with the same names. A process of its own, for each page.

A line of JSON comes in on standard input for each block, and one goes out for what it printed. `await` may stand at
the top of a block, as in `python -m asyncio`.
"""

import ast
import asyncio
import importlib
import inspect
import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any


def run(code: str, place: str, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    importlib.invalidate_caches()  # the page may have written a module meanwhile
    compiled = compile(code, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        loop.run_until_complete(eval(compiled, names))  # noqa: S307  our own page
    else:
        exec(compiled, names)  # noqa: S102  our own page


def main() -> None:
    sys.path.insert(0, "")
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            printed, problem = io.StringIO(), ""
            try:
                with redirect_stdout(printed):
                    run(asked["code"], asked["place"], names, runner.get_loop())
            except BaseException:  # noqa: BLE001  whatever it was, the test tells it
                problem = traceback.format_exc()
            sys.stdout.write(json.dumps({"printed": printed.getvalue(), "problem": problem}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
