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


MOVES: dict[ShardStatus, set[ShardStatus]] = {
    ShardStatus.NEW: {ShardStatus.RESTORING, ShardStatus.CLOSED},
    ShardStatus.RESTORING: {
        ShardStatus.RESTORING,
        ShardStatus.READY,
        ShardStatus.FAILED,
        ShardStatus.CLOSED,
    },
    ShardStatus.READY: {
        ShardStatus.RUNNING,
        ShardStatus.ENDED,
        ShardStatus.RESTORING,
        ShardStatus.FAILED,
        ShardStatus.CLOSED,
    },
    ShardStatus.RUNNING: {
        ShardStatus.ENDED,
        ShardStatus.STOPPED,
        ShardStatus.RESTORING,
        ShardStatus.FAILED,
        ShardStatus.CLOSED,
    },
    ShardStatus.STOPPED: {ShardStatus.RESTORING, ShardStatus.FAILED, ShardStatus.CLOSED},
    ShardStatus.ENDED: {ShardStatus.RESTORING, ShardStatus.FAILED, ShardStatus.CLOSED},
    ShardStatus.FAILED: {ShardStatus.RESTORING, ShardStatus.FAILED, ShardStatus.CLOSED},
    ShardStatus.CLOSED: set(),
}
