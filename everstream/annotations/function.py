"""`@es.annotated`: a function that you can call as it is, or turn into a pipeline."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from everstream.annotations.building import Generated, build
from everstream.annotations.checking import check
from everstream.annotations.loop import LoopSource
from everstream.annotations.plain import plain_function
from everstream.annotations.program import Program
from everstream.annotations.reading import around, read_function
from everstream.annotations.stage import RESULT, InOrder, StageOperator, frozen
from everstream.annotations.two_phase import StageSink
from everstream.connectors.collect import Collect
from everstream.errors import UserError
from everstream.pipeline.operator import Keyed
from everstream.pipeline.stream import Pipeline

if TYPE_CHECKING:
    from everstream.engine.result import RunResult


class AnnotatedPipeline(Pipeline):
    """A pipeline whose result has what the function returns: `result.returned`.

    When it has finished, the code after the regions runs in the process that started it, on the final
    state of its stages.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._finish: Callable[..., Any] | None = None
        self._given: dict[str, Any] = {}

    def returns(self, finish: Callable[..., Any], given: Mapping[str, Any]) -> AnnotatedPipeline:
        """Call `finish` with these values in the end; state as the stages left it."""
        self._finish = finish
        self._given = dict(given)
        return self

    def ended(self, result: RunResult) -> None:
        if self._finish is None or result.outcome.value != "finished":
            return
        values = copy.copy(self._given)
        parts: dict[str, list[dict[Any, Any]]] = {}
        for name, keyed, value in result.collected(RESULT):
            if keyed:
                parts.setdefault(name, []).append(value)
            else:
                values[name] = value
        for name, entries in parts.items():
            values[name] = _joined(self._given[name], entries)
        try:
            result.returned = self._finish(**values)
        except Exception as error:
            raise UserError(
                f"'{self.name}' has finished, but the code after its regions raised:\n"
                + "".join(traceback.format_exception(error)).rstrip()
            ) from error


def _joined(first: dict[Any, Any], parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    """The entries that the replicas had, in a dict of the kind it was at first."""
    whole = copy.copy(first)
    whole.clear()
    for part in parts:
        whole.update(part)
    return whole


P = ParamSpec("P")
R = TypeVar("R")
OURS: dict[str, Any] = {
    "AnnotatedPipeline": AnnotatedPipeline,
    "Collect": Collect,
    "InOrder": InOrder,
    "Keyed": Keyed,
    "LoopSource": LoopSource,
    "StageOperator": StageOperator,
    "StageSink": StageSink,
    "frozen": frozen,
    "islice": islice,
}


class AnnotatedFunction(Generic[P, R]):
    """A sequential program that is also a pipeline.

    Calling it runs the sequential program. `pipeline(...)` takes the same arguments and returns the
    pipeline; `run(...)` runs the pipeline and returns what the program returns.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function: Callable[..., Any] = function
        self.program: Program = read_function(function)
        check(self.program)
        self.generated: Generated = build(self.program)
        self._code = compile(
            _in_a_function(self), self.program.origin.file, "exec", dont_inherit=True
        )
        self._plain = plain_function(self.program, function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = self._plain(*args, **kwargs)
        return returned

    def pipeline(self, *args: P.args, **kwargs: P.kwargs) -> AnnotatedPipeline:
        """The pipeline for these arguments: `main.pipeline(limit=500_000).run(...)`.

        Code before the regions runs now. `result.returned` is the return value of the function.
        """
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise UserError(f"{self.program.name}.pipeline(...): {error}.") from None
        bound.apply_defaults()
        made: AnnotatedPipeline = self._make()(**bound.arguments)
        return made

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the pipeline on Spark as `pipeline(...).run()` does; gives what a call would give."""
        returned: R = self.pipeline(*args, **kwargs).run().returned
        return returned

    def _make(self) -> Callable[..., AnnotatedPipeline]:
        """The generated function that builds the pipeline, with what this one sees around it."""
        names: dict[str, Any] = {}
        exec(self._code, self.function.__globals__, names)
        support = {called: OURS[name] for name, called in self.generated.aliases.items()}
        make: Callable[..., AnnotatedPipeline] = names[_AROUND](**support, **around(self.function))
        return make


_AROUND = "everstream_around"


def _in_a_function(annotated: AnnotatedFunction[..., Any]) -> ast.Module:
    """Generated code inside a function whose parameters are what it needs from elsewhere."""
    generated = annotated.generated
    names = [*generated.aliases.values(), *annotated.function.__code__.co_freevars]
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    returned = ast.Return(ast.Name(generated.make, ast.Load()))
    body: list[ast.stmt] = [*generated.body, returned]
    outer = ast.FunctionDef(_AROUND, arguments, body, [], lineno=1)
    return ast.fix_missing_locations(ast.Module([outer], []))


def annotated(function: Callable[P, R]) -> AnnotatedFunction[P, R]:
    """Make a function with `es.ToStream` and `es.Stage` callable as it is and as a pipeline.

    Mistakes are reported when the function is defined, with the line and the fix.

    >>> @es.annotated
    ... def primes(limit):
    ...     found = []
    ...     with es.ToStream(inputs=[limit]):
    ...         for n in range(2, limit):
    ...             with es.Stage(inputs=[n], outputs=[n, prime], replicate=2):
    ...                 prime = all(n % d for d in range(2, n))
    ...             with es.Stage(inputs=[n, prime], ordered=True, state=[found]):
    ...                 if prime:
    ...                     found.append(n)
    ...     return found
    >>> primes(12)
    [2, 3, 5, 7, 11]
    >>> result = primes.pipeline(limit=12).run()
    >>> result.returned
    [2, 3, 5, 7, 11]
    """
    return AnnotatedFunction(function)
