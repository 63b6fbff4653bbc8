"""Reading a table in a lake: the files of one version and, if followed, those added later.

All shards read the same version, because it is chosen where the pipeline is checked; its files are
distributed by size. A followed table is read version by version: each shard reads its files of one
before it looks at the next. The offset has the remaining files, so reading again gives the same
rows. When the number of shards changes, all resume from the version that the first of them has
reached, with what the others had not read of it and of earlier ones.
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from everstream.connectors.files.ranges import deal_by_size
from everstream.connectors.lake.table import Change, HistoryLost, LakeFile, LakeTable, TableSnapshot
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader
from everstream.state.saved import Saved

LOOK_FOR_VERSIONS_EVERY_S = 1.0
NOT_YET = -1
"""The version before the first one: the table does not exist."""
OnChange = Literal["fail", "skip"]


@dataclass(frozen=True)
class LakeOffset(Saved, word="lake-offset"):
    """The version that is being read, this shard's files of it, and the position in them.

    `form` is a frame without rows, as bytes: the columns, which must not change on replay. A frame
    itself would be locked while it is saved, when the reader may need it.
    """

    version: int
    files: tuple[LakeFile, ...]
    index: int = 0
    row: int = 0
    form: bytes | None = field(default=None, repr=False)

    @property
    def place(self) -> int:
        """The next row of the file that is being read."""
        return max(self.row, self.files[self.index].first_row)

    def left(self) -> list[LakeFile]:
        files = list(self.files[self.index :])
        if files:
            files[0] = replace(files[0], first_row=self.place)
        return files


def deal(files: Sequence[LakeFile], shards: int) -> list[tuple[LakeFile, ...]]:
    """Each next file goes to the shard with the fewest bytes so far."""
    return deal_by_size(files, shards, lambda file: file.size_bytes)


def is_of(file: LakeFile, shard: int, shards: int) -> bool:
    return zlib.crc32(file.path.encode()) % shards == shard


def first_offset(state: TableSnapshot | None, shard: int, shards: int) -> LakeOffset:
    if state is None:
        return LakeOffset(NOT_YET, ())
    return LakeOffset(state.version, deal(state.files(), shards)[shard], form=_form(state))


def _form(state: TableSnapshot) -> bytes:
    written = io.BytesIO()
    state.schema().to_frame().write_ipc(written)
    return written.getvalue()


def gone(table: LakeTable) -> ConnectorError:
    return ConnectorError(
        f"{table} no longer exists. Restore it, or start over with --fresh, which deletes the output."
    )


def lost(table: LakeTable, version: int, error: HistoryLost) -> HistoryLost:
    return HistoryLost(
        f"{table}: {error.message} Version {version} was the last one read, so it is unknown what "
        "came after. Keep versions for longer than the pipeline may be down, or start over with "
        "--fresh, which deletes the output."
    )


class LakeReader(Reader):
    def __init__(
        self,
        table: LakeTable,
        offset: LakeOffset,
        *,
        place: tuple[int, int],
        columns: Sequence[str] | None,
        batch_rows: int,
        follow: bool,
        on_change: OnChange,
    ) -> None:
        self._table = table
        self._offset = offset
        self._shard, self._shards = place
        self._columns = columns
        self._batch_rows = batch_rows
        self._follow = follow
        self._on_change = on_change
        self._last: int | None = None
        """The version that the run ends with, if it ends."""
        self._frames: Iterator[pl.DataFrame] | None = None
        self._left = pl.DataFrame()
        self._idle = False

    @property
    def offset(self) -> LakeOffset:
        return self._offset

    def seek(self, offset: LakeOffset) -> None:
        self._offset = offset
        self.close()

    def stop_at(self, point: int) -> None:
        self._last = point

    def ready_in_s(self) -> float:
        return LOOK_FOR_VERSIONS_EVERY_S if self._idle else 0.0

    def read(self) -> Batch | EndOfStream | None:
        self._idle = False
        while True:
            if self._offset.index == len(self._offset.files):
                ends = self._last is not None or not self._follow
                if (self._last is not None or self._follow) and self._next_version():
                    continue
                self._idle = not ends
                return END if ends else None
            if self._left.is_empty() and not self._next_frame():
                self._offset = replace(self._offset, index=self._offset.index + 1, row=0)
                continue
            batch = self._left[: self._batch_rows]
            self._left = self._left[self._batch_rows :]
            self._offset = replace(self._offset, row=self._offset.place + batch.height)
            return batch

    def close(self) -> None:
        self._frames, self._left = None, pl.DataFrame()

    def _next_frame(self) -> bool:
        """Read the next rows of the file; False at its end."""
        if self._frames is None:
            self._frames = self._from_row(self._offset.place)
        for frame in self._frames:
            if not frame.is_empty():
                self._left = frame
                return True
        self._frames = None
        return False

    def _from_row(self, row: int) -> Iterator[pl.DataFrame]:
        file = self._offset.files[self._offset.index]
        assert self._offset.form is not None
        schema = pl.read_ipc(io.BytesIO(self._offset.form)).schema
        if self._columns is not None:
            schema = pl.Schema({name: schema[name] for name in self._columns})
        for frame in self._table.read(file, schema):
            yield frame[row:]
            row = max(0, row - frame.height)

    def _next_version(self) -> bool:
        """Move to the next version that has files for this shard; False if there is none."""
        if self._last is not None and self._last in (NOT_YET, self._offset.version):
            return False
        state = self._table.load(self._last)
        if state is None:
            if self._offset.version != NOT_YET:
                raise gone(self._table)
            return False
        if self._offset.version == NOT_YET:
            # Which version the others see first is unknown: each adds up from the beginning.
            self._offset = replace(self._offset, form=_form(state))
        try:
            for change in state.changes_after(self._offset.version):
                files = added_by(change, self._table, self._on_change)
                mine = tuple(file for file in files if is_of(file, self._shard, self._shards))
                version = change.version
                self._offset = replace(self._offset, version=version, files=mine, index=0, row=0)
                if mine:
                    return True
        except HistoryLost as error:
            raise lost(self._table, self._offset.version, error) from error
        return False


def added_by(change: Change, table: LakeTable, on_change: OnChange) -> Sequence[LakeFile]:
    """The files that a version adds; raises if rows changed and `on_change` is "fail"."""
    if not change.removed:
        return change.added
    if on_change == "skip":
        return ()
    raise UserError(
        f"version {change.version} of {table} deletes or replaces rows "
        f"({len(change.removed)} files), which a source that follows cannot undo. Use "
        "on_change='skip' to skip such versions, with the rows they add, or start over "
        "with --fresh, which deletes the output and reads the table as it is now."
    )


def redistribute_files(
    offsets: Sequence[LakeOffset], shards: int, table: LakeTable, on_change: OnChange
) -> list[LakeOffset]:
    """What is left of the versions up to the latest that any shard has reached."""
    versions = [offset.version for offset in offsets]
    behind = [list[Change]() for _ in offsets]
    if len(set(versions)) > 1:
        behind = _versions_behind(versions, table)
    furthest = min(range(len(offsets)), key=lambda shard: len(behind[shard]))
    files = [file for offset in offsets for file in offset.left()]
    for shard, changes in enumerate(behind):
        for change in changes:
            added = added_by(change, table, on_change)
            files += [file for file in added if is_of(file, shard, len(offsets))]
    form = next((offset.form for offset in offsets if offset.form is not None), None)
    return [LakeOffset(versions[furthest], hand, form=form) for hand in deal(files, shards)]


def _versions_behind(versions: Sequence[int], table: LakeTable) -> list[list[Change]]:
    """For each of these versions, those after it up to the latest of them, oldest first."""
    state = table.load()
    if state is None:
        raise gone(table)
    later = {}
    for version in set(versions):
        try:
            later[version] = list(state.changes_after(version))
        except HistoryLost as error:
            raise lost(table, version, error) from error
    ahead = min(len(changes) for changes in later.values())
    return [later[version][: len(later[version]) - ahead] for version in versions]
