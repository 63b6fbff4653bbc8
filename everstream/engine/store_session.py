"""A run takes hold of its store: the lease, and the checkpoints to go on from."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from everstream.core.checkpointing.manifest import EpochManifest, manifests_in
from everstream.core.plan import Plan
from everstream.core.upgrade.compatibility import going_on
from everstream.core.upgrade.fork import forked
from everstream.engine.availability.start_retry import Starting
from everstream.engine.rescaling import as_wanted, earlier_requests
from everstream.engine.scratch import make_folder
from everstream.engine.settings.options import Origin, RunConfig
from everstream.engine.slow_calls import said_when_slow
from everstream.errors import LeaseLost, StoreError
from everstream.events import Note, StoreDamaged, StoreTaken
from everstream.pipeline.describing import check_names
from everstream.pipeline.graph import Graph, Kind
from everstream.pipeline.sink import Sink
from everstream.state.control import forget_settings, settings_in
from everstream.state.heartbeat import read_heartbeat
from everstream.state.savepoints import put_back, savepoint
from everstream.state.store import CheckpointStore, Lease


@dataclass(frozen=True)
class OpenStore:
    """A store that is this run's own, for as long as no other run takes it over."""

    url: str
    store: CheckpointStore
    lease: Lease
    earlier: list[EpochManifest]
    """The checkpoints to go on from, newest first; none if the run starts from nothing."""
    plan: Plan
    """What the run begins with."""
    next_plan: Plan | None = None
    """What it goes on with once nothing is on its way any more, if that is another one."""
    unwritten: bool = False
    """The newest of `earlier` is shared out among other shards, and not in the store yet."""

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
        # A worker that was told to leave may still be writing: that must not hide how the run
        # ended, so what cannot be removed now is left to the system's temporary folder.
        shutil.rmtree(folder, ignore_errors=True)


def open_store(config: RunConfig, plan: Plan, url: str, taken: Lease | None = None) -> OpenStore:
    """Take the lease and find the earlier checkpoints; without any, sinks start fresh as well.

    taken: the lease, if it was taken already.
    """
    store = CheckpointStore.at(url, config.store_key)
    listener, slow_after_s = config.listener, config.policy.slow_after_s
    starting = Starting(config.start_timeout_s, listener)
    with said_when_slow(listener, f"opening the store {url}", slow_after_s):
        elsewhere = _holder_elsewhere(store) if taken is None else None
        if elsewhere is not None:
            listener.on_event(StoreTaken(elsewhere, standby=False))
        settings = settings_in(store.blobs) if config.fresh else []
        lease = taken or store.acquire_lease(owner_of(plan.graph.name), predecessor(store, config))
        store.hold(lease)
        if config.fresh:
            store.forget_all(lease)
            forget_settings(store.blobs, settings)  # but not what was asked of this run
        earlier = checkpoints_in(store)
        for skipped in store.skipped:
            listener.on_event(StoreDamaged(skipped.path, skipped.reason))
        origin = config.start_from if not earlier else None
        if config.start_from is not None and origin is None:
            text = f"the store has checkpoints: the run resumes from them, not from {config.start_from}"
            listener.on_event(Note("store", text))
        begins = earlier if origin is None else [_fork(origin, config, plan)]
        for request in earlier_requests(plan, store):
            listener.on_event(request)
        plan = as_wanted(plan, store, begins[0] if begins else None, config.key_groups)
        found = going_on(begins, plan, config.scheme.log, config.overrides)
        found.tell(plan)
        for text in found.notes:
            listener.on_event(Note("upgrade", text))
        if earlier:
            for name, sink in sinks_of(plan.graph):
                starting.reach(partial(sink.before_resume, plan.graph.name, name, url))
            for name, sink in sinks_of(plan.graph):
                from_epoch = _resumes_from(earlier[0], name)
                starting.reach(partial(sink.check_resume, plan.graph.name, name, url, from_epoch))
        else:
            for name, sink in sinks_of(plan.graph):
                fresh = partial(sink.start_fresh, plan.graph.name, name, url, config.fresh)
                starting.reach(fresh)
        if origin is not None:
            listener.on_event(Note("store", f"starting from {origin}, with separate output"))
            other = CheckpointStore.at(origin.store, config.store_key)
            put_back(other, savepoint(other, origin.name), store)
        wished = found.wished or (begins[0] if origin is not None else None)
        if wished is not None:
            # At once, so that what the user wished is done once, whatever happens from here on.
            if wished.is_doubtful:
                wished = wished.gone_back_to(wished)
            store.append_manifest(lease, replace(wished, rewound=False).to_json())
    if found.settles is None:
        return OpenStore(url, store, lease, found.manifests, plan, unwritten=found.unwritten)
    return OpenStore(url, store, lease, found.manifests, found.settles, plan)


def _resumes_from(manifest: EpochManifest, operator: str) -> dict[int, int]:
    """Shard -> the checkpoint that an operator resumes from."""
    records = [part for record in manifest.records.values() for part in record.parts or (record,)]
    return {
        record.shard.number: manifest.epoch if manifest.log == "none" else record.number
        for record in records
        if operator in record.operators
    }


def predecessor(store: CheckpointStore, config: RunConfig) -> int | None:
    """The lease of the driver whose place we take, if our monitor says that there was one.

    A standby may have been quicker: then the store is no longer this command's.
    """
    heartbeat = read_heartbeat(store.blobs) if config.turn.goes_on else None
    if heartbeat is None:
        return None
    if heartbeat.command != config.turn.command:
        raise LeaseLost(
            f"'{heartbeat.owner}' has taken over this store with lease {heartbeat.lease} while the driver "
            "was away: the pipeline goes on there, and this run ends."
        )
    return heartbeat.lease


def check_store(config: RunConfig, plan: Plan, url: str) -> Plan:
    """Raise a UserError if this pipeline cannot go on from what is in the store; only reads.

    The plan with what was asked for in the store.

    Before Spark starts, because that takes longer than to find out that it was for nothing.
    """
    check_names(plan.graph)
    if config.fresh:
        return plan
    store = CheckpointStore.at(url, config.store_key)
    earlier = checkpoints_in(store)
    if config.start_from is not None and not earlier:
        earlier = [_fork(config.start_from, config, plan)]
    plan = as_wanted(plan, store, earlier[0] if earlier else None, config.key_groups)
    going_on(earlier, plan, config.scheme.log, config.overrides)
    return plan


def _fork(origin: Origin, config: RunConfig, plan: Plan) -> EpochManifest:
    other = CheckpointStore.at(origin.store, config.store_key)
    return forked(EpochManifest.from_json(savepoint(other, origin.name).body), plan)


def checkpoints_in(store: CheckpointStore) -> list[EpochManifest]:
    """Newest first. Raises a StoreError if there were some and none can be read."""
    found = manifests_in(store)
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
