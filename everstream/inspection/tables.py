"""The tables of a `transact` operator in a checkpoint, as data frames."""

import os

import polars as pl

from everstream.errors import UserError
from everstream.inspection.checkpoints import open_store
from everstream.inspection.operator_state import rows_of
from everstream.pipeline.stream import Pipeline


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

    node = pipeline.graph.nodes.get(operator)
    if node is None or not isinstance(node.what, Transact):
        names = [n.name for n in pipeline.graph.nodes.values() if isinstance(n.what, Transact)]
        raise UserError(
            f"'{operator}' runs no transactions; those that do: {', '.join(names) or 'none'}."
        )
    rows = rows_of(open_store(store, store_key), operator, epoch)
    return tables_in(node.what, {key: value for _, _, key, value in rows})
