"""Changes to the user's nodes for the generated code, and the comments about them there."""

import ast
import copy
from collections.abc import Sequence

from everstream.annotations.glue import glue
from everstream.annotations.program import StageBlock


class Breaks(ast.NodeTransformer):
    """Lets a break of the loop say that the loop has ended."""

    def __init__(self, ended: str) -> None:
        self.ended = ended

    def over(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [s for one in statements for s in as_list(self.visit(copy.deepcopy(one)))]

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [*glue(f"{self.ended} = True", node), node]

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave

    def visit_For(self, node: ast.For | ast.While) -> ast.AST:
        node.orelse = [s for one in node.orelse for s in as_list(self.visit(one))]
        return node

    visit_While = visit_For


class Putting(ast.NodeTransformer):
    """Puts an expression in the place of a name in a record."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self.name = name
        self.value = value

    def put(self, record: ast.expr) -> ast.expr:
        made: ast.expr = self.visit(record)
        return made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name else node


class Freezing(ast.NodeTransformer):
    def __init__(self, names: Sequence[str], frozen: str) -> None:
        self.names = names
        self.frozen = frozen

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        call = ast.Call(ast.Name(self.frozen, ast.Load()), [node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def as_list(made: ast.AST | list[ast.stmt]) -> list[ast.stmt]:
    return made if isinstance(made, list) else [made]  # type: ignore[list-item]


def class_name(name: str, otherwise: str) -> str:
    parts = [part for part in name.replace(".", "-").replace("_", "-").split("-") if part]
    made = "".join(part[:1].upper() + part[1:] for part in parts)
    return made if made.isidentifier() else (otherwise or "Stage") + made


def shown(stage: StageBlock) -> str:
    """The inputs and outputs of a stage, for readers of the code."""
    keyed = ast.unparse(stage.key) if stage.key is not None else ""
    parts = [lines_text(stage.node)]
    text = listed(parts, Given=stage.given, In=stage.inputs, State=stage.state, Out=stage.outputs)
    return f"{text} Key: {keyed}." if keyed else text


def listed(parts: list[str], **names: Sequence[str]) -> str:
    return " ".join(
        [
            *parts,
            *(
                f"{what}: {', '.join(listed_names)}."
                for what, listed_names in names.items()
                if listed_names
            ),
        ]
    )


def lines_text(first: ast.stmt, until: ast.stmt | None = None) -> str:
    end = first.end_lineno if until is None else until.lineno - 1
    return f"Line {first.lineno}." if end == first.lineno else f"Lines {first.lineno} to {end}."
