"""Whether the `holdfast.toml` of this folder may be used: it names code that runs, and where the data is.

A folder may have come from elsewhere, with its file. So a person says once that it is trusted, and that is remembered
in their own configuration, by the file's path and a digest of what it said: another file, or another content, is
asked about again. A folder without the file needs no trust, and the command line is the person's own word.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from holdfast.config import FILE, only_regular
from holdfast.errors import ConfigError
from holdfast.safe_text import revealed
from holdfast.system.disk import write_path

VARIABLE = "HOLDFAST_TRUSTED"
LINES_SHOWN_MAX = 40
BYTES_MAX = 1 << 20


class Untrusted(ConfigError):
    """No person has said that this folder's settings may be used."""

    code = "untrusted"


def check_trust() -> None:
    """Asks the person at the terminal, once for each content of the file. Raises Untrusted."""
    if is_trusted():
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Untrusted(
            f"{shown(_place())} is not trusted: it can run code and say where the data is. Look at it; then "
            f"`holdfast trust` in that folder, or the folder in {VARIABLE}, lets it be used"
        )
    data = _content()
    if not _show(data):  # a person cannot say yes to what was not shown
        raise Untrusted(
            f"{shown(_place())} is not trusted, and too long to be asked about: look at it, then `holdfast trust`"
        )
    with plain_interrupts():
        if not typer.confirm(f"Use the settings in {shown(_place())}? They can run code", err=True):
            raise Untrusted(f"{shown(_place())} is not trusted, and is left alone")
    if _content() != data:  # a person takes their time, and it is read again by who uses it
        raise Untrusted(f"{shown(_place())} has changed since it was shown: run the command again")
    _remember(data)


def is_trusted() -> bool:
    """There is no such file, or its content was trusted, or its folder is. Raises ConfigError where a file that was
    trusted cannot be read.
    """
    if not os.path.lexists(FILE):
        return True
    folders = [Path(folder).resolve() for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    if any(_place().is_relative_to(folder) for folder in folders):
        return True
    try:
        return _note().read_text(encoding="utf-8").split("\n")[0] == _digest(_content())
    except (OSError, UnicodeDecodeError):
        return False


def trust(folder: str | None, *, forget: bool) -> None:
    """`holdfast trust`. Raises ConfigError."""
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror}") from error
    from holdfast.cli.folder_trust import trust_folder  # noqa: PLC0415  it asks of this module

    speaking = trust_folder(Path.cwd(), forget=forget)
    if forget:
        _note().unlink(missing_ok=True)
        more = f", nor are the skills and the AGENTS.md of {shown(speaking)}" if speaking is not None else ""
        print(f"{shown(_place())} is not trusted any more{more}")
        return
    if speaking is not None:
        print(f"the skills and the AGENTS.md of {shown(speaking)} are trusted, whatever they will say")
        if not os.path.lexists(FILE):
            return
    data = _content()
    _show(data)
    _remember(data)
    print(f"{shown(_place())} is trusted as it is now")


def trust_now(folder: Path) -> None:
    """The settings that a command has just made for a person. Raises ConfigError."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        _remember(_content())
    finally:
        os.chdir(before)


def _place() -> Path:
    """By the names of the folder, not of what a link in it leads to: that may be swapped."""
    return Path.cwd().resolve() / FILE


def shown(place: Path) -> str:
    """A person is asked about a folder by its name, which cannot be trusted either: no terminal obeys it."""
    text = str(place)
    return text if text.isprintable() else repr(text)


def _content() -> bytes:
    try:
        with open(FILE, "rb", opener=only_regular) as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{shown(_place())} cannot be read: {error.strerror}") from error
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{shown(_place())} is larger than any settings are")
    return data


def _show(data: bytes) -> bool:
    """All of it, or where to look; False: some of it is hidden."""
    lines = revealed(data.decode(errors="backslashreplace")).lines
    for text in lines[:LINES_SHOWN_MAX]:
        print(f"  | {text}", file=sys.stderr)
    if len(lines) > LINES_SHOWN_MAX:
        print(f"  … and {len(lines) - LINES_SHOWN_MAX} more lines: look at the file itself", file=sys.stderr)
    return len(lines) <= LINES_SHOWN_MAX


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _note() -> Path:
    return note_of(os.fsencode(_place()))


def note_of(what: bytes) -> Path:
    """Where a person's word on something is kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(home) / "holdfast" / "trusted" / _digest(what)


def _remember(data: bytes) -> None:
    remember_in(_note(), _digest(data), _place())


def remember_in(note: Path, word: str, place: Path) -> None:
    """Raises ConfigError."""
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_path(note, f"{word}\n{place}\n".encode(errors="surrogateescape"))
    except OSError as error:
        raise ConfigError(
            f"that {shown(place)} is trusted cannot be noted in {note}: {error.strerror}. "
            f"{VARIABLE} can name its folder"
        ) from error


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """The event loop's handler of Ctrl-C would wait for the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
