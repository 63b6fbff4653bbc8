"""The temporal join: each record with the version of a table's row that was valid at its time.

Rows of the right side are versions. A version is final once the watermark has passed its time: then it
replaces what its key had before. A record waits until the watermark has passed its time, too, so all
versions that it can see are there. Of the versions before the watermark only the newest of each key is
still needed: no record that is on time can ask for an older one.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl

from everstream.pipeline.aggregation.chunks import TIME, Chunks, kept_in, redistribute_chunks
from everstream.pipeline.batch import rows_together
from everstream.pipeline.event_time.joins import ZONE, TimeJoin
from everstream.pipeline.event_time.outer import INNER, LEFT, RIGHT, Outer, renamed, require_free
from everstream.pipeline.event_time.window_aggregates import matched
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place, merged
from everstream.pipeline.keys import Hashes, hash_column
from everstream.pipeline.operator import Context
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, TimeOf

_CURRENT = "current"
_PASSED = "passed"
"""The last watermark at which versions became current, where every shard has them."""
_DELETED = "__deleted"
_NUMBER, _KEY, _VERSION = "__number", "__key", "__version"
_WIDTH_US = 1_000_000
_BUCKETS = 64
"""The newest versions are kept in this many groups, by key: few records look into few of them."""
_SMALL_ROWS = 256


class AsOfJoin(TimeJoin):
    """Each row of the left side with the newest version of its key that is not after it."""

    def __init__(
        self,
        keys: dict[str, list[str]],
        times: dict[str, TimeOf],
        delete: str | pl.Expr | None = None,
        outer: Outer = INNER,
    ) -> None:
        super().__init__(keys, times, outer)
        self.delete = pl.col(delete) if isinstance(delete, str) else delete

    def columns_used(self, side: str) -> Sequence[Any]:
        deleted = [] if self.delete is None or side == LEFT else [self.delete]
        return [*super().columns_used(side), *deleted]

    def describe_state(self) -> dict[str, Any]:
        return self.describe_join(operator="as_of_join")

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, _CURRENT: RIGHT}

    def on_start(self, ctx: Context) -> None:
        super().on_start(ctx)
        self.current = Chunks(ctx.state, _CURRENT, self._live, ctx.operator, _SMALL_ROWS)

    def passed(self, side: str, watermark: int) -> int:
        return watermark

    def add(self, side: str, rows: pl.DataFrame, ctx: Context) -> None:
        if side == RIGHT:
            deleted = pl.lit(False) if self.delete is None else self.delete.fill_null(False)
            rows = rows.with_columns(deleted.cast(pl.Boolean).alias(_DELETED))
            rows = rows.drop_nulls(self.keys[RIGHT])  # a null is equal to nothing
        if not rows.is_empty():
            self.sides[side].add_by_time(rows, _WIDTH_US)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        asked = _taken(self.sides[LEFT], watermark)
        versions = _taken(self.sides[RIGHT], watermark)
        if asked is not None:
            results = self._as_of(asked, versions, ctx.operator)
            if not results.is_empty():
                ctx.emit_batch(results)
        if watermark == END_OF_TIME:
            for bucket in self.current.groups:
                self.current.drop(bucket)
        elif versions is not None:
            self._keep(self._newest(versions))

    def _keep(self, versions: pl.DataFrame) -> None:
        buckets = self._buckets(RIGHT, versions)
        for bucket in np.unique(buckets).tolist():
            rows = versions.filter(pl.Series(buckets == bucket))
            if bucket not in self.current:
                rows = self._live(rows)
            if not rows.is_empty():
                self.current.add(bucket, rows)

    def _as_of(
        self, asked: pl.DataFrame, later: pl.DataFrame | None, operator: str
    ) -> pl.DataFrame:
        """Records in order of time, with their versions. later: those since the last watermark."""
        asked = self.fitted(LEFT, asked, operator).sort(TIME, maintain_order=True)
        versions = self._versions(asked, later, operator)
        found = None if versions is None else self._found(asked, versions, operator)
        if versions is None or found is None:
            if LEFT in self.outer.sides:
                return self.outer.alone(LEFT, asked.drop(TIME), self.keys, operator)
            return asked.clear()
        records = asked.drop(TIME)
        if LEFT not in self.outer.sides:
            records, found = records.filter(found.is_not_null()), found.drop_nulls()
        values = versions.drop(TIME, _DELETED, *self.keys[RIGHT])
        require_free(records.columns, values.columns, operator)
        columns = {name: renamed(name, records.columns) for name in values.columns}
        return records.hstack([values[n].gather(found).alias(new) for n, new in columns.items()])

    def _versions(
        self, asked: pl.DataFrame, later: pl.DataFrame | None, operator: str
    ) -> pl.DataFrame | None:
        """All versions that these records can see, in the order in which they came."""
        wanted = np.unique(self._buckets(LEFT, asked)).tolist()
        buckets = [bucket for bucket in wanted if bucket in self.current]
        frames = [self.current.read(buckets)] if buckets else []
        frames += [later] if later is not None else []
        if not frames:
            return None
        versions = rows_together(frames, operator)
        own = versions.select(TIME, _DELETED)
        return self.outer.fitted(RIGHT, versions.drop(own.columns), operator).hstack(own)

    def _found(self, asked: pl.DataFrame, versions: pl.DataFrame, operator: str) -> pl.Series:
        """For each record the row number of its version, or null."""
        left_keys, right_keys = self.keys[LEFT], self.keys[RIGHT]
        records = asked.select(*left_keys, TIME).with_row_index(_NUMBER)
        table = versions.select(*right_keys, TIME, _DELETED).with_row_index(_VERSION)
        records, table = self.comparable(records, table, operator)
        # Numbers instead of keys: `matched` knows which keys are equal, an as-of join does not.
        numbered = table.select(right_keys).unique().with_row_index(_KEY)
        records = matched(records, numbered, left_keys, right_keys, "inner")
        table = matched(table, numbered, right_keys, right_keys, "inner").sort(TIME, _VERSION)
        newest = table.unique([_KEY, TIME], keep="last", maintain_order=True)
        pairs = records.sort(TIME).join_asof(
            newest.select(_KEY, TIME, _VERSION, _DELETED), on=TIME, by=_KEY, check_sortedness=False
        )
        valid = pairs.filter(pl.col(_VERSION).is_not_null() & ~pl.col(_DELETED))
        found = np.full(len(asked), -1, dtype=np.int64)
        found[valid[_NUMBER].to_numpy()] = valid[_VERSION].to_numpy()
        numbers = pl.Series(found)
        return pl.select(pl.when(numbers >= 0).then(numbers)).to_series()

    def _newest(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The newest version of each key; of several with one time, the last."""
        ordered = versions.sort(TIME, maintain_order=True)
        return ordered.unique(self.keys[RIGHT], keep="last", maintain_order=True)

    def _live(self, versions: pl.DataFrame) -> pl.DataFrame:
        """All that is kept of all the versions of some keys."""
        return self._newest(versions).filter(~pl.col(_DELETED))

    def _buckets(self, side: str, rows: pl.DataFrame) -> Hashes:
        names = self.keys[side]
        keys = rows[names[0]] if len(names) == 1 else rows.select(pl.struct(names)).to_series()
        # Other bits than those that shards are chosen by.
        return (hash_column(keys) >> np.uint64(32)) % np.uint64(_BUCKETS)


