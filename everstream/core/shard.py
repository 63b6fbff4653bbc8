"""One shard as a state machine: frames, commands and outcomes in, instructions out.

    NEW ──Restore──► RESTORING ──loaded──► READY ──Resume──► RUNNING ──inputs ended──► ENDED
                         ▲                                      │ │                      │
                         │                                      │ └─stop epoch─► STOPPED │
                         └────────── Restore ◄──────────────────┴────────────────────────┘

Frames wait in one inbox per input until the protocol lets them pass. `step` picks the next piece
of work; everything else reacts to something that happened. A shard that failed waits for the
coordinator to restore it.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from everstream.core.frames import Frame, FrameKind, Payload
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId
from everstream.core.input_times import InputTimes
from everstream.core.instructions import (
    Advance,
    Announce,
    Capture,
    Close,
    CloseCapture,
    Commit,
    Cut,
    Deliver,
    EmitMarkers,
    Finish,
    Instruction,
    LoadState,
    Produce,
    RecordArrival,
    Start,
    Tell,
)
from everstream.core.message_log import stands_for_a_lost_one
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointRecord,
    CheckpointTaken,
    Committed,
    Halted,
    Recover,
    Restore,
    Restored,
    RestoreFailed,
    Rewired,
    ShardFailed,
    StartCheckpoint,
)
from everstream.core.protocols.base import (
    Ask,
    CloseCheckpoint,
    SendMarkers,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
    Verdict,
)
from everstream.core.status import MOVES, Status
from everstream.errors import EverstreamError, FramesLost, InternalError, UserError
from everstream.pipeline.sink import Permit
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


class Shard:
    """Decides for one shard. `ordered`: deliver frames in the order of their ordinals."""

    def __init__(
        self,
        id: ShardId,
        inputs: Sequence[ChannelId],
        outputs: Sequence[ChannelId],
        protocol: ShardProtocol,
        *,
        operators: tuple[str, ...] = (),
        ordered: bool = False,
        feedback: Collection[ChannelId] = (),
        gaps: bool = False,
    ) -> None:
        self.id = id
        self.operators = operators or (id.operator,)
        self.inputs = tuple(inputs)
        self.protocol = protocol
        self.ordered = ordered
        self.feedback = frozenset(feedback)
        self.gaps = gaps
        """Frames may be missing where a sender's log died with it; they are counted."""
        self.status = Status.NEW
        self.halted = False
        """A shard upstream has failed: wait until it is known who goes back."""
        self.generation = Generation(-1)
        """Rises whenever this shard goes back."""
        self.channel_generation = dict.fromkeys([*inputs, *outputs], Generation(-1))
        """Rises whenever the shard at either end goes back."""
        self.last_epoch = Epoch(0)
        self.ordinal = 0
        """Source: the next frame's. Ordered sink: the one that must come next."""
        self.inboxes: dict[ChannelId, deque[Frame]] = {channel: deque() for channel in inputs}
        self.arrived = dict.fromkeys(inputs, 0)
        self.received = dict.fromkeys(inputs, 0)
        self.sent = dict.fromkeys(outputs, 0)
        self.ended: set[ChannelId] = set()
        self.times = InputTimes(inputs, self.feedback)
        # Feedback first, so that what goes round does not pile up behind what is new.
        self._order = sorted(inputs, key=lambda channel: channel not in self.feedback)
        self.lost_frames = 0
        self.loops_ended = False
        self._final_failed = False
        self._turn = 0
        self._records: tuple[CheckpointRecord, ...] = ()
        self._early: list[Frame] = []
        """Frames of those who have resumed before us, where markers act as they arrive."""
        self._story: deque[str] = deque(maxlen=16)

    @property
    def is_source(self) -> bool:
        return not self.inputs

    @property
    def story(self) -> list[str]:
        """The last things that happened here, for error messages."""
        return [f"{self.id}: {line}" for line in self._story]

    # What happens to a shard.

    def on_restore(self, command: Restore) -> list[Instruction]:
        """Everybody goes back, to checkpoints of one epoch."""
        if command.generation <= self.generation:
            return []
        records = command.records.get(self.id, ())
        return self._go_back(command.generation, records, command.stable, command.stable)

    def on_recover(self, command: Recover) -> list[Instruction]:
        """Some go back: this shard, or neighbours of it, or neither."""
        if command.generation <= self.generation:
            return []
        if self.id in command.records:
            record = command.records[self.id]
            records = () if record is None else (record,)
            number = Epoch(0) if record is None else record.number
            return self._go_back(command.generation, records, number, command.stable[self.id])
        if self.status is Status.NEW:
            # Our predecessor was meant; the coordinator will notice that it is gone.
            return []
        outputs = [c for c in self.sent if c.receiver in command.records]
        inputs = [c for c in self.inputs if c.sender in command.records]
        if not inputs and not outputs:
            return []
        for channel in [*inputs, *outputs]:
            self.channel_generation[channel] = command.generation
        for channel in inputs:
            # Whoever sent these sends them again, or never sent them.
            self.inboxes[channel].clear()
            self.arrived[channel] = self.received[channel]
        return [Cut(tuple(outputs)), Tell(Rewired(self.id, command.generation))]

    def on_halt(self, generation: Generation) -> list[Instruction]:
        if self.status is Status.NEW:
            return []
        self.halted = True
        received = {str(channel): count for channel, count in self.received.items()}
        sent = {str(channel): count for channel, count in self.sent.items()}
        return [Tell(Halted(self.id, generation, received, sent, self.loops_ended))]

    def _go_back(
        self,
        generation: Generation,
        records: tuple[CheckpointRecord, ...],
        number: Epoch,
        stable: Epoch,
    ) -> list[Instruction]:
        """Forget everything of the present generation."""
        self._move(Status.RESTORING, f"generation {generation} from {number}")
        self.generation = generation
        self.channel_generation = dict.fromkeys(self.channel_generation, generation)
        self.last_epoch = number
        self.halted = False
        self._final_failed = False
        self._records = records
        self._early = []
        for inbox in self.inboxes.values():
            inbox.clear()
        return [LoadState(generation, records, Permit(stable))]

    def on_loaded(
        self,
        generation: Generation,
        restore_s: float,
        waiting: Mapping[ChannelId, Sequence[Frame]] | None = None,
    ) -> list[Instruction]:
        """The operators' state is that of the checkpoint, and these frames wait at the inputs."""
        if generation != self.generation:
            return []
        same_shard = [record for record in self._records if record.shard == self.id]
        record = same_shard[0] if same_shard else None
        by_name = {str(channel): channel for channel in self.inputs}
        ended = [by_name[name] for name in (record.ended if record else ()) if name in by_name]
        self.ended = set(ended)
        self.ordinal = record.ordinal if record else 0
        self.loops_ended = record is not None and record.loops_ended
        self.lost_frames = record.lost_frames if record else 0
        keeps = record is not None and self.protocol.keeps_positions
        for channel in self.inputs:
            self.received[channel] = record.received.get(str(channel), 0) if keeps and record else 0
            self.arrived[channel] = self.received[channel]
        self.times.restore(record.watermarks if record else {}, self.ended)
        for channel in self.sent:
            self.sent[channel] = record.sent.get(str(channel), 0) if keeps and record else 0
        self.protocol.restore(record.variables if record else {}, ended)
        for channel, frames in (waiting or {}).items():
            self.inboxes[channel].extend(frames)
            for frame in frames:
                self.protocol.on_arrival(frame)
        self._move(Status.READY, "restored")
        return [Tell(Restored(self.id, generation, restore_s))]

    def on_load_failed(self, generation: Generation, reason: str) -> list[Instruction]:
        if generation != self.generation:
            return []
        self._move(Status.FAILED, f"cannot restore: {reason}")
        return [Tell(RestoreFailed(self.id, generation, reason))]

    def on_resume(self, generation: Generation) -> list[Instruction]:
        self.halted = False
        if generation != self.generation or self.status is not Status.READY:
            return []
        if any(record.final and record.shard == self.id for record in self._records):
            self._move(Status.ENDED, "was finished before the checkpoint")
            return []
        self._move(Status.RUNNING, "resumed")
        return [Start()]

    def take_early(self) -> list[Frame]:
        """Frames that came before we had resumed; to be given to `on_frame` one by one."""
        early, self._early = self._early, []
        return early

    def accepts(self, frame: Frame) -> bool:
        """False if a zombie sent it, or somebody who has gone back since."""
        known = self.channel_generation[frame.channel]
        if frame.generation > known:
            raise InternalError(
                f"{frame.channel}: frame of generation {frame.generation} reached generation "
                f"{known}",
                story=self.story,
            )
        return frame.generation == known

    def on_frame(self, frame: Frame) -> list[Instruction]:
        """A frame came in that is of this time."""
        if self.status is Status.READY and self.protocol.consumes_markers_on_arrival:
            self._early.append(frame)
            return []
        channel = frame.channel
        marker = frame.kind is FrameKind.MARKER
        expected = self.arrived[channel] + (0 if marker else 1)
        # A gap is counted at the delivery, as that is what a checkpoint knows of.
        if frame.sequence != expected and not (self.gaps and frame.sequence > expected):
            kind = FramesLost if frame.sequence > expected else InternalError
            raise kind(
                f"{channel}: {frame.kind.name.lower()} frame {frame.sequence} came where "
                f"{expected} was due",
                story=self.story,
            )
        self.arrived[channel] = frame.sequence
        if self.status is Status.ENDED and frame.records and channel in self.feedback:
            return self.on_failure(
                UserError(
                    f"records went round to '{self.id.operator}' after its input had ended; an "
                    "operator on a cycle must not emit into it from on_end."
                )
            )
        instructions: list[Instruction] = []
        if not marker or not self.protocol.consumes_markers_on_arrival:
            self.inboxes[channel].append(frame)
            if channel in self.protocol.recorded:
                instructions.append(RecordArrival(frame))
        return instructions + self._perform(self.protocol.on_arrival(frame))

    def on_start_checkpoint(self, command: StartCheckpoint) -> list[Instruction]:
        """The coordinator starts an epoch. Only a source that has not ended acts on it.

        A stopped one does, too: the epoch it stopped for may have been given up. And a shard
        that had ended but could not save that tries again.
        """
        if self.status is Status.ENDED and self._final_failed:
            return self._capture_final()
        if self.status not in (Status.RUNNING, Status.STOPPED):
            return []
        if not self.is_source and not self.protocol.obeys_everywhere:
            return []
        return self._perform(self.protocol.on_command(command))

    def on_tick(self, now_s: float) -> list[Instruction]:
        if self.status is not Status.RUNNING or self.halted:
            return []
        return self._perform(self.protocol.on_tick(now_s))

    def on_loop_ended(self) -> list[Instruction]:
        """Nothing moves on this shard's cycle any more: its feedback inputs have ended."""
        if self.loops_ended or self.status is not Status.RUNNING:
            return []
        self.loops_ended = True
        instructions: list[Instruction] = []
        for channel in sorted(self.feedback - self.ended):
            self.ended.add(channel)
            instructions += self._perform(self.protocol.on_input_ended(channel))
        all_ended = self.feedback and len(self.ended) == len(self.inputs)
        return instructions + (self._end() if all_ended else [])

    def on_source_ended(self) -> list[Instruction]:
        """The source has nothing more."""
        return self._end()

    def on_finished(self) -> list[Instruction]:
        """The last records and the ends are on their way: save that."""
        return self._capture_final() if self.status is Status.ENDED else []

    def on_durable(self, generation: Generation, record: CheckpointRecord) -> list[Instruction]:
        """A checkpoint has been written whole."""
        if generation != self.generation:
            return []
        self._story.append(f"checkpoint {record.number} durable")
        return [Announce(record.number), Tell(CheckpointTaken(generation, record))]

    def on_upload_failed(
        self, generation: Generation, record: CheckpointRecord, reason: str
    ) -> list[Instruction]:
        if generation != self.generation:
            return []
        self._story.append(f"checkpoint {record.number} failed: {reason}")
        self._final_failed |= record.final
        return [Tell(CheckpointFailed(self.id, generation, record.number, reason, record.final))]

    def on_stable(self, epoch: Epoch) -> list[Instruction]:
        """The one place a permit comes from while running."""
        if self.status in (Status.RUNNING, Status.STOPPED, Status.ENDED):
            return [Commit(Permit(epoch))]
        return []

    def on_committed(self, generation: Generation, epoch: Epoch) -> list[Instruction]:
        if generation != self.generation:
            return []
        return [Tell(Committed(self.id, generation, epoch))]

    def on_failure(self, error: EverstreamError) -> list[Instruction]:
        """An operator, source or sink raised; wait for the coordinator."""
        if self.status in (Status.FAILED, Status.CLOSED):
            return []
        self._move(Status.FAILED, error.message.splitlines()[0])
        error.story = tuple(self.story)
        return [Tell(ShardFailed(self.id, self.generation, error))]

    def on_shutdown(self) -> list[Instruction]:
        if self.status is Status.CLOSED:
            return []
        self._move(Status.CLOSED, "shut down")
        return [Close()]

    # What a shard does next.

    def step(self) -> list[Instruction]:
        """The next piece of work, at most one delivery or one read; none only if there is none."""
        if self.status is not Status.RUNNING or self.halted:
            return []
        if self.is_source:
            return [Produce()]
        instructions: list[Instruction] = []
        for offset in range(len(self.inputs)):
            channel = self._order[(self._turn + offset) % len(self.inputs)]
            inbox = self.inboxes[channel]
            while inbox and self.status is Status.RUNNING:
                frame = inbox[0]
                verdict = self.protocol.admit(frame)
                if verdict is Verdict.HOLD or not self._in_order(frame):
                    break
                inbox.popleft()
                if verdict is Verdict.CONSUME:
                    instructions += self._perform(self.protocol.on_consumed(frame))
                    continue
                if frame.kind is FrameKind.END:
                    instructions += self._deliver(frame)
                    continue
                if not self.feedback:
                    self._turn = (self._turn + offset + 1) % len(self.inputs)
                return instructions + self._deliver(frame)
        return instructions

    def stamp(
        self,
        channel: ChannelId,
        kind: FrameKind,
        number: int,
        payload: Payload | None,
        records: int,
        watermark: int = NO_WATERMARK,
    ) -> Frame:
        """The frame that goes out next on a channel."""
        if kind is not FrameKind.MARKER:
            self.sent[channel] += 1
        return Frame(
            channel,
            kind,
            self.channel_generation[channel],
            self.sent[channel],
            number,
            records,
            self.protocol.piggyback(channel),
            payload,
            watermark,
        )

    def _deliver(self, frame: Frame) -> list[Instruction]:
        instructions = self._perform(self.protocol.checkpoint_first(frame))
        if self.gaps:
            self.lost_frames += frame.sequence - self.received[frame.channel] - 1
            self.lost_frames += stands_for_a_lost_one(frame)
        self.received[frame.channel] = max(frame.sequence, self.received[frame.channel])
        self.protocol.on_delivered(frame)
        if frame.kind is FrameKind.DATA:
            self.ordinal = max(frame.number + 1, self.ordinal)
            return [*instructions, Deliver(frame, self.times.heard(frame.channel, frame.watermark))]
        self.ended.add(frame.channel)
        watermark = self.times.heard(frame.channel, END_OF_TIME)
        if len(self.ended) == len(self.inputs):
            instructions += self._perform(self.protocol.on_input_ended(frame.channel))
            return instructions + self._end()
        # Before a checkpoint that this end completes: it holds the watermark already.
        if watermark is not None:
            instructions.append(Advance(watermark))
        return instructions + self._perform(self.protocol.on_input_ended(frame.channel))

    def _in_order(self, frame: Frame) -> bool:
        """Lower ordinals come again where frames are delivered at least once."""
        return not self.ordered or frame.kind is not FrameKind.DATA or frame.number <= self.ordinal

    def _end(self) -> list[Instruction]:
        self._move(Status.ENDED, "all input has ended")
        self.loops_ended = True  # if it is on a cycle, then that was what ended
        return [Finish()]

    def _capture_final(self) -> list[Instruction]:
        self._final_failed = False
        final = self._record(Epoch(self.last_epoch + 1), final=True)
        # Whoever keeps positions is asked again for what has not arrived.
        return [Capture(final, "outputs" if self.protocol.keeps_positions else "none")]

    def _record(
        self, number: Epoch, final: bool, stopped: bool = False, forced: bool = False
    ) -> CheckpointRecord:
        """The shard's own part of a checkpoint taken at this instant."""
        ahead = () if final else self.protocol.ahead
        return CheckpointRecord(
            shard=self.id,
            number=number,
            operators=self.operators,
            final=final,
            last_epoch=self.last_epoch,
            stopped=stopped,
            forced=forced,
            loops_ended=self.loops_ended,
            received={str(channel): count for channel, count in self.received.items()},
            sent={str(channel): count for channel, count in self.sent.items()},
            ended=tuple(str(channel) for channel in sorted(self.ended.difference(ahead))),
            watermarks=self.times.saved(without=ahead),
            ordinal=self.ordinal,
            variables=self.protocol.variables(),
            lost_frames=self.lost_frames,
        )

    def _perform(self, asks: Sequence[Ask]) -> list[Instruction]:
        instructions: list[Instruction] = []
        for ask in asks:
            match ask:
                case TakeCheckpoint(number, forced, queues, stopped):
                    self._story.append(f"took {'forced ' * forced}checkpoint {number}")
                    record = self._record(number, False, stopped, forced)
                    instructions.append(Capture(record, queues))
                    self.last_epoch = number
                case CloseCheckpoint(number=number):
                    instructions.append(CloseCapture(number))
                case SendMarkers(number=number, overtaking=overtaking):
                    instructions.append(EmitMarkers(number, overtaking))
                case StopProducing():
                    if self.status is Status.RUNNING:
                        self._move(Status.STOPPED, "told to stop")
        return instructions

    def _move(self, status: Status, why: str) -> None:
        if status not in MOVES[self.status]:
            raise InternalError(
                f"{self.id} cannot go from {self.status.value} to {status.value}: {why}",
                story=self.story,
            )
        self._story.append(f"{self.status.value} -> {status.value}: {why}")
        self.status = status
