"""Tables: named shared state that transactions read and write by key.

A `Table` is a plain value that the user declares. A `TableState` is the live content: one numpy
column per number in the value, indexed by slot. Keys that no committed transaction has written are
absent and read as the initial value.
"""

from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.compiled import kernel
from everstream.transactions.errors import DefinitionError
from everstream.transactions.index import IntegerIndex, KeyIndex, StringIndex

Column = npt.NDArray[Any]
Number = int | float | bool
KeyKind = Literal["int64", "string"]

_SCALAR_FIELD = "value"
_CHANGED, _UNCHANGED = 1, 2
"""A slot's flag if written since the last `take_changed`, and if only before; 0 if never."""
_NUMBERS = frozenset(
    {
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "bool"),
    }
)


@dataclass(frozen=True)
class KeyReference:
    """`accounts.key("from")`: the key of `accounts` that an event's column `from` names."""

    table: "Table"
    column: str


@dataclass(frozen=True)
class Table:
    """Shared state by key.

    `value` is the name of a number type, or a mapping from field names to number types
    for a fixed-size record; a transaction then sees the record as a named tuple.
    `initial` is the value of a key before it is first written: one number for a number,
    a tuple or mapping (or one number for all fields) for a record.

    >>> accounts = es.Table("accounts", value={"cents": "int64", "moves": "int32"}, initial=0)
    >>> accounts.fields
    {'cents': 'int64', 'moves': 'int32'}
    """

    name: str
    value: str | Mapping[str, str] = "int64"
    initial: Number | tuple[Number, ...] | Mapping[str, Number] = 0
    keys: KeyKind = "int64"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise DefinitionError(f"table name {self.name!r} must be a Python identifier")
        if self.keys not in ("int64", "string"):
            raise DefinitionError(f"table {self.name}: keys must be 'int64' or 'string'")
        for field, number in self.fields.items():
            if number not in _NUMBERS:
                raise DefinitionError(
                    f"table {self.name}: {field} has type {number!r}; use one of {sorted(_NUMBERS)}"
                )
        if len(self.initial_values) != len(self.fields):
            raise DefinitionError(
                f"table {self.name}: initial needs {len(self.fields)} numbers, one per field"
            )

    def __hash__(self) -> int:
        return hash(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "record"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def key(self, column: str) -> KeyReference:
        """The key that an event names in this column, for `es.transaction`."""
        return KeyReference(self, column)

    @property
    def is_record(self) -> bool:
        """Whether values have named fields."""
        return not isinstance(self.value, str)

    @property
    def fields(self) -> dict[str, str]:
        """Field -> number type; one field called `value` if values are single numbers."""
        return {_SCALAR_FIELD: self.value} if isinstance(self.value, str) else dict(self.value)

    @property
    def initial_values(self) -> tuple[Number, ...]:
        """The values of the fields of a key before it is first written."""
        if isinstance(self.initial, Mapping):
            return tuple(self.initial[field] for field in self.fields)
        if isinstance(self.initial, tuple):
            return self.initial
        return (self.initial,) * len(self.fields)

    @cached_property
    def record(self) -> Any:
        """The named tuple a transaction sees for a record value."""
        return namedtuple(f"{self.name}_record", tuple(self.fields))

    @property
    def initial_value(self) -> Any:
        """The initial value as a transaction sees it."""
        numbers = [
            np.dtype(number).type(value).item()
            for number, value in zip(self.fields.values(), self.initial_values, strict=True)
        ]
        return self.record(*numbers) if self.is_record else numbers[0]


@kernel
def _take_changed(written: Any, count: int, out: Any) -> int:
    """Most keys are unchanged, so eight flags are checked together."""
    changed = 0
    words = written[: len(written) // 8 * 8].view(np.uint64)
    calm = np.uint64(0x0101010101010101)
    for word in range((count + 7) // 8):
        if word < len(words) and (words[word] & calm) == 0:
            continue
        for slot in range(8 * word, min(8 * word + 8, count)):
            if written[slot] == _CHANGED:
                written[slot] = _UNCHANGED
                out[changed] = slot
                changed += 1
    return changed


class TableState:
    """The live content of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.index: KeyIndex
        self.columns: list[Column]
        self.written: npt.NDArray[np.uint8]
        self.clear()

    def clear(self) -> None:
        """Delete every key."""
        self.index = IntegerIndex() if self.table.keys == "int64" else StringIndex()
        self.columns = [np.zeros(0, number) for number in self.table.fields.values()]
        self.written = np.zeros(0, np.uint8)

    def reserve(self) -> None:
        """Make room for every slot the index has assigned."""
        capacity = len(self.written)
        if capacity >= self.index.count:
            return
        capacity = max(1024, 2 * capacity, self.index.count)
        for position, initial in enumerate(self.table.initial_values):
            grown = np.full(capacity, initial, self.columns[position].dtype)
            grown[: len(self.columns[position])] = self.columns[position]
            self.columns[position] = grown
        written = np.zeros(capacity, np.uint8)
        written[: len(self.written)] = self.written
        self.written = written

    def snapshot(self) -> dict[str, Column]:
        """A copy of everything, as columns by name: keys, written flags, values."""
        count = self.index.count
        image: dict[str, Column] = {
            "keys": self.index.keys_from(0),
            "written": (self.written[:count] != 0).astype(np.uint8),
        }
        for position, column in enumerate(self.columns):
            image[f"column{position}"] = column[:count].copy()
        return image

    def restore(self, image: Mapping[str, Column]) -> None:
        """Return to the state that `snapshot` copied."""
        self.clear()
        self.index.extend(image["keys"])
        self.reserve()
        count = self.index.count
        self.written[:count] = image["written"]
        for position, column in enumerate(self.columns):
            column[:count] = image[f"column{position}"]

    def scatter(self, slots: Column, columns: list[Column]) -> None:
        """Set the values at `slots`, which need not be distinct: the last one stays."""
        for target, values in zip(self.columns, columns, strict=True):
            target[slots] = values
        self.written[slots] = _CHANGED

    def take_changed(self) -> npt.NDArray[np.int32]:
        """The slots that committed transactions have written since the last call."""
        out = np.empty(self.index.count, np.int32)
        count = _take_changed(self.written, self.index.count, out)
        return out[:count].copy()

    def value_at(self, slot: int) -> Any:
        numbers = [column[slot].item() for column in self.columns]
        return self.table.record(*numbers) if self.table.is_record else numbers[0]

    def get(self, key: int | str) -> Any:
        """The value of `key`, which is the initial value until it is written."""
        slot = self.index.slot_of(key)
        if slot is None or slot >= len(self.written):
            return self.table.initial_value
        return self.value_at(slot)

    def frame(self) -> pl.DataFrame:
        """Every key that a committed transaction has written with its value, by key."""
        slots = np.flatnonzero(self.written[: self.index.count])
        kind = pl.String if self.table.keys == "string" else pl.Int64
        columns = [pl.Series("key", self.index.keys_from(0)[slots].tolist(), kind)]
        for name, column in zip(self.table.fields, self.columns, strict=True):
            columns.append(pl.Series(name, column[slots]))
        return pl.DataFrame(columns).sort("key")

    def items(self) -> Iterator[tuple[int | str, Any]]:
        """Every key that a committed transaction has written, with its value."""
        keys = self.index.keys_from(0)
        for slot in np.flatnonzero(self.written[: self.index.count]):
            key = keys[slot]
            yield (key if isinstance(key, str) else int(key)), self.value_at(int(slot))
