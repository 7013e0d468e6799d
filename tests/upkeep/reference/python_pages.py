"""docs/reference/python.md: every public name, with its signature as it is written and the first words about it.

Read from the syntax trees of the modules that define the names, so that the page says what the source says.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import holdfast
from tests.upkeep.public_names import ONLY_HELD, SUBMODULES, exported

_HEAD = """# Python

Every name that `holdfast` exports, module by module, with its signature and the first words of its description.
`help(holdfast.Agent)` has the whole. What is written like `async Chat.send(…)` is awaited. A program imports all of
it from `holdfast`, and the last three groups from the modules that they name.
"""


def page() -> str:
    parts = [_HEAD]
    for module, names in _homes().items():
        parts.append(_section(module, names))
    for module in SUBMODULES:
        lines = "\n".join(_entry(name, thing, _definition(module, name)) for name, thing in _sorted(exported(module)))
        parts.append(f"## `{module}`\n\n{_first_words(sys.modules[module].__doc__)}.\n\n{lines}\n")
    return "\n".join(parts)


def _homes() -> dict[str, list[tuple[str, str]]]:
    """Module -> (name there, name here)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for here, (module, there) in holdfast._HOMES.items():
        found.setdefault(module, []).append((there, here))
    return found


def _sorted(names: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(names.items(), key=lambda item: item[0].lower())


def _section(module: str, names: list[tuple[str, str]]) -> str:
    lines = []
    for there, here in sorted(names, key=lambda pair: pair[1].lower()):
        thing = getattr(holdfast, here)  # loads its module
        lines.append(_entry(here, thing, _definition(module, there)))
    return f"## {_first_words(sys.modules[module].__doc__)}\n\n" + "\n".join(lines) + "\n"


def _first_words(doc: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    return text.removesuffix(".") if text.count(". ") == 0 else text.partition(". ")[0]


# --- where a name is defined -------------------------------------------------------------------------


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    __import__(module)
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = node  # of overloads the last one, which is the function itself
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.ImportFrom(module=str(origin), names=aliases) if origin.startswith("holdfast"):
                for alias in aliases:
                    found[alias.asname or alias.name] = node
    return found


def _definition(module: str, name: str) -> ast.stmt:
    """The statement that defines it, followed through modules that only hand it on."""
    node = _definitions(module)[name]
    if isinstance(node, ast.ImportFrom):
        assert node.module is not None
        (there,) = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
        return _definition(node.module, there)
    return node


# --- how it is told ------------------------------------------------------------------------------------


def _entry(name: str, thing: Any, node: ast.stmt) -> str:
    match node:
        case ast.ClassDef():
            return _class(name, thing, node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return f"- `{_call(name, node)}`{_told(node)}"
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return f"- `{name} = {_short(ast.unparse(value))}`"
    raise AssertionError(name)


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"


def _told(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    words = _first_words(ast.get_docstring(node))
    return f": {words}." if words else ""


def _class(name: str, thing: type, node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith("_"))
    lines = [f"- `class {name}{f'({bases})' if bases else ''}`{_told(node)}"]
    fields = list(dict.fromkeys(field for owner in _owners(thing) for field in _fields(owner)))
    if fields and len(fields) <= 30:
        lines.append(f"  - {', '.join(f'`{field}`' for field in fields)}")
    elif fields:
        lines.append(f"  - {len(fields)} fields: [configuration](../configuration.md)")
    for method in _methods(node):
        lines.append(f"  - `{_call(_of(name, method), method)}`{_told(method)}")
    return "\n".join(lines)


def _owners(thing: type) -> Iterator[ast.ClassDef]:
    """The class and ours that it is made of, the first one first. A subclass of TypedDict knows no others."""
    for owner in reversed(getattr(thing, "__mro__", ())):
        if owner.__module__.startswith("holdfast"):
            node = _definitions(owner.__module__).get(owner.__name__)
            if isinstance(node, ast.ClassDef):
                yield node


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field), annotation=annotation) if not field.startswith("_"):
                default = f" = {ast.unparse(statement.value)}" if statement.value is not None else ""
                yield _short(f"{field}: {ast.unparse(annotation)}{default}")
            case ast.Assign(targets=[ast.Name(id=field)], value=ast.Constant(value=str(value))) if field.isupper():
                yield f"{field} = {value!r}"


def _methods(node: ast.ClassDef) -> Iterable[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public ones, and how one is made. Of overloads the last."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            made_by_users = statement.name == "__init__" and node.name not in ONLY_HELD
            if not statement.name.startswith("_") or made_by_users:
                found[statement.name] = statement
    return found.values()


def _of(owner: str, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return owner if method.name == "__init__" else f"{owner}.{method.name}"


def _call(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return f"{name}: {_returned(node)}"
    arguments = re.sub(r"(?<=[\w\])'])=(?=\S)", " = ", ast.unparse(node.args))
    for own in ("self, /, ", "self, ", "self", "cls, ", "cls"):
        if arguments.startswith(own):
            arguments = arguments[len(own) :]
            break
    returned = f" -> {_returned(node)}" if node.returns is not None and node.name != "__init__" else ""
    return f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}({arguments}){returned}"


def _returned(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.unparse(node.returns).strip("'") if node.returns is not None else "Any"
