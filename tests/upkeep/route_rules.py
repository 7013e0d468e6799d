"""What a module of routes may not reach for: the app, the store, or the server's own state. It holds what its
principal may see (`OwnedApp`), and nothing that leads around that. Judged on the syntax tree.
"""

import ast
from collections.abc import Iterator

from tests.upkeep.source_rules import Finding

# What has the chats of every owner.
_MODULES = frozenset(
    {
        "holdfast.app",
        "holdfast.store",
        "holdfast.store.contract",
        "holdfast.store.sql_store",
        "holdfast.server.grants",
        "holdfast.server.owned_store",
    }
)
_ROOMS = ("holdfast.store.sqlite", "holdfast.store.postgres", "holdfast.worker")
_ATTRIBUTES = frozenset({"state", "_app", "_store", "_grants"})  # of the server, and of what an OwnedApp is made of


def reaches_around(source: str) -> list[Finding]:
    return sorted(_found(ast.parse(source)))


def _found(tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                for named in (module, *(f"{module}.{alias.name}" for alias in names)):
                    if named in _MODULES or named.startswith(_ROOMS):
                        yield Finding(node.lineno, f"imports from {named}")
                        break
            case ast.Import(names=names):
                for alias in names:
                    if alias.name in _MODULES or alias.name.startswith(_ROOMS):
                        yield Finding(node.lineno, f"imports {alias.name}")
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(value=ast.Attribute(attr="app"), attr="state"):
                yield Finding(node.lineno, "reads the server's state")
            case ast.Attribute(attr=attr) if attr in _ATTRIBUTES - {"state"}:
                yield Finding(node.lineno, f"reads {attr}")
            case ast.Call(func=ast.Name(id="getattr" | "vars"), args=[ast.Name(id="app" | "request"), *_]):
                yield Finding(node.lineno, "reads an attribute by its name")


def declares_routes(source: str) -> bool:
    """Whether the module makes a router, or adds to one."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) in ("Routes", "APIRouter")
        for node in ast.walk(ast.parse(source))
    )
