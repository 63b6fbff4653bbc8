"""The measurements of a shard so far: sums, whose differences give the present rates.

Batches carry the time they came in (`Frame.born_s`); sinks compare it with the time at which they
have written them. This costs a few additions per step and batch, nothing per record, so it is
always on.
"""

from dataclasses import dataclass, field

from everstream.core.measuring.histogram import Histogram


@dataclass(slots=True)
class Losses:
    """Records of one operator that left the usual path."""

    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


@dataclass(slots=True)
class Meter:
    """Sums since this process began, unless noted otherwise; `None` where unknown.

    Records that are written again after a failure count again. A process that replaces another
    begins at 0: before you take differences, check that the worker's attempt is the same and no sum
    has fallen.
    """

    batches: int = 0
    """Batches that sinks have written."""
    records: int = 0
    timed: int = 0
    """The records whose arrival time is known."""
    waited_s: float = 0.0
    """From arrival to the sink, summed over them."""
    latency: dict[str, Histogram] = field(default_factory=dict)
    """Sink -> the latency of each of them; a batch counts as its records."""
    target_per_s: float = 0.0
    """The rate at which the sources are to emit now; 0 if they are not paced."""
    behind: float = 0.0
    """Records that are due and not emitted yet."""
    forfeited: float = 0.0
    """Records that were due and are skipped, at sources that do not catch up."""
    busy_s: float = 0.0
    """Spent in steps: operators, reading, encoding, handing over. Not in taking checkpoints."""
    waiting_s: float = 0.0
    """Idle: no input, or a source that has no records."""
    blocked_s: float = 0.0
    """Back-pressured: there may be input, but downstream has no room for output."""
    bytes_in: int = 0
    """Encoded, of frames from other processes; frames within a process are not encoded."""
    bytes_out: int = 0
    """Encoded, of frames to other processes."""
    frames_waiting: int = 0
    """Now: at the inputs, not processed."""
    watermark: int | None = None
    """Now: milliseconds since 1970; None before there is any, and when the stream has ended."""
    state_bytes: int | None = None
    """Now: the size of a checkpoint of the whole state, as far as checkpoints have shown."""
    state_keys: int | None = None
    """Now."""
    log_bytes: int | None = 0
    """Now: of sent messages that may be requested again; None if they are not encoded."""
    spilled_bytes: int = 0
    """Encoded, of frames written to the local disk because too many waited to stay in memory."""
    commits: int = 0
    """Transactions of sinks that were committed."""
    late: int = 0
    """Records that came after their window was closed: those that leave by an output "late"."""
    skipped: int = 0
    """Records that were skipped because of an error (`on_error`), dead letters among them. Counted
    as in checkpoints: including those before the last failure, and none twice."""
    dead_letters: int = 0
    losses: dict[str, Losses] = field(default_factory=dict)
    """Operator -> these three, for operators that have any."""
    replayed: int = 0
    """Records that were sent again from this shard's log, to shards that had rolled back."""
    suppressed: int = 0
    """Records from before a failure, in frames that were therefore dropped."""

    def wrote(self, sink: str, records: int, born_s: float, now_s: float) -> None:
        """A sink has written records that came in at `born_s`."""
        self.batches += 1
        self.records += records
        if born_s:
            self.timed += records
            waited_s = now_s - born_s
            self.waited_s += records * waited_s
            if sink not in self.latency:
                self.latency[sink] = Histogram()
            self.latency[sink].add(waited_s, records)

    def lost(self, operator: str, *, late: int = 0, dead_letters: int = 0) -> None:
        """Count records of an operator that were late, or became dead letters."""
        self.late += late
        self.dead_letters += dead_letters
        losses = self.losses.setdefault(operator, Losses())
        losses.late += late
        losses.dead_letters += dead_letters
