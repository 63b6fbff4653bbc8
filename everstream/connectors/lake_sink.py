"""Exactly-once output to a table in a lake: files at the checkpoint, one version when it is stable.

At a checkpoint rows go into data files that no version of the table names yet. A note in the run's
store says which they are: it is what a recovered transaction commits, and what is cleaned up when
nobody ever does. The commit adds the files and moves the shard's mark on in one version of the
table; what the mark has reached is not committed again, by nobody. The mark also carries the
generation, so that a writer that was replaced is refused, even in the middle of a commit. Going
back to an older checkpoint takes the files out again that later versions of ours had added.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from everstream.connectors.frames import Columns, as_frame
from everstream.connectors.lake import (
    HistoryLost,
    LakeClaim,
    LakeFile,
    LakeTable,
    Mark,
    Standing,
    TableState,
    in_form,
    insisting,
    key_of,
)
from everstream.connectors.lake_staging import Staged, discard, notes_of
from everstream.connectors.ownership import Owner
from everstream.connectors.parts import PartFolder, PendingName, owner_of
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Permit, SinkShard, Transaction, Writer
from everstream.state.saved import Saved

FRESH_START = "start over with --fresh, which deletes the output"


@dataclass(frozen=True)
class Form:
    """How rows become those of the table."""

    partition_by: tuple[str, ...]
    evolve: bool

    def table_for(self, table: LakeTable, frame: pl.DataFrame, who: SinkShard) -> TableState:
        """The table, made or widened if it has to be and may be."""

        def step() -> TableState:
            state = table.load()
            if state is None:
                table.create(self._kinds(table, frame.schema, who), self.partition_by)
                LakeClaim(table, Owner.of(who.pipeline, who.operator, who.store)).keep()
                state = table.load()
                if state is None:
                    raise ConnectorError(f"{table} was made and is gone again.")
            if self.partition_by and list(self.partition_by) != state.partition_by():
                raise UserError(
                    f"{table} is partitioned by {state.partition_by() or 'nothing'}, not by "
                    f"{list(self.partition_by)}. Leave out partition_by=, or name another table."
                )
            state.refuse_writing()
            known = state.schema()
            new = {name: kind for name, kind in frame.schema.items() if name not in known}
            if not new:
                return state
            if not self.evolve:
                raise UserError(
                    f"operator '{who.operator}': {table} has no column {', '.join(new)}; it has "
                    f"{', '.join(known)}. Select others before the sink, or say evolve=True, which "
                    "adds columns to the table."
                )
            table.add_columns(state, self._kinds(table, pl.Schema(new), who))
            widened = table.load()
            assert widened is not None
            return widened

        return insisting(table, step)

    def fitted(self, frame: pl.DataFrame, state: TableState, who: SinkShard) -> pl.DataFrame:
        """The rows with the columns and types of the table; None where they have no value."""
        try:
            fitting = in_form(frame, state.schema())
        except pl.exceptions.PolarsError as error:
            raise UserError(
                f"operator '{who.operator}': the rows do not fit into the table's types: {error}. "
                "Cast them before the sink."
            ) from error
        empty = [name for name in state.required() if fitting[name].null_count()]
        if empty:
            raise UserError(
                f"operator '{who.operator}': the table wants a value in every row for "
                f"{', '.join(empty)}. Fill or leave out the rows that have none before the sink."
            )
        return fitting

    def _kinds(self, table: LakeTable, schema: pl.Schema, who: SinkShard) -> pl.Schema:
        kinds: dict[str, pl.DataType] = {}
        for name, kind in schema.items():
            kept = table.kind(kind)
            if kept is None:
                raise UserError(
                    f"operator '{who.operator}': column '{name}' is of type {kind}, which "
                    f"{table.format} does not have. Cast it before the sink."
                )
            kinds[name] = kept
        return pl.Schema(kinds)


@dataclass
class LakeTransaction(Transaction, Saved, word="lake-transaction"):
    """The rows of one checkpoint, in files that its note names.

    Pickles without its table, for a checkpoint must hold no credentials, and without its rows,
    which only `persist` needs. `recover` gives it the writer's own table.
    """

    who: SinkShard
    checkpoint: int
    pending: PendingName
    table: LakeTable | None = field(default=None, repr=False, compare=False)
    rows: list[pl.DataFrame] | None = field(default=None, repr=False, compare=False)
    form: Form | None = field(default=None, repr=False, compare=False)
    written_here: bool = field(default=False, repr=False, compare=False)
    """By this process, moments ago: what was restored has waited for who knows how long."""

    def __getstate__(self) -> dict[str, Any]:
        fields = {**self.__dict__, "table": None, "rows": None, "form": None}
        return {**fields, "written_here": False}

    @property
    def _notes(self) -> PartFolder:
        return notes_of(self.who.store, self.who.operator)

    @property
    def _place(self) -> LakeTable:
        if self.table is None:
            raise InternalError(f"{self.pending} was restored and given to no writer's `recover`")
        return self.table

    def persist(self) -> None:
        if self.rows is None or self.form is None:
            return
        table, form = self._place, self.form
        frame = pl.concat(self.rows, how="diagonal_relaxed" if form.evolve else "vertical")
        state = form.table_for(table, frame, self.who)
        frame = form.fitted(frame, state, self.who)
        paths: list[str] = []

        def note(coming: list[str]) -> None:
            paths.extend(coming)
            Staged(self.checkpoint, None, tuple(paths)).write(self._notes, self.pending, False)

        stem = f"everstream-{self.who.shard:04d}-{self.checkpoint:08d}-{self.pending.token}"
        files = tuple(table.write(state, frame, stem, note))
        Staged(self.checkpoint, files, tuple(paths)).write(self._notes, self.pending, True)
        self.rows, self.written_here = None, True

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(
                f"rows of checkpoint {self.checkpoint} for {self.table} were to be committed with "
                f"a permit for checkpoint {permit.checkpoint} only"
            )
        self.persist()
        staged = Staged.read(self._notes, self.pending)
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
                f"'{self._notes.path_of(self.pending)}', is gone. Put it back, go back to a "
                f"checkpoint before it with `everstream rewind`, or {FRESH_START}."
            )
        if not self.written_here:
            self._require_whole(staged.files)
        mark = Mark(key_of(self.who), self.who.shard, self.checkpoint, self.who.generation)
        table.commit(state, staged.files, (), mark)

    def _require_whole(self, files: Sequence[LakeFile]) -> None:
        """What has waited for who knows how long must still be there."""
        for file in files:
            size_bytes = self._place.size_of(file.path)
            if size_bytes != file.size_bytes:
                problem = "is gone" if size_bytes is None else f"has {size_bytes} bytes"
                raise ConnectorError(
                    f"the data file '{file.path}' of {self.table}, written with {file.size_bytes} "
                    f"bytes, {problem}; none of its checkpoint is shown. Files that wait for their "
                    "commit must outlive a vacuum. Restore it from a copy, go back to a checkpoint "
                    f"before it with `everstream rewind`, or {FRESH_START}."
                )

    def abort(self) -> None:
        self.rows = None
        discard(self._place, self._notes, self.pending, None)


def refuse_replaced(who: SinkShard, newest: int, table: LakeTable) -> None:
    """Raise if a newer generation is at work."""
    if newest > who.generation:
        raise ConnectorError(
            f"generation {newest} of shard {who.shard} of '{who.operator}' has taken over {table}; "
            f"generation {who.generation} must stop."
        )


def standing_of(state: TableState | None, who: SinkShard, table: LakeTable) -> Standing:
    """How far the shard has come; raises for a writer that was replaced."""
    standing = Standing() if state is None else state.standing(key_of(who), who.shard)
    refuse_replaced(who, standing.generation, table)
    return standing


def output_after(
    state: TableState, table: LakeTable, owner: str, shard: int | None, checkpoint: int
) -> list[str]:
    """The files that our versions have added after this checkpoint, of one shard or of all.

    Raises if that cannot be told any more.
    """
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
            f"output of '{owner}' after checkpoint {checkpoint} cannot be taken out of {table}: "
            f"{error.message} Remove those rows, or the table, yourself; or name another table."
        ) from error
    there = state.paths()
    rewritten = [path for path in added if path not in there]
    if rewritten:
        raise UserError(
            f"output of '{owner}' after checkpoint {checkpoint} cannot be taken out of {table}: "
            f"{len(rewritten)} of its files were rewritten since, by a compaction, an update or a "
            "delete. Remove those rows, or the table, yourself; or name another table."
        )
    return added


class LakeWriter(Writer):
    """Keeps the rows until the checkpoint."""

    def __init__(
        self, table: LakeTable, who: SinkShard, schema: pl.Schema | None, form: Form
    ) -> None:
        self._table = table
        self._who = who
        self._columns = Columns(who.operator, schema)
        self._form = form
        self._notes = notes_of(who.store, who.operator)
        self._waiting: list[pl.DataFrame] = []
        self._notes.create()

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        if not self._form.evolve:
            self._waiting.append(self._columns.settle(batch))
            return
        frame = as_frame(batch, self._who.operator)
        empty = [name for name, kind in frame.schema.items() if kind == pl.Null]
        self._waiting.append(frame.drop(empty))

    def prepare(self, checkpoint: int) -> Transaction | None:
        if not self._waiting:
            return None
        rows, self._waiting = self._waiting, []
        pending = PendingName(
            key_of(self._who), self._who.shard, self._who.generation, uuid.uuid4().hex
        )
        return LakeTransaction(self._who, checkpoint, pending, self._table, rows, self._form)

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        notes = [n for n in self._notes.pendings(key_of(self._who)) if n.shard == self._who.shard]
        newest = max((name.generation for name in notes), default=0)
        refuse_replaced(self._who, newest, self._table)
        insisting(self._table, lambda: self._take_over(permit.checkpoint))
        ours = sorted(self.adopt(transactions), key=lambda t: t.checkpoint)
        held = [t for t in ours if t.checkpoint > permit.checkpoint]
        for transaction in ours:
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
        """Fence off older generations, and take out what came after this checkpoint."""
        state = self._table.load()
        if state is None:
            return
        who, owner = self._who, key_of(self._who)
        LakeClaim(self._table, Owner.of(who.pipeline, who.operator, who.store)).keep()
        standing = standing_of(state, who, self._table)
        too_far = standing.checkpoint > checkpoint
        removed: list[str] = []
        if too_far:
            removed = output_after(state, self._table, owner, who.shard, checkpoint)
        if too_far or standing.generation != who.generation:
            reached = min(standing.checkpoint, checkpoint)
            mark = Mark(owner, who.shard, reached, who.generation)
            self._table.commit(state, (), removed, mark)

    def adopt(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        bound: list[Transaction] = []
        for transaction in transactions:
            assert isinstance(transaction, LakeTransaction)
            bound.append(replace(transaction, who=self._who, table=self._table))
        return bound

    def close(self) -> None:
        self._waiting = []


def start_fresh(
    table: LakeTable, pipeline: str, operator: str, store: str, replace_it: bool
) -> None:
    """See `Sink.start_fresh`."""
    owner = owner_of(pipeline, operator)
    claim = LakeClaim(table, Owner.of(pipeline, operator, store))
    claim.check()
    state = table.load()
    if state is not None and state.has_output(owner) and not replace_it:
        raise UserError(
            f"{table} already holds rows of pipeline '{pipeline}', operator '{operator}', from an "
            "earlier run. Name another table, or say --fresh, which deletes them."
        )
    if state is not None:
        claim.take()
    notes = notes_of(store, operator)
    for name in notes.pendings(owner):
        discard(table, notes, name, state)
    insisting(table, lambda: _take_all_out(table, owner))


def _take_all_out(table: LakeTable, owner: str) -> None:
    state = table.load()
    shards = [] if state is None else state.shards(owner)
    if state is None or not shards:
        return
    removed: list[str] = []
    if state.has_output(owner):
        removed = output_after(state, table, owner, None, 0)
    table.commit(state, (), removed, Mark(owner, None, 0, 0), shards)
