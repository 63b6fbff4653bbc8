"""Checkpoints that each shard takes at its own times, and the recovery line among them.

Whenever a checkpoint arrives, the strategy looks for the worst-case line: the newest checkpoints
that agree if all shards failed now. When that line has moved it becomes the next manifest, and
everything before it is stable: sinks commit it, logs are cut, older checkpoints are deleted.

After a failure only the shards that have to roll back do so:

    failed ──► shards downstream halt and report their positions ──► the recovery line is known
           ──► shards beyond it roll back, neighbours rewire ──► all are ready ──► they resume

Shards that are not downstream of a failure never stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, assert_never

from everstream.core.checkpointing.manifest import EpochManifest, epoch_manifest, fall_back
from everstream.core.checkpointing.record import CheckpointRecord, LogKind
from everstream.core.coordinators.checkpoint_index import CheckpointIndex
from everstream.core.coordinators.strategy import (
    NOT_BEGUN,
    RETRY_S,
    THE_STORE,
    CheckpointStrategy,
    ReturnReport,
    StrategyRun,
    Wait,
)
from everstream.core.ids import (
    NO_CHECKPOINT,
    NO_EPOCH,
    CheckpointNumber,
    Epoch,
    Generation,
    ShardId,
    WorkerId,
)
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
    Report,
    Restored,
    RestoreFailed,
    Rewired,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import Discard, Outcome, Phase
from everstream.errors import EverstreamError, RunFailed
from everstream.events import StoreDamaged


@dataclass
class Rollback:
    """One rollback to a recovery line, from the failure until all shards run."""

    generation: Generation
    failed: set[ShardId]
    halting: set[ShardId]
    """Shards that have not reported their position yet."""
    halted: dict[ShardId, Halted] = field(default_factory=dict)
    command: Recover | None = None
    """Which shards roll back to which checkpoints, once that is known."""
    waiting: set[ShardId] = field(default_factory=set)
    """Shards that are not ready yet."""


class IndependentStrategy(CheckpointStrategy):
    """Uncoordinated and induced checkpoints: shards number their own, and only some roll back."""

    names_what_goes: ClassVar[bool] = True

    def __init__(self, run: StrategyRun, log: LogKind = "durable") -> None:
        self._run = run
        self._log = log
        self._generations = dict.fromkeys(run.plan.shards, run.generation)
        self._lines = CheckpointIndex(run.plan, run.stored_manifests)
        self._rollback: Rollback | None = None
        self._fallback: EpochManifest | None = None
        """An older line that must be the newest in the store before any shard rolls back to it."""
        self._unreadable: tuple[ShardId, str] | None = None
        """A shard whose newest checkpoint is unreadable, found while a line is being written."""
        self._epochs = max((manifest.epoch for manifest in run.stored_manifests), default=NO_EPOCH)
        self._began_s: float | None = None
        self._ask_at_s: float | None = None
        self._asked_to_stop = False
        self._stops_after: dict[ShardId, CheckpointNumber] | None = None
        """The newest checkpoints when this stop was requested. Checkpoints of an earlier stop that
        was broken off (because its driver died, for example) are marked as stopped, too, but do not
        count."""
        self._wanted: dict[str, int] | None = None
        """Operator -> records that a caller waits for to be before the line."""
        self._lines.start_from(run.line)

    @property
    def _stable_numbers(self) -> dict[ShardId, CheckpointNumber]:
        return {shard: self.last_number(shard) for shard in self._run.plan.shards}

    # Reports.

    def is_current(self, report: Report) -> bool:
        match report:
            case LinkCut():
                return report.generation == self._run.generation
            case Halted() | Restored() | Rewired() | RestoreFailed():
                rollback = self._rollback
                return rollback is not None and report.generation == rollback.generation
            case (
                Progress()
                | Census()
                | CheckpointTaken()
                | CheckpointFailed()
                | Committed()
                | ShardFailed()
            ):
                return report.generation == self._generations[report.shard]
            case _:
                assert_never(report)

    def last_number(self, shard: ShardId) -> CheckpointNumber:
        line = self._run.line
        return line[shard].number if shard in line else NO_CHECKPOINT

    def on_checkpoint(self, record: CheckpointRecord, now_s: float) -> None:
        self._run.good(record.number, record.shard)
        self._run.logged(self._lines.add(record, now_s))
        self._advance_line(now_s)

    def on_checkpoint_failed(self, report: CheckpointFailed, now_s: float) -> None:
        what = f"{report.shard} could not save checkpoint {report.number}"
        self._run.give_up(report.number, what, report.reason, report.shard)
        if report.final or self._run.stop is not None:
            self._ask_at_s = now_s + RETRY_S

    def on_return(self, report: ReturnReport, now_s: float) -> None:
        rollback = self._rollback
        assert rollback is not None
        match report:
            case Halted(shard=shard):
                rollback.halted[shard] = report
                rollback.halting.discard(shard)
                self._decide_when_known(now_s)
            case Restored(shard=shard) | Rewired(shard=shard):
                rollback.waiting.discard(shard)
                self._resume_when_ready(now_s)
            case RestoreFailed(shard=shard, reason=reason):
                self._give_up(shard, reason, now_s)
            case _:
                assert_never(report)

    # The worst-case line.

    def _advance_line(self, now_s: float) -> None:
        """Write the worst-case line if it has moved."""
        run = self._run
        if run.writing is not None or run.phase in (Phase.GATHERING, Phase.DONE):
            return
        records = self._lines.worst_case_line()
        if all(
            records[shard].number == number if shard in records else not number
            for shard, number in self._stable_numbers.items()
        ):
            return
        self._epochs = Epoch(self._epochs + 1)
        run.write(
            epoch_manifest(
                run.plan, self._epochs, records, run.newest, began_s=now_s, log=self._log
            )
        )

    def on_manifest_written(self, manifest: EpochManifest, now_s: float) -> None:
        """Everything before the line is stable from here on, whatever fails next."""
        run = self._run
        run.good(manifest.epoch)
        if manifest is self._fallback:
            self._fallback = None
            self._lines.start_from(run.line)
            self.go_back(run.plan.shards, now_s)
            return
        self._lines.forget_before(self._stable_numbers)
        if self._wanted is not None and self._is_covered(self._wanted):
            self._wanted = None
        gone = self._lines.take_unneeded(run.manifests)
        if gone:
            run.outbox.add(Discard(gone))
        self._tell_stable()
        if self._rollback is None:
            self._finish_if_last(now_s)
        self._give_up_unreadable(now_s)
        self._advance_line(now_s)

    def on_begun(self, now_s: float) -> None:
        self._resume_when_ready(now_s)
        self._give_up_unreadable(now_s)

    def on_manifest_failed(
        self, manifest: EpochManifest, error: EverstreamError, now_s: float
    ) -> None:
        """The line has not moved; the next checkpoint retries it."""
        begins = manifest is self._run.unwritten
        what = NOT_BEGUN if begins else f"line {manifest.epoch} could not be saved"
        self._run.give_up(manifest.epoch, what, str(error))
        if self._run.over:
            return
        if self._fallback is not None:
            self._fallback = None
            self.go_back(self._run.plan.shards, now_s)
        self._ask_at_s = now_s + RETRY_S
        self._give_up_unreadable(now_s)

    def _tell_stable(self) -> None:
        run = self._run
        received = {name: n for r in run.line.values() for name, n in r.received.items()}
        numbers, every_s = self._stable_numbers, run.changed_every_s
        run.tell_all(Stable(run.stable_epoch, numbers, received, every_s))

    def _is_last(self) -> bool:
        """The line is the end of the run: all shards have ended, or have stopped as requested."""
        line = self._run.line
        return len(line) == len(self._run.plan.shards) and all(
            record.final or self._has_stopped(shard, record) for shard, record in line.items()
        )

    def _has_stopped(self, shard: ShardId, record: CheckpointRecord) -> bool:
        if self._run.stop is None or self._stops_after is None:
            return False
        return record.stopped and record.number > self._stops_after[shard]

    def _finish_if_last(self, now_s: float) -> None:
        if self._is_last():
            self._run.finish(self._run.plan.sink_shards(), now_s)

    # Time and requests.

    def on_asked(self, now_s: float) -> None:
        """The line follows later: a shard may have received records that are in no checkpoint of
        its sender.

        So all shards are asked repeatedly until it has followed, as often as the graph is deep.
        """
        totals = self._run.progress.totals()
        if not self._is_covered(totals):
            self._wanted = totals
            self._ask_at_s = now_s

    @property
    def is_asked(self) -> bool:
        return self._wanted is not None

    def _is_covered(self, wanted: dict[str, int]) -> bool:
        covered = dict.fromkeys(wanted, 0)
        for record in self._run.line.values():
            for name, (records_in, records_out) in record.counts.items():
                source = name in self._run.progress.sources
                covered[name] = covered.get(name, 0) + (records_out if source else records_in)
        return all(covered[name] >= count for name, count in wanted.items())

    def on_tick(self, now_s: float) -> None:
        run = self._run
        if run.unwritten is not None and now_s >= (self._ask_at_s or now_s):
            self._resume_when_ready(now_s)
        if run.phase is not Phase.RUNNING or self._rollback is not None:
            return
        if self.is_asked and self._ask_at_s is None:
            self._ask_at_s = now_s + RETRY_S
        if run.stop is None:
            self._stops_after = None
        elif self._stops_after is None:
            self._stops_after = self._lines.newest_numbers()
        if run.stop is not None and not self._asked_to_stop:
            self._asked_to_stop = True
            self._ask_at_s = now_s
        if self._ask_at_s is not None and now_s >= self._ask_at_s:
            self._ask_at_s = None
            stop = run.stop is not None
            run.tell_all(StartCheckpoint(NO_EPOCH, stop, self.is_asked and not stop))
            self._advance_line(now_s)

    def waits_for(self) -> Wait | None:
        run, rollback = self._run, self._rollback
        if run.writing is not None:
            return Wait(f"writing the manifest of line {run.writing.epoch}", why=THE_STORE)
        if rollback is not None and rollback.halting:
            return Wait(f"halting (generation {rollback.generation})", tuple(rollback.halting))
        if rollback is not None and run.workers.complete:
            return Wait(f"restoring (generation {rollback.generation})", tuple(rollback.waiting))
        return None

    # Rolling back.

    def resumes_from(self) -> int | None:
        return None

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """Ask shards that may have received records that were never sent for their positions."""
        run, earlier, lost = self._run, self._rollback, set(failed)
        if earlier is not None:
            lost |= earlier.failed
            lost |= set(earlier.command.records) if earlier.command is not None else set()
        generation = run.next_generation()
        affected = self._lines.downstream(lost)
        self._rollback = Rollback(generation, lost, set(affected))
        halt = Halt(generation, frozenset(affected))
        for worker in run.workers.of(affected):
            run.outbox.send(worker, halt)
        self._decide_when_known(now_s)

    def _decide_when_known(self, now_s: float) -> None:
        run, rollback = self._run, self._rollback
        if rollback is None or rollback.halting or rollback.command or self._fallback:
            return
        back = self._lines.going_back(rollback.failed, rollback.halted)
        began_s = self._began_s if self._began_s is not None else now_s
        distance = self._lines.distance(back, began_s, now_s)
        run.going_back(back, *distance)
        for shard, record in back.items():
            self._lines.give_up_after(shard, record)
            self._generations[shard] = rollback.generation
            if self._stops_after is not None:  # later numbers will be used again
                number = record.number if record is not None else NO_CHECKPOINT
                self._stops_after[shard] = min(self._stops_after[shard], number)
        run.went_back(back.items())
        rollback.command = self._recover_command(rollback, back)
        run.tell_all(rollback.command)
        self._resume_when_ready(now_s)

    def _recover_command(
        self, rollback: Rollback, back: dict[ShardId, CheckpointRecord | None]
    ) -> Recover:
        """Which shards roll back to what, and what neighbours must know; waits for all of them."""
        touched = [c for c in self._run.plan.channels if c.sender in back or c.receiver in back]
        rollback.waiting = {end for c in touched for end in (c.sender, c.receiver)} | set(back)
        received: dict[str, int] = {}
        for channel in touched:
            shard = channel.receiver
            at = back[shard] if shard in back else rollback.halted[shard]
            received[str(channel)] = at.received.get(str(channel), 0) if at is not None else 0
        numbers = self._stable_numbers
        stable = {shard: numbers[shard] for shard in back}
        takes_back, reason = self._run.takes_back, self._run.rollback_reason
        return Recover(
            rollback.generation, back, stable, received, takes_back, reason, self._run.attempt
        )

    def on_worker_back(self, worker: WorkerId, now_s: float) -> None:
        rollback = self._rollback
        if rollback is not None and rollback.command is not None:
            self._run.outbox.send(worker, rollback.command)
            self._resume_when_ready(now_s)

    def _resume_when_ready(self, now_s: float) -> None:
        run, rollback = self._run, self._rollback
        if rollback is None or rollback.command is None or rollback.waiting:
            return
        if not run.workers.complete or run.write_unwritten():
            return
        self._rollback = None
        self._asked_to_stop = False
        self._began_s = now_s if self._began_s is None else self._began_s
        run.resume(rollback.generation, now_s)
        self._tell_stable()
        self._finish_if_last(now_s)
        self._advance_line(now_s)

    def _give_up(self, shard: ShardId, reason: str, now_s: float) -> None:
        """A checkpoint cannot be read: do without it, and report that."""
        run = self._run
        if run.writing is not None:
            # It may be about to become stable: that is unknown until the store has answered.
            self._unreadable = (shard, reason)
            return
        history = self._lines.histories[shard]
        if history and history[-1].number > self.last_number(shard):
            broken = history.pop()
            run.outbox.tell(StoreDamaged(f"checkpoint {broken.number} of {shard}", reason))
            self.go_back([shard], now_s)
            return
        decision = fall_back(run.manifests, "line", reason, shard)
        if isinstance(decision, RunFailed):
            run.end(Outcome.FAILED, decision)
            return
        run.outbox.tell(decision.damaged)
        self._fallback = replace(decision.manifest, log=self._log)
        run.write(self._fallback)

    def _give_up_unreadable(self, now_s: float) -> None:
        if self._unreadable is not None:
            (shard, reason), self._unreadable = self._unreadable, None
            self._give_up(shard, reason, now_s)
