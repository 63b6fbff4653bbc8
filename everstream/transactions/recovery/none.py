"""No fault tolerance: nothing is logged, and a crash starts the stream from the beginning."""

from everstream.transactions.recovery.scheme import Scheme


class NoRecovery(Scheme):
    name = "none"
    needs_log = False
    snapshots = False
    commits = False
