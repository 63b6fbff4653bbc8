"""The heartbeat of a driver: writes to the store that the driver is alive, while a standby waits.

It has a separate thread, so that a busy driver is not taken for dead. It checks at intervals
whether a standby waits, and whether another driver has taken over: a driver that was considered
dead and wakes up again finds out here, before it next writes to the store.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from everstream.core.orders import Outcome
from everstream.engine.settings.options import RunConfig
from everstream.engine.store_session import OpenStore, owner_of
from everstream.errors import LeaseLost, StoreError
from everstream.state.blobs import Blobs
from everstream.state.heartbeat import (
    DriverStatus,
    Heartbeat,
    Waiting,
    read_heartbeat,
    read_waiting,
)

LOOK_EVERY_S = 2.0
LAST_WORD_S = 5.0
FORGET_AFTER_S = 30.0
"""A waiting standby renews its registration before this expires."""
LIVES = {
    Outcome.FINISHED: DriverStatus.FINISHED,
    Outcome.STOPPED: DriverStatus.STOPPED,
    Outcome.CAUGHT_UP: DriverStatus.STOPPED,
    Outcome.FAILED: DriverStatus.FAILED,
}


class HeartbeatThread:
    def __init__(self, blobs: Blobs, heartbeat: Heartbeat) -> None:
        self._blobs = blobs
        self._heartbeat = heartbeat
        self._waiting: Waiting | None = None
        self._waits_until_s = 0.0
        self._replaced: LeaseLost | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="everstream-heartbeat", daemon=True)
        self.outcome = Outcome.FAILED
        """How the run ended, when it has."""

    def start(self) -> None:
        with suppress(StoreError):  # a standby may then try too early, which is harmless
            self._heartbeat.write(self._blobs)
        self._thread.start()

    def replaced(self) -> LeaseLost | None:
        """The error that describes the driver that has taken over; None until then."""
        return self._replaced

    def stop(self) -> None:
        """The run is over: the last heartbeat tells a standby whether to take over.

        A store that hangs does not delay the end of the run.
        """
        self._stop.set()
        self._thread.join(timeout=LAST_WORD_S)

    def _loop(self) -> None:
        self._beat_until_stopped()
        with suppress(StoreError):  # then the heartbeats stop, and a standby tries
            self._look(time.monotonic())
            if self._replaced is None:
                self._beat(LIVES[self.outcome])

    def _beat_until_stopped(self) -> None:
        look_s, wait_s = 0.0, 0.0
        while not self._stop.wait(wait_s):
            now_s = time.monotonic()
            with suppress(StoreError):  # the next heartbeat may succeed
                if now_s >= look_s:
                    look_s = now_s + LOOK_EVERY_S
                    self._look(now_s)
                listened = self._waiting is not None and now_s < self._waits_until_s
                if listened and self._replaced is None:
                    self._beat(DriverStatus.RUNNING)
            listening = self._waiting if now_s < self._waits_until_s else None
            wait_s = min(LOOK_EVERY_S, listening.every_s) if listening else LOOK_EVERY_S

    def _look(self, now_s: float) -> None:
        waiting = read_waiting(self._blobs)
        if waiting != self._waiting:
            self._waiting, self._waits_until_s = waiting, now_s + FORGET_AFTER_S
        heartbeat = read_heartbeat(self._blobs)
        if heartbeat is not None and heartbeat.lease > self._heartbeat.lease:
            self._replaced = LeaseLost(
                f"lease {self._heartbeat.lease} is lost: '{heartbeat.owner}' has taken over with lease "
                f"{heartbeat.lease}. This driver must stop; work that is not stable is discarded."
            )

    def _beat(self, life: DriverStatus) -> None:
        self._heartbeat = replace(self._heartbeat, beat=self._heartbeat.beat + 1, life=life)
        self._heartbeat.write(self._blobs)


@contextmanager
def beating(opened: OpenStore, config: RunConfig, pipeline: str) -> Iterator[HeartbeatThread]:
    """A heartbeat for a run; the caller sets `outcome` when the run ends."""
    heartbeat = Heartbeat(opened.lease.number, config.turn.command, owner_of(pipeline))
    beat = HeartbeatThread(opened.store.blobs, heartbeat)
    beat.start()
    try:
        yield beat
    finally:
        beat.stop()
