"""opencode, the command, with holdfast as a provider that is compatible with OpenAI's."""

import base64
import json
import os
from pathlib import Path

from cases import CLIENT_FOLDER, IMAGE, KEY, MODEL, PROMPTS, URL, run
from commands import output_of

OPENCODE = f"{CLIENT_FOLDER}/node_modules/opencode-linux-x64/bin/opencode"
os.environ |= {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
models = {name: {"name": name, "attachment": True, "tool_call": True} for name in (MODEL, "titles")}
models[MODEL]["modalities"] = {"input": ["text", "image"], "output": ["text"]}
Path("opencode.json").write_text(
    json.dumps(
        {
            "autoupdate": False,
            "share": "disabled",
            "model": f"holdfast/{MODEL}",
            "small_model": "holdfast/titles",
            "permission": "allow",
            "provider": {
                "holdfast": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "holdfast",
                    "options": {"baseURL": URL, "apiKey": KEY},
                    "models": models,
                }
            },
        }
    )
)


def ask(prompt, *options):
    """The texts of the answer; a failed session exits with 0. A prompt among the arguments would get more quotes."""
    texts = []
    for line in output_of(OPENCODE, "run", "--pure", "--format", "json", *options, said=prompt).splitlines():
        event = json.loads(line)
        if event["type"] == "error":
            raise RuntimeError(json.dumps(event["error"]))
        if event["type"] == "text":
            texts.append(event["part"]["text"])
    return "".join(texts).strip()


def text(name="text"):
    return {"text": ask(PROMPTS[name])}


def stream(name="stream"):
    """It always streams, and prints whole messages."""
    said = ask(PROMPTS[name])
    return {"text": said, "streamed": said, "pieces": 2}


def tool():
    """No tools of its user, but its own: a shell."""
    call = json.dumps({"command": "printf x >> ran; printf 'rain in Bern'", "description": "The weather"})
    Path("AGENTS.md").write_text("rule-brief")
    said = ask(PROMPTS["tool"].replace('[[call weather {"city": "Bern"}]]', f"[[call bash {call}]]"))
    return {"text": said, "ran": len(Path("ran").read_text())}


def image():
    Path("pixel.png").write_bytes(base64.b64decode(IMAGE.partition(",")[2]))
    return {"text": ask(PROMPTS["image"], "--file", "pixel.png")}


def second():
    ask(PROMPTS["text"])
    return {"text": ask(PROMPTS["second"], "--continue")}


run(
    {
        "text": text,
        "stream": stream,
        "tool": tool,
        "own": lambda: text("own"),
        "image": image,
        "second": second,
        "error": lambda: text("error"),
        "broken": lambda: text("broken"),
        "approval": lambda: text("approval"),
        "going": lambda: text("going"),
        "killed": lambda: text("killed"),
    }
)
