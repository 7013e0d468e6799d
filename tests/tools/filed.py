"""The file tools of one root, called as a model would: for tests."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ToolFailed
from holdfast.tools.base import Tool, ToolOutput
from holdfast.tools.context import ToolContext
from holdfast.tools.files.tools import file_tools


class Files:
    """The tools of one root, called as a model would: arguments are JSON."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.context = ToolContext()
        self.tools: dict[str, Tool] = {made.name: made for made in file_tools(root, **options)}

    def output(self, name: str, **arguments: Any) -> ToolOutput:
        made = self.tools[name]
        said = made(**made.validate(json.dumps(arguments)), context=self.context)
        return said if isinstance(said, ToolOutput) else ToolOutput(text=str(said))

    def __call__(self, name: str, **arguments: Any) -> str:
        """Without the version that is told."""
        return re.sub(
            r"(; |\n\[)version [0-9a-f ]+\]\Z",
            lambda found: "]" if found[1] == "; " else "",
            self.output(name, **arguments).text,
        )

    def plain(self, path: str) -> str:
        """What is read of a file, without the numbers of its lines and the note behind them."""
        text = re.sub(r"(?m)^ *[0-9]+\t", "", self("read_file", path=path))
        return re.sub(r"\n?\[[^\n]*\]\Z", "", text)

    def refused(self, name: str, **arguments: Any) -> str:
        with pytest.raises(ToolFailed) as caught:
            self(name, **arguments)
        return str(caught.value)
