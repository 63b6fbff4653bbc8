"""Writes manifests in a separate thread, so that a slow store does not block the driver.

The driver's thread queues the work and receives the outcomes through `deliver`. If the writer
thread breaks, `deliver` raises its error, so that the run ends with the cause.
"""

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Discard
from everstream.errors import EverstreamError, InternalError, said
from everstream.state.manifest_append import pause
from everstream.state.objects import ObjectRef
from everstream.state.retention import DEFAULT, Retention
from everstream.state.store import CheckpointStore, Lease


@dataclass
class ManifestWriter:
    """Writes one run's manifests, and removes the checkpoints they made obsolete."""

    store: CheckpointStore
    lease: Lease
    removes_objects: bool
    """Removing a manifest also removes the objects that no other manifest names; otherwise the
    coordinator decides what to remove."""
    on_done: Callable[[EpochManifest, EverstreamError | None], None]
    """Called for every manifest with the outcome of its write."""
    on_trouble: Callable[[str], None]
    """Called for failures that stop nothing."""
    retention: Retention = DEFAULT

    def __post_init__(self) -> None:
        self._held: set[ObjectRef] = set()
        """Objects that the run does not need any more, but a checkpoint that is kept may."""
        self._said_of_store = ""
        self._work: SimpleQueue[EpochManifest | Discard | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._loop, name="everstream-manifests", daemon=True).start()

    def put(self, work: EpochManifest | Discard) -> None:
        self._work.put(work)

    def stop(self) -> None:
        """Ends after the queued work; does not wait for it."""
        self._work.put(None)

    def deliver(self) -> None:
        """Report the outcomes of the work, on the caller's thread."""
        while not self._outcomes.empty():
            self._outcomes.get()()

    def _loop(self) -> None:
        try:
            self._work_off()
        except BaseException:  # no manifest could be written any more: end the run
            text = f"the thread that writes manifests broke: {traceback.format_exc()}"
            self._outcomes.put(partial(_raise, InternalError(text)))

    def _work_off(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, Discard):
                self._held.update(work.objects)
                self._remove(self._discard)
                continue
            error = self._write(work)
            self._outcomes.put(partial(self.on_done, work, error))
            if error is None:
                self._remove(self._prune)

    def _prune(self) -> None:
        since_s = self.retention.since_s(time.time())
        self.store.prune(self.retention.newest, objects=self.removes_objects, since_s=since_s)
        self._discard()

    def _discard(self) -> None:
        """Remove the objects that no kept checkpoint names."""
        if not self._held:
            return
        named: set[ObjectRef] = set()
        if self.retention != DEFAULT:  # others keep what the coordinator knows
            named = {ref for manifest in self.store.manifests() for ref in manifest.objects}
        self.store.discard(self._held - named)
        self._held &= named

    def _write(self, manifest: EpochManifest) -> EverstreamError | None:
        """Returns only when it is certain whether the manifest is in the store."""
        body = replace(
            manifest, written_at=time.time(), kept=(self.retention.newest, self.retention.age_s)
        ).to_json()
        try:
            self.store.append_manifest(self.lease, body, self._wait_for_store)
        except EverstreamError as error:
            return error
        return None

    def _wait_for_store(self, trouble: Exception) -> None:
        text = f"not known yet whether the newest manifest is in the store: {said(trouble)}"
        if text != self._said_of_store:
            self._said_of_store = text
            self._outcomes.put(partial(self.on_trouble, text))
        pause(trouble)

    def _remove(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # any error: manifests must still be written
            text = f"older checkpoints could not be removed: {said(error)}"
            self._outcomes.put(partial(self.on_trouble, text))


def _raise(error: Exception) -> None:
    raise error
