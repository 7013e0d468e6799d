"""The smallest tool server there is: no SDK, up in a few milliseconds, one tool. Run it with `python -I -S`."""

import json
import sys

TOOL = {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: dict[str, object] = {}
    if message["method"] == "initialize":
        info = {"name": "tiny", "version": "1"}
        version = message["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif message["method"] == "tools/call":
        params = message["params"]
        what = params["arguments"].get("what")
        if what == "silence":
            continue
        if what == "flood":
            for _ in range(1 << 10):
                sys.stdout.write("x" * (1 << 20))
        said = params["_meta"] if what == "meta" else params["arguments"]
        result = {"content": [{"type": "text", "text": json.dumps(said)}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
    sys.stdout.flush()
