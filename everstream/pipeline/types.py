"""The types of what flows, for editors and type checkers: `Stream[T]` has records of type T.

Streams and sources only give records, so a `Stream[int]` is also a `Stream[object]`. Without a
type, as `Stream`, they are of anything. Nothing here has an effect at run time.
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
else:  # Python supports defaults of type variables from 3.13 on
    from typing import TypeVar

    T = TypeVar("T", covariant=True)
    K = TypeVar("K", covariant=True, bound=Hashable)
U = TypeVar("U")
V = TypeVar("V")
Key = TypeVar("Key", bound=Hashable)

Row: TypeAlias = dict[str, Any]
"""A record that came as a row of a DataFrame, in the form Python functions see."""

Column: TypeAlias = str | pl.Expr
"""A column by its name, or a Polars expression."""

Value: TypeAlias = (
    pl.Expr | pl.Series | str | bytes | bool | float | Decimal | date | time | timedelta | None
)
"""What Polars accepts for a column: an expression, the name of a column, or a constant."""

Values: TypeAlias = Value | Iterable[Value]
