"""A pipeline that was made from a function, and returns what the function returns.

When the pipeline has finished, the code after the regions runs in the process that started it, on the
final state of its stages.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from everstream.annotations.stage import RESULT
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline

if TYPE_CHECKING:
    from everstream.engine.result import RunResult


class AnnotatedPipeline(Pipeline):
    """A pipeline whose result has what the function returns: `result.returned`."""

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
