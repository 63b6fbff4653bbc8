"""No fault tolerance: nothing is logged, and a crash starts the stream from the beginning."""

from everstream.transactions.recovery.scheme import SnapshotsOnly


class NoRecovery(SnapshotsOnly):
    name = "none"
    needs_log = False
    snapshots = False
