"""The window join: pairs of rows that are in the same window, emitted when the window ends."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.chunks import TIME, Chunks, emit_overdue, kept_in, overdue_in
from everstream.pipeline.event_time.joins import RIGHT_TIME, ZONE, TimeJoin
from everstream.pipeline.event_time.outer import INNER, LEFT, RIGHT, Outer
from everstream.pipeline.event_time.window_aggregates import END, START
from everstream.pipeline.event_time.windows import PanedWindow
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.operator import Context
from everstream.pipeline.times import NO_WATERMARK, TimeOf, in_unit
from everstream.state.backends.memory import MemoryBackend

_FIRED = "fired"


class WindowJoin(TimeJoin):
    """Pairs within the same tumbling, sliding or calendar window, and rows without a partner in it."""

    def __init__(
        self,
        keys: dict[str, list[str]],
        times: dict[str, TimeOf],
        window: PanedWindow,
        outer: Outer = INNER,
    ) -> None:
        super().__init__(keys, times, outer)
        self.window = window
        self._left_zone = self._zone_of_left()

    def describe_state(self) -> dict[str, Any]:
        return self.describe_join(operator="window_join", window=self.window.describe())

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self.fired: int = ctx.state.get(_FIRED, NO_WATERMARK)
        emit_overdue(ctx)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """A window that fired in one part counts as fired in all: no later row is older."""
        kept = kept_in(parts)
        mine = super().redistribute(parts, place)[CONTEXT_STATE] | merged(kept, _FIRED, max)
        late: list[pl.DataFrame] = []
        for number, entries in kept.items():
            own = MemoryBackend[Any, Any]()
            own.load(super().redistribute({number: parts[number]}, place)[CONTEXT_STATE])
            sides = {side: Chunks(own, side) for side in (LEFT, RIGHT)}
            fired, now = entries.get(_FIRED, NO_WATERMARK), mine.get(_FIRED, NO_WATERMARK)
            late += self._fired(sides, fired, now, own.get(ZONE), place.operator)
        return {CONTEXT_STATE: mine | overdue_in(late, kept)}

    def passed(self, side: str, watermark: int) -> int:
        passed: int = self.window.open_from(watermark)
        return passed

    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        self.sides[side].add_by(rows, self.window.panes_of(rows.get_column(TIME)))

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        zone = ctx.state.get(ZONE)
        for results in self._fired(self.sides, self.fired, watermark, zone, ctx.operator):
            ctx.emit_batch(results)
            self.fired = watermark
            ctx.state.put(_FIRED, watermark)
        for side in self.sides.values():
            for pane in side.groups:
                if self.window.last_end(pane) <= watermark:
                    side.drop(pane)

    def _fired(
        self, sides: Mapping[str, Chunks], after: int, watermark: int, zone: str | None, name: str
    ) -> Iterator[pl.DataFrame]:
        """The results of each window that ends after `after` and has ended by now."""
        left, right = sides[LEFT], sides[RIGHT]
        zone = self._left_zone if zone is None else zone
        starts = {
            start
            for pane in left.groups
            for start in self.window.starts(pane, after, watermark)
            if LEFT in self.outer.sides or any(p in right for p in self.window.panes(start))
        }
        if RIGHT in self.outer.sides:
            for pane in right.groups:
                starts.update(self.window.starts(pane, after, watermark))
        for start in sorted(starts):
            panes = self.window.panes(start)
            rows = {
                side: chunks.read(panes) if any(pane in chunks for pane in panes) else None
                for side, chunks in sides.items()
            }
            for results in self._of_window(rows[LEFT], rows[RIGHT], name):
                if not results.is_empty():
                    yield self._dated(results, start, zone)

    def _of_window(
        self, left: pl.DataFrame | None, right: pl.DataFrame | None, name: str
    ) -> Iterator[pl.DataFrame]:
        # Rows from before a schema was declared.
        left = None if left is None else self.fitted(LEFT, left, name)
        right = None if right is None else self.fitted(RIGHT, right, name)
        if left is not None and right is not None:
            yield self.joined(left, right, name).drop(TIME, RIGHT_TIME)
        if left is not None and LEFT in self.outer.sides:
            yield self.without_partner(LEFT, left, right, name)
        if right is not None and RIGHT in self.outer.sides:
            yield self.without_partner(RIGHT, right, left, name)

    def _dated(self, results: pl.DataFrame, start: int, zone: str | None) -> pl.DataFrame:
        """Adds the window's times, in the form of the left side's times."""
        window = pl.Series([start, self.window.end(start)], dtype=pl.Int64)
        if zone is not None:
            window = window.cast(pl.Datetime("us", zone or None))
        else:
            window = in_unit(window, self.times[LEFT].unit)
        ends = [pl.lit(window[0], window.dtype), pl.lit(window[1], window.dtype)]
        return results.with_columns(ends[0].alias(START), ends[1].alias(END))

    def _zone_of_left(self) -> str | None:
        """The zone of the left side's times, for windows in a shard that sees no row of that side."""
        time = self.times[LEFT]
        if RIGHT not in self.outer.sides:
            return None
        if isinstance(time.what, str | pl.Expr):
            kind = time.read(pl.DataFrame(schema=self.outer.schemas[LEFT]), "window_join").dtype
            return kind.time_zone or "" if isinstance(kind, pl.Datetime) else None
        if time.unit is None:
            raise UserError(
                f"window_join(how={self.outer.how!r}) emits windows in which the left side has no row, "
                "and the form of its times is not known before the run: give its event_time a column "
                "or an expression instead of a function."
            )
        return None
