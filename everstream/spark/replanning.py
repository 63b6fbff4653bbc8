"""How a driver gives its processes another plan: other numbers of shards, or fewer hosts.

Another coordinator decides from then on; all processes forget what they had and say hello again, as
when a run begins. Whoever dies in between, or comes late, is given the newest plan when it says hello.
"""

import time
from abc import ABC, abstractmethod

import cloudpickle

from everstream.core.autoscaling import Scaler
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import ShardId
from everstream.core.meter import Meter
from everstream.core.orders import EndRun, Order, Outcome, Phase
from everstream.core.plan import spread
from everstream.errors import EverstreamError, LeaseLost, RunFailed
from everstream.spark.attempts import Attempts
from everstream.spark.config import RunConfig
from everstream.spark.injection import Injector
from everstream.spark.listener import Listener
from everstream.spark.manifest_writer import ManifestWriter
from everstream.spark.rescaling import OTHER_SHARDS, Rescaling, differing
from everstream.spark.switchboard import Switchboard
from everstream.spark.talk import NewPlan


class Replanning(ABC):
    """What a `Driver` does with plans; it is the only one to inherit this."""

    config: RunConfig
    coordinator: Coordinator
    attempts: Attempts
    injector: Injector
    listener: Listener
    rescaling: Rescaling
    scaler: Scaler | None
    switchboard: Switchboard
    writer: ManifestWriter
    end: EndRun | None
    meters: dict[ShardId, Meter]
    counts: dict[ShardId, dict[str, tuple[int, int]]]
    plan_number: int
    """How often there was another one."""
    _pickled_plan: bytes
    _hosts: int
    """So many there are if nobody is lost for good."""
    _missing_since_s: float | None
    _settles: bool
    """Whether everything was coming to a standstill when we last looked."""

    @abstractmethod
    def _obey(self, orders: list[Order]) -> None: ...

    @abstractmethod
    def _note(self, text: str, warning: bool) -> None: ...

    @abstractmethod
    def _warn(self, text: str) -> None: ...

    def _rescale(self, now_s: float) -> None:
        if self.coordinator.phase is Phase.RUNNING:
            self.rescaling.answer(self.coordinator.plan)
            self._spread_again()
            if self.scaler is not None:
                changes = self.scaler.look(self.coordinator.plan, self.meters, now_s)
                if changes:
                    self.rescaling.want(changes)
        target = self.rescaling.due(self.coordinator)
        if target is not None:
            reason = f"a change of shards ({differing(self.coordinator.plan, target)})"
            self._note(f"{reason}: waiting until nothing is on its way", False)
            self._obey(self.coordinator.on_settle(reason, now_s))
        elif self._settles and not self.coordinator.is_settling:
            self.rescaling.given_up()
        self._settles = self.coordinator.is_settling

    def _go_on_with_other_shards(self, error: EverstreamError | None) -> None:
        """What they begin with is in the store, or could not be put there."""
        if isinstance(error, LeaseLost):
            failed = RunFailed(f"this driver was replaced: {error}", error)
            self.end = EndRun(Outcome.FAILED, failed)
            return
        if error is not None:
            self._warn(f"what the new shards begin with could not be saved: {error}; once more")
            self.writer.put(self.rescaling.settled(self.coordinator))
            return
        before = self.coordinator.plan
        self._take_plan(self.rescaling.successor(self.coordinator))
        plan = self.coordinator.plan
        self._note(f"{OTHER_SHARDS}: {differing(before, plan)}", False)

    def _take_plan(self, successor: Coordinator) -> None:
        """Somebody else decides from now on, and all processes begin anew with its plan."""
        self.coordinator, plan = successor, successor.plan
        self.plan_number += 1
        self._pickled_plan = cloudpickle.dumps(plan)
        self.attempts.replan(plan)
        self.injector.plan = plan
        self.meters, self.counts, self._settles = {}, {}, False
        if self.scaler is not None:
            self.scaler.changed(time.monotonic())
        self.listener.rescaled(plan)
        for identity in self.attempts.identities():
            self._tell_plan(identity)

    def _pack(self, missing: int, now_s: float) -> None:
        """Hosts that do not come back leave their shards to those that are there."""
        if not missing or self._missing_since_s is None:
            self._missing_since_s = now_s if missing else None
        patient = now_s < (self._missing_since_s or now_s) + self.config.pack_after_s
        coordinator, there = self.coordinator, self.attempts.present
        if not missing or patient or not there or not coordinator.can_be_succeeded:
            return
        plan = spread(coordinator.plan, there)
        self._warn(
            f"{missing} of {len(coordinator.plan.hosts)} host(s) have been gone for "
            f"{self.config.pack_after_s:g} s: all shards are packed onto the {there} that are there"
        )
        self._missing_since_s = None
        self._take_plan(
            self.config.scheme.coordinator(
                plan,
                self.config.policy,
                coordinator.generation,
                coordinator.manifests,
                coordinator,
            )
        )

    def _spread_again(self) -> None:
        """Slots are back: what was packed is spread over them."""
        plan, there = self.coordinator.plan, self.attempts.present - self.config.spares
        if len(plan.hosts) < min(there, self._hosts):
            self.rescaling.aim(spread(plan, min(there, self._hosts)))

    def _tell_plan(self, identity: bytes) -> None:
        self.switchboard.tell(identity, NewPlan(self.plan_number, self._pickled_plan))
