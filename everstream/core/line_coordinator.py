"""The coordinator of uncoordinated and communication-induced checkpoints.

Shards checkpoint when they like; the coordinator keeps the book. Whenever a checkpoint arrives it
looks for the worst-case line: the newest checkpoints that agree if everybody died now. When that
line has moved it becomes the next manifest, and everything before it is stable: sinks show it,
logs are cut, older checkpoints go.

After a failure only those go back who must:

    failed ──► those downstream halt and say how far they are ──► the recovery line is known
           ──► who is not on it goes back, neighbours get ready ──► all are back ──► they resume

Shards that are not downstream of a failure never stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everstream.core.control import KEPT_MANIFESTS, RETRY_S, RunControl
from everstream.core.ids import NO_EPOCH, Epoch, Generation, HostId, ShardId
from everstream.core.line_book import LineBook
from everstream.core.manifest import EpochManifest, shard_counts, still_valid
from everstream.core.message_log import LogKind
from everstream.core.messages import (
    Census,
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    Halt,
    Halted,
    LinkCut,
    Progress,
    Recover,
    Restored,
    RestoreFailed,
    Resume,
    Rewired,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import Discard, Order, Outcome, Phase, Policy, WriteManifest
from everstream.core.plan import Plan
from everstream.errors import EverstreamError, RunFailed


@dataclass
class Recovery:
    """One return to a recovery line, from the failure until everybody runs."""

    generation: Generation
    failed: set[ShardId]
    halting: set[ShardId]
    """Shards that have not yet said how far they are."""
    halted: dict[ShardId, Halted] = field(default_factory=dict)
    command: Recover | None = None
    """Who goes back to what, once it is known."""
    waiting: set[ShardId] = field(default_factory=set)
    """Shards that are not ready yet."""


class LineCoordinator(RunControl):
    """Uncoordinated checkpoints: each shard has its own numbers, and only some go back."""

    names_what_goes = True

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest] = (),
        log: LogKind = "durable",
    ) -> None:
        super().__init__(plan, policy, generation, manifests)
        self._log = log
        self.generations = dict.fromkeys(plan.shards, generation)
        self.lines = LineBook(plan, manifests)
        self._recovery: Recovery | None = None
        self._fallback: EpochManifest | None = None
        """An older line that must be the newest in the store before anybody goes back to it."""
        self._unreadable: tuple[ShardId, str] | None = None
        """A shard whose newest checkpoint cannot be read, found out while a line is written."""
        self._epochs = max((manifest.epoch for manifest in manifests), default=NO_EPOCH)
        self._began_s: float | None = None
        self._ask_at_s: float | None = None
        self._asked_to_stop = False
        self.lines.start_from(self.line)

    @property
    def stable_numbers(self) -> dict[ShardId, Epoch]:
        line = self.line
        return {s: line[s].number if s in line else NO_EPOCH for s in self.plan.shards}

    # Reports.

    def on_report(self, report: Any, now_s: float) -> list[Order]:
        if self._over:
            return self._take()
        recovery = self._recovery
        if isinstance(report, LinkCut):
            if report.generation == self.generation:
                self._link_cut(report, now_s)
            return self._take()
        if isinstance(report, Halted | Restored | Rewired | RestoreFailed):
            if recovery is not None and report.generation == recovery.generation:
                self._on_recovery_report(recovery, report, now_s)
            return self._take()
        shard = report.record.shard if isinstance(report, CheckpointTaken) else report.shard
        if report.generation != self.generations[shard]:
            return self._take()
        match report:
            case Progress():
                self._progressed(report, now_s)
            case Census():
                self._on_census(report)
            case CheckpointTaken(record=record):
                self.tally.add(record)
                self.tally.log_bytes += self.lines.add(record, now_s)
                self._advance_line(now_s)
            case CheckpointFailed(epoch=number, reason=reason, final=final):
                self._note(f"{shard} could not save checkpoint {number}: {reason}", True)
                if final or self._stop is not None:
                    self._ask_at_s = now_s + RETRY_S
            case Committed(epoch=number):
                if number >= self.stable_numbers[shard]:
                    self._committing.discard(shard)
                self._end_when_committed(now_s)
            case ShardFailed(error=error):
                self._failure(f"{shard} failed", [shard], None, error, now_s)
        return self._take()

    def _on_recovery_report(self, recovery: Recovery, report: Any, now_s: float) -> None:
        match report:
            case Halted(shard=shard):
                recovery.halted[shard] = report
                recovery.halting.discard(shard)
                self._decide_when_known(now_s)
            case Restored(shard=shard) | Rewired(shard=shard):
                recovery.waiting.discard(shard)
                self._resume_when_ready(now_s)
            case RestoreFailed(shard=shard, reason=reason):
                self._give_up(shard, reason, now_s)

    # The worst-case line.

    def _advance_line(self, now_s: float) -> None:
        """Write the worst-case line if it has moved."""
        if self._writing is not None or self.phase in (Phase.GATHERING, Phase.DONE):
            return
        records = self.lines.worst_case_line()
        if all(
            records[shard].number == number if shard in records else not number
            for shard, number in self.stable_numbers.items()
        ):
            return
        whole = len(records) == len(self.plan.shards)
        self._epochs = Epoch(self._epochs + 1)
        self._writing = EpochManifest(
            epoch=self._epochs,
            records=records,
            pipeline=self.plan.graph.name,
            final=whole and all(record.final for record in records.values()),
            began_s=now_s,
            shard_counts=shard_counts(self.plan),
            log=self._log,
        )
        self._orders.append(WriteManifest(self._writing))

    def on_manifest_written(self, now_s: float) -> list[Order]:
        """What is before the line is stable from here on, whatever fails next."""
        manifest, self._writing = self._writing, None
        assert manifest is not None
        self.manifests = still_valid([manifest, *self.manifests])
        del self.manifests[KEPT_MANIFESTS:]
        if self._over:
            return self._take()
        if manifest is self._fallback:
            self._fallback = None
            self.lines.start_from(self.line)
            self._go_back(self.plan.shards, now_s)
            return self._take()
        self.lines.forget_before(self.stable_numbers)
        self._discard()
        self._tell_stable()
        if self._recovery is None:
            self._finish_if_last(now_s)
        self._give_up_unreadable(now_s)
        self._advance_line(now_s)
        return self._take()

    def _give_up_unreadable(self, now_s: float) -> None:
        if self._unreadable is not None:
            (shard, reason), self._unreadable = self._unreadable, None
            self._give_up(shard, reason, now_s)

    def _not_written(self, manifest: EpochManifest, error: EverstreamError, now_s: float) -> None:
        """The line has not moved; it will be tried again with the next checkpoint."""
        self._note(f"line {manifest.epoch} could not be saved: {error}", True)
        if self._fallback is not None:
            self._fallback = None
            self._go_back(self.plan.shards, now_s)
        self._ask_at_s = now_s + RETRY_S
        self._give_up_unreadable(now_s)

    def _tell_stable(self) -> None:
        received = {name: n for r in self.line.values() for name, n in r.received.items()}
        stable = Stable(self.stable_epoch, self.stable_numbers, received)
        for host in self.hosts:
            self._send(host, stable)

    def _discard(self) -> None:
        gone = self.lines.take_unneeded(self.manifests)
        if gone:
            self._orders.append(Discard(gone))

    def _is_last(self) -> bool:
        """The line is the end of the run: everybody has ended, or has stopped as asked."""
        line = self.line
        return len(line) == len(self.plan.shards) and all(
            record.final or (record.stopped and self._stop is not None) for record in line.values()
        )

    def _finish_if_last(self, now_s: float) -> None:
        if self._is_last():
            self.phase = Phase.FINISHING
            self._committing = set(self.plan.sink_shards())
            self._end_when_committed(now_s)

    # Time and wishes.

    def on_tick(self, now_s: float) -> list[Order]:
        self._say_what_is_slow(now_s)
        self._watch_loops()
        if self.phase is Phase.RUNNING and self._recovery is None:
            if self._stop is not None and not self._asked_to_stop:
                self._asked_to_stop = True
                self._ask_at_s = now_s
            if self._ask_at_s is not None and now_s >= self._ask_at_s:
                self._ask_at_s = None
                for host in self.hosts:
                    self._send(host, StartCheckpoint(NO_EPOCH, stop=self._stop is not None))
                self._advance_line(now_s)
        return self._take()

    def on_stop(self, reason: str, now_s: float) -> list[Order]:
        """Each shard stops where it stands, with a checkpoint; what is in transit is logged."""
        if self._stop is None and self.phase not in (Phase.FINISHING, Phase.DONE):
            self._stop = reason
            if self.phase is Phase.GATHERING:
                self._end(Outcome.STOPPED)
        return self._take() + self.on_tick(now_s)

    def _waiting(self) -> tuple[str | None, list[str]]:
        recovery = self._recovery
        if self._writing is not None:
            return f"writing the manifest of line {self._writing.epoch}", []
        if recovery is not None and recovery.halting:
            return f"halting (generation {recovery.generation})", [str(s) for s in recovery.halting]
        if recovery is not None and len(self.hosts) == len(self.plan.hosts):
            what = f"restoring (generation {recovery.generation})"
            return what, [str(shard) for shard in recovery.waiting]
        return super()._waiting()

    # Going back.

    def _plan_of_return(self) -> str:
        return "looking for the recovery line"

    def _go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """Find out how far those are who may have received what was never sent."""
        earlier, lost = self._recovery, set(failed)
        if earlier is not None:
            lost |= earlier.failed
            lost |= set(earlier.command.records) if earlier.command is not None else set()
        self.phase = Phase.RESTORING
        self.generation = Generation(self.generation + 1)
        self._reset_loops()
        affected = self.lines.downstream(lost)
        self._recovery = Recovery(self.generation, lost, set(affected))
        halt = Halt(self.generation, frozenset(affected))
        for host in self._hosts_of(affected):
            self._send(host, halt)
        self._decide_when_known(now_s)

    def _hosts_of(self, shards: set[ShardId]) -> list[HostId]:
        return [h for h in self.hosts if not shards.isdisjoint(self.plan.hosts[h])]

    def _decide_when_known(self, now_s: float) -> None:
        recovery = self._recovery
        if recovery is None or recovery.halting or recovery.command or self._fallback:
            return
        back = self.lines.going_back(recovery.failed, recovery.halted)
        began_s = self._began_s if self._began_s is not None else now_s
        distance = self.lines.distance(back, began_s, now_s)
        self.book.going_back([str(shard) for shard in back], *distance)
        for shard, record in back.items():
            self.lines.give_up_after(shard, record)
            self.generations[shard] = recovery.generation
            counts = record.counts if record is not None else {}
            lost = record.lost_frames if record is not None else 0
            self.progress[shard] = Progress(shard, recovery.generation, counts, lost_frames=lost)
        touched = [c for c in self.plan.channels if c.sender in back or c.receiver in back]
        recovery.waiting = {end for c in touched for end in (c.sender, c.receiver)} | set(back)
        received: dict[str, int] = {}
        for channel in touched:
            shard = channel.receiver
            at = back[shard] if shard in back else recovery.halted[shard]
            received[str(channel)] = at.received.get(str(channel), 0) if at is not None else 0
        numbers = self.stable_numbers
        recovery.command = Recover(
            recovery.generation, back, {shard: numbers[shard] for shard in back}, received
        )
        for host in self.hosts:
            self._send(host, recovery.command)
        self._resume_when_ready(now_s)

    def _host_is_back(self, host: HostId, now_s: float) -> None:
        recovery = self._recovery
        if recovery is not None and recovery.command is not None:
            self._send(host, recovery.command)
            self._resume_when_ready(now_s)

    def _resume_when_ready(self, now_s: float) -> None:
        recovery = self._recovery
        if recovery is None or recovery.command is None or recovery.waiting:
            return
        if len(self.hosts) < len(self.plan.hosts):
            return
        self._recovery = None
        self._asked_to_stop = False
        self._began_s = now_s if self._began_s is None else self._began_s
        self.book.resumed(self.stable_epoch, self.records_read(), now_s, self._shown())
        for host in self.hosts:
            self._send(host, Resume(recovery.generation, dict(self.hosts)))
        self.phase = Phase.RUNNING
        self._tell_stable()
        self._finish_if_last(now_s)
        self._advance_line(now_s)

    def _give_up(self, shard: ShardId, reason: str, now_s: float) -> None:
        """A checkpoint cannot be read: do without it, and say so."""
        if self._writing is not None:
            # It may be about to become stable: until the store has answered nobody knows.
            self._unreadable = (shard, reason)
            return
        history = self.lines.histories[shard]
        stable = self.stable_numbers[shard]
        if history and history[-1].number > stable:
            broken = history.pop()
            self._note(f"checkpoint {broken.number} of {shard} is left out: {reason}", True)
            self._go_back([shard], now_s)
            return
        if self.stable_epoch == NO_EPOCH:
            self._end(Outcome.FAILED, RunFailed(f"{shard} cannot start: {reason}"))
            return
        start = EpochManifest(NO_EPOCH, {}, self.plan.graph.name, log=self._log)
        older = self.manifests[1] if len(self.manifests) > 1 else start
        to = "the start" if older.epoch == NO_EPOCH else f"line {older.epoch}"
        self._note(
            f"line {self.stable_epoch} cannot be restored ({shard}: {reason}); falling back to "
            f"{to}",
            True,
        )
        # On the way back sinks take back what the broken line showed, so before anybody goes
        # back the older line is written again, as the newest.
        self._fallback = self._writing = older
        self._orders.append(WriteManifest(older))
