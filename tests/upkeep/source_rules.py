"""Two rules about source text that the linter does not have, judged on the syntax tree.

Both follow a name through the imports of its module and through plain aliases (`pool = ThreadPoolExecutor`).
Scopes are ignored: a name that means one thing anywhere in a module means it everywhere. That errs on the
side of a finding. What is reached only at run time (`getattr` with a computed name) is not seen.
"""

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass

MODULE_TABLE = "sys.modules"

_DICT_MUTATORS = frozenset(
    {"__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update"}
)
# Calls that change the mapping, or the attribute, they are given: monkeypatch, operator, unittest.mock.
_ITEM_SETTERS = frozenset({"delitem", "setitem"})
_ATTRIBUTE_SETTERS = frozenset({"delattr", "object", "setattr"})

_THREAD_FUNCTIONS = frozenset({"_thread.start_new_thread", "asyncio.to_thread", "asyncio.threads.to_thread"})
_THREAD_CLASSES = frozenset(
    {
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.process.ProcessPoolExecutor",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "multiprocessing.Pool",
        "multiprocessing.dummy.Pool",
        "multiprocessing.get_context().Pool",
        "multiprocessing.pool.Pool",
        "multiprocessing.pool.ThreadPool",
        "threading.Thread",
        "threading.Timer",
    }
)


@dataclass(frozen=True, order=True)
class Finding:
    line: int
    what: str


class _Names:
    """Spells an expression as its full dotted name: `cf.wait` is `concurrent.futures.wait`."""

    def __init__(self, tree: ast.AST) -> None:
        self._means: dict[str, str] = {}
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._means[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._means[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                meaning = self.dotted(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else None
                for target in targets:
                    if meaning is not None and isinstance(target, ast.Name):
                        self._means.setdefault(target.id, meaning)

    def dotted(self, node: ast.AST | None) -> str | None:
        match node:
            case ast.Name(id=name):
                return self._means.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.dotted(value)
                return None if owner is None else f"{owner}.{attr}"
            case ast.Call(func=func):
                made_by = self.dotted(func)
                return None if made_by is None else f"{made_by}()"
        return None


def _parsed(source: str) -> ast.Module:
    """Without the garbage collector, which may finish off what an earlier test left (a failed future, say). That
    prints a traceback, which is parsed too, and in Python 3.11 one parse inside another makes the outer one fail.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def module_table_changes(source: str) -> list[Finding]:
    """Every place that changes `sys.modules`. Reading and copying it is fine."""
    if "modules" not in source:  # most of them
        return []
    tree = _parsed(source)
    names = _Names(tree)
    return sorted(set(_module_table_changes(tree, names)))


def _module_table_changes(tree: ast.AST, names: _Names) -> Iterator[Finding]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                if names.dotted(value) == MODULE_TABLE:
                    yield Finding(node.lineno, "sets or deletes an entry of sys.modules")
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                if names.dotted(node) == MODULE_TABLE:
                    yield Finding(node.lineno, "replaces sys.modules")
            case ast.AugAssign(target=target):
                if names.dotted(target) == MODULE_TABLE:
                    yield Finding(node.lineno, "merges into sys.modules")
            case ast.Call():
                if _call_changes_module_table(node, names):
                    yield Finding(node.lineno, "calls something that changes sys.modules")


def _call_changes_module_table(call: ast.Call, names: _Names) -> bool:
    operands = [*call.args, *(keyword.value for keyword in call.keywords)]
    first = operands[0] if operands else None
    second = operands[1] if len(operands) > 1 else None
    given_the_table = names.dotted(first) == MODULE_TABLE or _is_text(first, MODULE_TABLE)

    function = names.dotted(call.func) or ""
    verb = call.func.attr if isinstance(call.func, ast.Attribute) else function.rpartition(".")[2]

    if isinstance(call.func, ast.Attribute):
        if verb in _DICT_MUTATORS and (
            names.dotted(call.func.value) == MODULE_TABLE or (function == f"dict.{verb}" and given_the_table)
        ):
            return True
        if verb == "dict" and given_the_table:  # patch.dict; a plain dict(sys.modules) is a copy
            return True
    if verb in _ITEM_SETTERS and given_the_table:
        return True
    if verb in {"delattr", "patch", "setattr"} and _is_text(first, MODULE_TABLE):
        return True
    return verb in _ATTRIBUTE_SETTERS and names.dotted(first) == "sys" and _is_text(second, "modules")


def _is_text(node: ast.AST | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def unmanaged_threads(source: str) -> list[Finding]:
    """Every place that makes a thread or a pool, or borrows the event loop's own pool.

    Naming the classes, for an annotation or an `isinstance`, is fine; so is `run_in_executor` with a pool.
    """
    tree = _parsed(source)
    names = _Names(tree)
    return sorted(set(_unmanaged_threads(tree, names)))


def _unmanaged_threads(tree: ast.AST, names: _Names) -> Iterator[Finding]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                if (function := names.dotted(node)) in _THREAD_FUNCTIONS:
                    yield Finding(node.lineno, f"uses {function}")
            case ast.Call(func=func, args=args, keywords=keywords):
                made = names.dotted(func)
                if made == "functools.partial" and args:
                    made = names.dotted(args[0])
                if made in _THREAD_CLASSES:
                    yield Finding(node.lineno, f"makes a {made}")
                if isinstance(func, ast.Attribute) and func.attr == "run_in_executor":
                    pools = args[:1] or [keyword.value for keyword in keywords if keyword.arg == "executor"]
                    if any(_is_none(pool) for pool in pools):
                        yield Finding(node.lineno, "runs in the event loop's default pool")
            case ast.ClassDef(bases=bases):
                for base in bases:
                    if (made := names.dotted(base)) in _THREAD_CLASSES:
                        yield Finding(node.lineno, f"subclasses {made}")


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
