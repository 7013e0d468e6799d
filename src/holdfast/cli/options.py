"""The options that many commands have, and what of them counts for errors, too."""

import shlex
from typing import Annotated as A
from typing import NamedTuple

import typer

Home = A[str | None, typer.Option("--home", help="Folder of the data (default: .holdfast).", metavar="FOLDER")]
Database = A[str | None, typer.Option("--database", help="sqlite:///FILE or postgresql://…", metavar="URL")]
AppName = A[str | None, typer.Option("--app", "-a", help="Your app, as MODULE:APP.", metavar="MODULE:APP")]
Processes = A[
    str | None,
    typer.Option("--processes", help="So many processes; auto: one per core (default: 1).", metavar="N"),
]
AppArgument = A[
    str | None, typer.Argument(help="Your app; without it, one with a few agents.", metavar="[MODULE:APP]")
]


class Wishes:
    """Of the command line that this process carries out: how an error is to be told."""

    verbose = False
    json = False


WISHES = Wishes()


def _note_verbose(wanted: bool) -> bool:
    WISHES.verbose = wanted
    return wanted


def note_json(wanted: bool) -> bool:
    WISHES.json = wanted
    return wanted


Json = A[bool, typer.Option("--json", help="For programs.", callback=note_json)]
Verbose = A[
    bool,
    typer.Option("--verbose", "-v", help="Of what failed, every cause and every attempt.", callback=_note_verbose),
]


class Where(NamedTuple):
    """Which app, on which data."""

    app: str | None
    home: str | None
    database: str | None

    @property
    def said(self) -> str:
        """As options, for a command that a person is told to type; a database's password is not repeated."""
        given = {"--app": self.app, "--home": self.home, "--database": self.database and "…"}
        return "".join(
            f" {name} {shlex.quote(value) if value != '…' else value}" for name, value in given.items() if value
        )
