"""One shard as a state machine: frames, commands and outcomes in, instructions out.

    NEW ──Restore──► RESTORING ──loaded──► READY ──Resume──► RUNNING ──inputs ended──► ENDED
                         ▲                                      │ │                      │
                         │                                      │ └─stop epoch─► STOPPED │
                         └────────── Restore ◄──────────────────┴────────────────────────┘

Frames wait in one inbox per input until the protocol lets them pass. `step` picks the next piece
of work; everything else reacts to something that happened. A shard that failed waits for the
coordinator to restore it.
"""

import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import assert_never

from everstream.core.checkpointing.channel_positions import ChannelPositions, InputTimes
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.deliveries import Deliveries
from everstream.core.frames import Frame, FrameKind, Payload, even_part
from everstream.core.ids import NO_CHECKPOINT, ChannelId, CheckpointNumber, Generation, ShardId
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
from everstream.core.messages import (
    Census,
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    Halted,
    Probe,
    Recover,
    Restore,
    Restored,
    RestoreFailed,
    Rewired,
    ShardFailed,
    StartCheckpoint,
)
from everstream.core.permits import permit
from everstream.core.protocols.base import (
    Ask,
    CloseCheckpoint,
    FrameAction,
    SendMarkers,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
)
from everstream.core.status import MOVES, ShardStatus
from everstream.errors import EverstreamError, InternalError, UserError
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


