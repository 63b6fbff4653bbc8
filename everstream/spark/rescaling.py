"""The numbers of shards of a run, while it goes on: who wants others, and how far that has come.

A change is recorded in the store first, so that the next driver knows of it. Then everything comes to
a standstill with a checkpoint, the driver writes down how its shares go to the new shards, and the
same processes go on with another plan: no new Spark job, no new session.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from everstream.core.changes import fallbacks
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.manifest import EpochManifest, shard_counts
from everstream.core.plan import Plan, rescaled
from everstream.core.respreading import check_can_move, respread
from everstream.errors import EverstreamError, RunFailed, UserError
from everstream.spark.config import RunConfig
from everstream.spark.control import Control
from everstream.spark.wishes import ENDED
from everstream.state.control import Shards, read_settings
from everstream.state.store import CheckpointStore

OTHER_SHARDS = "going on with other shards"
"""How the note begins that says so."""


class Rescaling:
    """What `everstream scale` and `run.scale` ask a driver for."""

    def __init__(
        self, config: RunConfig, plan: Plan, target: Plan | None, control: Control
    ) -> None:
        """target: what the run is to go on with as soon as it can, if that is not its plan."""
        self._config = config
        self._control = control
        self._written = as_written(plan)
        self._target = target
        self._given_up: dict[str, int] | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[Mapping[str, int], Future[str]]] = []
        self._ended = False
        self._looked: tuple[Plan, Mapping[str, int], Plan | None] | None = None
        """What was last asked for of which plan, and what came of it: it is looked at all the time."""
        self.writing: EpochManifest | None = None
        """What the new shards begin with, on its way to the store."""

    def ask(self, wanted: Mapping[str, int], plan: Plan) -> Future[str]:
        """Other numbers of shards; what was done, in words, once they are at work. From any thread."""
        if self._config.checkpoint is None:
            raise UserError(
                "this run takes no checkpoints, so its shards cannot be changed while it goes on: "
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
        """Record other numbers of shards; they are there when everything has come to a standstill."""
        self._control.spread({n: Shards(count, self._written[n]) for n, count in wanted.items()})

    def aim(self, plan: Plan) -> None:
        """Go on with this plan as soon as nothing is on its way."""
        if self._target is None and self._given_up is None:
            self._target = plan

    def due(self, coordinator: Coordinator) -> Plan | None:
        """The plan for which everything is to come to a standstill now, if there is one."""
        if coordinator.is_settling or not coordinator.can_settle:
            return None
        target = self._target or self._wanted(coordinator.plan)
        if target is None or shard_counts(target) == self._given_up:
            return None
        self._target = target
        return target

    def _wanted(self, plan: Plan) -> Plan | None:
        """What the store says, if that is not what runs already."""
        counts = wanted_counts(self._control.shards, self._written)
        asked = {n: count for n, count in counts.items() if n in plan.chain_of}
        if self._looked is None or self._looked[0] is not plan or self._looked[1] != asked:
            target = rescaled(plan, asked, plan.key_groups)
            same = shard_counts(target) == shard_counts(plan)
            self._looked = (plan, asked, None if same else target)
        return self._looked[2]

    def settled(self, coordinator: Coordinator) -> EpochManifest:
        """Everything stands still: what is to be written before others go on."""
        assert self._target is not None
        self.writing = respread(coordinator.manifests[0], self._target)
        return self.writing

    def successor(self, coordinator: Coordinator) -> Coordinator:
        """It is written: who decides from now on."""
        assert self._target is not None and self.writing is not None
        config, plan = self._config, self._target
        older = fallbacks(coordinator.manifests, plan, config.scheme.log)
        manifests = [self.writing, *older]
        self.writing = self._target = self._given_up = None
        return config.scheme.coordinator(
            plan, config.policy, coordinator.generation, manifests, coordinator
        )

    def answer(self, plan: Plan) -> None:
        """Tell those who wait what the shards at work come to."""
        now = shard_counts(plan)
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for wanted, asked in waiting:
                if all(now.get(name) == count for name, count in wanted.items()):
                    asked.set_result(in_words(wanted))
                else:
                    self._waiting.append((wanted, asked))

    def given_up(self) -> None:
        """It did not come to a standstill: nobody tries again until somebody asks again."""
        if self._target is not None:
            self._given_up = shard_counts(self._target)
            self._target = None
        self.fail(RunFailed("the run did not come to a standstill in time, and goes on as it was"))

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
    """The plan with these numbers; a UserError if it cannot be, or not from this checkpoint."""
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
    """Operator -> shards, as its program says, whatever was asked for since."""
    return shard_counts(rescaled(plan, {}, plan.key_groups))


def as_wanted(
    plan: Plan, store: CheckpointStore, newest: EpochManifest | None, key_groups: int | None
) -> Plan:
    """The plan with the numbers of shards that somebody has asked for.

    key_groups: that the user wants; otherwise keys are in the groups that the store has.
    """
    counts = wanted_counts(read_settings(store.blobs).shards, as_written(plan))
    here = {name: count for name, count in counts.items() if name in plan.chain_of}
    stored = newest.key_groups if newest is not None else None
    groups = key_groups or stored or plan.key_groups
    return rescaled(plan, here, groups) if here or groups != plan.key_groups else plan


def wanted_counts(recorded: Mapping[str, Shards], written: Mapping[str, int]) -> dict[str, int]:
    """Operator -> shards, of those that somebody wants otherwise than they are written now."""
    return {n: said.wanted for n, said in recorded.items() if said.written == written.get(n)}


def differing(before: Plan, after: Plan) -> str:
    """What changes from one plan to the other, in words."""
    had = shard_counts(before)
    changes = [f"{n} {had[n]} to {c}" for n, c in shard_counts(after).items() if had.get(n) != c]
    if not changes and len(before.hosts) != len(after.hosts):
        return f"the same on {len(after.hosts)} host(s) instead of {len(before.hosts)}"
    return ", ".join(changes) or "keys in other groups"


def in_words(shards: Mapping[str, int]) -> str:
    return ", ".join(f"'{name}' has {count} shard(s)" for name, count in shards.items())
