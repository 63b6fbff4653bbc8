"""The settings of a benchmark, in the words a user gives them, checked before anything runs.

A range is `4`, `1:4` (each from 1 to 4) or `1:2:8` (from 1 to 8 in steps of 2); commas join several.
A range that steps over its end still has its end: `1:2:8` is 1, 3, 5, 7, 8.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

from everstream.connectors.generate.load import Load
from everstream.core.registry import named
from everstream.engine.faults.kills import Kill
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, seconds
from everstream_lab.apps.interfaces.clutter import check_clutter
from everstream_lab.apps.interfaces.registry import WITH_CHECKPOINTS, survives_kills
from everstream_lab.apps.interfaces.shape import AUTO, check_shape

HOW = "say 4, 1:4 (each from 1 to 4), 1:2:8 (in steps of 2, the end included), or 1,2,8"


def parse_range(text: str, what: str = "--workers") -> tuple[int, ...]:
    """The numbers in a range, ascending, each once.

    >>> parse_range("1:4"), parse_range("1:2:8"), parse_range("8,1:2")
    ((1, 2, 3, 4), (1, 3, 5, 7, 8), (1, 2, 8))
    """
    return tuple(sorted({number for part in text.split(",") for number in _part(part, what)}))


def _part(text: str, what: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(":")]
    except ValueError:
        numbers = []
    match numbers:
        case [one]:
            first, step, last = one, 1, one
        case [first, last]:
            step = 1
        case [first, step, last]:
            pass
        case _:
            raise UserError(f"{what} {text!r} is no range: {HOW}.")
    if first < 1 or step < 1 or last < first:
        raise UserError(
            f"{what} {text!r}: a range begins at 1 or above, has a step of 1 or above and does not "
            f"end before it begins; {HOW}."
        )
    return [*range(first, last, step), last]


OFF = "off"
RISING = ".."
YES, NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


@dataclass(frozen=True)
class Settings:
    """How a benchmark is executed. `configure` changes them for good, options of `exec` for once."""

    workers: str = "2"
    """A range of parallelism: 4, 1:4, 1:2:8."""
    stages: str = AUTO
    """One farm (farm), a farm per stage (pipeline), workers of each stage as in 2,1,3, or auto: as
    the interface does it."""
    clutter: int = 0
    """How many items come before the one in front of them; results are put back in order."""
    batch: str = "auto"
    """Items that travel together: a range, 1..10 (rising while it runs), or auto."""
    interval: str = "0s"
    """Send a smaller batch after this time; 0s: never."""
    frequency: float = 0.0
    """The most items a second that the source gives; 0: all it can."""
    pattern: str = ""
    """NAME,PERIOD,MIN,MAX[,SPIKE%] as in wave,10s,100,1000."""
    catch_up: bool = False
    """Whether the source makes up for what it could not give in time."""
    in_memory: bool = False
    """All input is read before the clock starts, and output kept until it has stopped."""
    repeats: int = 1
    latency: bool = True
    """Take the time of each item in each operator."""
    monitor: str = "250ms"
    """Sample throughput, latency, CPU and memory so often; off: never."""
    checkpoint: str = "aligned"
    """The protocol, or none."""
    every: str = "1s"
    """Time between checkpoints."""
    kills: tuple[str, ...] = ()
    """OPERATOR[:SHARD]@5s, @1000 (records) or a point."""
    check: bool = True
    """Compare the result with that of the sequential program."""

    def check_all(self, interface: str) -> None:
        """Raise a UserError for what cannot be, before anything runs."""
        self.worker_counts()
        check_shape(self.stages, interface)
        check_clutter(self.clutter)
        self.batch_sizes(1)
        if self.repeats < 1:
            raise UserError(f"repeats={self.repeats}: there must be at least one run.")
        if self.frequency < 0:
            raise UserError(f"frequency={self.frequency:g}: give items per second, or 0 for all.")
        if self.frequency and self.pattern:
            raise UserError("give a frequency or a pattern, not both: a pattern has its own.")
        if self.interval_s() < 0:
            raise UserError(f"interval={self.interval}: give a time, or 0s.")
        self.load()
        self.monitor_s()
        self.checkpointing()
        for kill in self.kills:
            Kill.parse(kill)
        if self.kills and not survives_kills(interface):
            able = " or ".join(sorted(WITH_CHECKPOINTS))
            raise UserError(
                f"the interface '{interface}' does not survive a kill: take {able}, or drop the "
                "kills."
            )

    def worker_counts(self) -> tuple[int, ...]:
        return parse_range(self.workers, "workers")

    def batch_sizes(self, usual: int) -> tuple[int, ...]:
        if self.batch == "auto":
            return (usual,)
        first, _, _ = self.batch.partition(RISING)
        return parse_range(first if self.batch_to() else self.batch, "batch")

    def batch_to(self) -> int:
        """The size that batches grow to during a run; 0: they do not grow."""
        first, rising, last = self.batch.partition(RISING)
        if not rising:
            return 0
        if not (first.isdigit() and last.isdigit() and 1 <= int(first) < int(last)):
            raise UserError(f"batch={self.batch}: write FIRST..LAST, as in 1..10.")
        return int(last)

    def load(self) -> Load | None:
        """How many items a second the source gives; None: all it can."""
        if self.pattern:
            return Load.parse(self.pattern)
        return Load(self.frequency) if self.frequency else None

    def interval_s(self) -> float:
        return seconds(self.interval)

    def monitor_s(self) -> float | None:
        """The monitor's period; None: there is none."""
        if self.monitor == OFF:
            return None
        period_s = seconds(self.monitor)
        if period_s < 0.05:
            raise UserError(f"monitor={self.monitor}: the shortest period is 50ms; or say off.")
        return period_s

    def checkpointing(self) -> Checkpointing | None:
        choice = named(self.checkpoint).choice
        if choice is None:
            return None
        if isinstance(choice, Coordinated):
            return dataclasses.replace(choice, every=self.every)
        return dataclasses.replace(choice, every=self.every)

    def with_values(self, values: dict[str, str]) -> "Settings":
        """A copy with some settings changed; a wrong name is answered with the one that was meant."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {}
        for name, text in values.items():
            key = name.replace("-", "_")
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                meant = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(fields)}."
                raise UserError(f"there is no setting '{name}'; {meant}")
            changed[key] = _read(key, getattr(self, key), text)
        return dataclasses.replace(self, **changed)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kills": list(self.kills)}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Settings":
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in body.items() if name in known}
        return cls(**{**values, "kills": tuple(values.get("kills", ()))})


def _read(name: str, present: Any, text: str) -> Any:
    """A value of the kind that the setting has."""
    if isinstance(present, bool):
        if text.lower() not in (*YES, *NO):
            raise UserError(f"{name}={text}: say yes or no.")
        return text.lower() in YES
    if isinstance(present, tuple):
        return tuple(part for part in text.split(",") if part)
    try:
        return type(present)(text)
    except ValueError:
        raise UserError(f"{name}={text}: give a number.") from None