class Shard:
    """Decides for one shard.

    `ordered`: deliver frames in the order of their ordinals. `cuts`: a frame may be delivered in
    parts. From the first part on it counts as received, and the rest is state of this shard, which
    is in every checkpoint taken before the frame is done.
    """

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
        cuts: bool = False,
    ) -> None:
        self.id = id
        self._operators = operators or (id.operator,)
        self._inputs = tuple(inputs)
        self._protocol = protocol
        self._ordered = ordered
        self._cuts = cuts
        self._feedback = frozenset(feedback)
        self._status = ShardStatus.NEW
        self._halted = False
        """A shard upstream has failed: wait until it is known which shards roll back."""
        self._generation = Generation(-1)
        """Rises whenever this shard rolls back."""
        self._channels = ChannelPositions(inputs, outputs, gaps=gaps)
        self._last_number = NO_CHECKPOINT
        self._ordinal = 0
        """Source: the ordinal of the next frame. Ordered sink: the one that must come next."""
        self._inboxes: dict[ChannelId, deque[Frame]] = {channel: deque() for channel in inputs}
        self._times = InputTimes(inputs, self._feedback)
        # Feedback first, so that records on the cycle do not pile up behind new ones.
        self._order = sorted(inputs, key=lambda channel: channel not in self._feedback)
        self._loops_ended = False
        self._final_failed = False
        self._paused = False
        """Nothing more is to be read, and no timer called, until a rollback."""
        self._turn = 0
        self._attempt = 1
        self._records: tuple[CheckpointRecord, ...] = ()
        self._early: list[Frame] = []
        """Frames of shards that have resumed before us, where markers act as they arrive."""
        self._story: deque[str] = deque(maxlen=16)
        self.deliveries = Deliveries(id, inputs)
        """For readers of envelopes; decides nothing."""
        self.born_s = 0.0
        """When the records of the next frames came in. For readers of frames; decides nothing."""

    # What callers can read about a shard.

    @property
    def status(self) -> ShardStatus:
        return self._status

    @property
    def generation(self) -> Generation:
        return self._generation

    @property
    def story(self) -> list[str]:
        """The last things that happened here, for error messages."""
        return [f"{self.id}: {line}" for line in self._story]

    @property
    def works(self) -> bool:
        """It runs, and does not wait for a rollback."""
        return self._status is ShardStatus.RUNNING and not self._halted

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def last_number(self) -> CheckpointNumber:
        """The newest checkpoint that it took or rolled back to."""
        return self._last_number

    @property
    def open_loops(self) -> list[ChannelId]:
        return sorted(self._feedback - self._channels.ended)

    @property
    def lost_frames(self) -> int:
        """Frames that were sent here and could not be sent again."""
        return self._channels.lost_frames

    def generation_of(self, channel: ChannelId) -> Generation:
        """Rises whenever the shard at either end of the channel rolls back."""
        return self._channels.generation_of(channel)

    @property
    def frames_waiting(self) -> int:
        return sum(map(len, self._inboxes.values()))

    @property
    def awaits_markers(self) -> bool:
        """Some inputs have shown the marker of an epoch, and others have not."""
        return self._protocol.awaits_markers

    def waiting(self) -> Iterator[Frame]:
        """The frames at the inputs that have not been delivered."""
        return chain.from_iterable(self._inboxes.values())

    def waiting_at(self, channel: ChannelId) -> Sequence[Frame]:
        return self._inboxes[channel]

    def census(self, probe: Probe, cycle: Collection[ShardId], output_waits: bool) -> Census:
        """Whether anything is left to do here, for the other shards of its cycle."""
        channels = self._channels
        fed = any(c.sender not in cycle and c not in channels.ended for c in self._inputs)
        busy = output_waits or fed or any(self._inboxes.values())
        return Census(
            self.id,
            self._generation,
            probe.cycle,
            probe.round,
            passive=not busy and self._status in (ShardStatus.RUNNING, ShardStatus.ENDED),
            sent=channels.sent_to(cycle),
            received=channels.received_from(cycle),
        )

    def next_ordinal(self) -> int:
        """A source has read a batch. Returns the ordinal of the frames made from it."""
        ordinal = self._ordinal
        self._ordinal += 1
        return ordinal

    # What happens to a shard.

    def on_restore(self, command: Restore) -> list[Instruction]:
        """All shards roll back, to checkpoints of one epoch."""
        if command.generation <= self._generation:
            return []
        records = command.records.get(self.id, ())
        stable = CheckpointNumber(command.stable)
        return self._go_back(command, records, stable, stable)

    def on_recover(self, command: Recover) -> list[Instruction]:
        """Some shards roll back: this one, or neighbours of it, or neither."""
        if command.generation <= self._generation:
            return []
        if self.id in command.records:
            record = command.records[self.id]
            records = () if record is None else (record,)
            number = NO_CHECKPOINT if record is None else record.number
            stable = command.stable[self.id]
            return self._go_back(command, records, number, stable)
        if self._status is ShardStatus.NEW:
            # The command was meant for our predecessor; the coordinator will notice that it is
            # gone.
            return []
        outputs = [c for c in self._channels.outputs if c.receiver in command.records]
        inputs = [c for c in self._inputs if c.sender in command.records]
        if not inputs and not outputs:
            return []
        self._channels.begin(command.generation, [*inputs, *outputs])
        for channel in inputs:
            # The senders send these again, or never sent them. Only frames that were begun are
            # ours.
            begun = [replace(f, sequence=0) for f in self._inboxes[channel] if f.begun]
            self._inboxes[channel] = deque(begun)
            self._channels.forget_waiting(channel)
        return [Cut(tuple(outputs)), Tell(Rewired(self.id, command.generation))]

    def on_halt(self, generation: Generation) -> list[Instruction]:
        if self._status is ShardStatus.NEW:
            return []
        self._halted = True
        received, sent = self._channels.received(), self._channels.sent()
        return [Tell(Halted(self.id, generation, received, sent, self._loops_ended))]

    def _go_back(
        self,
        command: Restore | Recover,
        records: tuple[CheckpointRecord, ...],
        number: CheckpointNumber,
        stable: CheckpointNumber,
    ) -> list[Instruction]:
        """Forget everything of the present generation."""
        generation = command.generation
        if self._status is ShardStatus.NEW:
            elsewhere = isinstance(command, Restore) and command.perhaps_elsewhere
            self.deliveries.begin(bool(records or command.reason), elsewhere)
        self._move(ShardStatus.RESTORING, f"generation {generation} from {number}")
        self._generation = generation
        self._channels.begin(generation)
        self._last_number = number
        self._halted = False
        self._final_failed = False
        self._paused = False
        self._records = records
        self._attempt = command.attempt
        self._early = []
        for inbox in self._inboxes.values():
            inbox.clear()
        allowed = permit(stable, command.takes_back)
        return [LoadState(generation, records, allowed, command.reason)]

    def on_loaded(
        self,
        generation: Generation,
        restore_s: float,
        waiting: Mapping[ChannelId, Sequence[Frame]] | None = None,
    ) -> list[Instruction]:
        """The operators' state is restored, and these frames wait at the inputs."""
        if generation != self._generation:
            return []
        same_shard = [record for record in self._records if record.shard == self.id]
        record = same_shard[0] if same_shard else None
        self._channels.restore(record, keeps_positions=self._protocol.keeps_positions)
        ended = self._channels.ended
        self.deliveries.go_back(record, self._attempt)
        self._ordinal = record.ordinal if record else 0
        self._loops_ended = record is not None and record.loops_ended
        self._times.restore(record.watermarks if record else {}, ended)
        self._protocol.restore(record.variables if record else {}, sorted(ended))
        for channel, frames in (waiting or {}).items():
            self._inboxes[channel].extend(frames)
            for frame in frames:
                self._protocol.on_arrival(frame)
        self._move(ShardStatus.READY, "restored")
        return [Tell(Restored(self.id, generation, restore_s))]

    def on_load_failed(self, generation: Generation, reason: str) -> list[Instruction]:
        if generation != self._generation:
            return []
        self._move(ShardStatus.FAILED, f"cannot restore: {reason}")
        return [Tell(RestoreFailed(self.id, generation, reason))]

    def on_resume(self, generation: Generation) -> list[Instruction]:
        self._halted = False
        if generation != self._generation or self._status is not ShardStatus.READY:
            return []
        if any(record.final and record.shard == self.id for record in self._records):
            self._move(ShardStatus.ENDED, "was finished before the checkpoint")
            return []
        self._move(ShardStatus.RUNNING, "resumed")
        return [Start()]

    def take_early(self) -> list[Frame]:
        """Frames that came before we had resumed; to be passed to `on_frame` one by one."""
        early, self._early = self._early, []
        return early

    def accepts(self, frame: Frame) -> bool:
        """False if the sender is a zombie, or has rolled back since."""
        known = self._channels.generation_of(frame.channel)
        if frame.generation > known:
            raise InternalError(
                f"{frame.channel}: frame of generation {frame.generation} reached generation "
                f"{known}",
                story=self.story,
            )
        return frame.generation == known

    def on_frame(self, frame: Frame) -> list[Instruction]:
        """A frame of the present generation came in."""
        if self._status is ShardStatus.READY and self._protocol.consumes_markers_on_arrival:
            self._early.append(frame)
            return []
        channel = frame.channel
        marker = frame.kind is FrameKind.MARKER
        try:
            self._channels.arrive(frame)
        except InternalError as error:
            error.story = tuple(self.story)
            raise
        if self._status is ShardStatus.ENDED and frame.records and channel in self._feedback:
            return self.on_failure(round_too_late(self.id))
        instructions: list[Instruction] = []
        if not marker or not self._protocol.consumes_markers_on_arrival:
            self._inboxes[channel].append(frame)
            if channel in self._protocol.recorded:
                instructions.append(RecordArrival(frame))
        return instructions + self._perform(self._protocol.on_arrival(frame))

    def on_start_checkpoint(self, command: StartCheckpoint) -> list[Instruction]:
        """The coordinator starts an epoch. Only a source that has not ended acts on it.

        A stopped one does, too: the epoch it stopped for may have been aborted. And a shard that
        had ended but could not save its last checkpoint retries that.
        """
        if self._status is ShardStatus.ENDED and self._final_failed:
            return self._capture_final()
        if self._status not in (ShardStatus.RUNNING, ShardStatus.STOPPED):
            return []
        if self._inputs and not self._protocol.obeys_everywhere:
            return []
        return self._perform(self._protocol.on_command(command))

    def on_tick(self, now_s: float, wish: bool | None = None) -> list[Instruction]:
        if self._status is not ShardStatus.RUNNING or self._halted:
            return []
        return self._perform(self._protocol.on_tick(now_s, self.deliveries.total, wish))

    def on_interval(self, every_s: float) -> None:
        """The timers of the shards have another interval from now on."""
        self._protocol.set_interval(every_s)

    def on_pause(self) -> None:
        self._paused = True

    def on_loop_ended(self) -> list[Instruction]:
        """Nothing moves on this shard's cycle any more: its feedback inputs have ended."""
        if self._loops_ended or self._status is not ShardStatus.RUNNING:
            return []
        self._loops_ended = True
        instructions: list[Instruction] = []
        for channel in self.open_loops:
            self._channels.ended.add(channel)
            instructions += self._perform(self._protocol.on_input_ended(channel))
        ends = self._feedback and self._channels.all_ended
        return instructions + (self._end() if ends else [])

    def on_source_ended(self) -> list[Instruction]:
        """The source has no more records."""
        return self._end()

    def on_finished(self) -> list[Instruction]:
        """The last records and the ends have been sent: save that."""
        return self._capture_final() if self._status is ShardStatus.ENDED else []

    def on_durable(self, generation: Generation, record: CheckpointRecord) -> list[Instruction]:
        """A checkpoint has been written whole."""
        if generation != self._generation:
            return []
        self._story.append(f"checkpoint {record.number} durable")
        return [Announce(record.number), Tell(CheckpointTaken(generation, record))]

    def on_upload_failed(
        self, generation: Generation, record: CheckpointRecord, reason: str
    ) -> list[Instruction]:
        if generation != self._generation:
            return []
        self._story.append(f"checkpoint {record.number} failed: {reason}")
        self._final_failed |= record.final
        return [Tell(CheckpointFailed(self.id, generation, record.number, reason, record.final))]

    def on_stable(self, number: CheckpointNumber) -> list[Instruction]:
        """The only place a permit comes from while running."""
        if self._status in (ShardStatus.RUNNING, ShardStatus.STOPPED, ShardStatus.ENDED):
            return [Commit(permit(number))]
        return []

    def on_committed(self, generation: Generation, number: CheckpointNumber) -> list[Instruction]:
        if generation != self._generation:
            return []
        return [Tell(Committed(self.id, generation, number))]

    def on_failure(self, error: EverstreamError) -> list[Instruction]:
        """An operator, source or sink raised; wait for the coordinator."""
        if self._status in (ShardStatus.FAILED, ShardStatus.CLOSED):
            return []
        self._move(ShardStatus.FAILED, error.message.splitlines()[0])
        error.story = tuple(self.story)
        return [Tell(ShardFailed(self.id, self._generation, error))]

    def on_shutdown(self) -> list[Instruction]:
        if self._status is ShardStatus.CLOSED:
            return []
        self._move(ShardStatus.CLOSED, "shut down")
        return [Close()]

    # What a shard does next.

    def step(
        self, most: int = sys.maxsize, *, markers: bool = True, ends: bool = True
    ) -> list[Instruction]:
        """The next piece of work, at most one delivery or one read; empty only if there is none.

        `most`: how many records it may deliver, where a frame can be cut; with 0, none at all.
        `markers`: whether it may take markers. `ends`: whether its input may end.
        """
        if self._status is not ShardStatus.RUNNING or self._halted:
            return []
        if not self._inputs:
            return [Produce(most)] if most > 0 else []
        instructions: list[Instruction] = []
        for offset in range(len(self._inputs)):
            channel = self._order[(self._turn + offset) % len(self._inputs)]
            inbox = self._inboxes[channel]
            while inbox and self._status is ShardStatus.RUNNING:
                frame = inbox[0]
                verdict = self._protocol.admit(frame)
                if verdict is FrameAction.HOLD or not self._in_order(frame):
                    break
                if verdict is FrameAction.CONSUME:
                    waits = not markers
                elif frame.kind is FrameKind.END:
                    waits = not ends and len(self._channels.ended) + 1 == len(self._inputs)
                else:
                    waits = most < 1
                if waits:
                    break
                inbox.popleft()
                if verdict is FrameAction.CONSUME:
                    self.deliveries.marker(channel)
                    instructions += self._perform(self._protocol.on_consumed(frame))
                    continue
                if frame.kind is FrameKind.END:
                    instructions += self._deliver(frame, most)
                    continue
                if not self._feedback:
                    self._turn = (self._turn + offset + 1) % len(self._inputs)
                return instructions + self._deliver(frame, most)
        return instructions

    def on_cut(self, frame: Frame, records: int) -> None:
        """`records` records of a frame were delivered; the rest of it comes next on its channel.

        Its piggyback has been processed, and its watermark applies once all of it is done.
        """
        rest = replace(frame, start=frame.start + records, piggyback=b"")
        self._inboxes[frame.channel].appendleft(rest)

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
        return Frame(
            channel,
            kind,
            self._channels.generation_of(channel),
            self._channels.send(channel, kind),
            number,
            records,
            self._protocol.piggyback(channel),
            payload,
            watermark,
            self.born_s,
        )

    def _deliver(self, frame: Frame, most: int) -> list[Instruction]:
        instructions = self._perform(self._protocol.checkpoint_first(frame))
        self._channels.receive(frame)
        self._protocol.on_delivered(frame)
        if frame.kind is FrameKind.DATA:
            left = frame.records - frame.start
            if self._cuts and left > most:
                part = even_part(left, most)
                self.deliveries.give(frame.channel, part)
                return [*instructions, Deliver(frame, part)]
            self.deliveries.give(frame.channel, left)
            self._ordinal = max(frame.number + 1, self._ordinal)
            watermark = self._times.heard(frame.channel, frame.watermark)
            return [*instructions, Deliver(frame, left, watermark)]
        self._channels.ended.add(frame.channel)
        watermark = self._times.heard(frame.channel, END_OF_TIME)
        if self._channels.all_ended:
            instructions += self._perform(self._protocol.on_input_ended(frame.channel))
            return instructions + self._end()
        # Before a checkpoint that this end completes: that already holds the watermark.
        if watermark is not None:
            instructions.append(Advance(watermark))
        return instructions + self._perform(self._protocol.on_input_ended(frame.channel))

    def _in_order(self, frame: Frame) -> bool:
        """Lower ordinals are replayed where frames are delivered at least once."""
        return (
            not self._ordered or frame.kind is not FrameKind.DATA or frame.number <= self._ordinal
        )

    def _end(self) -> list[Instruction]:
        self._move(ShardStatus.ENDED, "all input has ended")
        self._loops_ended = True  # if it is on a cycle, the cycle has ended
        return [Finish()]

    def _capture_final(self) -> list[Instruction]:
        self._final_failed = False
        final = self._record(CheckpointNumber(self._last_number + 1), final=True)
        # Protocols that keep positions request again what has not arrived.
        return [Capture(final, "outputs" if self._protocol.keeps_positions else "none")]

    def _record(
        self, number: CheckpointNumber, final: bool, stopped: bool = False, forced: bool = False
    ) -> CheckpointRecord:
        """The shard's own part of a checkpoint taken at this instant."""
        ahead = () if final else self._protocol.ahead
        return CheckpointRecord(
            shard=self.id,
            number=number,
            operators=self._operators,
            final=final,
            previous=self._last_number,
            stopped=stopped,
            forced=forced,
            loops_ended=self._loops_ended,
            received=self._channels.received(),
            sent=self._channels.sent(),
            delivered=self.deliveries.saved(ahead),
            ended=tuple(str(c) for c in sorted(self._channels.ended.difference(ahead))),
            watermarks=self._times.saved(without=ahead),
            ordinal=self._ordinal,
            variables=self._protocol.variables(),
            lost_frames=self._channels.lost_frames,
        )

    def _perform(self, asks: Sequence[Ask]) -> list[Instruction]:
        instructions: list[Instruction] = []
        for ask in asks:
            match ask:
                case TakeCheckpoint(number, forced, queues, stopped):
                    self._story.append(f"took {'forced ' * forced}checkpoint {number}")
                    record = self._record(number, False, stopped, forced)
                    instructions.append(Capture(record, queues))
                    self._last_number = number
                    self.deliveries.checkpointed()
                case CloseCheckpoint(number=number):
                    instructions.append(CloseCapture(number))
                case SendMarkers(epoch=epoch, overtaking=overtaking):
                    instructions.append(EmitMarkers(epoch, overtaking))
                case StopProducing():
                    if self._status is ShardStatus.RUNNING:
                        self._move(ShardStatus.STOPPED, "told to stop")
                case _:
                    assert_never(ask)
        return instructions

    def _move(self, status: ShardStatus, why: str) -> None:
        if status not in MOVES[self._status]:
            raise InternalError(
                f"{self.id} cannot go from {self._status.value} to {status.value}: {why}",
                story=self.story,
            )
        self._story.append(f"{self._status.value} -> {status.value}: {why}")
        self._status = status


def round_too_late(shard: ShardId) -> UserError:
    """A cycle is declared ended when nothing moves on it any more."""
    return UserError(
        f"records went round to '{shard.operator}' after its input had ended; an operator on a cycle "
        "must not emit into it from on_end."
    )
