"""`stream.batch(...)`: holds records until there are enough, or until they have waited long enough.

Waiting records are part of every checkpoint. The count and the time can be changed while the
pipeline runs; records that exceed the new limits are emitted at once.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context, Operator

OFF = "off"
WRITTEN = "written"
"""The value of a setting as written in the program."""
_PENDING, _SINCE = "pending", "since"


class Batches(Operator):
    """Emits lists of `count` records, or of those that came `within` a time, whichever is first."""

    def __init__(self, count: int | None, within_s: float | None) -> None:
        if count is None and within_s is None:
            raise UserError(
                "batch() needs count=, within= or both: batch(count=100, within='50ms')."
            )
        if count is not None and count < 1:
            raise UserError(f"batch(count={count!r}): count must be at least 1.")
        if within_s is not None and not 0 < within_s < math.inf:
            raise UserError(f"batch(within={within_s!r}): the time must be positive.")
        self._written = (count, within_s)
        self._count = count
        self._within_s = within_s

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "batch"}

    def tunable(self) -> dict[str, str]:
        within = OFF if self._within_s is None else f"{self._within_s:.12g}s"
        return {"batch": OFF if self._count is None else str(self._count), "interval": within}

    def on_tune(self, settings: Mapping[str, str], ctx: Context) -> None:
        text = settings.get("batch", WRITTEN)
        self._count = self._written[0] if text == WRITTEN else None if text == OFF else int(text)
        text = settings.get("interval", WRITTEN)
        within_s = self._written[1] if text == WRITTEN else None if text == OFF else seconds(text)
        self._within_s = within_s
        self._emit_full(ctx)
        self._wait(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        mine = {n: kept.get(CONTEXT_STATE, {}) for n, kept in parts.items() if place.inherits(n)}
        return {CONTEXT_STATE: {**merged(mine, _PENDING, _joined), **merged(mine, _SINCE, min)}}

    def on_start(self, ctx: Context) -> None:
        self._pending: list[Any] = list(ctx.state.get(_PENDING, ()))
        self._since_s: float = ctx.state.get(_SINCE, ctx.now_s)
        self._born: deque[tuple[float, int]] = deque()
        if self._pending:
            self._born.append((0.0, len(self._pending)))
        self._wait(ctx)

    def before_checkpoint(self, ctx: Context) -> None:
        if self._pending or _PENDING in ctx.state:
            ctx.state.put(_PENDING, list(self._pending))
            ctx.state.put(_SINCE, self._since_s)

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        if not self._pending:
            self._since_s = ctx.now_s
        self._pending += ctx.reading(batch)
        self._born.append((ctx.moment.born_s, len(batch)))
        self._emit_full(ctx)
        self._wait(ctx)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        if self._pending and now_s >= self._deadline_s(now_s):
            self._emit([self._pending], len(self._pending), ctx)
        self._wait(ctx)

    def on_end(self, ctx: Context) -> None:
        if self._pending:
            self._emit([self._pending], len(self._pending), ctx)

    def _emit_full(self, ctx: Context) -> None:
        # With neither a count nor a time, there is nothing to wait for.
        count = self._count or (None if self._within_s is not None else 1)
        if count is None or len(self._pending) < count:
            return
        full = len(self._pending) // count * count
        self._emit([self._pending[at : at + count] for at in range(0, full, count)], full, ctx)
        self._since_s = ctx.now_s

    def _emit(self, batches: list[list[Any]], records: int, ctx: Context) -> None:
        self._pending = self._pending[records:]
        born_s = self._born_of(records)
        ctx.emit_batch(batches)
        if born_s:
            ctx.moment.born_s = born_s

    def _born_of(self, records: int) -> float:
        """When the first `records` records came in, on average; 0 if that is not known for all."""
        summed, known, left = 0.0, True, records
        while left:
            born_s, count = self._born.popleft()
            taken = min(count, left)
            summed, known, left = summed + born_s * taken, known and born_s > 0, left - taken
            if taken < count:
                self._born.appendleft((born_s, count - taken))
        return summed / records if known else 0.0

    def _deadline_s(self, now_s: float) -> float:
        """If the wall clock is set back, no record waits longer than requested."""
        if self._within_s is None:
            return math.inf
        return min(self._since_s, now_s) + self._within_s

    def _wait(self, ctx: Context) -> None:
        if self._pending and self._within_s is not None:
            ctx.wake_at(self._deadline_s(ctx.now_s))


def _joined(pending: list[list[Any]]) -> list[Any]:
    return [record for records in pending for record in records]
