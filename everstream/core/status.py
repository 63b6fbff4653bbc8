"""The states of a shard, and which may follow which."""

from enum import Enum


class ShardStatus(Enum):
    NEW = "new"
    RESTORING = "restoring"
    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"
    CLOSED = "closed"


_FROM_ANYWHERE = {ShardStatus.RESTORING, ShardStatus.FAILED, ShardStatus.CLOSED}
MOVES: dict[ShardStatus, set[ShardStatus]] = {
    ShardStatus.NEW: {ShardStatus.RESTORING, ShardStatus.CLOSED},
    ShardStatus.RESTORING: {ShardStatus.READY} | _FROM_ANYWHERE,
    ShardStatus.READY: {ShardStatus.RUNNING, ShardStatus.ENDED} | _FROM_ANYWHERE,
    ShardStatus.RUNNING: {ShardStatus.ENDED, ShardStatus.STOPPED} | _FROM_ANYWHERE,
    ShardStatus.STOPPED: _FROM_ANYWHERE,
    ShardStatus.ENDED: _FROM_ANYWHERE,
    ShardStatus.FAILED: _FROM_ANYWHERE,
    ShardStatus.CLOSED: set(),
}
