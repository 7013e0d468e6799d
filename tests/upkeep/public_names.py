"""What a user needs a name for: the types in public signatures and fields, and the names that the pages use.

Judged on the annotations as they evaluate, and on the syntax trees of the pages' programs. A type is needed where a
public function, method, property or field names it, at any depth; a public type's own members are looked at in turn.
"""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

# Beside the package itself: the kit for tests, what the author of a model needs, the bridge that needs an extra.
SUBMODULES = ("holdfast.testing", "holdfast.models", "holdfast.models.pydantic_ai_bridge")
# holdfast makes these; a user only holds them. What their constructors take is no user's business.
ONLY_HELD = frozenset({"Chat", "OpenCall", "Sent", "ToolContext", "Turn", "Worker"})
_CALLED_FOR_US = frozenset({"__aenter__", "__aiter__", "__anext__", "__await__", "__call__", "__enter__", "__iter__"})


@cache
def exported(module_name: str) -> dict[str, Any]:
    module = import_module(module_name)
    return {name: getattr(module, name) for name in module.__all__}


def is_ours(found: Any) -> bool:
    return str(getattr(found, "__module__", "")).partition(".")[0] == "holdfast"


def types_in(hint: Any) -> Iterator[type]:
    """Every class that a type hint names, at any depth."""
    origin = get_origin(hint)
    if origin is Literal:
        return
    for found in (hint, origin):
        if isinstance(found, type):
            yield found
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        yield from types_in(hint.__bound__)
    for argument in hint if isinstance(hint, list) else get_args(hint):
        yield from types_in(argument)


def hints_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """The annotations of a function; of a class those of its public members. Each with the place where it stands."""
    if inspect.isfunction(thing):
        for name, hint in _hints(thing).items():
            yield f"({name})", hint
    elif isinstance(thing, type):
        for owner in filter(is_ours, thing.__mro__):
            for name, hint in _hints(owner).items():
                if not name.startswith("_"):
                    yield f".{name}", hint
            yield from _hints_of_methods(owner)


def _hints(thing: Any) -> dict[str, Any]:
    """A module that names another for type checkers only means the public thing of that name."""
    known = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
    others = {name: value for name, value in exported("holdfast").items() if name not in known}
    return get_type_hints(thing, localns=others, include_extras=True)


def _hints_of_methods(owner: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(owner).items():
        wanted = name in _CALLED_FOR_US or not name.startswith("_")
        if wanted or (name == "__init__" and owner.__name__ not in ONLY_HELD):
            function = _function_of(member)
            if function is not None:
                for parameter, hint in _hints(function).items():
                    yield f".{name}({parameter})", hint


def _function_of(member: Any) -> Callable[..., Any] | None:
    match member:
        case property():
            member = member.fget
        case cached_property():
            member = member.func
        case classmethod() | staticmethod():
            member = member.__func__
    found = inspect.unwrap(member) if callable(member) else None
    return found if inspect.isfunction(found) else None


def unnamed_types(public: Mapping[str, Any]) -> dict[str, list[str]]:
    """Our types that something public needs and no public name stands for, each with the places that need it."""
    known = {id(thing) for thing in public.values()}
    found: dict[str, list[str]] = {}
    for name, thing in public.items():
        for where, hint in hints_of(thing):
            for needed in filter(is_ours, types_in(hint)):
                if id(needed) not in known:
                    found.setdefault(f"{needed.__module__}.{needed.__qualname__}", []).append(f"{name}{where}")
    return found


# --- the pages -------------------------------------------------------------------------------------


def programs_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def parsed(program: str) -> ast.Module:
    """A page leaves out what does not matter: `…` stands for it. `await` may stand at the top."""
    return ast.parse(program.replace("…", "..."))


def names_made(tree: ast.AST) -> set[str]:
    """Those that the program itself imports, assigns, defines or takes as parameters."""
    made: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                made |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                made.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                made.add(name)
    return made


def names_wanted(tree: ast.AST) -> set[str]:
    """Those that it uses and does not make itself."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - names_made(tree) - set(vars(builtins))


def imports_of_ours(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of each `from holdfast… import …`; the name is empty where the module itself is imported."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] == "holdfast":
                yield from ((module, alias.name) for alias in aliases)
            case ast.Import(names=aliases):
                yield from ((alias.name, "") for alias in aliases if alias.name.partition(".")[0] == "holdfast")


def constructors_in_prose(text: str) -> set[str]:
    """`Price` of a code span like `Agent(prices={…: Price(…)})`."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S))
    return {name for span in spans for name in re.findall(r"(?<![\w.])([A-Z][a-z]+[A-Za-z]*)\(", span)}


def modules_in_prose(text: str) -> set[str]:
    """`holdfast.errors.OutcomeUnknown`, as somebody would type it."""
    found = set(re.findall(r"\bholdfast(?:\.[A-Za-z_]+)+(?=[(`])", text))
    return {dotted for dotted in found if not dotted.endswith((".toml", ".db", ".js"))}
