"""An exception's traceback as a text of bounded size: for a log line, and for the journal's operators.

It has the last frames of the exception and of each of its causes, as Python prints them: files, lines and source,
never the values of variables. What is secret in it is taken out by who keeps it (`redaction`).
"""

import traceback

FRAMES_MAX = 12  # of each exception, those nearest to where it was raised
CAUSES_MAX = 8
GROUP_MAX = 5  # exceptions of a group that are told
BYTES_MAX = 8_192
NAME_CHARS_MAX = 200


class RaisedElsewhere(Exception):
    """An exception of another process, as that told of it: its name, and its traceback as text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name[:NAME_CHARS_MAX]
        self.text = text


def name_of(error: BaseException) -> str:
    return error.name if isinstance(error, RaisedElsewhere) else type(error).__name__


def traceback_text(error: BaseException, bytes_max: int = BYTES_MAX) -> str:
    """First cause first, as Python prints it. Never raises: what cannot be told is named."""
    if isinstance(error, RaisedElsewhere):
        return _cut(error.text.rstrip(), bytes_max)
    try:
        text = "\n".join(reversed(_told(error))).rstrip()
    except Exception as broken:  # noqa: BLE001  an exception may break the code that looks at it
        return f"{type(error).__name__} (its traceback cannot be told: {type(broken).__name__})"
    return _cut(text, bytes_max)


def _told(error: BaseException) -> list[str]:
    """Newest first."""
    told: list[str] = []
    seen: BaseException | None = error
    link = ""
    while seen is not None:
        if len(told) == CAUSES_MAX:
            told.append("(earlier causes are left out)\n")
            break
        shown = traceback.TracebackException(
            type(seen), seen, seen.__traceback__, limit=-FRAMES_MAX, max_group_width=GROUP_MAX, max_group_depth=3
        )
        told.append("".join(shown.format(chain=False)) + link)
        if seen.__cause__ is not None:
            seen, link = seen.__cause__, "\nThe above exception was the direct cause of the following exception:\n"
        else:
            seen = None if seen.__suppress_context__ else seen.__context__
            link = "\nDuring handling of the above exception, another exception occurred:\n"
    return told


def _cut(text: str, bytes_max: int) -> str:
    """The end says what was raised, and where; the beginning what it came from."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return text
    head, tail = data[: bytes_max // 4], data[-(bytes_max - bytes_max // 4) :]
    left_out = f"\n[… {len(data) - bytes_max:,} bytes left out …]\n"
    return head.decode("utf-8", "ignore") + left_out + tail.decode("utf-8", "ignore")
