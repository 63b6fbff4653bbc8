"""Looking into a store from outside: its checkpoints, the state in them, and going back to one.

Nothing here needs Spark, and only `read_tables` the pipeline's program. All but `rewind` and `repair` only read, and are safe while
a live driver writes and prunes: what it removes meanwhile is looked up again, not called damaged.
"""

from everstream.inspection.checkpoints import (
    Checkpoint,
    Overview,
    Status,
    look,
    open_store,
    repair,
)
from everstream.inspection.operator_state import known_operators, read_state, state_of
from everstream.inspection.rewind import check_rewind, rewind
from everstream.inspection.tables import read_tables

__all__ = [
    "Checkpoint",
    "Overview",
    "Status",
    "check_rewind",
    "known_operators",
    "look",
    "open_store",
    "read_state",
    "read_tables",
    "repair",
    "rewind",
    "state_of",
]
