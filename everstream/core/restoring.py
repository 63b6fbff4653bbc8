"""Fills a shard's state from the objects of its checkpoint."""

from collections.abc import Callable, Sequence
from typing import Any

from everstream.core.chain import ChainStages
from everstream.core.messages import CheckpointRecord
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState


def load_state(
    state: ShardState,
    chain: ChainStages,
    records: Sequence[CheckpointRecord],
    load: Callable[[Sequence[ObjectRef]], list[bytes]],
) -> dict[str, Any]:
    """Fill the key stores; the extras (offsets, transactions) of this chain's operators.

    Usually one record holds everything. After a change of the graph the operators' state is
    gathered, by their names, from the records they were in.
    """
    operators = chain.operators
    if len(records) == 1 and records[0].operators == operators:
        objects = records[0].objects
        return state.restore(load(objects), objects)
    state.reset()
    extras: dict[str, Any] = {}
    for record in records:
        other = ShardState()
        found = other.restore(load(record.objects), record.objects)
        extras |= {name: found[name] for name in chain.saved_names() if name in found}
        state.adopt(other, operators)
    return extras
