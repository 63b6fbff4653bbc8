"""Exactly-once output to a table in a lake: files at the checkpoint, one version when it is stable.

At a checkpoint rows go into data files that no version of the table refers to yet. A note in the
run's store lists them: a recovered transaction commits what it lists, and files that are never
committed are cleaned up by it. The commit adds the files and advances the shard's mark in one
version of the table. A checkpoint that the mark has reached is never committed again. The mark also
has the generation, so a writer that was replaced is refused, even in the middle of a commit. Rolling
back to an older checkpoint removes the files that our later versions had added.

The note is written before the files, with their names, so that no file is ever orphaned, and again
when they are complete, with everything the commit needs. A note is trusted only if it names data
files that we wrote for its own shard and token, inside the table, and in a signed store only with
its signature. So a forged note cannot make us delete or commit other files.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import polars as pl

from everstream.connectors.columns import (
    Columns,
    ColumnsWriter,
    Evolve,
    Format,
    Takes,
    evolving,
    fixed,
    in_kinds,
)
from everstream.connectors.files.filesystem import sync_file, sync_folder
from everstream.connectors.files.parts import PartFolder, PendingName, require_permit
from everstream.connectors.lake.table import (
    HistoryLost,
    LakeClaim,
    LakeFile,
    LakeTable,
    Standing,
    TableMark,
    TableSnapshot,
    insisting,
    key_of,
)
from everstream.connectors.ownership import Owner, refuse_replaced
from everstream.errors import ConnectorError, InternalError, RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.exact import Kind, is_open, nulls, shown, together
from everstream.pipeline.sink import Committable, Permit, SinkShard
from everstream.state.saved import Saved
from everstream.state.signing import Forged


def notes_of(store: str, operator: str) -> PartFolder:
    return PartFolder.in_store(store, "staged", operator, ".json")


@dataclass(frozen=True)
class Staged:
    """The content of a note: the files of one checkpoint, or the names they were going to have."""

    checkpoint: int
    files: tuple[LakeFile, ...] | None
    paths: tuple[str, ...]

    def as_bytes(self) -> bytes:
        files = None if self.files is None else [asdict(file) for file in self.files]
        return json.dumps(
            {"checkpoint": self.checkpoint, "files": files, "paths": self.paths}
        ).encode()

    @staticmethod
    def read(table: LakeTable, folder: PartFolder, name: PendingName) -> "Staged | None":
        """None without a whole note: its checkpoint never counted. Raises if it is not trusted."""
        path = folder.path_of(name)
        try:
            data: bytes = folder.fs.cat_file(path)
            if folder.key is not None and data:
                data = folder.key.opened(folder.signed_as(name), data)
            fields = json.loads(data)
        except FileNotFoundError:
            return None
        except Forged as error:
            raise ConnectorError(
                f"the note '{path}' of uncommitted output is not trusted: {error.message}. It was "
                "written by an earlier version, which did not sign notes, or without the key of the "
                "store. Let that version finish the run, or remove the note and go "
                "back to a checkpoint before it with `everstream rewind`."
            ) from error
        except ValueError:
            return None
        files = fields["files"]
        staged = Staged(
            fields["checkpoint"],
            None if files is None else tuple(LakeFile(**file) for file in files),
            tuple(fields["paths"]),
        )
        for named in (*staged.paths, *(file.path for file in staged.files or ())):
            if not _is_of(table, named, name, staged.checkpoint):
                raise ConnectorError(
                    f"the note '{path}' names '{named}', which is not a data file of this sink: nothing "
                    "is deleted or committed. The note was not written by this sink: remove it, and go "
                    "back to a checkpoint before it with `everstream rewind`."
                )
        return staged

    def write(self, folder: PartFolder, name: PendingName, durable: bool) -> None:
        path = folder.path_of(name)
        try:
            with folder.begin(name) as file:
                data = self.as_bytes()
                if folder.key is not None:
                    file.write(folder.key.head(folder.signed_as(name), data))
                file.write(data)
            if durable:
                sync_file(folder.fs, path)
                sync_folder(folder.fs, folder.pending_path)
        except OSError as error:
            raise ConnectorError(f"cannot write '{path}': {error}.") from error


def stem_of(name: PendingName, checkpoint: int) -> str:
    """Part of the name of every data file of one checkpoint; the token makes it unique."""
    return f"everstream-{name.shard:04d}-{checkpoint:08d}-{name.token}"


def _is_of(table: LakeTable, path: object, name: PendingName, checkpoint: object) -> bool:
    """Whether this can be a data file of that note: with its name, and inside the table."""
    if not isinstance(path, str) or not isinstance(checkpoint, int):
        return False
    *folders, file = path.split("/")
    if table.relative and (path.startswith("/") or "://" in path):
        return False
    return stem_of(name, checkpoint) in file and not {".", ".."} & {*folders}


def discard(
    table: LakeTable, notes: PartFolder, name: PendingName, state: TableSnapshot | None
) -> None:
    """Delete uncommitted files and their note; of an untrusted note, only the note itself."""
    try:
        staged = Staged.read(table, notes, name)
    except ConnectorError:  # torn by a crash, or forged: nothing that it names is touched
        staged = None
    if staged is not None and not _was_committed(state, name, staged):
        for path in staged.paths:
            table.delete(path)
    notes.remove(name)


def _was_committed(state: TableSnapshot | None, name: PendingName, staged: Staged) -> bool:
    """Whether a version has added these files; also if that is unknown, because a vacuum can clean up."""
    if state is None or state.standing(name.owner, name.shard).checkpoint < staged.checkpoint:
        return False
    try:
        for change in state.history():
            mark = change.mark
            if mark is None or mark.owner != name.owner or mark.shard not in (None, name.shard):
                continue
            if not {file.path for file in change.added}.isdisjoint(staged.paths):
                return True
            if mark.shard is None or mark.checkpoint < staged.checkpoint:
                return False
    except HistoryLost:
        return True
    return False


FRESH_START = "start over with --fresh, which deletes the output"


@dataclass(frozen=True)
class Form:
    """How rows are converted to those of the table."""

    partition_by: tuple[str, ...]
    evolve: Evolve | bool

    def table_for(self, table: LakeTable, frame: pl.DataFrame, shard: SinkShard) -> TableSnapshot:
        """The table, created or widened if needed; the writer has already refused invalid columns."""

        def step() -> TableSnapshot:
            state = table.load()
            if state is None:
                for name in self.partition_by:
                    if name not in frame.schema:
                        raise UserError(
                            f"partition_by= names '{name}', but the rows have no such column."
                        )
                table.create(frame.schema, self.partition_by)
                LakeClaim(table, Owner.of(shard.pipeline, shard.operator, shard.store)).keep()
                state = table.load()
                if state is None:
                    raise ConnectorError(f"{table} was created but no longer exists.")
            if self.partition_by and list(self.partition_by) != state.partition_by():
                raise UserError(
                    f"{table} is partitioned by {state.partition_by() or 'nothing'}, not by "
                    f"{list(self.partition_by)}. Remove partition_by=, or name another table."
                )
            state.refuse_writing()
            known = state.schema()
            new = {name: kind for name, kind in frame.schema.items() if name not in known}
            if not new:
                return state
            table.add_columns(state, pl.Schema(new))
            widened = table.load()
            assert widened is not None
            return widened

        return insisting(table, step)

    def columns(self, table: LakeTable, shard: SinkShard, given: pl.Schema | None) -> Columns:
        """The columns of the rows, in the types that the table has or will have."""

        def existing() -> dict[str, Takes]:
            state = table.load()
            return {} if state is None else {n: fixed(k) for n, k in state.schema().items()}

        format = Format(table.format, table.kind, needs_type=_needs_type, lost=table.lost)
        return Columns(shard, given, evolving(format, self.evolve), existing)


def _needs_type(kind: Kind) -> bool:
    """Whether a column has had only None: it is not created in the table yet."""
    return kind != pl.Null and is_open(kind)


@dataclass
class LakeTransaction(Committable, Saved, word="lake-transaction"):
    """The rows of one checkpoint, in files that its note lists.

    Pickles without its table, because a checkpoint must contain no credentials, and without its
    rows, which only `persist` needs. `recover` sets the writer's own table.
    """

    who: SinkShard
    checkpoint: int
    pending: PendingName
    table: LakeTable | None = field(default=None, repr=False, compare=False)
    rows: list[pl.DataFrame] | None = field(default=None, repr=False, compare=False)
    form: Form | None = field(default=None, repr=False, compare=False)
    written_here: bool = field(default=False, repr=False, compare=False)
    """Whether this process wrote it moments ago; restored output may be much older."""

    def __getstate__(self) -> dict[str, Any]:
        fields = {**self.__dict__, "table": None, "rows": None, "form": None}
        return {**fields, "written_here": False}

    @property
    def _notes(self) -> PartFolder:
        return notes_of(self.who.store, self.who.operator)

    @property
    def _place(self) -> LakeTable:
        if self.table is None:
            raise InternalError(f"{self.pending} was restored but not passed to `recover`")
        return self.table

    def persist(self) -> None:
        if self.rows is None or self.form is None:
            return
        table, form = self._place, self.form
        frame = together(self.rows)
        # A column that has had only None is not in the table yet: that would need a type.
        frame = frame.drop(name for name, kind in frame.schema.items() if kind == pl.Null)
        state = form.table_for(table, frame, self.who)
        frame = in_kinds(frame, state.schema())
        paths: list[str] = []

        def note(coming: list[str]) -> None:
            paths.extend(coming)
            Staged(self.checkpoint, None, tuple(paths)).write(self._notes, self.pending, False)

        stem = stem_of(self.pending, self.checkpoint)
        files = tuple(table.write(state, frame, stem, note))
        Staged(self.checkpoint, files, tuple(paths)).write(self._notes, self.pending, True)
        self.rows, self.written_here = None, True

    def commit(self, permit: Permit) -> None:
        require_permit(permit, self.checkpoint, f"output for {self.table}")
        self.persist()
        staged = Staged.read(self._place, self._notes, self.pending)
        insisting(self._place, lambda: self._commit(staged))
        self._notes.remove(self.pending)

    def _commit(self, staged: Staged | None) -> None:
        table = self._place
        state = table.load()
        if standing_of(state, self.who, table).checkpoint >= self.checkpoint:
            return
        if state is None or staged is None or staged.files is None:
            raise ConnectorError(
                f"the rows of checkpoint {self.checkpoint} of shard {self.who.shard} of "
                f"'{self.who.operator}' are not in {table}, and the note of their files, "
                f"'{self._notes.path_of(self.pending)}', is missing. Restore it, go back to a "
                f"checkpoint before it with `everstream rewind`, or {FRESH_START}."
            )
        if not self.written_here:
            self._require_whole(staged.files)
        mark = TableMark(key_of(self.who), self.who.shard, self.checkpoint, self.who.generation)
        table.commit(state, staged.files, (), mark)

    def _require_whole(self, files: Sequence[LakeFile]) -> None:
        """Restored output may be old: raise if its files are not there any more."""
        for file in files:
            size_bytes = self._place.size_of(file.path)
            if size_bytes != file.size_bytes:
                problem = "is gone" if size_bytes is None else f"has {size_bytes} bytes"
                raise ConnectorError(
                    f"the data file '{file.path}' of {self.table}, written with {file.size_bytes} "
                    f"bytes, {problem}. Nothing of its checkpoint is committed. A vacuum must keep "
                    "files that are not committed yet. Restore it from a copy, go back to a checkpoint "
                    f"before it with `everstream rewind`, or {FRESH_START}."
                )

    def abort(self) -> None:
        self.rows = None
        discard(self._place, self._notes, self.pending, None)


def standing_of(state: TableSnapshot | None, shard: SinkShard, table: LakeTable) -> Standing:
    """The progress of a shard; raises for a writer that was replaced."""
    standing = Standing() if state is None else state.standing(key_of(shard), shard.shard)
    refuse_replaced(shard, standing.generation, table)
    return standing


def output_after(
    state: TableSnapshot, table: LakeTable, owner: str, shard: int | None, checkpoint: int
) -> list[str]:
    """The files that we added after this checkpoint, for one shard or all; raises if unknown."""
    added: list[str] = []
    gone: set[str] = set()
    try:
        for change in state.history():
            mark = change.mark
            if mark is None or mark.owner != owner:
                continue
            if mark.shard is None:
                break
            if shard is not None:
                if mark.shard != shard:
                    continue
                if mark.checkpoint <= checkpoint:
                    break
            gone.update(change.removed)
            added += [file.path for file in change.added if file.path not in gone]
    except HistoryLost as error:
        raise UserError(
            f"output of '{owner}' after checkpoint {checkpoint} cannot be removed from {table}: "
            f"{error.message} Remove those rows, or the table, yourself; or name another table."
        ) from error
    there = state.paths()
    rewritten = [path for path in added if path not in there]
    if rewritten:
        raise UserError(
            f"output of '{owner}' after checkpoint {checkpoint} cannot be removed from {table}: "
            f"{len(rewritten)} of its files were rewritten since, by a compaction, an update or a "
            "delete. Remove those rows, or the table, yourself; or name another table."
        )
    return added


class LakeWriter(ColumnsWriter):
    """Buffers the rows until the checkpoint."""

    def __init__(self, table: LakeTable, shard: SinkShard, columns: Columns, form: Form) -> None:
        self._table = table
        self._shard = shard
        self._columns = columns
        self._form = form
        self._rules: tuple[list[str], list[str]] | None = None
        self._notes = notes_of(shard.store, shard.operator)
        self._waiting: list[pl.DataFrame] = []
        self._notes.create()

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        frame = self._columns.settle(batch)
        self._refuse_missing(frame)
        self._waiting.append(frame)

    def _refuse_missing(self, frame: pl.DataFrame) -> None:
        """Refuses values that the table requires and does not get, or could not return."""
        if self._rules is None:
            state = self._table.load()
            required = [] if state is None else state.required()
            keys = list(self._form.partition_by) if state is None else state.partition_by()
            self._rules = required, keys if self._table.empty_partition_is_null else []
        required, keys = self._rules
        rows: dict[int, str] = {}
        for name in required:
            values = frame[name] if name in frame.columns else nulls(name, frame.height, pl.Null())
            reason = "None, but the table requires a value in every row"
            rows |= dict.fromkeys(values.is_null().arg_true(), f"column '{name}': {reason}")
        for name in keys:
            if frame.schema.get(name) == pl.String:
                reason = f"'', which {self._table.format} reads as None in a partition"
                empty = (frame[name] == "").fill_null(False)
                rows |= dict.fromkeys(empty.arg_true(), f"column '{name}': {reason}")
        if rows:
            raise RefusedRecords(
                {
                    row: f"operator '{self._shard.operator}', {reason}. Fill it or leave it out before "
                    f"the sink. Record: {shown(frame.row(row, named=True))}."
                    for row, reason in sorted(rows.items())
                }
            )

    def prepare(self, checkpoint: int) -> Committable | None:
        if not self._waiting:
            return None
        self._columns.require_types()
        rows, self._waiting = [self._columns.settled(self._waiting)], []
        pending = PendingName(
            key_of(self._shard), self._shard.shard, self._shard.generation, uuid.uuid4().hex
        )
        return LakeTransaction(self._shard, checkpoint, pending, self._table, rows, self._form)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        notes = [
            n for n in self._notes.pendings(key_of(self._shard)) if n.shard == self._shard.shard
        ]
        newest = max((name.generation for name in notes), default=0)
        refuse_replaced(self._shard, newest, self._table)
        insisting(self._table, lambda: self._take_over(permit.checkpoint))
        adopted = sorted(self.adopt(transactions), key=lambda t: t.checkpoint)
        held = [t for t in adopted if t.checkpoint > permit.checkpoint]
        for transaction in adopted:
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
        kept = {t.pending for t in held if isinstance(t, LakeTransaction)}
        if notes:
            state = self._table.load()
            for name in notes:
                if name not in kept:
                    discard(self._table, self._notes, name, state)
        return held

    def _take_over(self, checkpoint: int) -> None:
        """Fence older generations, and remove what came after this checkpoint."""
        state = self._table.load()
        if state is None:
            return
        shard, owner = self._shard, key_of(self._shard)
        LakeClaim(self._table, Owner.of(shard.pipeline, shard.operator, shard.store)).keep()
        standing = standing_of(state, shard, self._table)
        too_far = standing.checkpoint > checkpoint
        removed: list[str] = []
        if too_far:
            removed = output_after(state, self._table, owner, shard.shard, checkpoint)
        if too_far or standing.generation != shard.generation:
            reached = min(standing.checkpoint, checkpoint)
            mark = TableMark(owner, shard.shard, reached, shard.generation)
            self._table.commit(state, (), removed, mark)

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        bound: list[Committable] = []
        for transaction in transactions:
            assert isinstance(transaction, LakeTransaction)
            bound.append(replace(transaction, who=self._shard, table=self._table))
        return bound

    def close(self) -> None:
        self._waiting = []


def take_all_out(table: LakeTable, owner: str) -> None:
    """Remove all output of an operator, and the progress of its shards."""
    state = table.load()
    if state is not None and (shards := state.shards(owner)):
        written = state.has_output(owner)
        removed = output_after(state, table, owner, None, 0) if written else []
        table.commit(state, (), removed, TableMark(owner, None, 0, 0), shards)
