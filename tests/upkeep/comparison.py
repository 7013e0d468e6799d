"""What the programs of docs/comparison.md cost their readers: lines, and names that belong to a framework."""

import ast
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
# Python's own, and what the four programs share.
_PYTHONS_OWN = "run argv Path exists read_text write_text read_bytes write_bytes unlink missing_ok end flush"
_NOT_LEARNED = frozenset((*_PYTHONS_OWN.split(), "BaseModel"))


def programs() -> dict[str, str]:
    """The page's programs, by the heading that they stand under; `shop` is what they share."""
    below = PAGE.read_text(encoding="utf-8").partition("## The programs")[2]
    found = re.findall(r"^### ([\w ]+)\n\n```python\n(.*?)```$", below, re.MULTILINE | re.DOTALL)
    (shop,) = re.findall(r"`shop\.py`:\n\n```python\n(.*?)```$", below, re.MULTILINE | re.DOTALL)
    return {"shop": shop, **dict(found)}


def lines_of(program: str) -> int:
    """Those with code in them, but for the imports: how many lines these take is a formatter's choice."""
    imports = {
        line
        for node in ast.parse(program).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(program.splitlines(), start=1)
    return sum(1 for at, line in lines if at not in imports and line.strip() and not line.strip().startswith("#"))


def names_of(program: str) -> set[str]:
    """What has to be looked up to write it: names that are imported from a framework, methods and attributes,
    parameters, keys of its dictionaries and the words that its values are compared with.
    """
    tree = ast.parse(program)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                if module.partition(".")[0] not in {*sys.stdlib_module_names, "pydantic", "shop"}:
                    found |= {alias.name for alias in aliases}
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.MatchClass(kwd_attrs=names):
                found |= set(names)
            case ast.Dict(keys=keys, values=values):
                for part in (*keys, *values):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found.add(part.value)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                found.add(name)
            case ast.Compare(comparators=[ast.Constant(value=str(name))]):
                found.add(name)
    return found - own - _NOT_LEARNED
