"""An app whose tools start a program that looks for what belongs to holdfast: see `intruder.py`."""

import subprocess
import sys
from pathlib import Path

from holdfast import Agent, App, McpServer, Permissions, shell_tool, tool
from holdfast.testing import Call, ScriptedModel

ROOT = str(Path.cwd())
INTRUDER = (sys.executable, f"{ROOT}/intruder.py", ROOT)
LOOKS = ["looks"] if Path("looks").exists() else []  # and does no more
COMMIT = "git -c user.name=a -c user.email=a@b commit -qm more"
WORK = f"echo more >> work.txt && git add work.txt && {COMMIT} && git status"


@tool(isolation="process")
def isolated() -> str:
    """Look from a process of its own."""
    subprocess.run([*INTRUDER, "isolated.json", *LOOKS], check=True)
    return "done"


calls = [
    Call(name="shell", arguments={"command": " ".join((*INTRUDER, "shell.json", *LOOKS))}),
    Call(name="isolated", arguments={}),
    Call(name="shell", arguments={"command": f"{{ {WORK}; whoami; ls -a; }} > work.log 2>&1"}),
]
server = McpServer("intruder", command=INTRUDER[0], args=(*INTRUDER[1:], "server.json", *LOOKS))
tools = (shell_tool(root=".", contained=True), isolated, server)
rules = Permissions(mode="edit", rules=["allow call(*)"])
model = ScriptedModel(*([call] for call in calls), "Done.")
app = App(agents=[Agent("intruder", model, tools=tools, permissions=rules)])
