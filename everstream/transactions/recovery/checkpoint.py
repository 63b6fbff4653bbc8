"""CKPT: snapshots and nothing else; after a crash the input since the snapshot runs again."""

from everstream.transactions.recovery.scheme import Scheme


class Checkpoint(Scheme):
    name = "checkpoint"
    commits = False
