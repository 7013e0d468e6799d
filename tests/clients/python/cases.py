"""What the programs of all clients have in common: prompts come in, one line of JSON for each case goes out."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

MODEL = "desk"
URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
PROMPTS: dict[str, str] = json.loads(os.environ["PROMPTS"])
IMAGE = os.environ["IMAGE"]
CLIENT_FOLDER = os.environ["CLIENT_FOLDER"]


def run(cases: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
    """Those that the arguments name. An error is an answer as well: the judge reads what a user would see of it."""
    for name in sys.argv[1:]:
        try:
            told: dict[str, Any] = {"got": cases[name]()} if name in cases else {"none": True}
        except Exception as error:  # noqa: BLE001  whatever the client raises
            told = {"error": f"{type(error).__name__}: {error}"[:1000]}
        print(json.dumps({"case": name, **told}), flush=True)


def seen() -> None:
    """Something of a stream is here: the server may go now."""
    print('{"seen": true}', flush=True)


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"
