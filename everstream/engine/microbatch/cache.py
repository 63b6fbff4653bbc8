"""The shards that live on in a worker process between two epochs.

A shard is taken out when a task begins and put back only when its task has come to a good end: a
task that is given up half-way leaves nothing behind that anybody could go on from.
"""

from everstream.core.ids import Epoch, ShardId
from everstream.engine.microbatch.orders import Order
from everstream.engine.microbatch.resident import Resident


class Cache:
    """What one process keeps, of one run and era."""

    def __init__(self) -> None:
        self._owner: tuple[str, int] | None = None
        self._residents: dict[ShardId, Resident] = {}

    def take(self, order: Order, shard: ShardId) -> Resident | None:
        """The shard, if it is here as the manifest has it. It is gone from here either way."""
        if self._owner != (order.run, order.era):
            self.clear()
            self._owner = (order.run, order.era)
        self._drop_before(order.stable)
        resident = self._residents.pop(shard, None)
        return resident if resident is not None and self._is_current(resident, order) else None

    def keep(self, order: Order, resident: Resident) -> None:
        """It has been through its epoch."""
        if self._owner == (order.run, order.era):
            self._residents[resident.shard] = resident

    def clear(self) -> None:
        self._residents.clear()

    def _is_current(self, resident: Resident, order: Order) -> bool:
        return resident.version == order.version(resident.shard)

    def _drop_before(self, epoch: Epoch) -> None:
        """What has missed an epoch went on elsewhere: it would only take up memory."""
        for shard in [s for s, kept in self._residents.items() if kept.epoch < epoch]:
            del self._residents[shard]
