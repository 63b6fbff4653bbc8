"""Processors as they are written for Spark, and plain programs that give the same output."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

SIZE_MS = 10_000
FIRST_MS = 1_800_000_000_000
OUTPUT = "user string, kind string, start bigint, n int, names array<string>"


def events(count: int, users: int = 7) -> list[dict[str, Any]]:
    """In the order of their times."""
    return [
        {
            "user": f"user {n * n % users}",
            "page": f"/{n % 3}",
            "at": FIRST_MS + n * 700,
            "time": datetime.fromtimestamp((FIRST_MS + n * 700) / 1000, UTC),
        }
        for n in range(count)
    ]


class Windows(StatefulProcessor):
    """Counts visits in windows of ten seconds by hand: with a value, a list, a map and timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n int")
        self.pages = handle.getListState("pages", "at bigint, page string")
        self.counts = handle.getMapState("counts", "start bigint", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in sorted(rows, key=lambda row: row.at):  # Spark gives a batch in any order
            yield from self.visit(key, row.at, row.page)

    def visit(self, key: Any, at: int, page: str) -> Any:
        start = at // SIZE_MS * SIZE_MS
        (total,) = self.total.get() if self.total.exists() else (0,)
        self.total.update((total + 1,))
        self.pages.appendValue((at, page))
        (count,) = self.counts.getValue((start,)) or (0,)
        self.counts.updateValue((start,), (count + 1,))
        self.handle.registerTimer(start + SIZE_MS)
        yield Row(user=key[0], kind="visit", start=start, n=total + 1, names=None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert timerValues.getCurrentWatermarkInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        start = expiredTimerInfo.getExpiryTimeInMs() - SIZE_MS
        (count,) = self.counts.getValue((start,))
        self.counts.removeKey((start,))
        visits = list(self.pages.get())
        inside = sorted(page for at, page in visits if at // SIZE_MS * SIZE_MS == start)
        if later := [(at, page) for at, page in visits if at // SIZE_MS * SIZE_MS != start]:
            self.pages.put(later)
        else:
            self.pages.clear()  # Spark has no empty lists
        yield Row(user=key[0], kind="window", start=start, n=count, names=inside)

    def close(self) -> None:
        pass


class WindowsInPandas(Windows):
    """The same for `transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            frame = frame.sort_values("at")
            for at, page in zip(frame["at"].tolist(), frame["page"], strict=True):
                yield from map(_frame, self.visit(key, at, page))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield from map(_frame, super().handleExpiredTimer(key, timerValues, expiredTimerInfo))


def _frame(row: Row) -> pd.DataFrame:
    return pd.DataFrame([row.asDict()])


def expected(visits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What both give, from a program without streams."""
    rows, totals = [], Counter[str]()
    windows: dict[tuple[str, int], list[str]] = {}
    for visit in visits:
        user, start = visit["user"], visit["at"] // SIZE_MS * SIZE_MS
        totals[user] += 1
        windows.setdefault((user, start), []).append(visit["page"])
        rows.append(_row(user, "visit", start, totals[user], None))
    for (user, start), pages in windows.items():
        rows.append(_row(user, "window", start, len(pages), sorted(pages)))
    return rows


def _row(user: str, kind: str, start: int, n: int, names: list[str] | None) -> dict[str, Any]:
    return {"user": user, "kind": kind, "start": start, "n": n, "names": names}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["user"], row["kind"], row["start"], row["n"]))
