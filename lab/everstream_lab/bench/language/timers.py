"""Due timers per second on one core: a million set, and then fired, as one watermark does it."""

import gc
import time
from typing import Any

from everstream.errors import RunFailed
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator
from everstream.state.backends.memory import MemoryBackend
from everstream_lab.bench.report import Figure, Progress, Target

TIMERS = 1_000_000
KEYS = 100_000


class _Count(Operator):
    def __init__(self) -> None:
        self.fired = 0

    def on_timer(self, key: Any, name: str, at: int, ctx: Context) -> None:
        self.fired += 1


def fired_per_s(timers: int = TIMERS, keys: int = KEYS) -> tuple[float, float]:
    """Timers set, and timers fired, per second."""
    ctx = Context("timers", 0, 1, MemoryBackend(), Keying(_same))
    operator = _Count()
    gc.collect()
    began_s = time.process_time()
    for number in range(timers):
        ctx.key = number % keys
        ctx.timers.set(number * 7919 % timers * 1_000, name=str(number // keys))
    set_s = time.process_time() - began_s
    began_s = time.process_time()
    for _ in ctx.timers.fire(operator, "event", timers * 1_000):
        ctx.take_emitted()
    fired_s = time.process_time() - began_s
    if operator.fired != timers:
        raise RunFailed(f"{operator.fired} of {timers} timers have fired")
    return timers / set_s, timers / fired_s


def _same(number: int) -> int:
    return number


def figures(rounds: int, progress: Progress) -> list[Figure]:
    measured = []
    for number in range(rounds):
        progress(f"timers, round {number + 1} of {rounds}")
        measured.append(fired_per_s())
    goal = Target("at least", 1_000_000)
    return [
        Figure.median("timers set", [one for one, _ in measured], "timers/s"),
        Figure.median("due timers fired", [one for _, one in measured], "timers/s", goal),
    ]
