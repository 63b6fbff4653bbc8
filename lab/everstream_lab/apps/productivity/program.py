"""The program that a user would have to write for one entry of a module, and nothing else.

A module of an application holds several programs that share its stages. `program_of` follows the
names that an entry uses, through the top-level statements of its module, and gives their text in
the order in which they stand: what is left if all other programs were deleted.
"""

import ast
from collections.abc import Collection


def program_of(source: str, entries: Collection[str]) -> str:
    """The top-level statements of a module that these names need, themselves included.

    >>> print(program_of("import os\\nimport re\\ndef f(): return re.I\\ndef g(): return f()", ["g"]))
    import re
    def f(): return re.I
    def g(): return f()
    """
    tree = ast.parse(source)
    makers: dict[str, list[int]] = {}
    for number, statement in enumerate(tree.body):
        for name in _made_by(statement):
            makers.setdefault(name, []).append(number)
    missing = sorted(set(entries) - makers.keys())
    if missing:
        raise LookupError(f"the module defines no {', '.join(missing)}")
    needed: set[int] = set()
    waiting = [number for name in entries for number in makers[name]]
    while waiting:
        number = waiting.pop()
        if number in needed:
            continue
        needed.add(number)
        for name in _used_by(tree.body[number]):
            waiting += makers.get(name, [])
    lines = source.splitlines()
    return "\n".join(
        text for number in sorted(needed) for text in _text(tree.body[number], lines, tree, needed)
    )


def _made_by(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(one.asname or one.name).partition(".")[0] for one in names]
        case _:
            return [
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ] + [name for inner in _inner_imports(statement) for name in _made_by(inner)]


def _inner_imports(statement: ast.stmt) -> list[ast.stmt]:
    """Imports in a block, which makes their names for the module."""
    if not isinstance(statement, ast.With | ast.If | ast.Try):
        return []
    return [n for n in ast.walk(statement) if isinstance(n, ast.Import | ast.ImportFrom)]


def _used_by(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _text(statement: ast.stmt, lines: list[str], tree: ast.Module, needed: set[int]) -> list[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [ast.unparse(_trimmed(statement, tree, needed))]
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(one.lineno for one in decorators)])
    return lines[first - 1 : statement.end_lineno]


def _trimmed(
    statement: ast.Import | ast.ImportFrom, tree: ast.Module, needed: set[int]
) -> ast.stmt:
    """An import of those names only that the program uses."""
    used = {name for number in needed for name in _used_by(tree.body[number])}
    kept = [one for one in statement.names if (one.asname or one.name).partition(".")[0] in used]
    if isinstance(statement, ast.Import):
        return ast.Import(names=kept or statement.names)
    return ast.ImportFrom(statement.module, kept or statement.names, statement.level)
