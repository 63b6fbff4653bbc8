"""Tables in a lake of any format: what a sink and a source need to know.

A table is a sequence of versions. A version adds or removes files atomically. If another writer
was faster, the commit fails (`Conflict`), and the writer reads the table again and retries. Our
versions carry a `TableMark`, written in the same step: the progress of a shard.
"""

import hashlib
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import polars as pl

from everstream.connectors.files.parts import owner_of
from everstream.connectors.ownership import Claim, Owner
from everstream.connectors.retry import pauses
from everstream.errors import ConnectorError, EverstreamError
from everstream.hiding import without
from everstream.pipeline.sink import SinkShard
from everstream.state.saved import Saved
from everstream.state.storage import folders

R = TypeVar("R")
TRIES = 60
FIRST_WAIT_S, LONGEST_WAIT_S = 0.01, 1.0
MARK = "everstream"
"""The name under which a version records its owner."""


class Conflict(Exception):
    """Another writer's version came first: nothing was committed."""


@dataclass(frozen=True)
class LakeFile(Saved, word="lake-file"):
    """A data file: its path, as the table has it, and what the table records of it.

    `details` are plain values that only the table's format understands.
    """

    path: str
    size_bytes: int
    rows: int
    details: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    first_row: int = 0
    """Where to begin to read it: another shard has read the rows before."""


@dataclass(frozen=True)
class TableMark:
    """The content of our mark: this shard's output is in the table up to this checkpoint.

    Checkpoint 0 with no shard: all output of this operator has been removed.
    """

    owner: str
    shard: int | None
    checkpoint: int
    generation: int

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: object) -> "TableMark | None":
        if not isinstance(text, str):
            return None
        try:
            return TableMark(**json.loads(text))
        except (ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Standing:
    """The progress of a shard, as the table has it, and which generation took it over last."""

    checkpoint: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Change:
    """What one version did to the rows; files that were only compacted are in neither list."""

    version: int
    added: tuple[LakeFile, ...]
    removed: tuple[str, ...]
    mark: TableMark | None = None


class HistoryLost(ConnectorError):
    """The table no longer has a version that is needed."""


class TableSnapshot(ABC):
    """A table as it was when it was read."""

    version: int

    @abstractmethod
    def schema(self) -> pl.Schema: ...

    @abstractmethod
    def partition_by(self) -> list[str]: ...

    @abstractmethod
    def required(self) -> list[str]:
        """The columns that must have a value in every row."""

    @abstractmethod
    def refuse_writing(self) -> None:
        """Raise a UserError if the table has constraints that files written here would violate."""

    @abstractmethod
    def files(self) -> list[LakeFile]:
        """All files that hold its rows, in the same order for every reader."""

    @abstractmethod
    def paths(self) -> set[str]:
        """The paths of these files."""

    @abstractmethod
    def standing(self, owner: str, shard: int) -> Standing: ...

    @abstractmethod
    def shards(self, owner: str) -> list[int]:
        """The shards of this owner that the table knows."""

    def has_output(self, owner: str) -> bool:
        return any(self.standing(owner, shard).checkpoint for shard in self.shards(owner))

    @abstractmethod
    def history(self) -> Iterator[Change]:
        """The versions from this one back to the first; HistoryLost where they end early."""

    @abstractmethod
    def changes_after(self, version: int) -> Iterator[Change]:
        """The versions after that one, oldest first; HistoryLost if they are gone."""


_KEPT_AS: dict[Any, pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.UInt64: pl.Decimal(20, 0),
    pl.Categorical: pl.String(),
    pl.Enum: pl.String(),
}
_KEPT = (
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.Boolean),
    *(pl.String, pl.Binary, pl.Date, pl.Decimal),
    pl.Null,  # in a column that no file has yet
)


