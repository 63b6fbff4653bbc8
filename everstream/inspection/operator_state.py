"""The state of one operator in a checkpoint, as a table: keys and values, offsets, transactions.

The snapshots of all its shards are merged as in a restore, so the table shows what a run would
resume with.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, overload

import polars as pl

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.errors import CorruptObject, UserError
from everstream.inspection.checkpoints import choose, open_store, survey_of
from everstream.pipeline.stream import Pipeline
from everstream.state.migrating import Outdated
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState
from everstream.state.store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql import SparkSession


OFFSET: Final = "offset"
PENDING: Final = "pending"

_PLAIN: Final = frozenset({int, float, bool, str, datetime.date, datetime.timedelta})
"""What a column can hold unchanged, also in CSV."""
_LARGEST_INT: Final = 2**63 - 1
_LARGEST_EXACT_FLOAT: Final = 2**53


@overload
def read_state(
    store: str | os.PathLike[str],
    operator: str,
    epoch: int | None = None,
    *,
    store_key: str | os.PathLike[str] | None = None,
) -> pl.DataFrame: ...
@overload
def read_state(
    store: str | os.PathLike[str],
    operator: str,
    epoch: int | None = None,
    *,
    spark: "SparkSession",
    store_key: str | os.PathLike[str] | None = None,
) -> "SparkFrame": ...
def read_state(
    store: str | os.PathLike[str],
    operator: str,
    epoch: int | None = None,
    *,
    spark: "SparkSession | None" = None,
    store_key: str | os.PathLike[str] | None = None,
) -> "pl.DataFrame | SparkFrame":
    """The state of an operator in a checkpoint, over all its shards; safe while a run is active.

    store: the folder or URL that was given to the run.
    epoch: which checkpoint. Default: the current one.
    spark: return a Spark DataFrame of this session. Default: None, for a Polars DataFrame.
    store_key: the key file of a signed store. Default: the one that EVERSTREAM_STORE_KEY_FILE names.

    The columns are shard, state (the name of the declared state; "offset" for a source, "pending"
    for the transactions of a sink), key and value. A column whose values are not all of one plain
    type contains text: their repr, with strings unchanged.
    """
    frame = state_of(open_store(store, store_key), operator, epoch)
    return frame if spark is None else spark.createDataFrame(frame.to_arrow())


def state_of(store: CheckpointStore, operator: str, epoch: int | None = None) -> pl.DataFrame:
    """`read_state` of a store that is already open."""
    return _table(rows_of(store, operator, epoch))


def rows_of(
    store: CheckpointStore, operator: str, epoch: int | None = None
) -> list[tuple[int, str, Any, Any]]:
    """Shard, name of the state, key and value, as they were saved."""
    while True:
        survey, _ = survey_of(store)
        entry = choose(survey, epoch)
        manifest = EpochManifest.from_json(entry.body)
        records = [record for record in manifest.records.values() if operator in record.operators]
        require_operator(manifest, operator)
        try:
            return [row for record in records for row in _rows(store, record, operator)]
        except CorruptObject:
            if store.still_has(entry):
                raise
            continue  # a live driver has pruned it meanwhile: try again


def require_operator(manifest: EpochManifest, operator: str) -> None:
    """Raise a UserError that lists the existing operators if this is not one of them."""
    if not any(operator in record.operators for record in manifest.records.values()):
        known = ", ".join(known_operators(manifest)) or "none"
        raise UserError(
            f"there is no operator '{operator}' in epoch {manifest.epoch}; it has: {known}."
        )


def known_operators(manifest: EpochManifest) -> list[str]:
    """The operators in a checkpoint, in the order of the graph."""
    held = {name for record in manifest.records.values() for name in record.operators}
    return [name for name in manifest.shard_counts if name in held]


def _rows(
    store: CheckpointStore, record: CheckpointRecord, operator: str
) -> Iterator[tuple[int, str, Any, Any]]:
    for owner, *row in saved_in(record, partial(load_from, store)):
        if owner == operator:
            name, key, value = row
            yield record.shard.number, name, key, value


def load_from(store: CheckpointStore, refs: Sequence[ObjectRef]) -> list[bytes]:
    """These objects, verified."""
    return [store.get(ref) for ref in refs]


def saved_in(
    record: CheckpointRecord, load: Callable[[Sequence[ObjectRef]], list[bytes]]
) -> Iterator[tuple[str, str, Any, Any]]:
    """Operator, name of the state, key and value of everything that a shard had saved.

    load: returns what the store holds under the names in the record.
    """
    if not record.objects:
        return
    state = ShardState()
    extras = state.restore(load(record.objects), record.objects, load)
    for saved, extra in extras.items():
        owner = record.owner(saved)
        if owner not in record.operators:
            continue
        if "offset" in extra:
            yield owner, OFFSET, None, extra["offset"]
        for transaction in extra.get("transactions", ()):
            yield owner, PENDING, transaction.checkpoint, transaction
    for (saved, name), pairs in state.pairs().items():
        owner = record.owner(saved)
        if owner in record.operators:
            for key, value in pairs:
                yield owner, name, key, value.value if isinstance(value, Outdated) else value


def _table(rows: Sequence[tuple[int, str, Any, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            pl.Series("shard", [row[0] for row in rows], pl.Int64),
            pl.Series("state", [row[1] for row in rows], pl.String),
            _series("key", [row[2] for row in rows]),
            _series("value", [row[3] for row in rows]),
        ]
    )


def _series(name: str, values: list[Any]) -> pl.Series:
    types = {type(value) for value in values if value is not None}
    if types == {int, float} and all(
        abs(value) <= _LARGEST_EXACT_FLOAT for value in values if type(value) is int
    ):
        return pl.Series(name, values, pl.Float64, strict=False)
    fits = types != {int} or all(
        value is None or -_LARGEST_INT <= value <= _LARGEST_INT for value in values
    )
    if len(types) == 1 and types <= _PLAIN and fits:
        return pl.Series(name, values)
    return pl.Series(name, [shown(value) for value in values], pl.String)


def shown(value: Any) -> str | None:
    """As text: strings unchanged, everything else as its repr."""
    return value if value is None or type(value) is str else repr(value)


def read_tables(
    store: str | os.PathLike[str],
    pipeline: Pipeline,
    operator: str,
    epoch: int | None = None,
    *,
    store_key: str | os.PathLike[str] | None = None,
) -> dict[str, pl.DataFrame]:
    """The tables that transactions share, as of a checkpoint; safe while a run is active.

    store: the folder or URL that was given to the run.
    operator: the name of the `transact` operator in the pipeline.
    epoch: which checkpoint. Default: the current one.
    store_key: the key file of a signed store. Default: the one that EVERSTREAM_STORE_KEY_FILE names.

    Per table, by name: the keys that were written, in order, and a column per number of the value.
    """
    from everstream.transactions.operator import Transact, tables_in
    from everstream.transactions.sharded import PartitionedTransact

    kinds = (Transact, PartitionedTransact)
    node = pipeline.graph.nodes.get(operator)
    if node is None or not isinstance(node.what, kinds):
        names = [n.name for n in pipeline.graph.nodes.values() if isinstance(n.what, kinds)]
        raise UserError(
            f"'{operator}' runs no transactions; those that do: {', '.join(names) or 'none'}."
        )
    rows = rows_of(open_store(store, store_key), operator, epoch)
    states: dict[int, dict[Any, Any]] = {}
    for shard, _, key, value in rows:
        states.setdefault(shard, {})[key] = value
    return tables_in(node.what, states.values())
