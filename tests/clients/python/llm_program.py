"""llm, the command, with a model of `extra-openai-models.yaml`."""

import base64
import json
import os
import sys
from pathlib import Path

from cases import IMAGE, KEY, MODEL, PROMPTS, URL, run
from commands import output_of

home = Path("llm").absolute()
home.mkdir(exist_ok=True)
os.environ["LLM_USER_PATH"] = str(home)
(home / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {
                "model_id": "desk",
                "model_name": MODEL,
                "api_base": URL,
                "api_key_name": "holdfast",
                "supports_tools": True,
                "supports_schema": True,
                "vision": True,
            }
        ]
    )
)
(home / "keys.json").write_text(json.dumps({"holdfast": KEY}))
LLM = str(Path(sys.executable).parent / "llm")


def ask(prompt, *options):
    return output_of(LLM, "-m", "desk", *options, prompt)


def stream(name):
    text = ask(PROMPTS[name])
    return {"text": text, "streamed": text, "pieces": 2}  # a terminal shows no pieces


def tool():
    function = "def weather(city: str) -> str:\n    open('ran', 'a').write('x')\n    return f'rain in {city}'\n"
    text = ask(PROMPTS["tool"], "--functions", function, "-s", "rule-brief")
    return {"text": text, "ran": len(Path("ran").read_text())}


def image():
    Path("pixel.png").write_bytes(base64.b64decode(IMAGE.partition(",")[2]))
    return {"text": ask(PROMPTS["image"], "-a", "pixel.png")}


def second():
    ask(PROMPTS["text"])
    return {"text": ask(PROMPTS["second"], "-c")}


def text(name="text"):
    return {"text": ask(PROMPTS[name], "--no-stream")}


run(
    {
        "text": text,
        "stream": lambda: stream("stream"),
        "tool": tool,
        "own": lambda: stream("own"),
        "structured": lambda: {"value": json.loads(ask(PROMPTS["structured"], "--schema", "celsius int"))},
        "image": image,
        "second": second,
        "error": lambda: text("error"),
        "broken": lambda: stream("broken"),
        "approval": lambda: text("approval"),
        "deploy": lambda: text("deploy"),
        "going": lambda: stream("going"),
        "killed": lambda: stream("killed"),
    }
)
