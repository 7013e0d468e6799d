"""The options that many commands have."""

from typing import Annotated as A
from typing import NamedTuple

import typer

Home = A[str | None, typer.Option("--home", help="Folder of the data (default: .holdfast).", metavar="FOLDER")]
Database = A[str | None, typer.Option("--database", help="sqlite:///FILE or postgresql://…", metavar="URL")]
AppName = A[str | None, typer.Option("--app", "-a", help="Your app, as MODULE:APP.", metavar="MODULE:APP")]
AppArgument = A[
    str | None, typer.Argument(help="Your app; without it, one with a few agents.", metavar="[MODULE:APP]")
]
Json = A[bool, typer.Option("--json", help="For programs.")]


class Where(NamedTuple):
    """Which app, on which data."""

    app: str | None
    home: str | None
    database: str | None
