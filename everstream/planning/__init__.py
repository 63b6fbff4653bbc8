"""Planning: simulate, predict, advise.

Light to import: its names are loaded on first use, and the compiled simulation only with
`everstream.planning.queueing`.
"""

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

_HOMES = {
    "everstream.planning.adviser": "Advice advise",
    "everstream.planning.auto": "AutoInterval AutoSettings CheckpointSeen Decision FailureSeen RateSeen",
    "everstream.planning.gathering": "AdviceError",
    "everstream.planning.measured": "Measured RunResultError parse_run read_run",
}
"""Module -> what comes from it. The imports above say the same to type checkers."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), _HOMES)
