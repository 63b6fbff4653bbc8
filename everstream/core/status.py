"""The states of a shard, and which may follow which."""

from enum import Enum


class Status(Enum):
    NEW = "new"
    RESTORING = "restoring"
    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"
    CLOSED = "closed"


MOVES: dict[Status, set[Status]] = {
    Status.NEW: {Status.RESTORING, Status.CLOSED},
    Status.RESTORING: {Status.RESTORING, Status.READY, Status.FAILED, Status.CLOSED},
    Status.READY: {Status.RUNNING, Status.ENDED, Status.RESTORING, Status.FAILED, Status.CLOSED},
    Status.RUNNING: {
        Status.ENDED,
        Status.STOPPED,
        Status.RESTORING,
        Status.FAILED,
        Status.CLOSED,
    },
    Status.STOPPED: {Status.RESTORING, Status.FAILED, Status.CLOSED},
    Status.ENDED: {Status.RESTORING, Status.FAILED, Status.CLOSED},
    Status.FAILED: {Status.RESTORING, Status.FAILED, Status.CLOSED},
    Status.CLOSED: set(),
}
