"""Routes: the user chooses the shard of each record, instead of a hash of its key."""

import inspect
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NoReturn, TypeAlias

import numpy as np
import polars as pl

from everstream.errors import UserError, said
from everstream.pipeline.batch import Batch, columns_of, records_of, taken

Route: TypeAlias = Callable[[Any, int], int] | Callable[[int], pl.Expr] | pl.Expr | str
"""The shard of a record: a function of the record and the number of shards, a column, an expression, or
a function of the number of shards that returns one."""


def takes_records(route: Route) -> bool:
    """Whether a route is a function of a record and the number of shards."""
    return _parameters(route) == 2


class Router:
    """Splits batches into one part per shard, as a route says. `receiver`: for messages."""

    def __init__(self, route: Route, receiver: str = "the next operator") -> None:
        self.route = route
        self.receiver = receiver
        self._per_record = takes_records(route)

    @property
    def columns(self) -> pl.Expr | str | None:
        """What selects the shard of each row, if it does not depend on the number of shards."""
        return self.route if isinstance(self.route, pl.Expr | str) else None

    @property
    def text(self) -> str:
        """The route, for checkpoints: a change of it is noticed where it has a text."""
        columns = self.columns
        return "a function" if columns is None else str(columns)

    def towards(self, receiver: str) -> "Router":
        return Router(self.route, receiver)

    def split(self, batch: Batch, shards: int, tolerant: bool = False) -> list[tuple[int, Batch]]:
        """One part for each shard that gets any records; keeps their order."""
        if self._per_record:
            records = records_of(batch)
            places = self._places(records, shards)
            if isinstance(batch, list):
                parts: list[list[Any]] = [[] for _ in range(shards)]
                for record, place in zip(records, places, strict=True):
                    parts[place].append(record)
                return [(shard, part) for shard, part in enumerate(parts) if part]
            at = np.array(places, dtype=np.int64)
            frame: pl.DataFrame = batch
        else:
            frame = columns_of(batch, "route")
            at = self._column(frame, shards)
        present = np.unique(at).tolist()
        if len(present) == 1:
            return [(present[0], frame)]
        return [(shard, frame.filter(pl.Series(at == shard))) for shard in present]

    def _places(self, records: Sequence[Any], shards: int) -> list[int]:
        route: Callable[[Any, int], int] = self.route  # type: ignore[assignment]
        places: list[int] = []
        for record in records:
            try:
                place = index(route(record, shards))
            except Exception as error:
                self._refuse(f"raised {type(error).__name__}: {said(error)}", record, shards)
            if not 0 <= place < shards:
                self._refuse(f"chose shard {place}", record, shards)
            places.append(place)
        return places

    def _column(self, frame: pl.DataFrame, shards: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        chosen: Any = self.route
        if callable(chosen) and not isinstance(chosen, pl.Expr):
            chosen = chosen(shards)
        column = frame.select(pl.col(chosen) if isinstance(chosen, str) else chosen).to_series()
        if len(column) == 1 and frame.height != 1:  # a literal
            column = column.new_from_index(0, frame.height)
        if not column.dtype.is_integer() and column.dtype != pl.Boolean:
            raise UserError(
                f"route to '{self.receiver}': column '{column.name}' is of type {column.dtype}. A "
                "route is the number of a shard, counted from 0: use an integer."
            )
        wrong = (column.is_null() | ~column.cast(pl.Int64).is_between(0, shards - 1)).fill_null(
            True
        )
        if wrong.any():
            row = wrong.arg_true()[0]
            (record,) = records_of(taken(frame, [row]))
            self._refuse(f"chose shard {column[row]}", record, shards)
        return column.cast(pl.Int64).to_numpy()

    def _refuse(self, what: str, record: Any, shards: int) -> NoReturn:
        last = f"0 to {shards - 1}" if shards > 1 else "only 0"
        raise UserError(
            f"route to '{self.receiver}' {what}, and there are {shards} shard(s): {last}. Return "
            f"a number in this range, for example `... % shards`. Record: {record!r}"
        )


def checked_route(route: Any) -> Route:
    """The argument of `route` if it can be one; otherwise raises a UserError."""
    if isinstance(route, str | pl.Expr):
        return route
    if callable(route) and _parameters(route) in (1, 2):
        if _parameters(route) == 1 and not isinstance(route(1), pl.Expr):
            raise UserError(
                "route: a function of one argument gets the number of shards, and returns a Polars "
                "expression. To choose by record, write `lambda record, shards: ...`."
            )
        return route  # type: ignore[no-any-return]
    raise UserError(
        "route takes a function of the record and the number of shards, a column name or a Polars "
        f"expression, not {route!r}."
    )


def _parameters(route: Any) -> int:
    """How many arguments a function requires; 0 for columns."""
    if isinstance(route, str | pl.Expr):
        return 0
    try:
        parameters = inspect.signature(route).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in positional for p in parameters)
