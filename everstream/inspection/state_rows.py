"""The state of built-in operators as rows: keys, windows and results as columns.

A checkpoint describes its operators, so their state is read without the pipeline: windows with the
results that they would have now, running aggregates, the rows that joins wait with, and the keys that
`deduplicate` has seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from everstream.pipeline.aggregation.aggregate_kinds import Simple, TopK
from everstream.pipeline.aggregation.aggregates import Aggregates, described_aggregates
from everstream.pipeline.aggregation.chunks import TIME, Chunks
from everstream.pipeline.aggregation.local_parts import LAST, PANE
from everstream.pipeline.aggregation.running import saved_values
from everstream.pipeline.describing import Description
from everstream.pipeline.event_time.window_aggregates import (
    FIRED,
    ON_TIME,
    PaneAggregates,
    SessionAggregates,
)
from everstream.pipeline.event_time.windows import Session, described
from everstream.pipeline.times import NO_WATERMARK
from everstream.state.backends.memory import MemoryBackend

SavedRow = tuple[int, str, Any, Any]
_OWN: Final = "ctx.state"
_ROWS: Final = {
    "interval_join": ("left", "right"),
    "window_join": ("left", "right"),
    "as_of_join": ("left", "right", "current"),
    "broadcast_join": ("left", "right", "current"),
    "deduplicate": ("seen",),
    "window_rows": ("rows",),
}
"""Operator -> the names of its rows; of an as-of join, `current` are the versions of now."""


def rows_in(about: Description | None, saved: Iterable[SavedRow]) -> pl.DataFrame | None:
    """The rows of a built-in operator with this description; None for any other operator."""
    kind = None if about is None else about.get("operator")
    shards: dict[int, dict[Any, Any]] = {}
    for shard, state, key, value in saved:
        if state == _OWN:
            shards.setdefault(shard, {})[key] = value
    assert about is not None or kind is None
    if kind == "window" and about is not None:
        frames = [_windows(about, entries, shard) for shard, entries in shards.items()]
    elif kind == "aggregates" and about is not None:
        frames = [_running(about, entries, shard) for shard, entries in shards.items()]
    elif kind in _ROWS:
        frames = [_kept(_ROWS[kind], entries, shard) for shard, entries in shards.items()]
    else:
        return None
    filled = [frame for frame in frames if frame is not None and frame.height]
    if not filled:
        return pl.DataFrame(schema={"shard": pl.Int64})
    return pl.concat(filled, how="diagonal_relaxed")


def _windows(about: Description, entries: Mapping[Any, Any], shard: int) -> pl.DataFrame | None:
    """Each open window with its results so far."""
    aggregates = described_aggregates(about["aggregates"])
    store = MemoryBackend[Any, Any]()
    store.load({key: _dated(value, aggregates) for key, value in entries.items()})
    rule = about["window"]
    if rule.startswith("a gap of "):
        gap = Session(rule.removeprefix("a gap of ").replace(" ", ""))
        sessions = SessionAggregates(aggregates, None, gap)
        chunks = Chunks(store, "session")
        if not chunks:
            return None
        parts = chunks.read(chunks.groups)
        joined = sessions.sessions_in(parts)
        end = pl.col(LAST) + pl.duration(microseconds=sessions.gap_us)
        results = sessions.results(joined, end, pl.lit(ON_TIME))
        return _numbered(results, shard)
    window = described(rule)
    operator = PaneAggregates(aggregates, None, window)
    fired = entries.get(FIRED, NO_WATERMARK)
    frames = [operator.open_windows(own, panes, fired) for own, panes in operator.rules_in(store)]
    present = [frame for frame in frames if frame is not None]
    return _numbered(pl.concat(present, how="diagonal_relaxed"), shard) if present else None


def _dated(value: Any, aggregates: Aggregates) -> Any:
    """Parts with times as datetimes, whatever unit they were given in, without what cannot be merged."""
    if not isinstance(value, pl.DataFrame):
        return value
    times = [name for name in (PANE, LAST) if name in value.columns]
    numbers = [name for name in times if value.schema[name] == pl.Int64]
    known = {*aggregates.part_names, *times}
    others = [n for n in value.columns if "." in n and n not in known and n.endswith(".value")]
    return value.with_columns(pl.col(numbers).cast(pl.Datetime("us"))).drop(others)


def _running(about: Description, entries: Mapping[Any, Any], shard: int) -> pl.DataFrame | None:
    """Each key with its aggregates."""
    pages = sorted(key[1] for key in entries if key[0] == "keys")
    if not pages:
        return None
    aggregates = described_aggregates(about["aggregates"])
    keys = pl.concat([entries["keys", page] for page in pages], how="vertical_relaxed")
    columns: list[pl.Series] = []
    for name, one in aggregates.named.items():
        if isinstance(one, Simple):
            for part, how in one.hows.items():
                values = saved_values(entries, f"{name}.{part}", how)
                columns.append(values[: keys.height].alias(f"{name}.{part}"))
        elif isinstance(one, TopK):
            (part,) = one.part_names(name)
            columns.append(pl.Series(part, [entries.get((part, n)) for n in range(keys.height)]))
    results = aggregates.results(keys.with_columns(columns), keys.columns)
    return _numbered(results, shard)


def _kept(names: Sequence[str], entries: Mapping[Any, Any], shard: int) -> pl.DataFrame | None:
    """Rows that are kept by time, with the name of their side and their time."""
    frames = []
    for key, value in entries.items():
        if isinstance(key, tuple) and key[0] in names and isinstance(value, pl.DataFrame):
            time = pl.col(TIME).cast(pl.Datetime("us")).alias("time")
            dated = value.with_columns(time) if TIME in value.columns else value
            state = pl.lit(key[0]).alias("state")
            shown = [name for name in dated.columns if not name.startswith("__")]
            frames.append(dated.select(state, *shown))
    return _numbered(pl.concat(frames, how="diagonal_relaxed"), shard) if frames else None


def _numbered(frame: pl.DataFrame, shard: int) -> pl.DataFrame:
    return frame.select(pl.lit(shard, pl.Int64).alias("shard"), pl.all())
