"""Draws changes of shards for an audit, in between its kills. The same seed draws the same."""

import random
from pathlib import Path

from everstream.core.autoscaling import changeable
from everstream.core.plan import Plan, shard_counts
from everstream.errors import UserError
from everstream.state.control import Shards, record_settings
from everstream.state.signing import StoreKey, blobs_at

MOST = 4


class Rescales:
    """Asks runs for other numbers of shards, as `everstream scale` does."""

    def __init__(self, plan: Plan, seed: int, key: StoreKey | None) -> None:
        self._units = changeable(plan)
        if not self._units:
            raise UserError(
                "--rescale: no operator of this pipeline can get another number of shards while it "
                "runs: they read, keep an order, get all records, or have a limit."
            )
        self._written = shard_counts(plan)
        self._random = random.Random(seed)
        self._key = key
        self.asked = 0
        self.happened = 0

    def ask(self, store: Path) -> None:
        chosen = self._random.sample(self._units, self._random.randint(1, len(self._units)))
        wanted = {name: self._random.randint(1, MOST) for unit in chosen for name in unit[:1]}
        together = {name: wanted[unit[0]] for unit in chosen for name in unit}
        shards = {name: Shards(count, self._written[name]) for name, count in together.items()}
        record_settings(blobs_at(str(store), self._key), {}, shards)
        self.asked += 1
