"""CKPT: snapshots and nothing else; after a crash the input since the snapshot runs again."""

from everstream.transactions.recovery.scheme import SnapshotsOnly


class Checkpoint(SnapshotsOnly):
    name = "checkpoint"
