"""Requested numbers of shards: requests from other threads, and what the store records of them.

A request is recorded in the store first, so that the next driver finds it. `core/plan_change.py`
decides when and how a run switches to another plan.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.plan import Plan, rescaled, shard_counts
from everstream.core.upgrade.redistribute import check_can_move
from everstream.engine.requests import ENDED
from everstream.engine.settings.live_settings import Control
from everstream.engine.settings.options import RunConfig
from everstream.errors import EverstreamError, RunFailed, UserError
from everstream.events import RequestHonoured, RequestRefused
from everstream.state.control import Shards, read_settings
from everstream.state.store import CheckpointStore


class ScaleRequests:
    """Requests of `everstream scale` and `run.scale` to a driver, and the answers to them."""

    def __init__(self, config: RunConfig, plan: Plan, control: Control) -> None:
        self._config = config
        self._control = control
        self._written = as_written(plan)
        self._lock = threading.Lock()
        self._waiting: list[tuple[Mapping[str, int], Future[str]]] = []
        self._ended = False

    def ask(self, wanted: Mapping[str, int], plan: Plan) -> Future[str]:
        """Request other numbers of shards; resolves when they are running. From any thread."""
        if self._config.checkpoint is None:
            raise UserError(
                "this run takes no checkpoints, so its shards cannot be changed while it is active: "
                "start it with checkpoint=es.Coordinated()."
            )
        check_wanted(wanted, plan)
        asked: Future[str] = Future()
        with self._lock:
            if self._ended:
                raise RunFailed(ENDED)
            self._waiting.append((dict(wanted), asked))
        self.want(wanted)
        return asked

    def want(self, wanted: Mapping[str, int]) -> None:
        """Record other numbers of shards in the store; `wanted` returns them from then on."""
        self._control.spread({n: Shards(count, self._written[n]) for n, count in wanted.items()})

    @property
    def wanted(self) -> dict[str, int]:
        """Operator -> number of shards requested in the store, where it differs from the program."""
        return wanted_counts(self._control.shards, self._written)

    def withdraw(self, refused: Plan, plan: Plan, error: EverstreamError) -> None:
        """The request cannot be met and the current plan stays: the next driver must not retry it.

        Requests made since then are kept.
        """
        tried, counts = shard_counts(refused), shard_counts(plan)
        undone = {name: tried[name] for name in self.wanted if counts.get(name) != tried.get(name)}
        self._control.spread(
            {name: Shards(counts[name], self._written[name]) for name in undone if name in counts},
            instead_of=undone,
        )
        for _, asked in self._take(tried):
            asked.set_exception(error)

    def answer(self, plan: Plan) -> None:
        for wanted, asked in self._take(shard_counts(plan)):
            asked.set_result(in_words(wanted))

    def _take(self, counts: Mapping[str, int]) -> list[tuple[Mapping[str, int], Future[str]]]:
        """The requests that these numbers meet; they wait no longer."""
        with self._lock:
            met = [one for one in self._waiting if one[0].items() <= counts.items()]
            self._waiting = [one for one in self._waiting if one not in met]
        return met

    def fail(self, error: EverstreamError) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, asked in waiting:
            asked.set_exception(error)

    def end(self) -> None:
        with self._lock:
            self._ended = True
        self.fail(RunFailed(ENDED))


def check_wanted(
    wanted: Mapping[str, int], plan: Plan, newest: EpochManifest | None = None
) -> Plan:
    """The plan with these numbers; a UserError if it is invalid or this checkpoint rules it out."""
    for name, count in wanted.items():
        plan.shard_for(name)
        if count < 1:
            raise UserError(f"{name}={count}: an operator has at least one shard.")
    before = {**shard_counts(plan), **wanted}
    target = rescaled(plan, before, plan.key_groups)
    if newest is not None:
        check_can_move(newest, target)
    return target


def as_written(plan: Plan) -> dict[str, int]:
    """Operator -> shards as the program sets them, without later requests."""
    return shard_counts(rescaled(plan, {}, plan.key_groups))


def as_wanted(
    plan: Plan, store: CheckpointStore, newest: EpochManifest | None, key_groups: int | None
) -> Plan:
    """The plan with the requested numbers of shards.

    key_groups: as set by the user; None keeps the store's key groups.
    """
    counts = wanted_counts(read_settings(store.blobs).shards, as_written(plan))
    here = {name: count for name, count in counts.items() if name in plan.chain_of}
    groups = key_groups or (newest.key_groups if newest is not None else None)
    if newest is not None and groups is None:
        # Stores of the first versions have a group per shard. Other groups would move keys, which not
        # every operator supports, so these groups stay until the number of shards changes anyway.
        as_they_were = rescaled(plan, here, None)
        counts = shard_counts(as_they_were)
        if all(counts.get(name, shards) == shards for name, shards in newest.shard_counts.items()):
            return as_they_were
    groups = groups or plan.key_groups
    return rescaled(plan, here, groups) if here or groups != plan.key_groups else plan


def earlier_requests(
    plan: Plan, store: CheckpointStore
) -> Iterator[RequestHonoured | RequestRefused]:
    """What becomes of requests for shards that were made before the run started."""
    written = as_written(plan)
    for name, request in read_settings(store.blobs).shards.items():
        asked = f"{request.wanted} shard(s) were requested for '{name}'"
        if name not in written:
            yield RequestRefused("rescale", f"{asked}, which the pipeline no longer has")
        elif request.written != written[name]:
            now = f"its program now has {written[name]} instead of {request.written}"
            yield RequestRefused("rescale", f"{asked}, but {now}: the program's number is used")
        elif request.wanted != written[name]:
            had = f"instead of {written[name]}, as requested"
            yield RequestHonoured("rescale", f"'{name}' has {request.wanted} shard(s) {had}")


def wanted_counts(recorded: Mapping[str, Shards], written: Mapping[str, int]) -> dict[str, int]:
    """Operator -> shards requested since the program last changed its number."""
    return {
        name: request.wanted
        for name, request in recorded.items()
        if request.written == written.get(name)
    }


def in_words(shards: Mapping[str, int]) -> str:
    return ", ".join(f"'{name}' has {count} shard(s)" for name, count in shards.items())
