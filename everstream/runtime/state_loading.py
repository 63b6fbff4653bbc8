"""Fills a shard's state from the objects of its checkpoint."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.runtime.chain import ChainStages
from everstream.runtime.channel_state import CHANNELS
from everstream.runtime.respread_loading import load_share
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
    gathered, by their names, from the records they were in; the next capture is full then.
    """
    operators = chain.operators
    if len(records) == 1 and records[0].parts:
        return load_share(state, chain, records[0], load)
    if len(records) == 1 and records[0].operators == operators and not records[0].aliases:
        objects = records[0].objects
        return state.restore(load(objects), objects, load)
    state.reset()
    extras: dict[str, Any] = {}
    for record in records:
        owner = partial(_owner_among, record, operators)
        other = state.beside(owner)
        found = other.restore(load(record.objects), record.objects, load)
        owned = {record.owner(name): value for name, value in found.items()}
        extras |= {name: owned[name] for name in chain.saved_names() if name in owned}
        if CHANNELS in found and record.operators == operators:
            extras[CHANNELS] = found[CHANNELS]
        state.adopt(other, owner)
    return extras


def _owner_among(record: CheckpointRecord, operators: Collection[str], saved: str) -> str | None:
    owner = record.owner(saved)
    return owner if owner in operators else None
