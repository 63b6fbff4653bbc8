"""Which names a block of code reads before it has assigned them, and which it assigns for certain.

One walk in the order in which Python runs the code. A name counts as assigned only if every way
to that place assigns it; in doubt it is not.
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class NameUsage(ast.NodeVisitor):
    """What some statements do to names. `names`: those that count; all others are global."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.reads: dict[str, ast.AST] = {}
        """Read before it was assigned for certain -> where, first."""
        self.writes: dict[str, ast.AST] = {}
        """Assigned, perhaps -> where, first."""
        self.assigned: set[str] = set()
        """Assigned, whatever happens."""
        self.ended = False
        """This place is never reached: a continue, break, return or raise comes before it."""

    @classmethod
    def of(cls, nodes: Sequence[ast.AST], names: Iterable[str]) -> "NameUsage":
        flow = cls(names)
        flow.walk(nodes)
        return flow

    def walk(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def bind(self, name: str, at: ast.AST) -> None:
        if name in self.names:
            self.writes.setdefault(name, at)
            self.assigned.add(name)

    def read(self, name: str, at: ast.AST) -> None:
        if name in self.names and name not in self.assigned and not self.ended:
            self.reads.setdefault(name, at)

    # Expressions.

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.id, node)
        elif isinstance(node.ctx, ast.Store):
            self.bind(node.id, node)
        else:
            self.read(node.id, node)
            self.writes.setdefault(node.id, node)
            self.assigned.discard(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        before = set(self.assigned)
        self.walk(node.values[1:])
        self.assigned = before

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._ways([[node.body], [node.orelse]])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # type: ignore[assignment]

    def _comprehension(self, node: Any) -> None:
        self.visit(node.generators[0].iter)
        before = set(self.assigned)
        own = {
            name.id
            for part in node.generators
            for name in ast.walk(part.target)
            if isinstance(name, ast.Name)
        }
        inner = NameUsage(self.names - own)
        inner.assigned = set(self.assigned)
        inner.ended = self.ended
        for number, part in enumerate(node.generators):
            if number:
                inner.visit(part.iter)
            inner.walk(part.ifs)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inner.walk(results)
        self._take(inner)
        self.assigned = before

    def _take(self, inner: "NameUsage") -> None:
        for name, at in inner.reads.items():
            self.reads.setdefault(name, at)
        for name, at in inner.writes.items():
            self.writes.setdefault(name, at)

    # Statements.

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self.walk(node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id, node.target)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._ways([node.body, node.orelse])

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = set(self.assigned)
        self.visit(node.target)
        self._inside(node.body)
        self.assigned = before
        self._inside(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        before = set(self.assigned)
        self._inside(node.body)
        self.assigned = before
        self._inside(node.orelse)

    def _inside(self, body: Sequence[ast.AST]) -> None:
        """A body that may not run: its assignments do not count afterwards."""
        before, ended = set(self.assigned), self.ended
        self.walk(body)
        self.assigned, self.ended = before, ended

    def _ways(self, ways: Sequence[Sequence[ast.AST]]) -> None:
        """One of several branches runs: a name is assigned if every branch that continues assigns it."""
        self._meet(ways, set(self.assigned), self.ended, [])

    def _meet(
        self,
        ways: Sequence[Sequence[ast.AST]],
        before: set[str],
        ended: bool,
        ends: list[set[str]],
    ) -> None:
        """Where these ways meet, each from `before`, with others that have come to `ends`."""
        for way in ways:
            self.assigned, self.ended = set(before), ended
            self.walk(way)
            if not self.ended:
                ends.append(self.assigned)
        self.ended = not ends
        self.assigned = set.intersection(*ends) if ends else before

    def visit_Try(self, node: ast.Try) -> None:
        before = set(self.assigned)
        handlers: list[Sequence[ast.AST]] = [[handler] for handler in node.handlers]
        self._try(before, [*node.body, *node.orelse], handlers)
        self.walk(node.finalbody)

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def _try(
        self, before: set[str], body: Sequence[ast.AST], handlers: Sequence[Sequence[ast.AST]]
    ) -> None:
        ended = self.ended
        self.walk(body)
        self._meet(handlers, before, ended, [] if self.ended else [self.assigned])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name is not None:
            self.bind(node.name, node)
        self.walk(node.body)
        if node.name is not None:
            self.assigned.discard(node.name)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        last = node.cases[-1]
        certain = (
            isinstance(last.pattern, ast.MatchAs)
            and last.pattern.pattern is None
            and last.guard is None
        )
        ways: list[Sequence[ast.AST]] = [[case] for case in node.cases]
        self._ways(ways if certain else [*ways, []])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name is not None:
            self.bind(node.name, node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name is not None:
            self.bind(node.name, node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest is not None:
            self.bind(node.rest, node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.bind((alias.asname or alias.name).partition(".")[0], node)

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.walk(node.decorator_list)
        self._function(node)
        self.bind(node.name, node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.walk([*node.decorator_list, *node.bases, *node.keywords])
        inner = NameUsage(self.names)
        inner.assigned = set(self.assigned)
        inner.walk(node.body)
        for name, at in inner.reads.items():
            self.read(name, at)
        self.bind(node.name, node)

    def _function(self, node: FunctionNode) -> None:
        """What a function inside reads from around it counts as read where it is defined."""
        arguments = node.args
        self.walk([*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)])
        body: Sequence[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else node.body
        own = {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
        outside = {n for stmt in body for d in ast.walk(stmt) for n in _declared(d)}
        inner = NameUsage(self.names - own)
        inner.walk(body)
        for name, at in inner.reads.items():
            if name not in inner.writes or name in outside:
                self.read(name, at)
        for name in outside & inner.writes.keys():
            self.writes.setdefault(name, inner.writes[name])

    def visit_Continue(self, node: ast.AST) -> None:
        self.ended = True

    visit_Break = visit_Continue

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        self.ended = True

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.ended = True


def _declared(node: ast.AST) -> Sequence[str]:
    return node.names if isinstance(node, ast.Global | ast.Nonlocal) else ()


def own_nodes(nodes: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """All nodes inside, but not those of functions and classes that are defined there."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef):
            waiting[:0] = ast.iter_child_nodes(node)


def loop_exits(
    nodes: Iterable[ast.AST], kind: type[ast.Break] | type[ast.Continue]
) -> Iterable[ast.AST]:
    """The breaks or continues in some statements that mean the loop around them."""
    for node in nodes:
        if isinstance(node, kind):
            yield node
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            yield from loop_exits(node.orelse, kind)
        elif not isinstance(node, FunctionNode | ast.ClassDef):
            yield from loop_exits(ast.iter_child_nodes(node), kind)
