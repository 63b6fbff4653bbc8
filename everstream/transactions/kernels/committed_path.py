"""What a transaction computes once it is known to commit, and from which keys.

Recovery that knows the verdict need not compute it again: no branch that can only end in ABORT was
taken. Cutting those branches from the source leaves the committed path, whose outputs usually
depend on far fewer keys than the whole function. In `return src - amount, dst + amount` neither
output needs the other key, so only the verdict of a transfer has to be logged.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
Names = frozenset[str]


class _NotUnderstood(Exception):
    """The source uses something this analysis does not follow; fall back to the whole function."""


@dataclass(frozen=True)
class CommittedPath:
    """`function` never aborts; output i depends on the parameters `needs[i]`."""

    function: Function
    needs: tuple[Names, ...]


def committed_path(function: Function, outputs: int, abort: object) -> CommittedPath | None:
    """The committed path of `function`, or None where its source cannot be followed."""
    names = _visible_names(function)
    try:
        definition = _definition(function)
        cutter = _Cutter(names, abort)
        body, aborts = cutter.cut(definition.body)
        if aborts:
            return None
        definition.body = body or [ast.Pass()]
        if any(
            cutter.is_abort(node) for node in ast.walk(definition) if isinstance(node, ast.expr)
        ):
            return None
        needs = _Flow(definition, outputs).needs()
    except (_NotUnderstood, OSError, TypeError, SyntaxError):
        return None
    module = ast.fix_missing_locations(ast.Module([definition], []))
    namespace = dict(names)
    exec(compile(module, f"<committed path of {function.__qualname__}>", "exec"), namespace)
    return CommittedPath(namespace[definition.name], needs)


def _visible_names(function: Function) -> dict[str, Any]:
    closure = inspect.getclosurevars(function)
    return {**function.__globals__, **closure.nonlocals}


def _definition(function: Function) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise _NotUnderstood
    arguments = definition.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise _NotUnderstood
    definition.decorator_list = []
    definition.returns = None
    for argument in [*arguments.posonlyargs, *arguments.args]:
        argument.annotation = None
    return definition


class _Cutter:
    def __init__(self, names: Mapping[str, Any], abort: object) -> None:
        self._names = names
        self._abort = abort

    def is_abort(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return self._names.get(node.id) is self._abort
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self._names.get(node.value.id)
            return inspect.ismodule(module) and getattr(module, node.attr, None) is self._abort
        return False

    def cut(self, statements: list[ast.stmt]) -> tuple[list[ast.stmt], bool]:
        """The statements without those that lead only to ABORT, and whether nothing else is left."""
        kept: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, ast.Return) and statement.value is not None:
                value = self._committed_value(statement.value)
                if value is None:
                    return kept, True
                kept.append(ast.copy_location(ast.Return(value), statement))
                return kept, False
            if isinstance(statement, ast.If):
                body, body_aborts = self.cut(statement.body)
                other, other_aborts = self.cut(statement.orelse)
                if any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement.test)):
                    raise _NotUnderstood
                if body_aborts and other_aborts:
                    return kept, True
                if body_aborts or other_aborts:
                    kept.extend(other if body_aborts else body)
                else:
                    kept.append(
                        ast.copy_location(
                            ast.If(statement.test, body or [ast.Pass()], other), statement
                        )
                    )
            else:
                kept.append(statement)
        return kept, False

    def _committed_value(self, value: ast.expr) -> ast.expr | None:
        if self.is_abort(value):
            return None
        if isinstance(value, ast.IfExp):
            if self.is_abort(value.body):
                return self._committed_value(value.orelse)
            if self.is_abort(value.orelse):
                return self._committed_value(value.body)
        return value


class _Flow:
    """Which parameters each output depends on, through assignments and branches."""

    def __init__(self, definition: ast.FunctionDef, outputs: int) -> None:
        arguments = [*definition.args.posonlyargs, *definition.args.args]
        self._sources = {argument.arg: frozenset([argument.arg]) for argument in arguments}
        self._outputs: list[Names] = [frozenset()] * outputs
        self._body = definition.body

    def needs(self) -> tuple[Names, ...]:
        self._follow(self._body, frozenset())
        return tuple(self._outputs)

    def _of(self, expression: ast.expr) -> Names:
        for node in ast.walk(expression):
            if isinstance(node, ast.NamedExpr | ast.Lambda | ast.comprehension):
                raise _NotUnderstood
        origins = [
            self._sources.get(node.id, frozenset())
            for node in ast.walk(expression)
            if isinstance(node, ast.Name)
        ]
        return frozenset().union(*origins)

    def _follow(self, statements: list[ast.stmt], control: Names) -> Names:
        """Follow the statements; returns what decides whether the code after them runs."""
        for statement in statements:
            match statement:
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value, control)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, value, control)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    before = self._sources.get(name, frozenset())
                    self._sources[name] = before | self._of(value) | control
                case ast.Return(value=ast.expr() as value):
                    self._output(value, control)
                    return control
                case ast.If(test=test, body=body, orelse=orelse):
                    control = self._branch(test, body, orelse, control)
                case _:
                    raise _NotUnderstood
        return control

    def _branch(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], control: Names
    ) -> Names:
        inner = control | self._of(test)
        before = dict(self._sources)
        after_body = self._follow(body, inner)
        with_body = self._sources
        self._sources = before
        after_other = self._follow(orelse, inner)
        for name, sources in with_body.items():
            self._sources[name] = self._sources.get(name, frozenset()) | sources
        returns = any(
            isinstance(node, ast.Return)
            for statement in [*body, *orelse]
            for node in ast.walk(statement)
        )
        return (control | after_body | after_other) if returns else control

    def _assign(self, target: ast.expr, value: ast.expr, control: Names) -> None:
        sources = self._of(value) | control
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in targets:
            if not isinstance(name, ast.Name):
                raise _NotUnderstood
            self._sources[name.id] = sources

    def _output(self, value: ast.expr, control: Names) -> None:
        many = len(self._outputs) > 1
        spread = (
            many
            and isinstance(value, ast.Tuple)
            and len(value.elts) == len(self._outputs)
            and not any(isinstance(element, ast.Starred) for element in value.elts)
        )
        for position in range(len(self._outputs)):
            part = value.elts[position] if spread and isinstance(value, ast.Tuple) else value
            self._outputs[position] |= self._of(part) | control
