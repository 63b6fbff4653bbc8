"""The workers of a local run: forked, and replaced when they end too early."""

import itertools
import os
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import cloudpickle

from everstream.core.ids import TaskNumber
from everstream.engine.continuous.driver.workers import StartupFailure
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.local.messages import COMPLETED, Ended, Fork, KillTask, RunBegins
from everstream.engine.local.server_link import server_link
from everstream.errors import EnvironmentFault, RunFailed

LEAVE_PATIENCE_S = 5.0
KILL_PATIENCE_S = 5.0
AGAIN_AFTER_S = 0.1
"""Pause before a worker is started again that could not start; doubled each time."""
LONGEST_PAUSE_S = 3.0
SERVER_GONE = "the process that forks the workers has ended; its own error is in the output"
_task_ids = itertools.count(1)


@dataclass
class _Started:
    """A worker process that has not ended."""

    number: TaskNumber
    attempt: int
    failures: int
    """Attempts before this one that could not start, one after the other."""
    admitted: bool = False


class LocalWorkers:
    """Forks one process for each worker and each spare."""

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._running: dict[int, _Started] = {}
        self._waiting: set[threading.Timer] = set()
        self._failures: list[StartupFailure] = []
        self._leaving = False
        self._empty = threading.Event()
        self._begins: RunBegins | None = None

    def start(self, task: WorkerTask, processes: int) -> None:
        self._begins = RunBegins(
            self._run,
            cloudpickle.dumps(task),
            os.getcwd(),
            dict(os.environ),
            [path for path in sys.path if path],
        )
        with self._lock:
            self._connect()
            for number in range(processes):
                self._fork(TaskNumber(number), 0, 0)

    @property
    def ended(self) -> bool:
        return self._empty.is_set()

    def failure(self) -> RunFailed:
        return RunFailed("all workers ended before the pipeline did")

    def is_running(self, number: TaskNumber, task: int) -> bool:
        with self._lock:
            started = self._running.get(task)
            if started is None or started.number != number:
                return False
            started.admitted = True
            return True

    def failed_starts(self, heard: Mapping[TaskNumber, int], now_s: float) -> list[StartupFailure]:
        with self._lock:
            failures, self._failures = self._failures, []
        return [failure for failure in failures if failure.attempt > heard.get(failure.number, -1)]

    def kill(self, task: int) -> None:
        self._link.send(KillTask(task))

    def leave(self, told: bool) -> None:
        with self._lock:
            if self._begins is None:
                return
            self._leaving = True
            for timer in self._waiting:
                timer.cancel()
            self._waiting.clear()
            self._note_if_empty()
        if told:
            self._empty.wait(LEAVE_PATIENCE_S)
        with self._lock:
            remaining = list(self._running)
        for task in remaining:
            self.kill(task)
        self._empty.wait(KILL_PATIENCE_S)
        self._link.end(self._run)

    def _connect(self) -> None:
        assert self._begins is not None
        self._link = server_link()
        self._link.begin(self._begins, self._on_ended)

    def _fork(self, number: TaskNumber, attempt: int, failures: int) -> None:
        if not self._link.is_alive:
            self._connect()
        task = next(_task_ids)
        self._running[task] = _Started(number, attempt, failures)
        self._link.send(Fork(self._run, number, attempt, task))

    def _on_ended(self, ended: Ended | None) -> None:
        with self._lock:
            if ended is None:
                self._replace_all()
            else:
                started = self._running.pop(ended.task)
                if ended.last_words != COMPLETED and not self._leaving:
                    self._replace(started, ended)
            self._note_if_empty()

    def _replace(self, started: _Started, ended: Ended) -> None:
        if started.admitted:
            self._fork(started.number, started.attempt + 1, 0)
            return
        how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
        error = EnvironmentFault(f"a worker could not start: {ended.last_words or how}")
        self._failures.append(StartupFailure(started.number, started.attempt, error))
        pause_s = min(AGAIN_AFTER_S * 2**started.failures, LONGEST_PAUSE_S)
        timer = threading.Timer(pause_s, lambda: self._fork_later(timer, started))
        timer.daemon = True
        self._waiting.add(timer)
        timer.start()

    def _fork_later(self, timer: threading.Timer, started: _Started) -> None:
        with self._lock:
            if timer in self._waiting:
                self._waiting.discard(timer)
                self._fork(started.number, started.attempt + 1, started.failures + 1)

    def _replace_all(self) -> None:
        """The fork server is gone, and its workers with it."""
        lost, self._running = self._running, {}
        if not self._leaving:
            for task, started in lost.items():
                self._replace(started, Ended(self._run, task, 1, SERVER_GONE))

    def _note_if_empty(self) -> None:
        if not self._running and not self._waiting:
            self._empty.set()
