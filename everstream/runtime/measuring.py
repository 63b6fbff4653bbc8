"""How a shard spends its time, and its other measurements, read together.

Times come from clock readings around each step and from calls to `may_step`: a shard that was asked
and could not step counts as resting until it steps or is asked again. Everything else is known
anyway, and only looked up on request.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from everstream.core.measuring import Losses, Meter
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.source import NO_LOAD, Source
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK

if TYPE_CHECKING:
    from everstream.runtime.chain import ChainStages
    from everstream.runtime.runner import ShardRunner


class TimeUse:
    """Sums of a shard's time. The remainder is time in which other shards had the thread."""

    __slots__ = ("_blocked", "_since_s", "blocked_s", "busy_s", "waiting_s")

    def __init__(self) -> None:
        self.busy_s = self.waiting_s = self.blocked_s = 0.0
        self._since_s: float | None = None
        """Since when the shard rests; None while it does not."""
        self._blocked = False

    def rests(self, now_s: float, *, blocked: bool) -> None:
        """It was asked and cannot step: downstream has no room, or there is nothing to do."""
        self.settle(now_s)
        self._since_s = now_s
        self._blocked = blocked

    def stepped(self, began_s: float, ended_s: float) -> None:
        self.settle(began_s)
        self._since_s = None
        self.busy_s += ended_s - began_s

    def settle(self, now_s: float) -> None:
        """Count the resting time up to now."""
        if self._since_s is None:
            return
        if self._blocked:
            self.blocked_s += now_s - self._since_s
        else:
            self.waiting_s += now_s - self._since_s
        self._since_s = now_s


class NoUse(TimeUse):
    def rests(self, now_s: float, *, blocked: bool) -> None:
        pass

    def stepped(self, began_s: float, ended_s: float) -> None:
        pass


class Alignment:
    """How long a shard waits for the markers of one epoch, from the first to the last."""

    __slots__ = ("_first_s", "came")

    def __init__(self) -> None:
        self.came = False
        """A marker has come in, and not all of its epoch."""
        self._first_s: float | None = None

    def look(self, waits: bool, now_s: float) -> None:
        """Record whether the shard has seen a marker and waits for others."""
        if not waits:
            self._first_s = None
        elif self._first_s is None:
            self._first_s = now_s

    def over(self, now_s: float) -> float:
        """All markers have arrived. Returns the seconds since the first."""
        waited_s = 0.0 if self._first_s is None else now_s - self._first_s
        self._first_s = None
        self.came = False
        return waited_s


def read_meter(runner: "ShardRunner") -> Meter:
    """All measurements of this shard, as of now."""
    chain, use = runner.chain, runner.use
    use.settle(runner.engine.clock_s())
    reader = chain.head.reader if chain.stages else None
    time = None if runner.caught_up else _source_time(chain)
    load = reader.load() if reader is not None else NO_LOAD
    return replace(
        chain.meter,
        latency={sink: histogram.copy() for sink, histogram in chain.meter.latency.items()},
        target_per_s=load.target_per_s,
        behind=load.behind,
        forfeited=load.forfeited,
        busy_s=use.busy_s,
        waiting_s=use.waiting_s,
        blocked_s=use.blocked_s,
        frames_waiting=runner.shard.frames_waiting,
        watermark=_watermark(chain),
        time_waits_for=None if time is None else time.waits_for,
        source_time_us=None if time is None else time.reached_us,
        split_behind=time is not None and time.split is not None,
        state_bytes=chain.state.size_bytes,
        state_keys=chain.state.keys,
        log_bytes=runner.sent.size_bytes,
        spilled_bytes=runner.spill.written_bytes,
        skipped=sum(chain.skipped.values()),
        losses=_losses(chain),
    )


def _watermark(chain: "ChainStages") -> int | None:
    """The watermark that its last operator has promised downstream, in milliseconds."""
    last = chain.stages.get(chain.operators[-1])
    if last is None or last.passed in (NO_WATERMARK, END_OF_TIME):
        return None
    return last.passed // 1000


@dataclass(frozen=True)
class SourceTime:
    """The event time of a source that has not ended."""

    reached_us: int | None
    split: str | None
    """The part of what it reads that is behind the others, if there is one."""
    waits_for: str
    """That, or the shard."""


def _source_time(chain: "ChainStages") -> SourceTime | None:
    """None if this is no source with event time, or that is over."""
    if not chain.stages or chain.head.reader is None:
        return None
    announcing = [stage for stage in chain.stages.values() if isinstance(stage.operator, EventTime)]
    source = chain.plan.graph.nodes[chain.head.name].what
    if not announcing and (not isinstance(source, Source) or source.event_time is None):
        return None
    if (announcing[-1] if announcing else chain.head).passed == END_OF_TIME:
        return None
    split = None if announcing else chain.head.reader.slowest_split()
    reached = announcing[-1].ctx.announced if announcing else chain.head.ctx.watermark
    return SourceTime(
        None if reached == NO_WATERMARK else reached,
        split,
        split or f"shard {chain.shard.number} of '{chain.head.name}'",
    )


def _losses(chain: "ChainStages") -> dict[str, Losses]:
    losses = {name: replace(lost) for name, lost in chain.meter.losses.items()}
    for name, skipped in chain.skipped.items():
        losses[name] = replace(losses.get(name, Losses()), skipped=skipped)
    return losses
