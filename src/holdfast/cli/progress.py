"""How far a command is, on one line of a terminal, and nowhere else; sizes for people."""

import sys


class ProgressLine:
    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = ""

    def __enter__(self) -> "ProgressLine":
        return self

    def update(self, done: int, of_all: int) -> None:
        self.say(f"{100 * done // max(of_all, 1)} %")

    def say(self, words: str) -> None:
        if words != self._shown and sys.stderr.isatty():
            self._shown = words
            print(f"\r\x1b[K{self._what}: {words}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"
