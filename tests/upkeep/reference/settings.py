"""The table of docs/configuration.md: every setting with its default and its meaning."""

import re
from typing import get_args

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from holdfast.config import Config, Retention
from holdfast.owner_limits import Budgets

_TABLE = re.compile(r"(?<=^\| setting \| default \| meaning \|\n\|---\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    """What the page ought to say, setting by setting."""
    found = []
    for field in fields(Config):
        metas = [meta for meta in get_args(field.type)[1:] if isinstance(meta, Meta) and meta.description]
        assert metas, f"setting {field.name} has no description"
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        shown = f"`{_as_written(default)}`" if default not in ("", (), {}, Retention(), Budgets()) else ""
        found.append((field.name, shown, metas[-1].description or ""))
    return found


def _as_written(default: object) -> str:
    match default:
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def with_table(page: str) -> str:
    """The page with the table as the code has it; the text around it is people's."""
    table = "".join(
        f"| `{name}` |{f' {default}' if default else ''} | {meaning} |\n" for name, default, meaning in rows()
    )
    made, count = _TABLE.subn(lambda _: table, page)
    assert count == 1, "docs/configuration.md has one table of settings"
    return made
