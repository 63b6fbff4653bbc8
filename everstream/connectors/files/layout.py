"""How the output of a sink is laid out: parts of limited size, in a folder for each value of some columns.

A writer has an open part for each partition. A part that is large enough is ended, and a new one follows.
At a checkpoint all parts are ended, and are one transaction: each appears whole when the checkpoint is
stable, as Flink's FileSink does it for formats whose files cannot be continued.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any
from urllib.parse import quote

import polars as pl

from everstream.connectors.columns import Columns
from everstream.connectors.files.parts import (
    PartFolder,
    PartsTransaction,
    PartTransaction,
    PartWriter,
)
from everstream.errors import RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Permit, Writer
from everstream.pipeline.times import size_bytes

NULL = "__HIVE_DEFAULT_PARTITION__"
"""As Hive, Spark and Polars write it."""
_PLAIN = (str, bool, int, date, datetime, time)


@dataclass(frozen=True)
class FileLayout:
    """What a user chooses; the default is one part for each shard and checkpoint."""

    roll_bytes: int | None = None
    partition_by: tuple[str, ...] = ()
    prefix: str = ""

    @staticmethod
    def of(
        roll_bytes: str | int | None, partition_by: str | Sequence[str] | None, prefix: str
    ) -> "FileLayout":
        """The choice, checked."""
        limit = None if roll_bytes is None else size_bytes("roll_bytes", roll_bytes)
        names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        if not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
            raise UserError(f"partition_by={partition_by!r}: give names of columns, each once.")
        if prefix and (quote(prefix, safe="") != prefix or prefix[0] in "_."):
            raise UserError(
                f"prefix={prefix!r}: use letters, digits, '-', '_' and '.', and begin with a letter or "
                "a digit."
            )
        return FileLayout(limit, names, prefix)

    @property
    def splits(self) -> bool:
        """Whether a checkpoint can have several parts."""
        return self.roll_bytes is not None or bool(self.partition_by)

    def describe(self) -> dict[str, Any]:
        """What must stay the same for a later run, so that it finds the parts."""
        columns = {"partition_by": list(self.partition_by)} if self.partition_by else {}
        return {**columns, **({"prefix": self.prefix} if self.prefix else {})}

    def folder(self, folder: PartFolder) -> PartFolder:
        return replace(folder, prefix=self.prefix, levels=len(self.partition_by))


class SplitWriter(Writer):
    """Writes to many part writers, one after the other for one partition."""

    def __init__(
        self, layout: FileLayout, make: Callable[[], PartWriter], columns: Columns | None
    ) -> None:
        self._layout = layout
        self._make = make
        self._columns = columns
        self._recovering = make()
        """Writes nothing: it knows what earlier writers have left behind."""
        self._open: dict[str, PartWriter] = {}
        self._full: list[tuple[str, PartWriter]] = []

    def saved(self) -> Any:
        return self._recovering.saved()

    def restore(self, saved: Any) -> None:
        self._recovering.restore(saved)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        groups = _groups(batch, self._layout.partition_by)
        rows = _without(batch, self._layout.partition_by)
        if self._columns is not None:
            rows = self._columns.settle(rows)  # all of it, before any of it is written
        encoded: list[tuple[PartWriter, bytes]] = []
        for partition, numbers in groups.items():
            writer = self._open.get(partition)
            if writer is None:
                writer = self._open[partition] = self._make()
            whole = len(numbers) == len(rows)
            some = rows if whole else _taken(rows, numbers)
            try:
                encoded.append((writer, writer.encode(some)))
            except RefusedRecords as error:
                raise RefusedRecords({numbers[n]: why for n, why in error.rows.items()}) from error
        for writer, data in encoded:
            writer.append(data)
        self._roll()

    def _roll(self) -> None:
        limit = self._layout.roll_bytes
        if limit is None:
            return
        for partition, writer in [*self._open.items()]:
            if writer.size_bytes >= limit:
                writer.end()
                self._full.append((partition, self._open.pop(partition)))

    def prepare(self, checkpoint: int) -> Committable | None:
        ended = [*self._full, *self._open.items()]
        self._open, self._full = {}, []
        parts: list[PartTransaction] = []
        numbers: dict[str, int] = {}
        for partition, writer in ended:
            number = numbers[partition] = numbers.get(partition, -1) + 1
            part = writer.prepared(checkpoint, partition, number)
            if part is not None:
                parts.append(part)
        return PartsTransaction(tuple(parts), checkpoint) if parts else None

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        return self._recovering.recover(transactions, permit)

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return self._recovering.adopt(transactions)

    def close(self) -> None:
        for writer in (self._recovering, *self._open.values(), *(w for _, w in self._full)):
            writer.close()
        self._open, self._full = {}, []


def _groups(batch: Batch, by: Sequence[str]) -> dict[str, list[int]]:
    """The row numbers of each partition, in order."""
    if not by:
        return {"": list(range(len(batch)))}
    groups: dict[str, list[int]] = {}
    if isinstance(batch, pl.DataFrame):
        missing = [name for name in by if name not in batch.columns]
        if missing:
            raise UserError(_absent(missing[0], batch.columns))
        numbered = batch.select(by).with_row_index("__row")
        for values, rows in numbered.group_by(by, maintain_order=True):
            groups.setdefault(_path(by, values), []).extend(rows["__row"].to_list())
        return groups
    refused: dict[int, str] = {}
    for number, record in enumerate(batch):
        try:
            if not isinstance(record, Mapping) or any(name not in record for name in by):
                there = [*record] if isinstance(record, Mapping) else []
                raise UserError(_absent(next(name for name in by if name not in there), there))
            groups.setdefault(_path(by, [record[name] for name in by]), []).append(number)
        except UserError as error:
            refused[number] = error.message
    if refused:
        raise RefusedRecords(refused)
    return groups


def _absent(name: str, there: Sequence[str]) -> str:
    return f"partition_by names column '{name}', but the record has: {', '.join(map(str, there))}."


def _path(by: Sequence[str], values: Sequence[Any]) -> str:
    return "/".join(
        f"{quote(name, safe='')}={_hive(name, value)}"
        for name, value in zip(by, values, strict=True)
    )


def _hive(name: str, value: Any) -> str:
    if value is None or value == "":
        return NULL
    if not isinstance(value, _PLAIN):
        raise UserError(
            f"partition_by: column '{name}' has {value!r}. Folders are named by texts, whole numbers, "
            "booleans, dates and times."
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return quote(text, safe=" -_") if text not in (".", "..") else text.replace(".", "%2E")


def _without(batch: Batch, by: Sequence[str]) -> Batch:
    if not by:
        return batch
    if isinstance(batch, pl.DataFrame):
        return batch.drop(by)
    return [{name: value for name, value in record.items() if name not in by} for record in batch]


def _taken(rows: Batch, numbers: Sequence[int]) -> Batch:
    return rows[numbers] if isinstance(rows, pl.DataFrame) else [rows[n] for n in numbers]
