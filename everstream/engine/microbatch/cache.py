"""The shards that a worker process keeps in memory between two epochs.

A task takes its shard out of the cache and puts it back only if it succeeds: an abandoned task
leaves nothing behind that a later one could continue from.
"""

from everstream.core.ids import Epoch, ShardId
from everstream.engine.microbatch.orders import Order
from everstream.engine.microbatch.resident import Resident


class Cache:
    """The shards that one process keeps, of one run and era."""

    def __init__(self) -> None:
        self._owner: tuple[str, int] | None = None
        self._residents: dict[ShardId, Resident] = {}

    def take(self, order: Order, shard: ShardId) -> Resident | None:
        """The shard, if it is here in the manifest's version. Removes it from the cache in any case."""
        if self._owner != (order.run, order.era):
            self.clear()
            self._owner = (order.run, order.era)
        self._drop_before(order.stable)
        resident = self._residents.pop(shard, None)
        return resident if resident is not None and self._is_current(resident, order) else None

    def keep(self, order: Order, resident: Resident) -> None:
        """The shard has completed its epoch."""
        if self._owner == (order.run, order.era):
            self._residents[resident.shard] = resident

    def clear(self) -> None:
        self._residents.clear()

    def _is_current(self, resident: Resident, order: Order) -> bool:
        return resident.version == order.version(resident.shard)

    def _drop_before(self, epoch: Epoch) -> None:
        """A shard that missed an epoch continued elsewhere: it would only take up memory."""
        for shard in [s for s, kept in self._residents.items() if kept.epoch < epoch]:
            del self._residents[shard]
