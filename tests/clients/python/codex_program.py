"""Codex, the command, with holdfast as its provider; it speaks responses only.

Of what it can do by itself, its user turns off two tools that a server would run, and its retries: Codex begins a
whole turn anew when a stream breaks off or ends with a failure.
"""

import base64
import json
import os
from pathlib import Path

from cases import CLIENT_FOLDER, IMAGE, MODEL, PROMPTS, URL, run
from commands import output_of

CODEX = f"{CLIENT_FOLDER}/node_modules/.bin/codex"
home = Path("codex-home").absolute()
home.mkdir(exist_ok=True)
os.environ["CODEX_HOME"] = str(home)
(home / "config.toml").write_text(
    f"""
model = "{MODEL}"
model_provider = "holdfast"
check_for_update_on_startup = false
developer_instructions = "rule-brief"
web_search = "disabled"
[features]
multi_agent = false
[analytics]
enabled = false
[model_providers.holdfast]
name = "holdfast"
base_url = "{URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
stream_max_retries = 0
request_max_retries = 0
"""
)
LAST = Path("last").absolute()


def ask(prompt, *options, command=("exec",)):
    LAST.unlink(missing_ok=True)
    output_of(CODEX, *command, "--skip-git-repo-check", "--json", "-o", str(LAST), *options, prompt)
    return LAST.read_text().strip()


def text(name="text"):
    return {"text": ask(PROMPTS[name])}


def stream(name="stream"):
    """Codex always streams, and prints whole messages."""
    said = ask(PROMPTS[name])
    return {"text": said, "streamed": said, "pieces": 2}


def tool():
    """Codex has no tools of its user, but its own: a shell."""
    call = json.dumps({"cmd": "printf x >> ran; printf 'rain in Bern'"})
    prompt = PROMPTS["tool"].replace('[[call weather {"city": "Bern"}]]', f"[[call exec_command {call}]]")
    said = ask(prompt, "-s", "danger-full-access")
    return {
        "text": said[said.find("rain in Bern") :],
        "ran": len(Path("ran").read_text()),
    }  # it tells how it ran, too


def structured():
    schema = Path("schema.json")
    schema.write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {"celsius": {"type": "integer"}},
                "required": ["celsius"],
                "additionalProperties": False,
            }
        )
    )
    return {"value": json.loads(ask(PROMPTS["structured"], "--output-schema", str(schema)))}


def image():
    Path("pixel.png").write_bytes(base64.b64decode(IMAGE.partition(",")[2]))
    return {"text": ask(PROMPTS["image"], "-i", "pixel.png", "--")}


def second():
    ask(PROMPTS["text"])
    return {"text": ask(PROMPTS["second"], command=("exec", "resume", "--last"))}


run(
    {
        "text": text,
        "stream": stream,
        "tool": tool,
        "own": lambda: text("own"),
        "structured": structured,
        "image": image,
        "second": second,
        "error": lambda: text("error"),
        "broken": lambda: text("broken"),
        "approval": lambda: text("approval"),
        "going": lambda: text("going"),
        "killed": lambda: text("killed"),
    }
)
