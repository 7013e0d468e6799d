"""A tool server without the SDK, up in a few milliseconds: for what a program does that has nothing to do with one.

    python -I -S mcp_plain.py

`--log FILE` writes a line for each call that begins or is cancelled. `--chatty` prints nonsense on standard output
and a megabyte on standard error before it serves. `mcp_server.py` has the same tools, and more, by the SDK.
"""

import json
import os
import sys
from typing import Any

READ_ONLY = {"look", "dies_once"}
NAMES = ("echo", "look", "pid", "env", "hang", "dies", "dies_once", "steps")
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name in READ_ONLY}}
    for name in NAMES
]
LOG = sys.argv[sys.argv.index("--log") + 1] if "--log" in sys.argv else os.devnull

hanging: dict[object, str] = {}


def log(line: str) -> None:
    with open(LOG, "a") as file:  # noqa: PTH123  what else it would load takes longer than all the rest
        file.write(f"{line}\n")


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def called(name: str, given: dict[str, Any], meta: dict[str, Any], number: object) -> str | None:
    """What it says; None: not now, or never."""
    log(" ".join([name, *map(str, given.values())] if name in ("echo", "hang") else [name]))
    match name:
        case "pid":
            return str(os.getpid())
        case "env":
            return os.environ.get(given["name"], "not set")
        case "hang":
            hanging[number] = given["name"]
            return None
        case "dies":
            os.write(2, b"my last words")
            os._exit(3)
        case "dies_once":
            if not os.path.exists(given["path"]):  # noqa: PTH110
                os.close(os.open(given["path"], os.O_CREAT))
                os._exit(3)
            return "alive"
        case "steps":
            for n in (1, 2, 3):
                step = {"progressToken": meta["progressToken"], "progress": n, "total": 3, "message": f"step {n}"}
                send({"method": "notifications/progress", "params": step})
            return "all done"
    return str(given.get("text", name))


def answered(message: dict[str, Any]) -> dict[str, Any] | None:
    params = message.get("params") or {}
    match message["method"]:
        case "initialize":
            info = {"name": "plain", "version": "1"}
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            said = called(params["name"], params.get("arguments") or {}, params.get("_meta") or {}, message["id"])
            return None if said is None else {"content": [{"type": "text", "text": said}]}
        case "notifications/cancelled":
            log(f"cancelled {hanging.pop(params['requestId'], '')}")
    return {}


def main() -> None:
    if "--chatty" in sys.argv:
        sys.stderr.write("noise " * 200_000)
        sys.stdout.write("Starting up!\n{not json}\n\n")
        sys.stdout.flush()
    for line in sys.stdin:
        message = json.loads(line)
        result = answered(message)
        if "id" in message and result is not None:
            send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
