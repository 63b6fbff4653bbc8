"""A run takes hold of its store: the lease, and the checkpoints to go on from."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from everstream.core.changes import going_on
from everstream.core.manifest import EpochManifest
from everstream.core.plan import Plan
from everstream.errors import StoreError
from everstream.pipeline.describing import check_names
from everstream.pipeline.graph import Graph, Kind
from everstream.pipeline.sink import Sink
from everstream.spark.config import RunConfig
from everstream.spark.scratch import make_folder
from everstream.spark.waiting import said_when_slow
from everstream.state.control import forget_settings
from everstream.state.store import CheckpointStore, Lease


@dataclass(frozen=True)
class OpenStore:
    """A store that is this run's own, for as long as no other run takes it over."""

    url: str
    store: CheckpointStore
    lease: Lease
    earlier: list[EpochManifest]
    """The checkpoints to go on from, newest first; none if the run starts from nothing."""

    @property
    def finished(self) -> bool:
        """The pipeline has ended, and all its output is shown."""
        return self.newest is not None and self.newest.final and self.store.all_shown()

    @property
    def newest(self) -> EpochManifest | None:
        return self.earlier[0] if self.earlier else None

    def tidy(self, config: RunConfig) -> None:
        """Remove what an earlier run has begun and not finished."""
        slow_after_s = config.policy.slow_after_s
        with said_when_slow(config.listener, f"tidying the store {self.url}", slow_after_s):
            self.store.sweep(self.lease)


@contextmanager
def store_folder(url: str | None) -> Iterator[str]:
    """The URL of the store; a folder that is thrown away if there is none."""
    if url is not None:
        yield url
        return
    folder = make_folder()
    try:
        yield folder
    finally:
        # A host that was told to leave may still be writing: that must not hide how the run
        # ended, so what cannot be removed now is left to the system's temporary folder.
        shutil.rmtree(folder, ignore_errors=True)


def open_store(config: RunConfig, plan: Plan, url: str) -> OpenStore:
    """Take the lease and find the earlier checkpoints; without any, sinks start fresh as well."""
    store = CheckpointStore.at(url, config.store_key)
    listener, slow_after_s = config.listener, config.policy.slow_after_s
    with said_when_slow(listener, f"opening the store {url}", slow_after_s):
        elsewhere = _holder_elsewhere(store)
        if elsewhere is not None:
            listener.note(
                f"the store was last used by '{elsewhere}'; if that run is still going on, it can "
                "make nothing stable any more and ends",
                True,
            )
        lease = store.acquire_lease(owner_of(plan.graph.name))
        if config.fresh:
            store.forget_all(lease)
            forget_settings(store.blobs)
        earlier = checkpoints_in(store)
        for skipped in store.skipped:
            listener.note(f"{skipped.path} is skipped: {skipped.reason}", True)
        found = going_on(earlier, plan, config.scheme.log, config.wishes)
        for text in found.notes:
            listener.note(text, False)
        if found.rewritten:
            # At once, so that what the user wished is done once, whatever happens from here on.
            store.append_manifest(lease, found.manifests[0].to_json())
        if earlier:
            for name, sink in sinks_of(plan.graph):
                sink.before_resume(plan.graph.name, name, url)
        else:
            _start_sinks_fresh(plan, url, config.fresh)
    return OpenStore(url, store, lease, found.manifests)


def check_store(config: RunConfig, plan: Plan, url: str) -> None:
    """Raise a UserError if this pipeline cannot go on from what is in the store; only reads.

    Before Spark starts, because that takes longer than to find out that it was for nothing.
    """
    check_names(plan.graph)
    if not config.fresh:
        store = CheckpointStore.at(url, config.store_key)
        going_on(checkpoints_in(store), plan, config.scheme.log, config.wishes)


def checkpoints_in(store: CheckpointStore) -> list[EpochManifest]:
    """Newest first. Raises a StoreError if there were some and none can be read."""
    found = [EpochManifest.from_json(manifest.body) for manifest in store.manifests()]
    if store.skipped and not found:
        raise StoreError(
            f"no checkpoint in {store.blobs!r} can be read ({store.skipped[-1].path}: "
            f"{store.skipped[-1].reason}), so nobody knows how far the run had come. Restore the "
            "store from a backup; or start over with --fresh, which deletes what is left of it and "
            "the output."
        )
    return found


def owner_of(pipeline: str) -> str:
    """Who this run is, for other runs that find its store taken."""
    return f"{pipeline} pid {os.getpid()} on {socket.gethostname()}"


def _holder_elsewhere(store: CheckpointStore) -> str | None:
    """Who used the store last, if that was on another machine: we cannot see whether it lives."""
    holder = store.survey().holder
    if holder is None or holder.owner.rpartition(" on ")[2] == socket.gethostname():
        return None
    return holder.owner


def sinks_of(graph: Graph) -> Iterator[tuple[str, Sink]]:
    """Every sink with its operator's name, those for dead letters included."""
    for node in graph.nodes.values():
        for sink in (node.what if node.kind is Kind.SINK else None, node.dead_letters):
            if isinstance(sink, Sink):
                yield node.name, sink


def _start_sinks_fresh(plan: Plan, url: str, replace: bool) -> None:
    for name, sink in sinks_of(plan.graph):
        sink.start_fresh(plan.graph.name, name, url, replace)
