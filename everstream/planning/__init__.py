"""Planning: predict what checkpoints and failures cost, and advise"""

from everstream.planning.adviser import Advice, advise
from everstream.planning.auto import (
    AutoInterval,
    AutoSettings,
    CheckpointSeen,
    Decision,
    FailureSeen,
    RateSeen,
)
from everstream.planning.measured import Measured, RunResultError, parse_run, read_run
from everstream.planning.weighing import AdviceError

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
