"""Which stages always give the same output for the same batch.

What a source sent through such stages can be had again by reading it again, so it need not be
logged. In doubt a stage is not pure: then its output is logged, and nothing is assumed of it.
"""

from collections.abc import Iterable
from typing import Any

import polars as pl

from everstream.pipeline.operator import Operator
from everstream.pipeline.source import Source

_DEPENDS = ("shuffle", "sample", "python", "map_", "apply", "rand", "rolling_map", "function")
"""Parts of the names of expressions that depend on chance, or on code we cannot see into."""


def is_plain(expression: Any) -> bool:
    """A column name or constant, or an expression made of nothing but columns and arithmetic."""
    if isinstance(expression, pl.Expr):
        text = str(expression).lower()
        return not any(word in text for word in _DEPENDS)
    return isinstance(expression, str | int | float | bool | None)


def all_plain(expressions: Iterable[Any]) -> bool:
    return all(is_plain(expression) for expression in expressions)


def can_be_read_again(source: Source, operators: Iterable[Operator]) -> bool:
    """Whether a source's batches, sent through these operators, are the same every time."""
    return source.exact_batches and all(operator.pure for operator in operators)
