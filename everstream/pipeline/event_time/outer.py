"""Outer joins: which sides keep rows without a partner, and what the other side's columns are then.

A row without a partner comes out with nulls. A shard may never see a row of the other side, so the
types of these nulls are known before anything runs: from a declared schema, or from the source. Rows
of a side with a known schema are brought into it, so the output has one schema for the whole run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.exact import SeriesColumn, Unfit, in_kinds, nulls
from everstream.pipeline.graph import Graph
from everstream.pipeline.operators.schemas import known_schema

How: TypeAlias = Literal["inner", "left", "right", "full"]
Side: TypeAlias = str
LEFT: Side = "left"
RIGHT: Side = "right"
KEPT: Mapping[How, tuple[Side, ...]] = {
    "inner": (),
    "left": (LEFT,),
    "right": (RIGHT,),
    "full": (LEFT, RIGHT),
}
"""The sides whose rows come out even without a partner."""
SUFFIX = "_right"
Types: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Outer:
    """Which rows come out without a partner, and the columns of the sides that may be missing."""

    how: How = "inner"
    schemas: Mapping[str, pl.Schema] = field(default_factory=dict)
    """Side -> its columns: of each side that can be missing, and of any that was declared."""

    @property
    def sides(self) -> tuple[Side, ...]:
        return KEPT[self.how]

    def fitted(self, side: str, rows: pl.DataFrame, operator: str) -> pl.DataFrame:
        """Rows in the schema of their side, if it has one; otherwise as they are."""
        schema = self.schemas.get(side)
        if schema is None or rows.schema == schema:
            return rows
        surplus = [name for name in rows.columns if name not in schema]
        if surplus:
            raise UserError(
                f"'{operator}': rows of the {side} side have the column '{surplus[0]}', which is not "
                f"in their schema ({', '.join(schema)}). Add it to {_option(side)}, or remove it with "
                "a select before the join."
            )
        try:
            return in_kinds(rows, schema)
        except Unfit as problem:
            raise UserError(
                f"'{operator}': rows of the {side} side do not fit their schema: {problem}. Correct "
                f"{_option(side)}, or cast the column before the join."
            ) from None

    def alone(
        self, side: str, rows: pl.DataFrame, keys: Mapping[str, Sequence[str]], operator: str
    ) -> pl.DataFrame:
        """Rows without a partner, in the columns of pairs."""
        if side == LEFT:
            others = {n: k for n, k in self.schemas[RIGHT].items() if n not in keys[RIGHT]}
            return rows.with_columns(
                nulls(renamed(name, rows.columns), len(rows), kind) for name, kind in others.items()
            )
        mine = dict(zip(keys[LEFT], keys[RIGHT], strict=True))
        columns: list[pl.Series] = []
        for name, kind in self.schemas[LEFT].items():
            if name in mine:
                columns.append(_as_key(rows[mine[name]], name, kind, operator))
            else:
                columns.append(nulls(name, len(rows), kind))
        columns += (
            rows[name].alias(renamed(name, self.schemas[LEFT]))
            for name in rows.columns
            if name not in keys[RIGHT]
        )
        return pl.DataFrame(columns)


INNER = Outer()


def renamed(name: str, taken: Any) -> str:
    return f"{name}{SUFFIX}" if name in taken else name


def require_free(left: Sequence[str], right: Sequence[str], operator: str) -> None:
    """A UserError if a column of the right side, renamed, has the name of another. right: without keys."""
    for name in right:
        new = renamed(name, left)
        if new != name and (new in left or new in right):
            raise UserError(
                f"'{operator}': both sides have a column '{name}', and '{new}' is taken, too. Rename one "
                "of them before the join: .select(pl.exclude(...), other=pl.col(...))."
            )


def _as_key(keys: pl.Series, name: str, kind: pl.DataType, operator: str) -> pl.Series:
    if keys.dtype.is_float() and kind.is_integer():  # a key is equal to the whole number that it is
        whole = keys.cast(kind, strict=False)
        if whole.cast(keys.dtype).eq_missing(keys).all():
            return whole.alias(name)
    fitted, misfits = SeriesColumn(keys).fitted(kind)
    if misfits:
        raise UserError(
            f"'{operator}': a row without a partner has a key that does not fit column '{name}' of the "
            f"left side: {next(iter(misfits.values()))}. Cast one of the key columns before the join."
        )
    return fitted.alias(name)


def _option(side: str) -> str:
    return "schema=" if side == LEFT else "other_schema="


def outer(
    method: str,
    how: How,
    streams: Mapping[str, tuple[Graph, list[tuple[str, str]]]],
    declared: Mapping[str, Types | None],
    keys: Mapping[str, Sequence[str]],
) -> Outer:
    """Checked, with the schemas of all sides that can be missing. streams: side -> its origins."""
    if how not in get_args(How):
        raise UserError(
            f"{method}: how={how!r} is not valid: use 'inner', 'left', 'right' or 'full'."
        )
    missing = {RIGHT if side == LEFT else LEFT for side in KEPT[how]}
    schemas: dict[str, pl.Schema] = {}
    for side in (LEFT, RIGHT):
        given = declared.get(side)
        schema = pl.Schema(given) if given is not None else None
        if schema is None and side in missing:
            schema = known_schema(*streams[side])
            if schema is None:
                raise UserError(
                    f"{method}(how={how!r}) emits nulls for the columns of the {side} side, whose types "
                    f"are not known before the run. Give them: {_option(side)}"
                    "{'column': pl.Int64, ...}."
                )
        if schema is not None:
            absent = [name for name in keys[side] if name not in schema]
            if absent:
                raise UserError(
                    f"{method}: there is no column '{absent[0]}' on the {side} side; its columns are "
                    f"{', '.join(schema)}. Check on=, other_on= and {_option(side)}."
                )
            schemas[side] = schema
    return Outer(how, schemas)
