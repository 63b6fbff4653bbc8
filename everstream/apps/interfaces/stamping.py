"""Times of items from the notes of a pipeline's probes.

A frame knows when what it carries came in, so an item's latency is that of its frame. The end is
the last part that had every item: a sink, or the operator that sums them up. Times of single
operators are told in the order in which items came to each: where results have an order it is the
items' own.
"""

from pathlib import Path
from typing import Any

import numpy as np

from everstream.apps.interfaces.job import Array, Stamps
from everstream.apps.interfaces.probes import read_notes
from everstream.pipeline.graph import Graph, Kind


def stamps_of(graph: Graph, folder: Path, items: int) -> Stamps | None:
    """One row per item that came out, if it is known when it came in; None if that is none."""
    noted = {node.name: read_notes(folder, node.name) for node in graph.upstream_first()}
    # A killed source may have read what it did not come to note.
    whole = {
        name: rows
        for name, rows in noted.items()
        if rows["records"].sum() >= items
        or (graph.nodes[name].kind is Kind.SOURCE and len(rows) > 0)
    }
    behind = [node for node in graph.upstream_first() if node.name in whole]
    if not behind or behind[-1].kind is Kind.SOURCE:
        return None
    # What a checkpoint had in the middle of a batch has forgotten when it came in.
    last = whole[behind[-1].name]
    last = last[last["born"] > 0]
    if not len(last):
        return None
    came, born = _each(last, last["ended"]), _each(last, last["born"])
    names = [node.name for node in behind]
    took = np.stack([_sized(_shares(whole[name]), len(came)) for name in names], axis=1)
    return Stamps(tuple(names), born, took, came)


def _each(rows: Any, values: Any) -> Array:
    """A value per record from one per batch."""
    return np.repeat(values, rows["records"]).astype(np.int64)


def _shares(rows: Any) -> Array:
    """Each record's share of the time its batch took."""
    shares = (rows["ended"] - rows["began"]) // np.maximum(rows["records"], 1)
    return _each(rows, shares)


def _sized(values: Array, length: int) -> Array:
    """After a failure some parts have had more records than others: the last ones count."""
    return values[-length:] if len(values) >= length else _padded(values, length)


def _padded(values: Array, length: int) -> Array:
    return np.concatenate([np.repeat(values[:1], length - len(values)), values])