class BroadcastJoin(AsOfJoin):
    """The same with all versions in every shard, so records need not go to the shard of their key."""

    def describe_state(self) -> dict[str, Any]:
        return self.describe_join(operator="broadcast_join")

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        before = self.sides[RIGHT].groups[:1]
        super().on_watermark(watermark, ctx)
        if before and before[0] < watermark:
            ctx.state.put(_PASSED, watermark)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """All shards have got the same versions. The one that is the least far has dropped the fewest,
        and those are all that any waiting record can ask for. Waiting records are dealt out."""
        kept = kept_in(parts)
        if not kept:
            return {CONTEXT_STATE: {}}
        passed = {number: entries.get(_PASSED, NO_WATERMARK) for number, entries in kept.items()}
        versions = kept[min(passed, key=lambda number: (passed[number], number))]
        mine = merged(kept, ZONE, itemgetter(0))
        mine |= {key: rows for key, rows in versions.items() if key != ZONE and key[0] != LEFT}
        dealt = partial(_dealt, place.shard, place.shards)
        return {CONTEXT_STATE: mine | redistribute_chunks(kept.values(), LEFT, dealt)}


def _dealt(shard: int, shards: int, rows: pl.DataFrame) -> list[bool]:
    return [row % shards == shard for row in range(len(rows))]


def _taken(chunks: Chunks, watermark: int) -> pl.DataFrame | None:
    """Rows from before the watermark, which are kept no longer; None if there are none."""
    groups = [group for group in chunks.groups if group < watermark]
    if not groups:
        return None
    rows = chunks.read(groups)
    for group in groups:
        chunks.drop(group)
    if groups[-1] + _WIDTH_US > watermark:
        over = rows[TIME] < watermark
        later = rows.filter(~over)
        if not later.is_empty():
            chunks.add_by_time(later, _WIDTH_US)
        rows = rows.filter(over)
    return None if rows.is_empty() else rows
