"""Checks whether a pipeline can be sent to its workers, and if not, finds what prevents it.

Operators are sent as pickles, with everything their functions refer to. An object that cannot be
pickled (a lock, a connection, an open file) is often three levels down, and the pickler's error
names only its type. So this module finds it, and names the path that leads to it.
"""

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from everstream.errors import GraphError
from everstream.pipeline.graph import Graph

DEEPEST = 8
MADE_THERE = (
    "Create it where it is used: in on_start of an operator class, in open of a source or sink, or "
    "inside the function."
)


def check_sendable(graph: Graph) -> None:
    """Raise a GraphError that names the operator and the part of it that cannot be sent."""
    for node in graph.nodes.values():
        for part in (node.what, node.dead_letters):
            _check(node.name, part)
    for edge in graph.edges:
        _check(edge.receiver, edge.routing)


def _check(operator: str, part: Any) -> None:
    error = _refusal(part)
    if error is None:
        return
    way, culprit = _culprit(part, (), DEEPEST)
    where = " of ".join(reversed(way)) if way else f"the {type(part).__name__} itself"
    # The pickler's message for the object alone is shorter than that for everything around it.
    reason = _refusal(culprit) or error
    raise GraphError(
        operator,
        f"{where} cannot be sent to the workers: a {type(culprit).__name__} "
        f"({type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''})",
        MADE_THERE,
    )


class _Nowhere:
    """A file that keeps nothing, so that large operators are not copied for the check."""

    def write(self, data: Any) -> int:
        return len(data)


def _refusal(thing: Any) -> Exception | None:
    """The pickler's error for this, if any."""
    try:
        cloudpickle.dump(thing, _Nowhere())
    except Exception as error:  # pickling runs whatever __reduce__ and __getstate__ do
        return error
    return None


def _culprit(thing: Any, way: tuple[str, ...], deeper: int) -> tuple[tuple[str, ...], Any]:
    """The innermost part that cannot be pickled, and the path to it, the outermost step first."""
    for step, part in _parts(thing) if deeper else ():
        if _refusal(part) is not None:
            return _culprit(part, (*way, step), deeper - 1)
    return way, thing


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled along with this, each part with its name."""
    if isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield f"the object whose method '{thing.__name__}' is", thing.__self__
    elif isinstance(thing, functools.partial):
        yield "the function of a partial", thing.func
        yield from ((f"argument {n}", part) for n, part in enumerate(thing.args))
        yield from ((f"argument '{name}'", part) for name, part in thing.keywords.items())
    elif isinstance(thing, Mapping):
        yield from ((f"the entry {key!r}", part) for key, part in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"element {n}", part) for n, part in enumerate(thing))
    else:
        state = getattr(thing, "__dict__", None)
        if isinstance(state, dict):
            yield from ((f"attribute '{name}'", part) for name, part in state.items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    name = function.__name__
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            yield f"variable '{variable}' in function '{name}'", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for variable in _globals_of(function.__code__):
        if variable in function.__globals__:
            yield f"global '{variable}' in function '{name}'", function.__globals__[variable]
    for part in function.__defaults__ or ():
        yield f"a default of function '{name}'", part


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Names that a function, or one inside it, may look up outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)
