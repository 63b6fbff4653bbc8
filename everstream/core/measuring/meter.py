"""What a shard has measured of itself so far: sums, from which differences say how it goes just now.

Batches carry the moment they came in (`Frame.born_s`); sinks compare it with the moment they have
written them. It costs a few additions per step and batch, nothing per record, so it is always on.
"""

from dataclasses import dataclass, field

from everstream.core.measuring.histogram import Histogram


@dataclass(slots=True)
class Losses:
    """Records of one operator that did not go the way of the others."""

    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


@dataclass(slots=True)
class Meter:
    """Sums since this process began, unless said otherwise; `None` where nobody knows.

    What is written again after a failure counts again. A process that takes another's place begins
    at 0: whoever takes differences must see that the worker's attempt has changed, or that a sum fell.
    """

    batches: int = 0
    """Batches that sinks have written."""
    records: int = 0
    timed: int = 0
    """Those of the records for which the moment they came in is known."""
    waited_s: float = 0.0
    """From there to the sink, summed over them."""
    latency: dict[str, Histogram] = field(default_factory=dict)
    """Sink -> how long that took, of each of them; a batch counts as its records."""
    target_per_s: float = 0.0
    """What the sources are to give just now; 0 if nobody paces them."""
    behind: float = 0.0
    """Records that are due and not given yet."""
    forfeited: float = 0.0
    """Records that were due and whose time has passed, at sources that do not catch up."""
    busy_s: float = 0.0
    """Spent in steps: operators, reading, encoding, handing over. Not in taking checkpoints."""
    waiting_s: float = 0.0
    """With nothing to do: no input, a source that has nothing to give."""
    blocked_s: float = 0.0
    """Back-pressured: there may be input, and no room for output at those behind."""
    bytes_in: int = 0
    """Encoded, of frames from other processes; what shards of one process hand over is not encoded."""
    bytes_out: int = 0
    """Encoded, of frames to other processes."""
    frames_waiting: int = 0
    """Now: at the inputs, not processed."""
    watermark: int | None = None
    """Now: milliseconds since 1970; None before there is any, and when the stream has ended."""
    state_bytes: int | None = None
    """Now: what a checkpoint of the whole state would take, as far as checkpoints have shown."""
    state_keys: int | None = None
    """Now."""
    log_bytes: int | None = 0
    """Now: of messages that were sent and may be asked for again; None if they are not encoded."""
    spilled_bytes: int = 0
    """Encoded, of what was written to the local disk because too much waited to stay in memory."""
    commits: int = 0
    """Transactions of sinks that were committed."""
    late: int = 0
    """Records that came after their window was closed: what leaves by an output "late"."""
    skipped: int = 0
    """Records that were left out because of an error (`on_error`), dead letters among them. As the
    checkpoints count them: also before the last failure, and none twice."""
    dead_letters: int = 0
    losses: dict[str, Losses] = field(default_factory=dict)
    """Operator -> these three, of those that have any."""
    replayed: int = 0
    """Records that were sent again from this shard's log, to those who had gone back."""
    suppressed: int = 0
    """Records that came from before a failure, in frames that were therefore dropped."""

    def wrote(self, sink: str, records: int, born_s: float, now_s: float) -> None:
        """A sink has written so many records that came in then."""
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
        """So many records of an operator were late, or became dead letters."""
        self.late += late
        self.dead_letters += dead_letters
        losses = self.losses.setdefault(operator, Losses())
        losses.late += late
        losses.dead_letters += dead_letters
