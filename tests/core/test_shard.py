"""One shard as a state machine: legal and illegal moves, frames, alignment and checkpoints."""

import pytest

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import FrameKind
from everstream.core.ids import CheckpointNumber, Epoch, Generation
from everstream.core.instructions import (
    Announce,
    Capture,
    Close,
    Commit,
    Deliver,
    EmitMarkers,
    Finish,
    LoadState,
    Produce,
    Start,
    Tell,
)
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    Restore,
    Restored,
    RestoreFailed,
    ShardFailed,
    StartCheckpoint,
)
from everstream.core.permits import permit
from everstream.core.status import MOVES, ShardStatus
from everstream.errors import ConnectorError, InternalError
from everstream.runtime.payload import BatchPayload
from tests.core.shards import (
    LEFT,
    ME,
    OUT,
    RIGHT,
    G,
    data,
    delivered,
    end,
    feed,
    marker,
    running,
    shard,
    steps,
)

# Moves.


@pytest.mark.parametrize("before", ShardStatus)
@pytest.mark.parametrize("after", ShardStatus)
def test_a_shard_makes_exactly_the_legal_moves(before: ShardStatus, after: ShardStatus) -> None:
    made = shard()
    made._status = before
    if after in MOVES[before]:
        made._move(after, "because")
        assert made.status is after
        return
    with pytest.raises(InternalError) as caught:
        made._move(after, "because")
    assert f"count:0 cannot go from {before.value} to {after.value}: because" in str(caught.value)
    assert made.status is before


def test_an_illegal_move_tells_what_the_shard_did_last() -> None:
    made = running(LEFT)
    made.on_shutdown()
    with pytest.raises(InternalError) as caught:
        made.on_restore(Restore(Generation(2), Epoch(0), {}))
    assert caught.value.story == (
        "count:0: new -> restoring: generation 1 from 0",
        "count:0: restoring -> ready: restored",
        "count:0: ready -> running: resumed",
        "count:0: running -> closed: shut down",
    )
    assert "what the shard did last" in str(caught.value)


def test_restoring_loads_tells_and_starts() -> None:
    made = shard(LEFT)
    assert made.on_restore(Restore(G, Epoch(3), {})) == [LoadState(G, (), permit(3))]
    assert made.on_loaded(G, 0.5) == [Tell(Restored(ME, G, 0.5))]
    assert made.on_resume(G) == [Start()]
    assert made.status is ShardStatus.RUNNING


def test_a_second_restore_of_the_same_generation_is_ignored() -> None:
    made = running(LEFT)
    assert made.on_restore(Restore(G, Epoch(0), {})) == []
    assert made.status is ShardStatus.RUNNING


def test_what_belongs_to_another_generation_is_ignored() -> None:
    made = shard(LEFT)
    made.on_restore(Restore(Generation(2), Epoch(0), {}))
    old = Generation(1)
    record = CheckpointRecord(ME, CheckpointNumber(1), ("count",))
    assert made.on_loaded(old, 0.0) == []
    assert made.on_load_failed(old, "torn") == []
    assert made.on_resume(old) == []
    assert made.on_durable(old, record) == []
    assert made.on_upload_failed(old, record, "full") == []
    assert made.on_committed(old, CheckpointNumber(1)) == []
    assert made.status is ShardStatus.RESTORING


def test_a_checkpoint_that_cannot_be_loaded_is_reported_and_another_can_be_tried() -> None:
    made = shard(LEFT)
    made.on_restore(Restore(G, Epoch(2), {}))
    assert made.on_load_failed(G, "torn") == [Tell(RestoreFailed(ME, G, "torn"))]
    assert made.status is ShardStatus.FAILED
    assert made.on_restore(Restore(Generation(2), Epoch(1), {})) != []


def test_a_restore_forgets_the_frames_that_waited() -> None:
    made = running(LEFT, RIGHT)
    feed(made, data(LEFT, 1), data(LEFT, 2))
    made.on_restore(Restore(Generation(2), Epoch(0), {}))
    made.on_loaded(Generation(2), 0.0)
    made.on_resume(Generation(2))
    assert made.step() == []
    again = data(LEFT, 1, generation=Generation(2))
    assert made.accepts(again)
    made.on_frame(again)  # and counts from the start


def test_a_shard_that_had_ended_in_its_checkpoint_stays_ended() -> None:
    made = running(
        LEFT, records=[CheckpointRecord(ME, CheckpointNumber(1), ("count",), final=True)]
    )
    assert made.status is ShardStatus.ENDED
    assert made.on_stable(Epoch(2)) == [Commit(permit(2))]


def test_inputs_that_had_ended_are_ended_after_a_restore() -> None:
    record = CheckpointRecord(ME, CheckpointNumber(1), ("count",), ended=(str(LEFT),))
    made = running(LEFT, RIGHT, records=[record])
    feed(made, marker(RIGHT, 0, 2))
    assert [type(i) for i in steps(made)] == [Capture, EmitMarkers]


