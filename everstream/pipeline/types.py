"""What flows, for editors and type checkers: `Stream[T]` has records of type T. Nothing here acts.

Streams and sources only give records, so a `Stream[int]` is also a `Stream[object]`. Said without
a type, as `Stream`, they are of anything.
"""

from collections.abc import Hashable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", covariant=True, default=Any)
    K = TypeVar("K", covariant=True, bound=Hashable, default=Any)
else:  # defaults are known to Python from 3.13 on
    from typing import TypeVar

    T = TypeVar("T", covariant=True)
    K = TypeVar("K", covariant=True, bound=Hashable)
U = TypeVar("U")
V = TypeVar("V")
Key = TypeVar("Key", bound=Hashable)

Row: TypeAlias = dict[str, Any]
"""A record that came as a row of a DataFrame, as Python functions see it."""

Column: TypeAlias = str | pl.Expr
"""A column by its name, or a Polars expression."""

Value: TypeAlias = (
    pl.Expr | pl.Series | str | bytes | bool | float | Decimal | date | time | timedelta | None
)
"""What Polars makes a column of: an expression, the name of a column, or a constant."""

Values: TypeAlias = Value | Iterable[Value]
