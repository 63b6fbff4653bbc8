"""What is known of a run: shared by its coordinator and the keeper of its checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.coordinators.committing import Committing
from everstream.core.coordinators.headway import Headway
from everstream.core.coordinators.loops import Loops
from everstream.core.coordinators.membership import Membership
from everstream.core.coordinators.outbox import Outbox
from everstream.core.coordinators.restarts import Restarts
from everstream.core.coordinators.settling import Settling
from everstream.core.coordinators.tally import CheckpointTally
from everstream.core.ids import NO_EPOCH, Epoch, Generation, ShardId
from everstream.core.manifest import KEPT_MANIFESTS, EpochManifest, still_valid
from everstream.core.messages import Command, Resume, Shutdown
from everstream.core.orders import (
    PHASE_MOVES,
    Dismiss,
    EndRun,
    Outcome,
    Phase,
    Policy,
    WriteManifest,
)
from everstream.core.plan import Plan
from everstream.errors import EverstreamError, InternalError, RunFailed

RETRY_S = 1.0
"""After a checkpoint failed, the next one waits this long."""


class RunState:
    """The parts of a coordinator, each with a job of its own, and what they have in common."""

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        generation: Generation,
        manifests: Sequence[EpochManifest],
    ) -> None:
        self.plan = plan
        self.policy = policy
        self.every_s = policy.every_s
        """The time between two epochs; may be changed while the run goes on."""
        self.generation = generation
        self._phase = Phase.GATHERING
        self.stop: str | None = None
        """Why somebody wants the run to stop with a checkpoint."""
        self.found = tuple(manifests)
        """What the store held at the start, newest first, given up or not."""
        # When they began was told by the clock of another process: it means nothing here.
        self.manifests = [replace(manifest, began_s=0.0) for manifest in still_valid(manifests)]
        """Where we can go back to, newest first."""
        self.writing: EpochManifest | None = None
        """On its way to the store: until it has answered, nobody knows which is the newest."""
        self.outbox = Outbox()
        self.hosts = Membership(plan)
        self.headway = Headway(plan)
        self.restarts = Restarts(policy, self.headway)
        self.loops = Loops(plan.cycles)
        self.settling = Settling(plan.shards)
        self.committing = Committing()
        self.tally = CheckpointTally()

    def goes_on_from(self, before: "RunState") -> None:
        """The same run, which had other shards until now: what it has counted goes on."""
        self.every_s = before.every_s
        self.tally = before.tally
        self.restarts = before.restarts
        self.restarts.goes_on_with(self.headway)

    @property
    def phase(self) -> Phase:
        return self._phase

    def _enter(self, phase: Phase) -> None:
        if phase not in PHASE_MOVES[self._phase]:
            raise InternalError(f"a run cannot go from {self._phase.value} to {phase.value}")
        self._phase = phase

    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]:
        """The checkpoints we would go back to if everything failed now."""
        return self.manifests[0].records if self.manifests else {}

    @property
    def stable_epoch(self) -> Epoch:
        return self.manifests[0].epoch if self.manifests else NO_EPOCH

    @property
    def returns(self) -> tuple[int, ...]:
        """The epochs that were gone back to for good, by this run or one before it."""
        return self.manifests[0].returns if self.manifests else ()

    @property
    def most_shards(self) -> dict[str, int]:
        return self.manifests[0].most_shards if self.manifests else {}

    @property
    def older_manifest(self) -> EpochManifest | None:
        """Where to go back to if the newest cannot be restored.

        Never the start: output was committed since, and sources may have forgotten what they gave.
        """
        older = self.manifests[1] if len(self.manifests) > 1 else None
        if older is None or older.epoch == NO_EPOCH:
            return None
        return self.manifests[0].gone_back_to(older)

    @property
    def final(self) -> bool:
        """The newest manifest is that of a pipeline that is done."""
        return bool(self.manifests) and self.manifests[0].final

    @property
    def stop_patience_s(self) -> float:
        """How long a stop waits for its checkpoint: at least as long as those before it took."""
        newest_s = self.manifests[0].duration_s if self.manifests else 0.0
        return min(self.policy.checkpoint_timeout_s, max(self.policy.stop_grace_s, 3 * newest_s))

    @property
    def over(self) -> bool:
        return self.phase is Phase.DONE

    def tell_all(self, command: Command) -> None:
        for host in self.hosts:
            self.outbox.send(host, command)

    def write(self, manifest: EpochManifest) -> None:
        self.writing = manifest
        self.outbox.add(WriteManifest(manifest))

    def keep(self, manifest: EpochManifest) -> None:
        """This manifest is the newest in the store."""
        self.manifests = still_valid([manifest, *self.manifests])
        del self.manifests[KEPT_MANIFESTS:]

    def next_generation(self) -> Generation:
        """Somebody goes back: what was sent before is void where it matters."""
        self._enter(Phase.RESTORING)
        if self.settling.wanted:
            self.settling.interrupt()
            self.stop = None  # nobody may stop before everything stands still again
        self.generation = Generation(self.generation + 1)
        return self.generation

    def resume(self, generation: Generation, now_s: float) -> None:
        """Everybody is back: run."""
        self.restarts.book.resumed(
            self.stable_epoch, self.headway.records_read(), now_s, self.headway.shown()
        )
        self.tell_all(Resume(generation, self.hosts.addresses))
        self._enter(Phase.RUNNING)

    def finish(self, waiting_for: Sequence[ShardId], now_s: float) -> None:
        """The last epoch is stable: the run is over once these have committed it."""
        self._enter(Phase.FINISHING)
        self.committing.begin(waiting_for)
        self.end_when_committed(now_s)

    def end_when_committed(self, now_s: float) -> None:
        if self.phase is not Phase.FINISHING or not self.committing.done:
            return
        if self.settling.wanted and not self.final:
            if self.writing is None:  # what is written last is what others go on from
                self.end(Outcome.SETTLED)
            return
        self.restarts.book.ended(now_s)
        self.end(Outcome.FINISHED if self.final else Outcome.STOPPED)

    def end_damaged(self, what: str) -> None:
        """No checkpoint that was kept can be restored; only the user can say what to do."""
        self.end(
            Outcome.FAILED,
            RunFailed(
                f"{what}, and no older checkpoint is left. Nothing was changed: going back to the "
                "start would take back output that was committed, and miss what a source has "
                "forgotten since. Put the damaged object back from a backup of the store and run "
                "again; or start over with --fresh (fresh=True), which deletes all checkpoints in "
                "the store and all output of the pipeline's sinks."
            ),
        )

    def end(self, outcome: Outcome, error: EverstreamError | None = None) -> None:
        self._enter(Phase.DONE)
        if outcome is not Outcome.SETTLED:
            self.tell_all(Shutdown())
            for process in self.hosts.spares:
                self.outbox.add(Dismiss(process))
        self.outbox.add(EndRun(outcome, error))
