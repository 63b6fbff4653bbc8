"""Parses an annotated function into its regions and stages, and reports misplaced statements.

The whole file is parsed, so that every node has its real line and column.
"""

import ast
import inspect
import linecache
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from everstream.annotations.flow import loop_exits, own_nodes
from everstream.annotations.markers import Stage, ToStream
from everstream.annotations.problems import SourceFile
from everstream.annotations.program import Program, Region, StageBlock
from everstream.errors import UserError
from everstream.pipeline.graph import is_usable

OPTIONS: dict[type, list[str]] = {
    marker: [*inspect.signature(marker).parameters] for marker in (ToStream, Stage)
}
YIELDS = ast.Yield | ast.YieldFrom | ast.Await
A_NAME = "Write names in brackets, as in [n, prime]."


def read_function(function: Callable[..., Any]) -> Program:
    """The function's regions and stages; an AnnotationError shows the line that is wrong."""
    origin, node = _source_of(function)
    return _Reader(function, origin, node).program()


def around(function: Callable[..., Any]) -> dict[str, Any]:
    """The names of an enclosing function that an inner one sees, as far as they are assigned."""
    seen = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            seen[name] = cell.cell_contents
    return seen


def _source_of(function: Callable[..., Any]) -> tuple[SourceFile, ast.FunctionDef]:
    code = getattr(function, "__code__", None)
    if code is None:
        raise UserError(f"@es.annotated takes a function, not {function!r}.")
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise UserError(
            f"the source of '{function.__name__}' cannot be read ({code.co_filename}): "
            "@es.annotated reads it, so put the function into a file."
        )
    origin = SourceFile(code.co_filename, lines)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if node.name == function.__name__ and first == code.co_firstlineno:
                if isinstance(node, ast.AsyncFunctionDef):
                    raise origin.problem(
                        node, "an annotated function cannot be async", "Write a plain def."
                    )
                return origin, node
    raise UserError(
        f"'{function.__name__}' is not in {code.co_filename} where Python says: has the file "
        "changed since it was loaded? Put @es.annotated right above its def."
    )


