"""Opens the store for a run: takes the lease and finds the checkpoints to resume from."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from everstream.core.checkpointing.manifest import EpochManifest, manifests_in
from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.plan import Plan
from everstream.core.upgrade.compatibility import forked, going_on
from everstream.engine.availability.start_retry import StartRetry
from everstream.engine.reporting.listener import Listener
from everstream.engine.rescaling import as_wanted, earlier_requests
from everstream.engine.scratch import scratch_folder
from everstream.engine.settings.options import Origin, RunConfig
from everstream.errors import LeaseLost, StoreError
from everstream.events import Note, Stalled, StoreDamaged, StoreTaken
from everstream.pipeline.describing import check_names
from everstream.pipeline.graph import Graph, Kind
from everstream.pipeline.sink import Sink
from everstream.state.control import forget_settings, settings_in
from everstream.state.heartbeat import read_heartbeat
from everstream.state.savepoints import put_back, savepoint
from everstream.state.store import CheckpointStore, Lease


@dataclass(frozen=True)
class OpenStore:
    """A store that belongs to this run until another run takes it over."""

    url: str
    store: CheckpointStore
    lease: Lease
    earlier: list[EpochManifest]
    """The checkpoints to resume from, newest first; none if the run starts without one."""
    plan: Plan
    """The plan that the run starts with."""
    next_plan: Plan | None = None
    """The plan to switch to once nothing is in flight, if it is a different one."""
    unwritten: bool = False
    """The newest of `earlier` was redistributed to other shards and is not in the store yet."""

    @property
    def newest(self) -> EpochManifest | None:
        return self.earlier[0] if self.earlier else None

    def tidy(self, config: RunConfig) -> None:
        """Remove what an earlier run started and did not finish."""
        slow_after_s = config.policy.slow_after_s
        with said_when_slow(config.listener, f"tidying the store {self.url}", slow_after_s):
            self.store.sweep(self.lease)


def store_folder(url: str | None) -> AbstractContextManager[str]:
    """The URL of the store; a temporary folder if there is none."""
    return scratch_folder() if url is None else nullcontext(url)


def open_store(config: RunConfig, plan: Plan, url: str, taken: Lease | None = None) -> OpenStore:
    """Take the lease and find the earlier checkpoints; without any, sinks start fresh as well.

    taken: the lease, if it has been taken already.
    """
    store = CheckpointStore.at(url, config.store_key)
    listener, slow_after_s = config.listener, config.policy.slow_after_s
    starting = StartRetry(config.start_timeout_s, listener)
    with said_when_slow(listener, f"opening the store {url}", slow_after_s):
        elsewhere = _holder_elsewhere(store) if taken is None else None
        if elsewhere is not None:
            listener.on_event(StoreTaken(elsewhere, standby=False))
        settings = settings_in(store.blobs) if config.fresh else []
        lease = taken or store.acquire_lease(owner_of(plan.graph.name), predecessor(store, config))
        store.hold(lease)
        if config.fresh:
            store.forget_all(lease)
            forget_settings(store.blobs, settings)  # but keep the requests to this run
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
        pipeline, sinks = plan.graph.name, list(sinks_of(plan.graph))
        for name, sink in sinks if earlier else ():
            starting.reach(partial(sink.before_resume, pipeline, name, url))
        for name, sink in sinks if earlier else ():
            from_epoch = _resumes_from(earlier[0], name)
            starting.reach(partial(sink.check_resume, pipeline, name, url, from_epoch))
        for name, sink in sinks if not earlier else ():
            starting.reach(partial(sink.start_fresh, pipeline, name, url, config.fresh))
        if origin is not None:
            listener.on_event(Note("store", f"starting from {origin}, with separate output"))
            other = CheckpointStore.at(origin.store, config.store_key)
            put_back(other, savepoint(other, origin.name), store)
        wished = found.wished or (begins[0] if origin is not None else None)
        if wished is not None:
            # At once, so that the user's request is performed once, even if the run fails after this.
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
    """The lease of the dead driver that this run replaces, if the supervisor reports one.

    If a standby was faster, the store no longer belongs to this command.
    """
    heartbeat = read_heartbeat(store.blobs) if config.turn.goes_on else None
    if heartbeat is None:
        return None
    if heartbeat.command != config.turn.command:
        raise LeaseLost(
            f"'{heartbeat.owner}' has taken over this store with lease {heartbeat.lease} while "
            "the driver was away: the pipeline continues there, and this run ends."
        )
    return heartbeat.lease


def check_store(config: RunConfig, plan: Plan, url: str) -> Plan:
    """Raise a UserError if this pipeline cannot resume from the store; only reads.

    Returns the plan with the requests recorded in the store. Runs before Spark starts, because
    starting Spark takes longer than finding out that the run is refused.
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
            f"{store.skipped[-1].reason}), so the position of the run is lost. Restore the "
            "store from a backup; or start over with --fresh, which deletes what is left of it and "
            "the output."
        )
    return found


def owner_of(pipeline: str) -> str:
    """The name of this run, for other runs that find its store taken."""
    return f"{pipeline} pid {os.getpid()} on {socket.gethostname()}"


def _holder_elsewhere(store: CheckpointStore) -> str | None:
    """The last user of the store, if on another machine: its liveness cannot be checked from here."""
    holder = store.survey().holder
    if holder is None or holder.owner.rpartition(" on ")[2] == socket.gethostname():
        return None
    return holder.owner


def sinks_of(graph: Graph) -> Iterator[tuple[str, Sink]]:
    """Every sink with its operator's name, including those for dead letters."""
    for node in graph.nodes.values():
        for sink in (node.what if node.kind is Kind.SINK else None, node.dead_letters):
            if isinstance(sink, Sink):
                yield node.name, sink


LOOK_EVERY_S = 0.25


@contextmanager
def said_when_slow(listener: Listener, what: str, limit_s: float) -> Iterator[None]:
    """While the body runs: report to the listener when it exceeds the limit, and again later."""
    over = threading.Event()

    def watch() -> None:
        patience = StallWarning(limit_s)
        passed_s = 0.0
        patience.due(what, passed_s)
        while not over.wait(min(LOOK_EVERY_S, limit_s)):
            passed_s += min(LOOK_EVERY_S, limit_s)
            waited_s = patience.due(what, passed_s)
            if waited_s is not None:
                listener.on_event(Stalled(what, waited_s))

    watcher = threading.Thread(target=watch, name="everstream-patience", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
