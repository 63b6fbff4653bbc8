"""Watches a run's store for changed settings, and records the changes that a run makes.

It has a separate thread, because a store may be slow and the run must not wait for it. Changes wait
in a queue until the driver's loop collects them.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from everstream.errors import EverstreamError
from everstream.pipeline.graph import Graph
from everstream.pipeline.tuning import Settings, Tuning, resolved, tunable_in
from everstream.state.blobs import Blobs
from everstream.state.control import (
    Recorded,
    Shards,
    publish_tunable,
    read_settings,
    record_settings,
)
from everstream.state.store import CheckpointStore

LOOK_EVERY_S = 0.3
REMOTE_EVERY_S = 2.0
LEAVE_PATIENCE_S = 1.0


NOT_TUNABLE = "nothing in this pipeline can be tuned: it has no paced source or batch"


class Control:
    def __init__(
        self, blobs: Blobs, remote: bool, tunable: Settings, on_trouble: Callable[[str], None]
    ) -> None:
        """Reads earlier settings at once, so that new workers get them."""
        self._blobs = blobs
        self._every_s = REMOTE_EVERY_S if remote else LOOK_EVERY_S
        self._tunable = {name: dict(settings) for name, settings in tunable.items()}
        self._on_trouble = on_trouble
        self._requests: SimpleQueue[Callable[[], Recorded]] = SimpleQueue()
        self._news: SimpleQueue[Tuning | str] = SimpleQueue()
        self.shards: dict[str, Shards] = {}
        """The requested numbers of shards, as of the last look at the store."""
        self._known = 0
        self._said = ""
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="everstream-control", daemon=True)
        self._try(self._look)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; does not wait for a slow look at the store."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_PATIENCE_S)

    def tune(self, wishes: Mapping[str, str]) -> None:
        """Record these settings, then apply them. Safe from any thread."""
        self._requests.put(lambda: record_settings(self._blobs, resolved(wishes, self._tunable)))
        self._wake.set()

    def spread(
        self, shards: dict[str, Shards], instead_of: Mapping[str, int] | None = None
    ) -> None:
        """Record these numbers of shards, then publish them. Safe from any thread.

        instead_of: only where the store still has this request.
        """
        self._requests.put(partial(record_settings, self._blobs, {}, shards, instead_of))
        self._wake.set()

    def news(self) -> Tuning | None:
        """The newest settings if they changed since the last call; troubles go to the listener."""
        newest = None
        while True:
            try:
                found = self._news.get_nowait()
            except Empty:
                return newest
            if isinstance(found, Tuning):
                newest = found
            else:
                self._on_trouble(found)

    def _run(self) -> None:
        if self._tunable:
            self._try(lambda: publish_tunable(self._blobs, self._tunable))
        while not self._stopped:
            self._try(self._look)
            self._wake.wait(self._every_s)
            self._wake.clear()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except EverstreamError as error:
            if str(error) != self._said:  # once: the next look finds the same error
                self._said = str(error)
                self._news.put(self._said)

    def _look(self) -> None:
        with suppress(Empty):
            while True:
                self._found(self._requests.get_nowait()())
        self._found(read_settings(self._blobs))

    def _found(self, recorded: Recorded) -> None:
        if recorded.version > self._known:
            self._known = recorded.version
            self.shards = recorded.shards
            if not recorded.settings:
                return
            here = {n: said for n, said in recorded.settings.items() if n in self._tunable}
            self._news.put(Tuning(recorded.version, here))
            if gone := sorted(recorded.settings.keys() - here.keys()):
                self._news.put(f"tuned, but no longer in this pipeline: {', '.join(gone)}")


def flattened(settings: Settings) -> dict[str, str]:
    """OPERATOR.SETTING -> value."""
    return {
        f"{name}.{setting}": str(value)
        for name, changed in settings.items()
        for setting, value in changed.items()
    }


def control_of(
    graph: Graph, store: CheckpointStore, store_url: str, on_trouble: Callable[[str], None]
) -> Control:
    tunable = tunable_in(graph)
    remote = "://" in store_url and not store_url.startswith("file://")
    return Control(store.blobs, remote, tunable, on_trouble)