def test_shutdown_closes_once() -> None:
    made = running(LEFT)
    assert made.on_shutdown() == [Close()]
    assert made.on_shutdown() == []


def test_a_failure_is_told_once_with_the_story() -> None:
    made = running(LEFT)
    error = ConnectorError("the disk is gone\nreally")
    (told,) = made.on_failure(error)
    assert isinstance(told, Tell) and isinstance(told.report, ShardFailed)
    assert told.report.error.story[-1] == "count:0: running -> failed: the disk is gone"
    assert made.on_failure(error) == []
    assert made.step() == [] and made.on_stable(Epoch(1)) == []


# Frames.


def test_frames_of_a_zombie_are_dropped() -> None:
    made = running(LEFT)
    made.on_restore(Restore(Generation(2), Epoch(0), {}))
    made.on_loaded(Generation(2), 0.0)
    assert not made.accepts(data(LEFT, 1, generation=G))
    assert not made.waiting_at(LEFT)


def test_a_frame_of_a_later_generation_breaks_a_rule() -> None:
    with pytest.raises(InternalError, match="frame of generation 2 reached generation 1"):
        running(LEFT).accepts(data(LEFT, 1, generation=Generation(2)))


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_lost_doubled_or_reordered_frame_breaks_a_rule(sequence: int) -> None:
    made = running(LEFT)
    feed(made, data(LEFT, 1))
    with pytest.raises(InternalError, match=f"data frame {sequence} came where 2 was due"):
        made.on_frame(data(LEFT, sequence))


def test_a_message_that_overtook_a_marker_breaks_a_rule() -> None:
    made = running(LEFT)
    feed(made, data(LEFT, 1), data(LEFT, 2))
    with pytest.raises(InternalError, match="marker frame 1 came where 2 was due"):
        made.on_frame(marker(LEFT, 1, 1))


def test_frames_wait_until_everybody_is_back() -> None:
    made = shard(LEFT)
    made.on_restore(Restore(G, Epoch(0), {}))
    made.on_loaded(G, 0.0)
    feed(made, data(LEFT, 1))
    assert made.step() == []
    made.on_resume(G)
    assert delivered(steps(made)) == [(LEFT, 1)]


def test_inputs_take_turns() -> None:
    made = running(LEFT, RIGHT)
    feed(made, *(data(LEFT, n) for n in (1, 2, 3)), *(data(RIGHT, n) for n in (1, 2)))
    order = [channel for channel, _ in delivered(steps(made))]
    assert order == [LEFT, RIGHT, LEFT, RIGHT, LEFT]


def test_a_source_reads_and_ends() -> None:
    made = running()
    assert made.step(7) == [Produce(7)]
    assert made.on_source_ended() == [Finish()]
    assert made.status is ShardStatus.ENDED and made.step() == []
    (capture,) = made.on_finished()
    assert isinstance(capture, Capture) and capture.record.final


def test_a_shard_ends_when_all_its_inputs_have() -> None:
    made = running(LEFT, RIGHT)
    feed(made, end(LEFT, 1))
    assert steps(made) == [] and made.status is ShardStatus.RUNNING
    feed(made, data(RIGHT, 1), end(RIGHT, 2))
    assert [type(i) for i in steps(made)] == [Deliver, Finish]
    assert made.status is ShardStatus.ENDED


def test_an_ended_input_does_not_hide_the_work_on_the_others() -> None:
    made = running(LEFT, RIGHT)
    feed(made, end(LEFT, 1), data(RIGHT, 1))
    assert delivered(made.step()) == [(RIGHT, 1)], "an engine sleeps when there is no work"


def test_an_ordered_shard_waits_for_the_next_ordinal() -> None:
    made = running(LEFT, RIGHT, ordered=True)
    feed(made, data(LEFT, 1, number=1))
    assert made.step() == []
    feed(made, data(RIGHT, 1, number=0), data(RIGHT, 2, number=2))
    assert delivered(steps(made)) == [(RIGHT, 1), (LEFT, 1), (RIGHT, 2)]


def test_outgoing_frames_are_numbered_per_channel_and_markers_repeat_the_number() -> None:
    made = running(LEFT)
    first = made.stamp(OUT, FrameKind.DATA, 7, BatchPayload([1]), 1)
    mark = made.stamp(OUT, FrameKind.MARKER, 1, None, 0)
    last = made.stamp(OUT, FrameKind.END, 0, None, 0)
    assert [f.sequence for f in (first, mark, last)] == [1, 1, 2]
    assert {f.generation for f in (first, mark, last)} == {G}


# Checkpoints.


def test_an_input_that_has_shown_the_marker_is_held_until_all_have() -> None:
    made = running(LEFT, RIGHT)
    feed(made, data(LEFT, 1), marker(LEFT, 1, 1), data(LEFT, 2))
    assert delivered(steps(made)) == [(LEFT, 1)]
    feed(made, data(RIGHT, 1), marker(RIGHT, 1, 1), data(RIGHT, 2))
    after = steps(made)
    kinds = [type(i) for i in after]
    assert kinds == [Deliver, Capture, EmitMarkers, Deliver, Deliver]
    assert delivered(after)[0] == (RIGHT, 1)


