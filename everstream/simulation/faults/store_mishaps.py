"""Faults of the store of a simulated run: no room, lost answers, late puts, rot, odd errors."""

import math
from collections.abc import Callable
from typing import get_args

from everstream.simulation.disk import Operation, SimulatedDisk
from everstream.simulation.happenings import Happenings

CHECKPOINT_TIMEOUT_S = 2.0
"""Many times what an epoch takes here, and less than what a slow upload does."""


class StoreMishaps(Happenings):
    """Each method is a fault; without an argument chance decides what it hits."""

    disk: SimulatedDisk
    upload_s: float
    both_copies: float
    _slow_uploads = 0
    _hung_uploads = 0

    def fill_disk(self, for_s: float | None = None) -> None:
        self.fault("disk full")
        self.disk.full = True
        delay_s = self.scheduler.jitter_s(0.1) if for_s is None else for_s
        self.scheduler.after(delay_s, self._empty_disk)

    def _empty_disk(self) -> None:
        self.fault("disk has room again")
        self.disk.full = False

    def lose_answer(self) -> None:
        """The next manifest arrives, but the disk reports that it did not."""
        self.fault("the answer to the next manifest gets lost")
        self.disk.lose_answer = True

    def delay_manifest(self, for_s: float | None = None) -> None:
        """The next entry of the log times out, and arrives when it is no longer expected."""
        self._delay("manifests/", for_s)

    def delay_object(self, for_s: float | None = None) -> None:
        self._delay("objects/", for_s)

    def _delay(self, prefix: str, for_s: float | None) -> None:
        self.fault(f"the next put into {prefix} times out")

        def later(path: str, put: Callable[[], None]) -> None:
            typical_s = self.scheduler.random.choice((0.01, 0.05, 0.3))
            delay_s = self.scheduler.jitter_s(typical_s) if for_s is None else for_s
            self.fault(f"{path} times out")
            self.scheduler.after(delay_s, lambda: self._land(path, put))

        self.disk.delayed[prefix] = later

    def _land(self, path: str, put: Callable[[], None]) -> None:
        self.fault(f"{path} arrives late")
        put()
        self.moment("late")

    def slow_upload(self) -> None:
        """The next checkpoint that a shard saves arrives late."""
        self.fault("the next upload is slow")
        self._slow_uploads += 1

    def hang_upload(self) -> None:
        """The next checkpoint that a shard saves never arrives, without an error.

        Unless it is the shard's last: nothing could replace it, so the run would wait for it.
        """
        self.fault("the next upload hangs")
        self._hung_uploads += 1

    def next_upload_s(self, final: bool) -> float:
        """How long the next upload takes, of a shard's last checkpoint or another."""
        if self._hung_uploads and not final:
            self._hung_uploads -= 1
            return math.inf
        if not self._slow_uploads:
            return self.scheduler.jitter_s(self.upload_s)
        self._slow_uploads -= 1
        slow_s = 2 * CHECKPOINT_TIMEOUT_S
        self.scheduler.after(slow_s, lambda: self.fault("the slow upload ends"))
        return slow_s

    def fail_oddly(self) -> None:
        """The next operation of one kind raises an error that no caller expects."""
        operation = self.scheduler.random.choice(get_args(Operation))
        self.fault(f"the next {operation} fails oddly")
        self.disk.odd[operation] += 1

    def rot_object(self, path: str | None = None) -> None:
        """An object is changed or gone, sometimes its copy as well; where a path is given, always.

        Often one of the newest: only one checkpoint needs these, so there is one to fall back to.
        """
        paths = [path] if path is not None else self.disk.list("objects/")
        objects = [path for path in paths if self.disk.files[path]]
        if objects:
            by_number = sorted(objects, key=lambda path: path.rpartition("/")[2])
            among = by_number[-3:] if self.scheduler.random.random() < 0.5 else objects
            chosen = self.scheduler.random.choice(among)
            copy = chosen.replace("objects/", "copies/", 1)
            both = path or self.scheduler.random.random() < self.both_copies
            if both and self.disk.files.get(copy):
                self._rot(copy)
            elif self.scheduler.random.random() < 0.5 and self.disk.files.get(copy):
                chosen = copy
            self._rot(chosen)

    def _rot(self, path: str) -> None:
        self.fault(f"rot {path}")
        if self.scheduler.random.random() < 0.3:
            del self.disk.files[path]
        else:
            self.disk.rot(path)
