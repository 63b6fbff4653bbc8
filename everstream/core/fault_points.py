"""Named points in the life of a checkpoint, at which a process can be killed on purpose."""

from enum import Enum


class Point(Enum):
    """The step that a shard (or the driver, for the run as a whole) has reached."""

    BEFORE_SNAPSHOT = "before-snapshot"
    """A checkpoint has been asked for and not yet taken."""
    IN_SNAPSHOT = "in-snapshot"
    """Taken and encoded, not yet in the store. Driver: some shards have reported, not all."""
    AFTER_SNAPSHOT = "after-snapshot"
    """In the store, not yet reported. Driver: all have reported, no manifest yet."""
    AFTER_PREPARE = "after-prepare"
    """A sink's records are durable, not committed. Driver: manifest written, not announced."""
    IN_COMMIT = "in-commit"
    """Some of a sink's transactions are committed. Driver: some sinks have reported."""
    AFTER_COMMIT = "after-commit"
    """Committed, not yet reported."""
    IN_RESTORE = "in-restore"
    """State is loaded from a checkpoint, not yet reported."""
