"""What operators log, on its way from the workers to the driver.

Python's `logging` is per process, and on a cluster a worker's standard error usually goes unread.
So a worker collects the lines, with the operator and the shard that wrote them, and the driver
passes them to its loggers of the same names: they appear as the user has configured logging there.
Lines beyond a limit are counted and dropped.
"""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from everstream.core.ids import WorkerId
from everstream.engine.continuous.liveness.crash_breadcrumb import CrashBreadcrumb

LINES_PER_S = 100
LONGEST = 10_000
"""Maximum characters of one line."""


@dataclass(frozen=True)
class LogLine:
    logger: str
    level: int
    text: str
    at_s: float
    path: str
    number: int
    shard: str | None
    """Operator and shard, "count:1"; None if a user's thread logged it."""


@dataclass(frozen=True)
class Logged:
    """What was logged on a worker since its last report."""

    worker: WorkerId
    lines: tuple[LogLine, ...]
    dropped: int = 0


class LogCollector(logging.Handler):
    """Collects every line that is logged in this process, until it is closed."""

    def __init__(
        self, worker: WorkerId, breadcrumb: CrashBreadcrumb, levels: dict[str, int]
    ) -> None:
        super().__init__()
        self._worker = worker
        self._breadcrumb = breadcrumb
        self._lines: list[LogLine] = []
        self._dropped = 0
        self._window_s = 0.0
        self._in_window = 0
        self._levels_before = {name: logging.getLogger(name).level for name in levels}
        _set(levels)
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s - self._window_s >= 1.0:
            self._window_s, self._in_window = now_s, 0
        self._in_window += 1
        if self._in_window > LINES_PER_S:
            self._dropped += 1
            return
        text = self.format(record)
        if len(text) > LONGEST:
            text = text[:LONGEST] + "..."
        line = LogLine(
            record.name,
            record.levelno,
            text,
            record.created,
            record.pathname,
            record.lineno,
            self._shard(),
        )
        self._lines.append(line)

    def take(self) -> Logged | None:
        if not self._lines and not self._dropped:
            return None
        with self.lock or threading.RLock():
            taken = Logged(self._worker, tuple(self._lines), self._dropped)
            self._lines, self._dropped = [], 0
        return taken

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        _set(self._levels_before)
        super().close()

    def _shard(self) -> str | None:
        if threading.current_thread() is not threading.main_thread():
            return None
        found = self._breadcrumb.now()
        return None if found is None else f"{found[1]}:{found[0].number}"


def levels() -> dict[str, int]:
    """The levels set in this process; the root logger's under ""."""
    named = logging.root.manager.loggerDict
    chosen = {
        name: logger.level
        for name, logger in named.items()
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    return {"": logging.root.level, **chosen}


def _set(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def pass_on(logged: Logged, pipeline: str = "") -> None:
    """Log here what was logged on a worker; if logging is not configured, on standard error.

    Each record has `pipeline`, `operator`, `shard` ("count:1") and `worker` as attributes.
    """
    where = {"pipeline": pipeline, "worker": int(logged.worker)}
    for line in logged.lines:
        _log(line, f"[{line.shard or f'worker {logged.worker}'}] {line.text}", where)
    if logged.dropped:
        text = f"[worker {logged.worker}] {logged.dropped} further log line(s) were left out"
        _log(LogLine(__name__, logging.WARNING, text, time.time(), __file__, 0, None), text, where)


def _log(line: LogLine, text: str, where: Mapping[str, object]) -> None:
    logger = logging.getLogger(line.logger)
    record = logging.LogRecord(
        line.logger, line.level, line.path, line.number, text, None, None, None
    )
    record.created = line.at_s
    record.msecs = line.at_s % 1 * 1000
    record.shard = line.shard
    record.operator = None if line.shard is None else line.shard.rpartition(":")[0]
    record.__dict__.update(where)
    if logger.hasHandlers():
        logger.handle(record)
        return
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at_s))
    print(f"{at} {record.levelname} {record.name} {text}", file=sys.stderr, flush=True)
