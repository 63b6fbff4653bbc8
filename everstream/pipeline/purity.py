"""Which stages always give the same output for the same batch.

What a source sent through such stages can be had again by reading it again, so it need not be
logged. In doubt a stage is not pure: then its output is logged, and nothing is assumed of it.
"""

from collections.abc import Iterable
from typing import Any

import polars as pl

from everstream.pipeline.expressions import depends_on_the_batch_only
from everstream.pipeline.operator import Operator
from everstream.pipeline.source import Source


def is_plain(expression: Any) -> bool:
    """A column name or constant, or an expression that depends on nothing but its batch."""
    if isinstance(expression, pl.Expr):
        return depends_on_the_batch_only(expression)
    return isinstance(expression, str | int | float | bool | None)


def all_plain(expressions: Iterable[Any]) -> bool:
    return all(is_plain(expression) for expression in expressions)


def can_be_read_again(source: Source, operators: Iterable[Operator]) -> bool:
    """Whether a source's batches, sent through these operators, are the same every time."""
    return source.exact_batches and all(operator.pure for operator in operators)