class _Reader:
    def __init__(
        self, function: Callable[..., Any], origin: SourceFile, node: ast.FunctionDef
    ) -> None:
        self.origin = origin
        self.node = node
        self.known = {**function.__globals__, **around(function)}
        code = function.__code__
        self.locals = frozenset([*code.co_varnames, *code.co_cellvars])
        self.stages = 0

    def program(self) -> Program:
        regions: list[Region] = []
        waiting: list[ast.stmt] = []
        for statement in self._body():
            if self._marks(statement, ToStream):
                assert isinstance(statement, ast.With)
                region = self._region(statement, len(regions) + 1)
                region.before, waiting = waiting, []
                regions.append(region)
            else:
                waiting.append(statement)
        if not regions:
            raise self.origin.problem(
                self.node,
                f"'{self.node.name}' has no region",
                "Put its loop into `with es.ToStream():`.",
            )
        for region in regions:
            self._no_return(region.before)
        self._no_strays([*waiting, *(s for region in regions for s in region.before)])
        self._no_yield()
        return Program(self.origin, self.node, self.locals, regions, waiting)

    def _body(self) -> list[ast.stmt]:
        body = self.node.body
        first = body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return body[1:] if is_docstring and isinstance(first.value.value, str) else body  # type: ignore[attr-defined]

    def _region(self, node: ast.With, number: int) -> Region:
        call = self._call(node, ToStream)
        if node.items[0].optional_vars is not None:
            raise self.origin.problem(
                node.items[0].optional_vars, "es.ToStream gives nothing to name", "Drop the `as`."
            )
        loops = [s for s in node.body if isinstance(s, ast.For | ast.While | ast.AsyncFor)]
        other = next((s for s in node.body if s not in loops[:1]), None)
        if other is not None or not loops:
            raise self.origin.problem(
                other or node,
                "a region holds one loop and nothing else",
                "Put `for ...:` or `while ...:` right below es.ToStream, and all else before or "
                "behind the region.",
            )
        loop = loops[0]
        if isinstance(loop, ast.AsyncFor):
            raise self.origin.problem(loop, "the loop cannot be async", "Write a plain for.")
        if loop.orelse:
            raise self.origin.problem(
                loop.orelse[0], "the loop of a region has no else", "Put this behind the region."
            )
        options = self._options(call, ToStream)
        name = self._name(options) or ("source" if number == 1 else f"source-{number}")
        prologue, stages = self._loop_body(loop)
        region = Region(node, loop, prologue, stages, options, name)
        region.state = self.listed(options, "state")
        self.listed(options, "inputs")
        for statement in prologue:
            self._no_return([statement])
        return region

    def _loop_body(self, loop: ast.For | ast.While) -> tuple[list[ast.stmt], list[StageBlock]]:
        prologue: list[ast.stmt] = []
        stages: list[StageBlock] = []
        for statement in loop.body:
            if self._marks(statement, Stage):
                assert isinstance(statement, ast.With)
                stages.append(self._stage(statement))
            elif stages:
                raise self.origin.problem(
                    statement,
                    "a statement between or behind the stages",
                    "Move it into a stage: code before the first stage belongs to the source, all "
                    "other code to a stage.",
                )
            else:
                prologue.append(statement)
        self._no_strays(prologue)
        if not stages:
            raise self.origin.problem(
                loop,
                "the loop has no stage",
                "Put the work, or a part of it, into `with es.Stage():`.",
            )
        return prologue, stages

    def _stage(self, node: ast.With) -> StageBlock:
        self.stages += 1
        call = self._call(node, Stage)
        options = self._options(call, Stage)
        resource = node.items[0].optional_vars
        if resource is not None and not isinstance(resource, ast.Name):
            raise self.origin.problem(
                resource, "what on_init returns has one name", "Write `as` and one name."
            )
        if resource is not None and "on_init" not in options:
            raise self.origin.problem(
                resource,
                "`as` names what on_init returns, and this stage has none",
                "Say on_init=..., or drop the `as`.",
            )
        self._no_strays(node.body)
        self._no_return(node.body)
        for left in loop_exits(node.body, ast.Break):
            raise self.origin.problem(
                left,
                "break in a stage: other items are on their way already",
                "Use `continue` to be done with this item, or break before the first stage, "
                "where the source decides.",
            )
        stage = StageBlock(
            node,
            self.stages,
            self._name(options) or f"stage-{self.stages}",
            node.body,
            options,
            resource.id if isinstance(resource, ast.Name) else None,
        )
        stage.state = self.listed(options, "state")
        for option in ("inputs", "outputs"):
            self.listed(options, option)
        return stage

    # Options.

    def _options(self, call: ast.Call, marker: type) -> dict[str, ast.expr]:
        if call.args:
            raise self.origin.problem(
                call.args[0], "options have names", f"Say inputs=..., as in {OPTIONS[marker]}."
            )
        options: dict[str, ast.expr] = {}
        for keyword in call.keywords:
            if keyword.arg not in OPTIONS[marker]:
                known = ", ".join(OPTIONS[marker])
                raise self.origin.problem(
                    keyword, f"there is no option {keyword.arg!r}", f"There are: {known}."
                )
            assert keyword.arg is not None
            if not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None):
                options[keyword.arg] = keyword.value
        return options

    def listed(self, options: dict[str, ast.expr], option: str) -> list[str]:
        """The names in an option that is a list of names."""
        given = options.get(option)
        if given is None:
            return []
        if not isinstance(given, ast.List | ast.Tuple):
            raise self.origin.problem(given, f"{option}= takes a list of names", A_NAME)
        for place, one in enumerate(given.elts):
            value = one.value if isinstance(one, ast.Constant) else None
            if isinstance(value, str) and value.isidentifier():
                given.elts[place] = ast.copy_location(ast.Name(value, ast.Load()), one)
            elif not isinstance(one, ast.Name):
                raise self.origin.problem(one, f"{option}= takes names only", A_NAME)
        return [one.id for one in given.elts if isinstance(one, ast.Name)]

    def _name(self, options: dict[str, ast.expr]) -> str | None:
        given = options.get("name")
        if given is None:
            return None
        value = given.value if isinstance(given, ast.Constant) else None
        if not isinstance(value, str) or not is_usable(value):
            raise self.origin.problem(
                given,
                "a name is a text of letters, digits, '-', '_' and '.'",
                'Write it out, as in name="primes".',
            )
        return value

    # What a `with` is.

    def _marks(self, statement: ast.AST, marker: type) -> bool:
        if not isinstance(statement, ast.With):
            return False
        return any(self._means(item.context_expr, marker) for item in statement.items)

    def _call(self, node: ast.With, marker: type) -> ast.Call:
        call = node.items[0].context_expr
        if len(node.items) > 1:
            raise self.origin.problem(
                node.items[1].context_expr,
                f"es.{marker.__name__} must be alone in its `with`",
                "Give the other a separate `with`, inside a stage.",
            )
        if not isinstance(call, ast.Call):
            raise self.origin.problem(
                call, f"es.{marker.__name__} is called", f"Write es.{marker.__name__}()."
            )
        return call

    def _means(self, node: ast.expr, marker: type) -> bool:
        """Whether an expression is the marker, or a call of it."""
        if isinstance(node, ast.Call):
            node = node.func
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        value = self.known.get(node.id)
        for part in path:
            value = getattr(value, part, None)
        return value is marker

    # Misplaced statements.

    def _no_strays(self, statements: Sequence[ast.stmt]) -> None:
        for node in own_nodes(statements):
            if isinstance(node, ast.With) and self._marks(node, ToStream):
                raise self.origin.problem(
                    node,
                    "a region inside another statement",
                    "Put `with es.ToStream():` at the outermost level of the function.",
                )
            if isinstance(node, ast.With) and self._marks(node, Stage):
                raise self.origin.problem(
                    node,
                    "a stage that does not stand directly in the loop of a region",
                    "Put it right below the loop of `with es.ToStream():`, not inside an `if`, "
                    "another loop or another stage.",
                )

    def _no_return(self, statements: Sequence[ast.stmt]) -> None:
        for node in own_nodes(statements):
            if isinstance(node, ast.Return):
                raise self.origin.problem(
                    node,
                    "return before the last region has ended",
                    "Return behind the regions. Inside, `continue` is done with this item, and "
                    "`break` before the first stage ends the stream.",
                )

    def _no_yield(self) -> None:
        for node in own_nodes(self.node.body):
            if isinstance(node, YIELDS):
                raise self.origin.problem(
                    node,
                    "an annotated function neither yields nor awaits",
                    "Collect results in state and return them, or name them as outputs of the "
                    "last stage.",
                )