class LakeTable(ABC):
    """Where a table is; picklable. As text it names the table, without credentials."""

    format: str
    relative = False
    """Whether data files are named by their paths inside the table."""
    empty_partition_is_null = False
    """Whether an empty text in a partition column would be read as None."""
    kept_as: ClassVar[Mapping[Any, pl.DataType]] = _KEPT_AS
    """Types that the format does not have, and the wider ones in which it keeps them."""
    removed_by: str
    """What may have removed a data file, and what the user should keep for longer."""
    secrets: Sequence[str]
    """Words that no error may show."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def load(self, version: Any = None) -> TableSnapshot | None:
        """The table at this version, or as it is now; None if there is no such table."""

    @abstractmethod
    def create(self, schema: pl.Schema, partition_by: Sequence[str]) -> None:
        """Create an empty table; harmless if another writer was faster."""

    @abstractmethod
    def add_columns(self, state: TableSnapshot, schema: pl.Schema) -> None:
        """Add these columns to the table; Conflict if another writer changed it meanwhile."""

    def kind(self, kind: pl.DataType) -> pl.DataType | None:
        """The type in which the format keeps this one; None if there is none."""
        if isinstance(kind, pl.Datetime):
            return pl.Datetime("us", "UTC" if kind.time_zone else None)
        if isinstance(kind, pl.List | pl.Array):
            inner = self.kind(kind.inner)  # type: ignore[arg-type]
            return None if inner is None else pl.List(inner)
        if isinstance(kind, pl.Struct):
            fields = {f.name: self.kind(f.dtype) for f in kind.fields}  # type: ignore[arg-type]
            return None if None in fields.values() else pl.Struct(fields)  # type: ignore[arg-type]
        return self.kept_as.get(kind.base_type(), kind if kind.base_type() in _KEPT else None)

    def problem(self, error: Exception, doing: str) -> EverstreamError:
        """A library's error as one that names the table."""
        cause = without_secrets(error, self.secrets)
        return ConnectorError(f"cannot {doing} {self}: {cause}. Check that it can be reached.")

    def unreadable(self, file: LakeFile, error: Exception) -> EverstreamError:
        """The error for a data file that cannot be read, or is gone."""
        if self.size_of(file.path) is not None:
            return self.problem(error, f"read '{file.path}' of")
        return HistoryLost(
            f"{self}: the data file '{file.path}' is missing: {self.removed_by} for longer than the "
            "pipeline may be down, or start over with --fresh, which deletes the output."
        )

    def lost(self, values: pl.Series) -> pl.Series | None:
        """True for values of a column that would change in the files; None for none."""
        return None

    @abstractmethod
    def write(
        self,
        state: TableSnapshot,
        frame: pl.DataFrame,
        stem: str,
        note: Callable[[list[str]], None],
    ) -> list[LakeFile]:
        """Write the rows to new files, which no version names yet; calls `note` before each."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file that no version names; harmless if it is gone."""

    @abstractmethod
    def size_of(self, path: str) -> int | None:
        """How large a file is; None if it is gone."""

    @abstractmethod
    def commit(
        self,
        state: TableSnapshot,
        added: Sequence[LakeFile],
        removed: Sequence[str],
        mark: TableMark,
        shards: Sequence[int] = (),
    ) -> None:
        """Make the next version, marked; Conflict if the mark's shard has advanced since `state`.

        A mark without a shard is for these `shards`, which start over.
        """

    @abstractmethod
    def read(self, file: LakeFile, schema: pl.Schema) -> Iterator[pl.DataFrame]:
        """The rows of a file with this schema, always in the same order."""

    @abstractmethod
    def read_note(self, name: str) -> str | None:
        """A text that is kept with the table; None if there is none."""

    @abstractmethod
    def write_note(self, name: str, text: str | None) -> None:
        """Keep a text with the table, or with None remove it; does nothing if there is no table."""


def key_of(shard: SinkShard) -> str:
    return owner_of(shard.pipeline, shard.operator)


def short(owner: str) -> str:
    """The owner in names that must be short and without special characters."""
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def insisting(table: LakeTable, step: Callable[[], R]) -> R:
    """The result of `step`, retried after each conflict; every attempt reads the table again."""
    for pause_s in islice(pauses(FIRST_WAIT_S, LONGEST_WAIT_S), TRIES):
        try:
            return step()
        except Conflict:
            # Random pauses, or the same writers collide again.
            time.sleep(random.uniform(0, pause_s))
    raise ConnectorError(
        f"{table}: other writers committed first, {TRIES} times in a row. Let fewer shards write to "
        "it, or take fewer checkpoints."
    )


class LakeClaim(Claim):
    kind = "table"

    def __init__(self, table: LakeTable, owner: Owner) -> None:
        super().__init__(str(table), owner)
        self._table = table
        self._name = f"{short(owner_of(owner.pipeline, owner.operator))}.owner"

    def recorded(self) -> str | None:
        return self._table.read_note(self._name)

    def create(self) -> bool:
        if self.read() is not None:
            return False
        self._table.write_note(self._name, json.dumps(asdict(self.owner)))
        return True

    def remove(self) -> None:
        self._table.write_note(self._name, None)

    def how_to_free(self) -> str:
        return f"remove its note '{self._name}'"


def in_form(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The rows with these columns and types; None where a column has no values."""
    if frame.schema == schema:
        return frame
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )


def sync_path(path: str, levels: int = 1) -> None:
    """Make a file on a local disk survive a power failure, with the names of `levels` folders."""
    folders.sync_file(Path(path))
    for folder in list(Path(path).parents)[:levels]:
        folders.sync_folder(folder)


def without_secrets(error: Exception, secrets: Sequence[str]) -> str:
    """A library's message in one line, with these words removed."""
    return without(str(error), secrets, 600).rstrip(".")
