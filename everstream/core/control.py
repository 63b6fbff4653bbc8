"""What every coordinator does, whatever the protocol: hosts, failures, loops and the end of a run.

A coordinator is a state machine: hosts, reports and time in, orders out. What happens to a
checkpoint, and who goes back after a failure, is up to those who build on this.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from everstream.core.ids import Epoch, Generation, HostId, ShardId
from everstream.core.loops import LoopWatch
from everstream.core.manifest import EpochManifest, shown_once, still_valid
from everstream.core.messages import (
    Census,
    CheckpointRecord,
    EndLoop,
    LinkCut,
    Probe,
    Progress,
    Shutdown,
)
from everstream.core.orders import EndRun, Note, Order, Outcome, Phase, Policy, SendTo
from everstream.core.patience import Patience, listed
from everstream.core.plan import Plan
from everstream.core.recovery import RecoveryBook, RecoveryReport, RestartBudget
from everstream.core.tally import CheckpointTally
from everstream.errors import EnvironmentFault, EverstreamError, LeaseLost, RunFailed
from everstream.pipeline.graph import Kind

KEPT_MANIFESTS = 3
RETRY_S = 1.0
"""After a checkpoint failed, the next one waits this long."""


class RunControl(ABC):
    """Decides for the whole run. Every method takes the time and returns orders."""

    names_what_goes: ClassVar[bool] = False
    """Objects are deleted when an order names them, and not when no manifest does any more."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest] = (),
    ) -> None:
        self.plan = plan
        self.policy = policy
        self.every_s = policy.every_s
        """The time between two epochs; may be changed while the run goes on."""
        self.generation = generation
        self.manifests = still_valid(manifests)
        """Where we can go back to, newest first."""
        self.phase = Phase.GATHERING
        self.hosts: dict[HostId, Any] = {}
        """The hosts that are here, with their addresses."""
        self.book = RecoveryBook()
        self.budget = RestartBudget(policy.max_restarts, policy.restart_window_s)
        self.patience = Patience(policy.slow_after_s)
        self.progress: dict[ShardId, Progress] = {}
        self.tally = CheckpointTally()
        self._sources = {node.name for node in plan.graph.of_kind(Kind.SOURCE)}
        self._loops = [LoopWatch(cycle) for cycle in plan.cycles]
        self._committing: set[ShardId] = set()
        self._writing: EpochManifest | None = None
        self._stop: str | None = None
        self._injected: dict[HostId, float] = {}
        self._orders: list[Order] = []

    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]:
        """The checkpoints we would go back to if everything failed now."""
        return self.manifests[0].records if self.manifests else {}

    @property
    def stable_epoch(self) -> Epoch:
        return self.manifests[0].epoch if self.manifests else Epoch(0)

    @property
    def _over(self) -> bool:
        return self.phase is Phase.DONE

    def totals(self) -> dict[str, int]:
        """Operator -> records taken so far, over all its shards (sources: given)."""
        sums: dict[str, int] = {}
        for report in self.progress.values():
            for name, (records_in, records_out) in report.counts.items():
                is_source = name in self._sources
                sums[name] = sums.get(name, 0) + (records_out if is_source else records_in)
        return sums

    @property
    def lost_frames(self) -> int:
        """Frames nobody could send again, because a log had died with its process."""
        heard = {shard: report.lost_frames for shard, report in self.progress.items()}
        saved = {shard: record.lost_frames for shard, record in self.line.items()}
        return sum(max(heard.get(s, 0), saved.get(s, 0)) for s in self.plan.shards)

    def records_read(self) -> int:
        totals = self.totals()
        return sum(totals.get(name, 0) for name in self._sources)

    # Hosts.

    def on_host_joined(self, host: HostId, address: Any, now_s: float) -> list[Order]:
        """A host has started, or started again."""
        if self._over:
            self._send(host, Shutdown())
            return self._take()
        if host in self.hosts:
            self._failure(f"host {host} came back", self.plan.hosts[host], host, None, now_s)
        self.hosts[host] = address
        self.book.restarted(tuple(str(shard) for shard in self.plan.hosts[host]), now_s)
        if self.phase is not Phase.GATHERING:
            if not self._over:
                self._host_is_back(host, now_s)
        elif len(self.hosts) == len(self.plan.hosts):
            self._go_back(self.plan.shards, now_s)
        return self._take()

    def on_host_lost(self, host: HostId, how: str, now_s: float) -> list[Order]:
        """A host's process is gone, or silent for too long."""
        if host in self.hosts and not self._over:
            del self.hosts[host]
            what = f"host {host} ({how})"
            self._failure(what, self.plan.hosts[host], host, None, now_s)
        return self._take()

    def on_start_failed(self, host: HostId, error: EverstreamError, now_s: float) -> list[Order]:
        """A host could not even start; Spark will try again, but not for ever."""
        if not self._over:
            self._note(f"host {host} could not start: {error.message}", True)
            if not self.budget.spend(now_s):
                message = f"host {host} could not start, more than {self.policy.max_restarts} times"
                self._end(Outcome.FAILED, RunFailed(message, error))
        return self._take()

    def on_injected_kill(self, host: HostId, now_s: float) -> None:
        """We are about to kill this host ourselves: that is not held against the pipeline."""
        self._injected[host] = now_s

    @abstractmethod
    def on_report(self, report: Any, now_s: float) -> list[Order]:
        """A shard says something."""

    @abstractmethod
    def on_manifest_written(self, now_s: float) -> list[Order]:
        """What it says is stable from here on, whatever fails next."""

    def on_manifest_failed(self, error: EverstreamError, now_s: float) -> list[Order]:
        """The manifest is known not to be there."""
        manifest, self._writing = self._writing, None
        assert manifest is not None
        if isinstance(error, LeaseLost) and not self._over:
            self._end(Outcome.FAILED, RunFailed(f"this driver was replaced: {error}", error))
        elif not self._over:
            self._not_written(manifest, error, now_s)
        return self._take()

    @abstractmethod
    def _not_written(self, manifest: EpochManifest, error: EverstreamError, now_s: float) -> None:
        """Go on without what the manifest would have made stable."""

    @abstractmethod
    def on_tick(self, now_s: float) -> list[Order]:
        """Time has passed."""

    @abstractmethod
    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Stop with a checkpoint, so that the next run goes on from here."""

    @abstractmethod
    def _host_is_back(self, host: HostId, now_s: float) -> None:
        """A host that was lost has started again."""

    @abstractmethod
    def _go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """These shards have lost their state."""

    # How it is done.

    def _progressed(self, report: Progress, now_s: float) -> None:
        self.progress[report.shard] = report
        if self.book.unfinished and self.phase in (Phase.RUNNING, Phase.FINISHING):
            self.book.progressed(self.totals(), self.records_read(), now_s)

    def _failure(
        self,
        what: str,
        shards: Sequence[ShardId],
        host: HostId | None,
        error: EverstreamError | None,
        now_s: float,
    ) -> None:
        killed_s = self._injected.pop(host, None) if host is not None else None
        goal = self.totals()
        for name, count in self.book.goal().items():
            goal[name] = max(count, goal.get(name, 0))
        self.book.open(
            RecoveryReport(
                what=what,
                shards=tuple(str(shard) for shard in shards),
                injected=killed_s is not None,
                detected_s=now_s,
                failed_s=killed_s,
                records_read=max(self.records_read(), self.book.records_read()),
                goal=goal,
            )
        )
        self._note(f"{what}: {self._plan_of_return()}", killed_s is None)
        if killed_s is None and not self.budget.spend(now_s, host):
            limit, window_s = self.policy.max_restarts, self.policy.restart_window_s
            message = f"{what}: more than {limit} failures within {window_s:g} s"
            self._end(Outcome.FAILED, RunFailed(message, error))
            return
        if self.phase is not Phase.GATHERING:
            self._go_back(shards, now_s)

    def _link_cut(self, cut: LinkCut, now_s: float) -> None:
        """What was on its way between two hosts is gone: both have lost their place."""
        what = f"the connection from host {cut.sender} to host {cut.receiver} was cut ({cut.how})"
        shards = [*self.plan.hosts[cut.sender], *self.plan.hosts[cut.receiver]]
        self._failure(what, shards, None, EnvironmentFault(what), now_s)

    def _shown(self) -> dict[str, int]:
        """Sinks that show nothing twice -> records they have taken."""
        totals = self.totals()
        return {sink: totals.get(sink, 0) for sink in shown_once(self.plan)}

    def _say_what_is_slow(self, now_s: float) -> None:
        waits_for, missing = self._waiting()
        waited_s = self.patience.lost_with(waits_for, now_s)
        if waited_s is not None:
            others = f"; still missing: {listed(sorted(missing))}" if missing else ""
            self._note(f"{waits_for} is taking longer than {waited_s:.3g} s{others}", True)

    def _waiting(self) -> tuple[str | None, list[str]]:
        """What the run waits for at this moment, and which shards have not answered."""
        if self.phase is Phase.FINISHING:
            return "committing the last results", [str(shard) for shard in self._committing]
        return None, []

    @abstractmethod
    def _plan_of_return(self) -> str:
        """What follows a failure, in words."""

    def _watch_loops(self) -> None:
        """Once the sources have ended, ask around the cycles whether anything moves."""
        if not self._loops or self.phase is not Phase.RUNNING:
            return
        ended = {shard for shard, report in self.progress.items() if report.ended}
        if not ended.issuperset(self.plan.source_shards()):
            return
        for number, watch in enumerate(self._loops):
            if watch.complete and not watch.over:
                question = Probe(number, watch.next_round())
                for host in self.hosts:
                    self._send(host, question)

    def _on_census(self, answer: Census) -> None:
        for number, watch in enumerate(self._loops):
            before = watch.over
            watch.on_census(answer)
            if watch.over and not before:
                for host in self.hosts:
                    self._send(host, EndLoop(number, self.generation))

    def _reset_loops(self) -> None:
        for watch in self._loops:
            watch.reset()

    def _end_when_committed(self, now_s: float) -> None:
        if self.phase is Phase.FINISHING and not self._committing:
            self.book.ended(now_s)
            final = bool(self.manifests) and self.manifests[0].final
            self._end(Outcome.FINISHED if final else Outcome.STOPPED)

    def _end(self, outcome: Outcome, error: EverstreamError | None = None) -> None:
        self.phase = Phase.DONE
        for host in self.hosts:
            self._send(host, Shutdown())
        self._orders.append(EndRun(outcome, error))

    def _send(self, host: HostId, command: Any) -> None:
        self._orders.append(SendTo(host, command))

    def _note(self, text: str, warning: bool = False) -> None:
        self._orders.append(Note(text, warning))

    def _take(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders
