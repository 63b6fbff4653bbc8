"""Inspecting a store from outside: its checkpoints, the state in them, and rewinding to one.

Nothing here needs Spark, and only `read_tables` needs the pipeline's program. Everything except
`rewind` and `repair` only reads, and is safe while a live driver writes and prunes: objects removed
meanwhile are looked up again, not reported as damaged.
"""

from everstream.inspection.checkpoints import (
    Checkpoint,
    CheckpointStatus,
    Overview,
    look,
    open_store,
    repair,
)
from everstream.inspection.editing import SavepointEdit, StateEdit, edit_savepoint
from everstream.inspection.operator_state import known_operators, read_state, read_tables, state_of
from everstream.inspection.rewind import (
    check_rewind,
    check_rewind_to_savepoint,
    rewind,
    rewind_to_savepoint,
)

__all__ = [
    "Checkpoint",
    "CheckpointStatus",
    "Overview",
    "SavepointEdit",
    "StateEdit",
    "check_rewind",
    "check_rewind_to_savepoint",
    "edit_savepoint",
    "known_operators",
    "look",
    "open_store",
    "read_state",
    "read_tables",
    "repair",
    "rewind",
    "rewind_to_savepoint",
    "state_of",
]
