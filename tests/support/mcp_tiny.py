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
        said = params["_meta"] if params["arguments"].get("what") == "meta" else params["arguments"]
        result = {"content": [{"type": "text", "text": json.dumps(said)}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
    sys.stdout.flush()
