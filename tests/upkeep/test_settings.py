"""Every setting is documented, with its default and its meaning, and nothing else is."""

import re
from pathlib import Path
from typing import get_args

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from holdfast.config import Config, Retention
from holdfast.mcp_servers import McpServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SERVERS = PAGE.parent / "how-to" / "mcp.md"


def rows() -> list[tuple[str, str, str]]:
    """What the page ought to say, setting by setting."""
    found = []
    for field in fields(Config):
        metas = [meta for meta in get_args(field.type)[1:] if isinstance(meta, Meta) and meta.description]
        assert metas, f"setting {field.name} has no description"
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        text = (
            str(default).lower()
            if isinstance(default, bool)
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
        found.append(
            (field.name, f"`{text}`" if default not in ("", (), {}, Retention()) else "", metas[-1].description or "")
        )
    return found


def test_the_page_lists_every_setting_with_its_default_and_its_meaning() -> None:
    lines = re.findall(r"^\| `(\w+)` \| ?(.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == rows()


def test_the_page_about_tool_servers_lists_every_key() -> None:
    table = SERVERS.read_text(encoding="utf-8").partition("## The keys")[2].partition("## ")[0]
    keys = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(McpServer.__struct_fields__) - {"name"}
