"""Planning: predict what checkpoints and failures cost, and advise."""

from typing import TYPE_CHECKING

from everstream.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "everstream.planning.adviser": "Advice advise",
    "everstream.planning.auto": "AutoInterval AutoSettings CheckpointSeen Decision FailureSeen RateSeen",
    "everstream.planning.weighing": "AdviceError",
    "everstream.planning.measured": "Measured RunResultError parse_run read_run",
}
"""Module -> what comes from it. The imports above say the same to type checkers."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), _HOMES)
