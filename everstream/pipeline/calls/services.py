"""What an engine provides to operators that wait for something outside: `Context.services`."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from everstream.state.retention import DEFAULT, Retention

if TYPE_CHECKING:
    from everstream.state.blobs import Blobs


def _no_sleeper() -> None:
    """The engine never sleeps."""


@dataclass(frozen=True)
class CallServices:
    """The store, a way to wake the shard, and whether time is virtual."""

    blobs: "Blobs | None" = None
    """The run's store; None where there is none."""
    wake_up: Callable[[], None] = _no_sleeper
    """Ends the engine's sleep; any thread may call it."""
    now_s: Callable[[], float] = monotonic
    """The clock of answers that are due at a time: that of virtual time, if it is."""
    delay_s: Callable[[], float] | None = None
    """If time is virtual: how long the next answer takes, besides what the function waits for."""
    retention: Retention = DEFAULT
    """Which stable checkpoints are kept: a run may roll back to one, or be rewound to it."""
