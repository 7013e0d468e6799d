"""The description of the HTTP API is a file that clients are generated from: it changes when we mean it to."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.server.http import http_app

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


@functools.cache  # it takes half a second
def described() -> dict[str, Any]:
    return http_app(App("sqlite:///never-opened.db"), token="x" * 32).openapi()


def test_the_file_is_what_the_server_says() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == described(), (
        "run: python -m tests.upkeep.test_openapi && python -m tests.javascript.types"
    )


def test_every_route_is_described_in_words_or_by_its_name() -> None:
    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (path, method)
            assert "4XX" in operation["responses"], (path, method)


if __name__ == "__main__":
    FILE.write_text(json.dumps(described(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"{FILE.name} is written\n")
