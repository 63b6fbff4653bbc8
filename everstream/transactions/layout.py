"""The positions in `data`, the one tuple that every kernel sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.definition import Transaction
from everstream.transactions.errors import DefinitionError
from everstream.transactions.tables import Table

TYPES, SLOTS, COMMITTED, SPIN = range(4)
_FIXED = 4


@dataclass(frozen=True)
class ReadColumn:
    """One outcome column: the value read for a parameter, or one field of a record."""

    name: str
    field: str | None
    dtype: str
    users: tuple[tuple[int, int], ...]  # (transaction, key position) pairs that fill it


class DataLayout:
    """The positions in `data`, and the shape of the transactions in arrays."""

    def __init__(self, tables: Sequence[Table], transactions: Sequence[Transaction]) -> None:
        self.tables = tuple(tables)
        self.transactions = tuple(transactions)
        names = [declared.name for declared in transactions]
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(
                    f"two transactions are named {name}; events refer to them by name"
                )
        self.width = max(len(declared.keys) for declared in transactions)
        table_number = {table.name: number for number, table in enumerate(self.tables)}
        for declared in transactions:
            for key in declared.keys:
                if (
                    key.table.name not in table_number
                    or key.table != self.tables[table_number[key.table.name]]
                ):
                    raise DefinitionError(
                        f"transaction {declared.name} uses table {key.table.name}, "
                        "which the engine was not given"
                    )
        shape = (len(transactions), self.width)
        self.table_of = np.full(shape, -1, np.int8)
        self.is_write = np.zeros(shape, np.uint8)
        for number, declared in enumerate(transactions):
            for position, key in enumerate(declared.keys):
                self.table_of[number, position] = table_number[key.table.name]
            self.is_write[number, list(declared.writes)] = 1
        self.fields = tuple(dict.fromkeys(f for declared in transactions for f in declared.fields))
        self.reads = _read_columns(transactions)
        self.column_at: list[int] = []
        self.written_at: list[int] = []
        place = _FIXED
        for table in self.tables:
            self.column_at.append(place)
            self.written_at.append(place + len(table.fields))
            place += len(table.fields) + 1
        self.field_at = {name: place + offset for offset, name in enumerate(self.fields)}
        place += len(self.fields)
        self.read_at = place

    def users_of(self, field: str) -> npt.NDArray[np.bool_]:
        """Which transactions use an event field."""
        return np.array([field in declared.fields for declared in self.transactions])

    def read_places(self, number: int, position: int) -> list[int]:
        """Where in `data` the value read by a key of a transaction is recorded."""
        return [
            self.read_at + offset
            for offset, column in enumerate(self.reads)
            if (number, position) in column.users
        ]

    def empty_reads(self, rows: int) -> list[npt.NDArray[Any]]:
        return [np.zeros(rows, column.dtype) for column in self.reads]


def _read_columns(transactions: Sequence[Transaction]) -> tuple[ReadColumn, ...]:
    """Keys of the same name and value share columns; otherwise the transaction's name is added."""
    shapes: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for declared in transactions:
        for key in declared.keys:
            shapes.setdefault(key.parameter, set()).add(tuple(key.table.fields.items()))
    users: dict[tuple[str, str | None, str], list[tuple[int, int]]] = {}
    for number, declared in enumerate(transactions):
        for position, key in enumerate(declared.keys):
            alone = len(shapes[key.parameter]) == 1
            name = key.parameter if alone else f"{declared.name}.{key.parameter}"
            for field, dtype in key.table.fields.items():
                column = (name, field if key.table.is_record else None, dtype)
                users.setdefault(column, []).append((number, position))
    return tuple(ReadColumn(*column, tuple(kinds)) for column, kinds in users.items())
