"""An app whose tools look for the keys of the process that runs them. What each finds goes to a file."""

import os
from pathlib import Path

from holdfast import Agent, App, McpServer, Permissions, shell_tool, tool
from holdfast.testing import Call, ScriptedModel

AT_IMPORT = os.environ.get("BANK_API_KEY", "none")
LOOK = """
{ cat /proc/$PPID/environ; cat /proc/$PPID/task/*/environ; head -c 1 /proc/$PPID/mem; cat /proc/$PPID/maps
  python3 -c 'import sys; sys.stdout.write(open("/proc/" + sys.argv[1] + "/environ").read()[::-1])' $PPID
  nsenter -t $PPID -m true && echo entered; grep CapBnd /proc/self/status; } > shell.txt 2>&1
"""


def look() -> str:
    """What a child finds of its parent."""
    found = []
    for name in ("environ", "maps"):
        try:
            found.append(Path(f"/proc/{os.getppid()}/{name}").read_text())
        except OSError as error:
            found.append(str(error))
    return "\n".join(found)


@tool(isolation="process")
def isolated() -> str:
    """Look from a process of its own."""
    Path("isolated.txt").write_text(look())
    return "done"


@tool
def own() -> str:
    """What the program itself finds."""
    Path("own.txt").write_text(f"{AT_IMPORT} {os.environ['BANK_API_KEY']} {os.environ['DATABASE_URL']}")
    return "done"


shell = Call(name="shell", arguments={"command": LOOK})
calls = [shell, Call(name="isolated", arguments={}), Call(name="own", arguments={})]
# It is no server, so it is started again and again: what the first one found stays.
server = McpServer("looker", command="sh", args=("-c", "cat /proc/$PPID/environ /proc/$PPID/maps >> server.txt 2>&1"))
tools = (shell_tool(root=".", contained=True), isolated, own, server)
rules = Permissions(mode="edit", rules=["allow call(*)"])
app = App(agents=[Agent("looker", ScriptedModel(calls, "Done."), tools=tools, permissions=rules)])
