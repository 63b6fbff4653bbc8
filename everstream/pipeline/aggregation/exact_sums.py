"""Sums that are exact or refused: whole numbers never wrap, and Decimals stay Decimals.

Whole numbers are added in 64 bits where the largest of them, taken as often as there are numbers,
fits; otherwise in 128 bits. Polars adds 128 bits without looking for an overflow, also those of
Decimals, so a sum of floats beside it shows whether the exact one can be right. A sum has at most
38 digits, the most that a Decimal of Polars can have.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, localcontext
from typing import Any, Final

import polars as pl

from everstream.errors import UserError

DIGITS: Final = 38
LIMIT: Final = 10**DIGITS
_NO_WRAP: Final = 1.3e38
"""If the sum of floats is below this, the sum in 128 bits, which hold 1.7e38, has not wrapped."""
_SMALL_KINDS: Final = (pl.Boolean, pl.Null, pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32)  # fmt: skip
AVERAGE_SCALE: Final = 6
"""A mean of Decimals has at least this many digits after the point."""
ABOUT: Final = "about"
EXACT: Final = Context(prec=2 * DIGITS, traps=[Inexact])


def kind_of(column: pl.Expr, frame: pl.DataFrame) -> pl.DataType:
    return frame.head(0).select(column.alias("kind")).dtypes[0]


def summed_kind(column: pl.Expr, frame: pl.DataFrame) -> pl.DataType:
    """The type in which to add up a column of this frame, so that no overflow goes unnoticed."""
    kind = kind_of(column, frame)
    if kind.is_float():
        return pl.Float64()
    if kind.is_decimal():
        return pl.Decimal(DIGITS, kind.scale)  # type: ignore[attr-defined]
    if kind in _SMALL_KINDS:
        return pl.Int64()
    return pl.Int64() if _most(column, frame) < 2**63 else pl.Int128()


def running_kind(name: str, column: pl.Expr, frame: pl.DataFrame) -> pl.DataType:
    """The same for running sums; a UserError if these may wrap."""
    kind = summed_kind(column, frame)
    if can_wrap(kind) and _most(column, frame) >= _unscaled(LIMIT, kind):
        raise too_large(name)
    return kind


def _most(column: pl.Expr, frame: pl.DataFrame) -> Any:
    """An upper bound on the absolute value of any sum of these numbers."""
    low, high = frame.select(column.min().alias("low"), column.max().alias("high")).row(0)
    return max(abs(low or 0), abs(high or 0)) * max(len(frame), 1)


def can_wrap(kind: pl.DataType) -> bool:
    return kind == pl.Int128 or kind.is_decimal()


def checked(grouped: pl.DataFrame, name: str) -> pl.DataFrame:
    """Checks that no sum in the column `{name}.sum` has wrapped, and shrinks its type."""
    column, about = f"{name}.sum", f"{name}.{ABOUT}"
    if about not in grouped.columns:
        return grouped
    sums = grouped.get_column(column)
    physical = sums.to_physical() if sums.dtype.is_decimal() else sums
    wrapped = grouped.get_column(about).abs() >= _unscaled(_NO_WRAP, sums.dtype)
    if wrapped.any() or not physical.is_between(-LIMIT + 1, LIMIT - 1).all():
        raise too_large(name)
    if not sums.dtype.is_decimal() and sums.is_between(-(2**63), 2**63 - 1).all():
        sums = sums.cast(pl.Int64)
    return grouped.with_columns(sums).drop(about)


def _unscaled(limit: float, kind: pl.DataType) -> float:
    return limit / 10.0**kind.scale if kind.is_decimal() else limit  # type: ignore[attr-defined]


def too_large(name: str) -> UserError:
    return UserError(
        f"the sum for '{name}' has more than {DIGITS} digits, the most that a sum can have. "
        "Add up smaller numbers, or cast the column to floats: "
        "es.sum(pl.col(...).cast(pl.Float64))."
    )


def means(sums: pl.Series, counts: pl.Series) -> pl.Series:
    """Divides sums of Decimals by their counts, with at least `AVERAGE_SCALE` digits."""
    scale = max(AVERAGE_SCALE, sums.dtype.scale)  # type: ignore[attr-defined]
    step = Decimal(1).scaleb(-scale)
    with localcontext(Context(prec=4 * DIGITS, rounding=ROUND_HALF_EVEN)):
        quotients = [
            (total / count).quantize(step) if count else None
            for total, count in zip(sums.to_list(), counts.to_list(), strict=True)
        ]
    return decimals(sums.name, quotients, scale)


def decimals(name: str, values: list[Any], scale: int) -> pl.Series:
    """Decimals as a column; a UserError if one does not fit with this many digits after the point."""
    most = Decimal(LIMIT).scaleb(-scale)
    if any(value is not None and abs(value) >= most for value in values):
        raise too_large(name.rpartition(".")[0] or name)
    return pl.Series(name, values, dtype=pl.Decimal(DIGITS, scale))


def scale_of(values: list[Any]) -> int:
    """The largest number of digits after the point among these Decimals and whole numbers."""
    exponents = (value.as_tuple().exponent for value in values if isinstance(value, Decimal))
    return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