def test_an_ended_input_counts_as_aligned() -> None:
    made = running(LEFT, RIGHT)
    feed(made, marker(LEFT, 0, 1), end(RIGHT, 1))
    assert [type(i) for i in steps(made)] == [Capture, EmitMarkers]


def test_the_record_does_not_hold_the_delivery_that_follows_it() -> None:
    made = running(LEFT, RIGHT, ordered=True)
    feed(made, marker(LEFT, 0, 1), marker(RIGHT, 0, 1), data(RIGHT, 1, number=0))
    capture, markers, deliver = steps(made)
    assert isinstance(capture, Capture) and isinstance(deliver, Deliver)
    assert markers == EmitMarkers(Epoch(1))
    assert capture.record.ordinal == 0 and capture.record.received[str(RIGHT)] == 0
    assert made._ordinal == 1 and made._channels.received()[str(RIGHT)] == 1


def test_positions_are_saved_for_idle_channels_too() -> None:
    made = running(LEFT, RIGHT)
    feed(made, data(LEFT, 1), marker(LEFT, 1, 1), marker(RIGHT, 0, 1))
    (capture,) = [i for i in steps(made) if isinstance(i, Capture)]
    assert capture.record.received == {str(LEFT): 1, str(RIGHT): 0}
    assert capture.record.sent == {str(OUT): 0}


def test_only_a_running_or_stopped_source_acts_on_the_start_of_an_epoch() -> None:
    source = running()
    assert [type(i) for i in source.on_start_checkpoint(StartCheckpoint(Epoch(1)))] == [
        Capture,
        EmitMarkers,
    ]
    assert running(LEFT).on_start_checkpoint(StartCheckpoint(Epoch(1))) == []
    source.on_source_ended()
    assert source.on_start_checkpoint(StartCheckpoint(Epoch(2))) == []


def test_a_source_told_to_stop_gives_nothing_more_but_takes_part_in_later_epochs() -> None:
    source = running()
    source.on_start_checkpoint(StartCheckpoint(Epoch(1), stop=True))
    assert source.status is ShardStatus.STOPPED and source.step() == []
    again = source.on_start_checkpoint(StartCheckpoint(Epoch(2), stop=True))
    assert [type(i) for i in again] == [Capture, EmitMarkers]


def test_the_last_checkpoint_says_which_epoch_its_shard_took_part_in() -> None:
    source = running()
    source.on_start_checkpoint(StartCheckpoint(Epoch(4)))
    source.on_source_ended()
    (capture,) = source.on_finished()
    assert isinstance(capture, Capture)
    assert (capture.record.number, capture.record.previous) == (5, 4)


def test_a_durable_checkpoint_is_announced_and_told() -> None:
    made = running(LEFT)
    record = CheckpointRecord(ME, CheckpointNumber(1), ("count",))
    assert made.on_durable(G, record) == [
        Announce(CheckpointNumber(1)),
        Tell(CheckpointTaken(G, record)),
    ]


def test_a_last_checkpoint_that_failed_is_taken_again_when_asked() -> None:
    source = running()
    source.on_source_ended()
    (capture,) = source.on_finished()
    assert isinstance(capture, Capture)
    (told,) = source.on_upload_failed(G, capture.record, "full")
    assert told == Tell(CheckpointFailed(ME, G, CheckpointNumber(1), "full", final=True))
    (again,) = source.on_start_checkpoint(StartCheckpoint(Epoch(1)))
    assert isinstance(again, Capture) and again.record.final
    assert source.on_start_checkpoint(StartCheckpoint(Epoch(2))) == []


def test_a_permit_comes_only_from_a_stable_epoch_or_a_restore() -> None:
    made = running(LEFT)
    assert made.on_stable(Epoch(2)) == [Commit(permit(2))]
    assert made.on_committed(G, CheckpointNumber(2)) == [
        Tell(Committed(ME, G, CheckpointNumber(2)))
    ]
    waiting = shard(LEFT)
    assert waiting.on_stable(Epoch(2)) == []


def test_the_protocols_view_of_the_epoch_is_gone_after_a_restore() -> None:
    made = running(LEFT, RIGHT)
    feed(made, marker(LEFT, 0, 1))
    steps(made)
    made.on_restore(Restore(Generation(2), Epoch(0), {}))
    made.on_loaded(Generation(2), 0.0)
    made.on_resume(Generation(2))
    made.on_frame(data(LEFT, 1, generation=Generation(2)))
    assert delivered(steps(made)) == [(LEFT, 1)]


def test_markers_of_two_epochs_at_once_break_a_rule() -> None:
    made = running(LEFT, RIGHT)
    feed(made, marker(LEFT, 0, 1), marker(RIGHT, 0, 2))
    with pytest.raises(
        InternalError, match="marker 2 on 1/right:0->count:0 while aligning epoch 1"
    ):
        steps(made)
