"""The file tools of one root, called as a model would: for tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ToolFailed
from holdfast.tools.base import Tool
from holdfast.tools.files.tools import file_tools


class Files:
    """The tools of one root, called as a model would: arguments are JSON."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.tools: dict[str, Tool] = {made.name: made for made in file_tools(root, **options)}

    def __call__(self, name: str, **arguments: Any) -> str:
        made = self.tools[name]
        return str(made(**made.validate(json.dumps(arguments))))

    def refused(self, name: str, **arguments: Any) -> str:
        with pytest.raises(ToolFailed) as caught:
            self(name, **arguments)
        return str(caught.value)
