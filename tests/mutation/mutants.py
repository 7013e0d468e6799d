"""Which mutants of a module there are: every comparison, `and`, `or`, plus and minus in it, changed one at a time.

A limit is moved by one (`<` to `<=`) and turned around (`<` to `>=`). Only code in functions is changed: what runs
at import is tables and types, which the type checker and the tests of the tables look after.
"""

import ast
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

OTHERS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.And: (ast.Or,), ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,),
}  # fmt: skip


class Mutant(NamedTuple):
    node: int
    """Which node of the module's tree, as `ast.walk` counts them."""
    operator: int
    """Which of its operators: `a < b < c` has two."""
    other: type[ast.AST]
    line: int
    lines: frozenset[int]
    """The mutant is not seen by a test that runs none of these."""
    before: str
    after: str


def find_mutants(source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
    }
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in inside or not isinstance(node, ast.expr | ast.stmt):
            continue
        for position, operator in enumerate(_operators(node)):
            for other in OTHERS.get(type(operator), ()):
                changed = deepcopy(node)
                _change(changed, position, other)
                lines = frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                yield Mutant(
                    number,
                    position,
                    other,
                    node.lineno,
                    lines,
                    _short(ast.unparse(node)),
                    _short(ast.unparse(changed)),
                )


def mutated(source: str, mutant: Mutant) -> ast.Module:
    tree = ast.parse(source)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    _change(node, mutant.operator, mutant.other)
    return tree


def _operators(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Compare():
            return list(node.ops)
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            return [node.op]
        case _:
            return []


def _change(node: ast.AST, position: int, other: type[ast.AST]) -> None:
    operator = other()
    match node, operator:
        case ast.Compare(), ast.cmpop():
            node.ops[position] = operator
        case ast.BoolOp(), ast.boolop():
            node.op = operator
        case ((ast.BinOp() | ast.AugAssign()), ast.operator()):
            node.op = operator


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}…"
