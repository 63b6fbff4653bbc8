"""The checkpoint protocols a user chooses from, and their options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from everstream.errors import UserError

AUTO = "auto"
AUTO_START_S = 10.0
BOUNDS: Final = ("500ms", "10m")
"""Of an interval that the run adjusts, unless others are given."""
Mode: TypeAlias = Literal["aligned", "unaligned", "at-least-once"]
Rule: TypeAlias = Literal["hmnr", "bcs"]
KeptLog: TypeAlias = Literal["durable", "memory"]
EngineName: TypeAlias = Literal["tasks", "microbatch", "local"]
"""What runs a pipeline: long-running Spark tasks, or one Spark job per epoch."""
StateKind: TypeAlias = Literal["memory", "disk"]
"""Where state is kept."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UserError(f"{name}={given!r}: use one of {', '.join(known)}.")


def seconds(duration: str | float) -> float:
    """'500ms', '5s', '2m', '1h', '1d' or a number of seconds."""
    if isinstance(duration, int | float):
        return float(duration)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", duration)
    if match is None or (match[2] or "s") not in _UNITS_S:
        raise UserError(f"{duration!r} is not a duration: write it like 500ms, 5s, 2m, 1h or 1d.")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


@dataclass(frozen=True)
class Coordinated:
    """All shards checkpoint together, in numbered epochs that markers separate.

    Aligned (the default): a shard holds back each input until all have delivered the marker.
    Unaligned: markers overtake frames, and the frames become part of the checkpoint, so no input
    ever waits and cycles work. In the mode "at-least-once" nothing is held back and nothing extra
    is saved; after a failure some records count twice.

    Choose the interval by time (`every="5s"`), by records read (`every_records=1_000_000`), or by
    whichever comes first. With `every="auto"` the run measures the cost of its checkpoints and its
    rate of failures, and keeps the interval near the optimum, within the bounds `between`. With a
    `recovery_target`, the interval is short enough to catch up within that time after a failure.
    """

    every: str | float | None = None
    every_records: int | None = None
    mode: Mode = "aligned"
    between: tuple[str | float, str | float] = BOUNDS
    recovery_target: str | float | None = None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, get_args(Mode))
        _check_interval(self)

    @property
    def automatic(self) -> bool:
        return self.every == AUTO

    @property
    def every_s(self) -> float | None:
        """The interval to start with; 30 seconds unless only `every_records` was given."""
        return _first_interval_s(self)


@dataclass(frozen=True)
class Uncoordinated:
    """Each shard checkpoints on its own timer: every `every`, plus or minus a share `jitter`.

    Or after it was given `every_records` records (a source: has emitted them), or by whichever comes
    first. Without either, every 30 seconds. With `every="auto"` the run adjusts the interval of all
    shards, as for `Coordinated`, within the bounds `between`. An operator can ask for a checkpoint or postpone one
    with `should_checkpoint`.

    Senders log what they send, so after a failure only the shards that need to roll back do. With
    log="durable", results are exactly-once. With log="memory", a log is lost with its process,
    and so is what was in transit from it: the run counts these records and reports the number. On
    a cycle the checkpoints may not fit together, and a failure may roll back to the start: see
    `CommunicationInduced`.
    """

    every: str | float | None = None
    jitter: float = 0.1
    log: KeptLog = "durable"
    every_records: int | None = None
    between: tuple[str | float, str | float] = BOUNDS
    recovery_target: str | float | None = None

    def __post_init__(self) -> None:
        _check_interval(self)
        if not 0 <= self.jitter < 1:
            raise UserError(f"jitter={self.jitter!r} is a share of the time: from 0 to below 1.")
        _one_of("log", self.log, get_args(KeptLog))

    @property
    def automatic(self) -> bool:
        return self.every == AUTO

    @property
    def every_s(self) -> float | None:
        """The interval to start with; 30 seconds unless only `every_records` was given."""
        return _first_interval_s(self)


@dataclass(frozen=True)
class CommunicationInduced(Uncoordinated):
    """Like `Uncoordinated`, but data sent with the frames forces a checkpoint where one is needed.

    So every checkpoint is useful, even on cycles. The rule "hmnr" forces fewer checkpoints than
    "bcs" and sends more data with each frame.
    """

    rule: Rule = "hmnr"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("rule", self.rule, get_args(Rule))


Checkpointing: TypeAlias = Coordinated | Uncoordinated


def _check_interval(choice: Checkpointing) -> None:
    shortest, longest = choice.between
    if not 0 < seconds(shortest) <= seconds(longest):
        raise UserError(f"between={choice.between!r}: give the shorter time first, above zero.")
    if choice.recovery_target is not None and not choice.automatic:
        raise UserError('recovery_target needs every="auto".')
    if choice.every is not None and not choice.automatic and seconds(choice.every) <= 0:
        raise UserError(f"every={choice.every!r}: the time between checkpoints must be positive.")
    if choice.every_records is not None and choice.every_records < 1:
        raise UserError(f"every_records={choice.every_records!r} must be at least 1.")


def _first_interval_s(choice: Checkpointing) -> float | None:
    if choice.automatic:
        shortest, longest = (seconds(bound) for bound in choice.between)
        return min(max(AUTO_START_S, shortest), longest)
    if choice.every is not None:
        return seconds(choice.every)
    return None if choice.every_records is not None else 30.0


PROTOCOL_WORDS: Final[Mapping[str, Checkpointing | None]] = {
    "aligned": Coordinated(),
    "unaligned": Coordinated(mode="unaligned"),
    "at-least-once": Coordinated(mode="at-least-once"),
    "uncoordinated": Uncoordinated(),
    "hmnr": CommunicationInduced(rule="hmnr"),
    "bcs": CommunicationInduced(rule="bcs"),
    "none": None,
}
"""The name of each protocol outside Python."""


def in_words(
    protocol: str,
    every: str | float | None = None,
    every_records: int | None = None,
    log: str | None = None,
) -> Checkpointing | None:
    """The checkpoint protocol, from the settings of a file or a command line."""
    if protocol not in PROTOCOL_WORDS:
        names = ", ".join(PROTOCOL_WORDS)
        raise UserError(f"'{protocol}' is not a checkpoint protocol: use one of {names}.")
    choice = PROTOCOL_WORDS[protocol]
    given: dict[str, Any] = {} if every is None else {"every": every}
    if choice is None:
        if given or every_records is not None or log is not None:
            raise UserError(
                "every, every_records and log need checkpoints, but the protocol is none. Choose "
                "another one with checkpoint."
            )
        return None
    if isinstance(choice, Coordinated):
        if log is not None:
            raise UserError(f"the protocol {protocol} keeps no log: remove log.")
        return replace(choice, every_records=every_records, **given)
    given["every_records"] = every_records
    if log is not None:
        given["log"] = log
    return replace(choice, **given)
