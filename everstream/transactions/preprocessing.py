"""Preprocessing: a batch of events becomes transaction types, slots and fields, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from everstream.transactions.errors import InputError
from everstream.transactions.execution import Threads
from everstream.transactions.index import Positions, Rows, dictionary
from everstream.transactions.layout import DataLayout
from everstream.transactions.recovery import BatchRun
from everstream.transactions.tables import TableState


class Preprocessor:
    """Turns events into prepared batches.

    With several transaction types, the column `select` has the one to run for each event: by
    name, or by its number in the order the types were given.
    """

    def __init__(
        self,
        layout: DataLayout,
        states: Sequence[TableState],
        threads: Threads,
        select: str,
        timestamp: str | None,
    ) -> None:
        self._layout = layout
        self._states = states
        self._threads = threads
        self._select = select
        self._timestamp = timestamp
        self._uses = _uses(layout)

    def prepare(self, events: pl.DataFrame, first_event: int) -> BatchRun:
        self._check(events)
        types = self._types(events)
        slots = np.full((self._layout.width, len(events)), -1, np.int32)
        for use in self._uses:
            column = self._present(events, use.column, types, use.position_of >= 0)
            self._states[use.table].index.assign(
                column,
                Rows(types, use.position_of, slots),
                self._threads.pool,
                self._threads.count,
            )
        for state in self._states:
            state.reserve()
        fields = [self._field(events, name, types) for name in self._layout.fields]
        return BatchRun(first_event, types, slots, fields, [], np.zeros(0, np.uint8))

    def _check(self, events: pl.DataFrame) -> None:
        wanted = {key.column for declared in self._layout.transactions for key in declared.keys}
        wanted.update(self._layout.fields)
        if len(self._layout.transactions) > 1:
            wanted.add(self._select)
        if self._timestamp is not None:
            wanted.add(self._timestamp)
        missing = sorted(wanted.difference(events.columns))
        if missing:
            raise InputError(
                f"events have no column {', '.join(missing)}; they have {events.columns}"
            )
        if self._timestamp is not None and not events[self._timestamp].is_sorted():
            raise InputError(
                f"events are not in order of {self._timestamp!r}: sort each batch by it, "
                "and cut batches so that timestamps never go back"
            )

    def _types(self, events: pl.DataFrame) -> npt.NDArray[np.uint8]:
        names = [declared.name for declared in self._layout.transactions]
        if len(names) == 1 and self._select not in events.columns:
            return np.zeros(len(events), np.uint8)
        column = events.get_column(self._select)
        if column.null_count():
            raise InputError(f"column {self._select!r} has events without a transaction type")
        encoded = column.to_arrow()
        if pa.types.is_integer(encoded.type):
            codes = column.to_numpy()
            if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(names)):
                raise InputError(f"column {self._select!r} must hold 0 to {len(names) - 1}")
            return codes.astype(np.uint8)
        categories, codes = dictionary(column)
        if categories == names:
            return codes.astype(np.uint8)
        number_of = {name: number for number, name in enumerate(names)}
        lookup = np.array([number_of.get(category, 255) for category in categories], np.uint8)
        types: npt.NDArray[np.uint8] = lookup[codes]
        if (types == 255).any():
            unknown = sorted(set(column.cast(pl.String).unique().to_list()).difference(names))
            raise InputError(f"events name unknown transactions {unknown}; there are {names}")
        return types

    def _present(
        self,
        events: pl.DataFrame,
        name: str,
        types: npt.NDArray[np.uint8],
        users: npt.NDArray[np.bool_],
    ) -> pl.Series:
        """A column with its nulls filled in; they are allowed only where a type does not use it."""
        column = events.get_column(name)
        if column.null_count() == 0:
            return column
        blamed = types[column.is_null().to_numpy() & users[types]]
        if len(blamed):
            declared = self._layout.transactions[int(blamed[0])].name
            raise InputError(f"column {name!r} is null in an event of transaction {declared!r}")
        return column.fill_null("" if column.dtype == pl.String else 0)

    def _field(
        self, events: pl.DataFrame, name: str, types: npt.NDArray[np.uint8]
    ) -> npt.NDArray[Any]:
        column = self._present(events, name, types, self._layout.users_of(name))
        values = column.to_numpy()
        if values.dtype.kind not in "iufb":
            raise InputError(f"field {name!r} must be a number or a boolean, not {column.dtype}")
        return values


@dataclass(frozen=True)
class _Use:
    """An event column with keys of a table: per transaction type, as which of its keys."""

    table: int
    column: str
    position_of: Positions


def _uses(layout: DataLayout) -> list[_Use]:
    """Every use of a column once, for all types that name it as the key of one table."""
    uses: list[_Use] = []
    for number, declared in enumerate(layout.transactions):
        for position, key in enumerate(declared.keys):
            table = int(layout.table_of[number, position])
            for use in uses:
                same = (use.table, use.column) == (table, key.column)
                if same and use.position_of[number] < 0:
                    use.position_of[number] = position
                    break
            else:
                use = _Use(table, key.column, np.full(len(layout.transactions), -1, np.int8))
                use.position_of[number] = position
                uses.append(use)
    return uses
