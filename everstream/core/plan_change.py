"""How a running pipeline gets another plan: other numbers of shards, or other workers for the same shards.

A plan changes for one of three reasons:

*rescale*   A user or the autoscaler wants other numbers of shards. The run quiesces: sources pause,
            frames in flight arrive, and a checkpoint is taken that holds no frames. That checkpoint
            is redistributed to the new shards, and the same processes take the new plan.
*pack*      Workers have been missing for too long. Nothing can quiesce without them, so the same shards
            restart from the last checkpoint on the workers that are present.
*spread*    Slots are back after a pack. The run quiesces as for a rescale, and the same shards are
            spread over more workers.

    STEADY ──new plan wanted──► QUIESCING ──nothing in flight──► STARTING ──shares stored──► STEADY
       ▲                            │                               │
       └─ given up or packed ◄──────┴──────── a share is refused ◄──┘

Each plan has a separate coordinator, the successor of the one before it. Between two plans the
store does not change: the redistributed checkpoint is written only after every new shard has loaded
its share. So a share that an operator refuses leaves the store as it was, and the run returns to
the former plan. A change that was given up or refused is not retried until another change is
requested.

`PlanChange` only decides. The engine tells it what is present and wanted (`look`), and how a coordinator
ended (`on_quiesced`, `on_refused`), and performs the decisions that it returns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.orders import Phase, Policy, Publish
from everstream.core.plan import Plan, rescaled, shard_counts, spread
from everstream.core.scheme import Scheme
from everstream.core.upgrade.compatibility import fallbacks
from everstream.core.upgrade.redistribute import redistribute
from everstream.errors import EverstreamError, InternalError, RunFailed, UserError
from everstream.events import QuiesceStarted, RequestRefused, WorkersPacked, change_of_shards


class PlanState(Enum):
    STEADY = "the plan is at work"
    QUIESCING = "waiting until nothing is on its way"
    STARTING = "new shards load their shares"


PLAN_MOVES: dict[PlanState, set[PlanState]] = {
    PlanState.STEADY: {PlanState.STEADY, PlanState.QUIESCING},
    PlanState.QUIESCING: {PlanState.STEADY, PlanState.STARTING},
    PlanState.STARTING: {PlanState.STEADY, PlanState.STARTING},
}
"""Which state may follow which; a state that follows itself is a pack."""


@dataclass(frozen=True)
class StartQuiesce:
    """Ask the coordinator to quiesce with a checkpoint."""

    reason: str


@dataclass(frozen=True)
class TakePlan:
    """This coordinator decides from now on, and all processes start over with its plan."""

    successor: Coordinator
    explained: bool = False
    """Whether the event before it gave the reason."""


@dataclass(frozen=True)
class ReturnToFormer:
    """Withdraw the request, report the reason, and take the former plan again."""

    successor: Coordinator
    error: EverstreamError
    refused: Plan
    """The plan that was refused."""


@dataclass(frozen=True)
class GiveUp:
    """The plan stays as it is: report the reason for that."""

    error: EverstreamError


@dataclass(frozen=True)
class FailRun:
    """There is no former plan to return to: end the run."""

    error: EverstreamError


Decision: TypeAlias = StartQuiesce | TakePlan | ReturnToFormer | GiveUp | FailRun | Publish
"""Everything a plan change can decide; an engine performs every one, in their order."""


@dataclass(frozen=True)
class Facts:
    """What only the engine knows."""

    present: int
    """Processes that are present, as workers or spares."""
    wanted: Mapping[str, int]
    """Operator -> requested number of shards; the others follow the program."""


class PlanChange:
    """Decides when a run takes which plan."""

    def __init__(
        self,
        scheme: Scheme,
        policy: Policy,
        coordinator: Coordinator,
        *,
        target: Plan | None = None,
        spares: int = 0,
        pack_after_s: float = 30.0,
    ) -> None:
        """target: the plan to take as soon as nothing is in flight, if it is not the first one."""
        self._scheme = scheme
        self._policy = policy
        self._spares = spares
        self._pack_after_s = pack_after_s
        self._workers = len(coordinator.plan.workers)
        """The number of workers when none is missing."""
        self._target = target
        self._given_up: dict[str, int] | None = None
        """The numbers of shards that failed, and are not retried."""
        self._former: Coordinator | None = None
        """The coordinator to return to if a new shard refuses its share."""
        self._missing_since_s: float | None = None
        self._computed: tuple[Plan, Mapping[str, int], Plan | None] | None = None
        """The last answer of `unfulfilled`, which is called very often."""
        started = coordinator.unwritten is None
        self._state = PlanState.STEADY if started else PlanState.STARTING

    @property
    def state(self) -> PlanState:
        return self._state

    def look(self, coordinator: Coordinator, facts: Facts, now_s: float) -> list[Decision]:
        """Time has passed, and these are the facts. Returns what to do now."""
        if self._state is PlanState.STARTING and coordinator.unwritten is None:
            self._enter(PlanState.STEADY)
            self._former = None
        if self._must_pack(coordinator, facts, now_s):
            return self._pack(coordinator, facts.present)
        match self._state:
            case PlanState.STEADY:
                return self._start_quiesce(coordinator, facts)
            case PlanState.QUIESCING:
                return [] if coordinator.changes_shards else self._give_up()
            case PlanState.STARTING:
                return []

    def unfulfilled(self, plan: Plan, wanted: Mapping[str, int]) -> Plan | None:
        """The plan with the requested numbers of shards; None if this one has them."""
        known = {name: count for name, count in wanted.items() if name in plan.chain_of}
        if self._computed is None or self._computed[0] is not plan or self._computed[1] != known:
            target = rescaled(plan, known, plan.key_groups)
            same = shard_counts(target) == shard_counts(plan)
            self._computed = (plan, known, None if same else target)
        return self._computed[2]

    # Rescale and spread: quiesce, then take the plan.

    def _start_quiesce(self, coordinator: Coordinator, facts: Facts) -> list[Decision]:
        if coordinator.is_quiescing or not coordinator.can_quiesce:
            return []
        self._target = (
            self._target
            or self._spread_again(coordinator, facts.present)
            or self.unfulfilled(coordinator.plan, facts.wanted)
        )
        if self._target is None or shard_counts(self._target) == self._given_up:
            self._target = None
            return []
        self._enter(PlanState.QUIESCING)
        plan, target = coordinator.plan, self._target
        reason = f"a change of shards ({difference(plan, target)})"
        return [
            Publish(
                QuiesceStarted(
                    shard_counts(plan), shard_counts(target), len(plan.workers), len(target.workers)
                )
            ),
            StartQuiesce(reason),
        ]

    def _spread_again(self, coordinator: Coordinator, present: int) -> Plan | None:
        """The same shards on more workers, if there are more than the plan uses since a pack."""
        workers = min(present - self._spares, self._workers)
        running = coordinator.phase is Phase.RUNNING and self._given_up is None
        if not running or len(coordinator.plan.workers) >= workers:
            return None
        return spread(coordinator.plan, workers, at_least=workers)

    def _give_up(self) -> list[Decision]:
        """The coordinator did not quiesce, and has reported why."""
        assert self._target is not None
        self._given_up, self._target = shard_counts(self._target), None
        self._enter(PlanState.STEADY)
        return [GiveUp(RunFailed("the run did not quiesce in time: its shards stay the same"))]

    def on_quiesced(self, coordinator: Coordinator) -> list[Decision]:
        """The coordinator has ended with nothing in flight: the next plan begins from there."""
        assert self._target is not None
        plan, self._target = self._target, None
        try:
            begins = redistribute(coordinator.manifests[0], plan)
        except UserError as error:
            self._former = coordinator
            return self._return_to_former(coordinator, plan, error)
        older = fallbacks(coordinator.manifests, plan, self._scheme.log)
        self._enter(PlanState.STARTING)
        self._former, self._given_up = coordinator, None
        return [TakePlan(self._successor(plan, coordinator, [begins, *older], unwritten=True))]

    def on_refused(self, coordinator: Coordinator, error: EverstreamError) -> list[Decision]:
        """A new shard cannot load its share, and the store is as it was."""
        return self._return_to_former(coordinator, coordinator.plan, error)

    def _return_to_former(
        self, coordinator: Coordinator, refused: Plan, error: EverstreamError
    ) -> list[Decision]:
        former, self._former = self._former, None
        if former is None:
            return [FailRun(error)]
        self._enter(PlanState.STEADY)
        self._given_up = shard_counts(refused)
        successor = self._successor(former.plan, coordinator, former.manifests)
        reason = f"{error.message} The run resumes with the former shards."
        return [
            Publish(RequestRefused("rescale", reason)),
            ReturnToFormer(successor, error, refused),
        ]

    # Pack: nothing can quiesce without the workers that are missing.

    def _must_pack(self, coordinator: Coordinator, facts: Facts, now_s: float) -> bool:
        """Workers have been missing for too long, and no process is there to replace them."""
        workers = len(coordinator.plan.workers)
        if coordinator.worker_count == workers or not facts.present:
            self._missing_since_s = None  # none is missing, or there is no worker to pack onto
            return False
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        late = now_s >= self._missing_since_s + self._pack_after_s
        return late and facts.present < workers and coordinator.can_be_succeeded

    def _pack(self, coordinator: Coordinator, present: int) -> list[Decision]:
        plan = coordinator.plan
        missing, workers = len(plan.workers) - coordinator.worker_count, len(plan.workers)
        self._missing_since_s = None
        starting = self._state is PlanState.STARTING
        self._enter(PlanState.STARTING if starting else PlanState.STEADY)
        self._target = self._packed_target(plan, present)
        packed = spread(plan, present, at_least=present)
        unwritten = coordinator.unwritten is not None
        successor = self._successor(packed, coordinator, coordinator.manifests, unwritten)
        return [
            Publish(WorkersPacked(missing, workers, self._pack_after_s, present)),
            TakePlan(successor, explained=True),
        ]

    def _packed_target(self, plan: Plan, present: int) -> Plan | None:
        """What is still to change after a pack: the numbers of shards, but not the workers."""
        target = self._target
        if target is None or (
            shard_counts(target) == shard_counts(plan) and target.key_groups == plan.key_groups
        ):
            return None
        return spread(target, present, at_least=present)

    def _successor(
        self,
        plan: Plan,
        coordinator: Coordinator,
        manifests: Sequence[EpochManifest],
        unwritten: bool = False,
    ) -> Coordinator:
        return self._scheme.coordinator(
            plan, self._policy, coordinator.generation, manifests, coordinator, unwritten
        )

    def _enter(self, state: PlanState) -> None:
        if state not in PLAN_MOVES[self._state]:
            raise InternalError(f"a plan change cannot go from {self._state.name} to {state.name}")
        self._state = state


def difference(before: Plan, after: Plan) -> str:
    """What changes from one plan to the other, in words."""
    workers = len(before.workers), len(after.workers)
    return change_of_shards(shard_counts(before), shard_counts(after), *workers)
