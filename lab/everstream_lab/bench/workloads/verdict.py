"""Output against truth, as multisets: what is missing, what is there too often, what is untrue."""

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Verdict:
    """What is wrong with an output, in rows."""

    lost: int
    """Rows that should be there and are not, or not often enough."""
    duplicated: int
    """Rows that should be there, but are there too often."""
    untrue: int
    """Rows that should not be there at all."""

    @property
    def exact(self) -> bool:
        return self == EXACT


EXACT = Verdict(0, 0, 0)


def compare(actual: pl.DataFrame, expected: pl.DataFrame) -> Verdict:
    """Hold what was found against what was expected; columns are those of the expected."""
    names = expected.columns
    if not actual.height:
        return Verdict(expected.height, 0, 0)
    rows = actual.select(pl.col(name).cast(kind) for name, kind in expected.schema.items())
    counted = [
        frame.group_by(names).agg(pl.len().cast(pl.Int64).alias(count))
        for frame, count in ((expected, "wanted"), (rows, "shown"))
    ]
    both = counted[0].join(counted[1], on=names, how="full", coalesce=True, nulls_equal=True)
    surplus = pl.col("shown") - pl.col("wanted")
    known = both.fill_null(0) if both.height else both
    lost, duplicated, untrue = known.select(
        lost=(-surplus).clip(0).sum(),
        duplicated=surplus.clip(0).filter(pl.col("wanted") > 0).sum(),
        untrue=pl.col("shown").filter(pl.col("wanted") == 0).sum(),
    ).row(0)
    return Verdict(lost, duplicated, untrue)
