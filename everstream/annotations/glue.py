"""Small pieces of generated code, written as text, with the user's own nodes put in.

Nodes of the user keep their lines, so that a traceback leads to the user's file; all around them
gets the line of the `with` it was made for.
"""

import ast
import copy
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Filling: TypeAlias = str | ast.expr | Sequence[ast.AST]


def glue(text: str, at: ast.AST, **holes: Filling) -> list[ast.stmt]:
    """The statements in `text`, with names in capitals replaced by what they stand for."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            _place(node, at)
    filled = _Filler(holes).visit(tree)
    statements: list[ast.stmt] = filled.body
    return statements


def _place(node: ast.AST, at: ast.AST) -> None:
    line = getattr(at, "lineno", 1)
    column = getattr(at, "col_offset", 0)
    node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
    node.col_offset, node.end_col_offset = column, column + 1  # type: ignore[attr-defined]


class _Filler(ast.NodeTransformer):
    def __init__(self, holes: dict[str, Filling]) -> None:
        self.holes = holes

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        if isinstance(node.value, ast.Name):
            filling = self.holes.get(node.value.id)
            if isinstance(filling, list | tuple):
                return list(copy.deepcopy(filling))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        filling = self.holes.get(node.id)
        if filling is None:
            return node
        if isinstance(filling, str):
            return ast.copy_location(ast.Name(filling, node.ctx), node)
        if isinstance(filling, ast.expr):
            return copy.deepcopy(filling)
        raise TypeError(f"{node.id} is a placeholder for statements")

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._word(node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._word(node.name)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._word(node.arg)
        return node

    def _word(self, name: str) -> str:
        filling = self.holes.get(name)
        return filling if isinstance(filling, str) else name


def packed(names: Sequence[str], at: ast.AST, context: ast.expr_context | None = None) -> ast.expr:
    """A record of these names: a tuple, or the one value alone, or None."""
    context = context or ast.Load()
    parts: list[ast.expr] = [ast.Name(name, context) for name in names]
    made: ast.expr
    if len(parts) == 1:
        made = parts[0]
    elif parts:
        made = ast.Tuple(parts, context)
    else:
        made = ast.Constant(None) if isinstance(context, ast.Load) else ast.Name("_", context)
    for node in ast.walk(made):
        if isinstance(node, ast.expr):
            _place(node, at)
    return made


class FreshNames:
    """Names for generated things that no name of the user's is equal to."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def free(self, wish: str) -> str:
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish

    def local(self, *wishes: str) -> dict[str, str]:
        """Names for one scope, which others may use again."""
        own = FreshNames(self._taken)
        return {wish: own.free(wish) for wish in wishes}
