"""The last commits: a run is over when every sink shows its last results."""

from collections.abc import Collection

from everstream.core.ids import CheckpointNumber, ShardId


class Committing:
    """The shards whose last commit is waited for; nobody's before `begin`."""

    def __init__(self) -> None:
        self._waiting: set[ShardId] = set()

    @property
    def waiting(self) -> Collection[ShardId]:
        return self._waiting

    @property
    def done(self) -> bool:
        return not self._waiting

    def begin(self, shards: Collection[ShardId]) -> None:
        """The last epoch is stable: these shards have something to show."""
        self._waiting = set(shards)

    def committed(self, shard: ShardId, number: int, last: CheckpointNumber) -> None:
        """A shard shows everything up to a number; what counts is its last checkpoint."""
        if number >= last:
            self._waiting.discard(shard)
