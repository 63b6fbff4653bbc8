"""How a run is checkpointed, in the words a user says it with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from everstream.errors import UserError

AUTO = "auto"
AUTO_START_S = 10.0
Mode: TypeAlias = Literal["aligned", "unaligned", "at-least-once"]
Rule: TypeAlias = Literal["hmnr", "bcs"]
KeptLog: TypeAlias = Literal["durable", "memory"]
EngineName: TypeAlias = Literal["tasks", "microbatch"]
"""What runs a pipeline: Spark tasks that stay, or one Spark job per epoch."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UserError(f"{name}={given!r}: say one of {', '.join(known)}.")


def seconds(duration: str | float) -> float:
    """'500ms', '5s', '2m', '1h' or a number of seconds."""
    if isinstance(duration, int | float):
        return float(duration)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", duration)
    if found is None or (found[2] or "s") not in _UNITS_S:
        raise UserError(f"{duration!r} is no duration: write it like 500ms, 5s, 2m or 1h.")
    return float(found[1]) * _UNITS_S[found[2] or "s"]


@dataclass(frozen=True)
class Coordinated:
    """All shards checkpoint together, in numbered epochs that markers separate.

    Aligned (the default), a shard holds its inputs until all have shown the marker. Unaligned,
    markers overtake the frames, which become part of the checkpoint: no input ever waits, and
    cycles work. In the mode "at-least-once" nothing is held and nothing extra is saved, and after
    a failure some records count twice.

    Take one every so often (`every="5s"`), every so many records read (`every_records=1_000_000`),
    or whichever comes first. With `every="auto"` the run measures what its checkpoints cost and
    how often it fails, and keeps the interval near the best one, `between` two bounds; with a
    `recovery_target` short enough that a failure is made up for within that time.
    """

    every: str | float | None = None
    every_records: int | None = None
    mode: Mode = "aligned"
    between: tuple[str | float, str | float] = ("500ms", "10m")
    recovery_target: str | float | None = None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, get_args(Mode))
        shortest, longest = self.between
        if not 0 < seconds(shortest) <= seconds(longest):
            raise UserError(f"between={self.between!r}: give the shorter time first, above zero.")
        if self.recovery_target is not None and not self.automatic:
            raise UserError('recovery_target needs every="auto".')
        if self.every is not None and not self.automatic and seconds(self.every) <= 0:
            raise UserError(f"every={self.every!r}: the time between checkpoints must be positive.")
        if self.every_records is not None and self.every_records < 1:
            raise UserError(f"every_records={self.every_records!r} must be at least 1.")

    @property
    def automatic(self) -> bool:
        return self.every == AUTO

    @property
    def every_s(self) -> float | None:
        """The interval to start with; 30 seconds unless only records were asked for."""
        if self.automatic:
            shortest, longest = (seconds(bound) for bound in self.between)
            return min(max(AUTO_START_S, shortest), longest)
        if self.every is not None:
            return seconds(self.every)
        return None if self.every_records is not None else 30.0


@dataclass(frozen=True)
class Uncoordinated:
    """Each shard checkpoints on its own, `every` so often, a share `jitter` earlier or later.

    Senders log what they send, so after a failure only those go back who must. With
    log="durable" results are exactly-once; with log="memory" a log dies with its process, and
    what was in transit from it is lost: the run counts and says how much. On a cycle the
    checkpoints may not fit together, and a failure may lead back to the start: see `CommunicationInduced`.
    """

    every: str | float = "30s"
    jitter: float = 0.1
    log: KeptLog = "durable"

    def __post_init__(self) -> None:
        if seconds(self.every) <= 0:
            raise UserError(f"every={self.every!r}: the time between checkpoints must be positive.")
        if not 0 <= self.jitter < 1:
            raise UserError(f"jitter={self.jitter!r} is a share of the time: from 0 to below 1.")
        _one_of("log", self.log, get_args(KeptLog))

    @property
    def every_s(self) -> float:
        return seconds(self.every)


@dataclass(frozen=True)
class CommunicationInduced(Uncoordinated):
    """As `Uncoordinated`, and what rides on the frames forces a checkpoint where one is needed.

    So that every checkpoint is of use, also on cycles. The rule "hmnr" forces fewer checkpoints
    and sends more along than "bcs".
    """

    rule: Rule = "hmnr"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("rule", self.rule, get_args(Rule))


Checkpointing: TypeAlias = Coordinated | Uncoordinated
PROTOCOL_WORDS: Final[Mapping[str, Checkpointing | None]] = {
    "aligned": Coordinated(),
    "unaligned": Coordinated(mode="unaligned"),
    "at-least-once": Coordinated(mode="at-least-once"),
    "uncoordinated": Uncoordinated(),
    "hmnr": CommunicationInduced(rule="hmnr"),
    "bcs": CommunicationInduced(rule="bcs"),
    "none": None,
}
"""The word of each protocol outside Python."""


def in_words(
    protocol: str,
    every: str | float | None = None,
    every_records: int | None = None,
    log: str | None = None,
) -> Checkpointing | None:
    """How to checkpoint, from the settings that a file or a command line has for it."""
    if protocol not in PROTOCOL_WORDS:
        words = ", ".join(PROTOCOL_WORDS)
        raise UserError(f"'{protocol}' is no checkpoint protocol: say one of {words}.")
    choice = PROTOCOL_WORDS[protocol]
    given: dict[str, Any] = {} if every is None else {"every": every}
    if choice is None:
        if given or every_records is not None or log is not None:
            raise UserError(
                "every, every_records and log need checkpoints, and the protocol is none: choose "
                "another one with checkpoint."
            )
        return None
    if isinstance(choice, Coordinated):
        if log is not None:
            raise UserError(f"the protocol {protocol} keeps no log: leave log out.")
        return replace(choice, every_records=every_records, **given)
    if every_records is not None or every == AUTO:
        raise UserError(
            f"with the protocol {protocol} each shard has its own timer: give a time with every, such "
            "as 5s."
        )
    if log is not None:
        given["log"] = log
    return replace(choice, **given)
