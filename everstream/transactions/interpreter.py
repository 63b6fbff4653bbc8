"""A plain sequential interpreter of transactions: the reference that every engine run must equal.

It shares no code with the engine beyond the declarations: dictionaries for tables, one
event after the other, the user's function called as Python.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everstream.transactions.definition import ABORT, Transaction
from everstream.transactions.tables import Table

Event = Mapping[str, Any]


@dataclass(frozen=True)
class EventOutcome:
    """The outcome of one event: its verdict and the values its keys held, by parameter."""

    committed: bool
    reads: dict[str, Any]


class Interpreter:
    def __init__(
        self,
        tables: Sequence[Table],
        transactions: Sequence[Transaction],
        select: str = "transaction",
    ) -> None:
        self.tables: dict[str, dict[int | str, Any]] = {table.name: {} for table in tables}
        self._initial = {table.name: table.initial_value for table in tables}
        self._transactions = {declared.name: declared for declared in transactions}
        self._only = transactions[0] if len(transactions) == 1 else None
        self._select = select

    def run(self, events: Iterable[Event]) -> list[EventOutcome]:
        return [self.run_one(event) for event in events]

    def run_one(self, event: Event) -> EventOutcome:
        declared = self._only or self._transactions[event[self._select]]
        keys = [(key.table, event[key.column]) for key in declared.keys]
        values = [
            self.tables[table.name].get(key, self._initial[table.name]) for table, key in keys
        ]
        reads = {key.parameter: value for key, value in zip(declared.keys, values, strict=True)}
        arguments = [reads[p] if p in reads else event[p] for p in declared.parameters]
        result = declared.function(*arguments)
        if result is ABORT:
            return EventOutcome(False, reads)
        outputs = result if len(declared.writes) > 1 else (result,)
        for position, output in zip(declared.writes, outputs, strict=False):
            table, key = keys[position]
            self.tables[table.name][key] = _stored(table, output)
        return EventOutcome(True, reads)


def _stored(table: Table, value: Any) -> Any:
    """The value as the table's number types hold it."""
    numbers = value if table.is_record else (value,)
    held = [
        np.dtype(number).type(part).item()
        for number, part in zip(table.fields.values(), numbers, strict=True)
    ]
    return table.record(*held) if table.is_record else held[0]
