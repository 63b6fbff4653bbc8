"""Planning: simulate, predict, advise.

Light to import: the compiled simulation is loaded only by who asks for
`everstream.planning.queueing`.
"""

from everstream.planning.adviser import Advice, advise
from everstream.planning.auto import (
    AutoInterval,
    AutoSettings,
    CheckpointSeen,
    Decision,
    FailureSeen,
    RateSeen,
)
from everstream.planning.gathering import AdviceError
from everstream.planning.measured import Measured, RunResultError, parse_run, read_run

__all__ = [
    "Advice",
    "AdviceError",
    "AutoInterval",
    "AutoSettings",
    "CheckpointSeen",
    "Decision",
    "FailureSeen",
    "Measured",
    "RateSeen",
    "RunResultError",
    "advise",
    "parse_run",
    "read_run",
]
