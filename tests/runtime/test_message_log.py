"""Message logs: the bytes come back as they were sent, and only what may still be asked for is kept."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.core.checkpointing.record import LogSegment
from everstream.core.frames import Frame, FrameKind, stands_for_a_lost_one
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.errors import CorruptObject
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime import message_log
from everstream.runtime.message_log import (
    DurableLog,
    MemoryLog,
    Segment,
    decode_segment,
    encode_segment,
    log_of,
)
from everstream.runtime.payload import BatchPayload
from everstream.simulation.disk import DiskFull, SimulatedDisk
from everstream.state.objects import Data, ObjectRef
from everstream.state.store import CheckpointStore

ME = ShardId("count", 1)
A = ChannelId(0, ME, ShardId("out", 0))
B = ChannelId(0, ME, ShardId("out", 1))
C = ChannelId(3, ME, ShardId("other", 0))
CHANNELS = (A, B, C)
G = Generation(7)


def data(channel: ChannelId, sequence: int, records: Sequence[Any] = ("x",)) -> Frame:
    return Frame(
        channel, FrameKind.DATA, G, sequence, 5, len(records), payload=BatchPayload(list(records))
    )


def bytes_of(frame: Frame) -> bytes | None:
    return None if frame.payload is None else bytes(frame.payload.encoded)


def facts(frame: Frame) -> tuple[Any, ...]:
    return (
        frame.channel,
        frame.kind,
        frame.sequence,
        frame.number,
        frame.records,
        frame.piggyback,
        frame.watermark,
        bytes_of(frame),
    )


class Disk:
    """A store in memory, and a log that writes to it as a worker does."""

    def __init__(self) -> None:
        self.blobs = SimulatedDisk(random.Random(0))
        self.store = CheckpointStore(self.blobs)
        self.log = DurableLog(ME, CHANNELS, self.load)
        self.loads = 0

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        self.loads += 1
        return [self.store.get(ref) for ref in refs]

    def put(self, name: str, data: Data) -> ObjectRef:
        return self.store.put(name, data)

    def checkpoint(self) -> list[LogSegment]:
        """What a checkpoint names, once it is durable."""
        segments = self.log.seal()
        for segment in segments:
            segment.save(self.put)
        return [LogSegment(s.ref, dict(s.last)) for s in segments if s.ref is not None]


def send(log: DurableLog | MemoryLog, *frames: Frame) -> None:
    for frame in frames:
        log.append(frame)


def numbers(log: DurableLog | MemoryLog, channel: ChannelId, sequence: int) -> list[int]:
    return [frame.sequence for frame in log.after(channel, sequence)]


frames = st.builds(
    Frame,
    channel=st.sampled_from(CHANNELS),
    kind=st.sampled_from([FrameKind.DATA, FrameKind.END]),
    generation=st.just(G),
    sequence=st.integers(0, 2**63),
    number=st.integers(0, 2**63),
    records=st.integers(0, 2**32 - 1),
    piggyback=st.binary(max_size=40),
    payload=st.one_of(
        st.none(),
        st.binary(max_size=200).map(lambda raw: BatchPayload(encoded=raw)),
        st.lists(st.integers(), max_size=5).map(BatchPayload),
    ),
    watermark=st.one_of(st.just(NO_WATERMARK), st.integers(-(2**63), 2**63 - 1)),
)


@given(st.lists(frames, max_size=12))
@settings(max_examples=150)
def test_what_is_encoded_is_what_is_decoded(sent: list[Frame]) -> None:
    pieces = encode_segment(sent, CHANNELS)
    found = list(decode_segment(b"".join(pieces), CHANNELS))
    assert [facts(frame) for frame in found] == [facts(frame) for frame in sent]


def test_an_end_an_empty_batch_a_watermark_and_a_piggyback_come_back() -> None:
    sent = [
        replace(data(A, 1, []), piggyback=b"vectors"),
        Frame(B, FrameKind.DATA, G, 1, watermark=123),
        Frame(C, FrameKind.DATA, G, 1, payload=BatchPayload(encoded=b"")),
        Frame(A, FrameKind.END, G, 2),
    ]
    found = list(decode_segment(b"".join(encode_segment(sent, CHANNELS)), CHANNELS))
    assert [facts(frame) for frame in found] == [facts(frame) for frame in sent]
    first = found[0].payload
    assert first is not None and first.batch == []
    assert found[1].payload is None and found[1].watermark == 123


def test_payloads_are_the_very_bytes_and_start_on_a_boundary() -> None:
    encoded = [bytes([n]) * n for n in (1, 70, 3)]
    sent = [
        Frame(A, FrameKind.DATA, G, n, payload=BatchPayload(encoded=raw))
        for n, raw in enumerate(encoded, start=1)
    ]
    at, starts, shared = 0, [], []
    for piece in map(memoryview, encode_segment(sent, CHANNELS)):
        if any(piece.obj is raw for raw in encoded):
            starts.append(at)
            shared.append(piece.obj)
        at += piece.nbytes
    assert shared == encoded, "not copied"
    assert [start % 64 for start in starts] == [0, 0, 0]


@pytest.mark.parametrize("cut", [0, 4, 9, 20, 60, -1])
def test_a_segment_cut_short_or_of_another_kind_is_corrupt(cut: int) -> None:
    whole = b"".join(encode_segment([data(A, 1), data(B, 1)], CHANNELS))
    with pytest.raises(CorruptObject):
        list(decode_segment(whole[:cut], CHANNELS))
    with pytest.raises(CorruptObject):
        list(decode_segment(b"something else entirely, as long as a header", CHANNELS))


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "in the store"])
def test_replay_starts_right_after_what_was_received(saved: bool) -> None:
    disk = Disk()
    send(disk.log, *(data(A, n) for n in (1, 2, 3)), *(data(B, n) for n in (1, 2)))
    if saved:
        disk.checkpoint()
    send(disk.log, data(A, 4))
    assert numbers(disk.log, A, 0) == [1, 2, 3, 4]
    assert numbers(disk.log, A, 2) == [3, 4]
    assert numbers(disk.log, A, 3) == [4]
    assert numbers(disk.log, A, 4) == []
    assert numbers(disk.log, B, 1) == [2]
    assert numbers(disk.log, C, 0) == []


def test_a_batch_that_its_maker_changes_later_is_logged_as_it_was_sent() -> None:
    disk = Disk()
    records = ["as sent"]
    disk.log.append(Frame(A, FrameKind.DATA, G, 1, 0, 1, payload=BatchPayload(records)))
    records[0] = "as changed"
    disk.checkpoint()
    [found] = disk.log.after(A, 0)
    assert found.payload is not None and found.payload.batch == ["as sent"]


def test_a_segment_goes_when_nobody_can_ask_for_any_of_it() -> None:
    disk = Disk()
    send(disk.log, data(A, 1), data(B, 1))
    disk.checkpoint()
    send(disk.log, data(A, 2))
    disk.checkpoint()
    disk.log.prune({str(A): 1})
    assert len(disk.log.seal()) == 2, "B has not been received"
    disk.log.prune({str(A): 1, str(B): 1})
    assert [segment.last for segment in disk.log.seal()] == [{str(A): 2}]
    disk.log.prune({str(A): 2, str(B): 1})
    assert disk.log.seal() == []


def test_the_open_segment_is_never_pruned() -> None:
    disk = Disk()
    send(disk.log, data(A, 1))
    disk.log.prune({str(A): 1})
    assert [segment.last for segment in disk.log.seal()] == [{str(A): 1}]


def test_a_rollback_cuts_the_log_at_its_checkpoint() -> None:
    """So that the next failure does not replay frames that were never sent."""
    disk = Disk()
    send(disk.log, data(A, 1), data(A, 2))
    named = disk.checkpoint()
    send(disk.log, data(A, 3, ["ghost"]), data(A, 4, ["ghost"]))
    disk.checkpoint()
    send(disk.log, data(A, 5, ["ghost"]))
    disk.log.restore(Generation(8), named, {A: 2, B: 0, C: 0})
    assert numbers(disk.log, A, 0) == [1, 2]
    send(disk.log, data(A, 3, ["real"]))
    found = disk.log.after(A, 2)
    assert [frame.payload.batch for frame in found if frame.payload] == [["real"]]


def test_after_a_rollback_no_segment_is_written_over() -> None:
    disk = Disk()
    send(disk.log, data(A, 1))
    named = disk.checkpoint()
    send(disk.log, data(A, 2, ["ghost"]))
    before = disk.checkpoint()
    disk.log.restore(Generation(8), named, {A: 1, B: 0, C: 0})
    send(disk.log, data(A, 2, ["real"]))
    after = disk.checkpoint()
    assert {s.ref.name for s in before}.isdisjoint({s.ref.name for s in after[1:]})
    assert all(disk.store.get(segment.ref) for segment in [*before, *after])


def test_a_log_whose_process_died_is_read_from_the_store() -> None:
    dead = Disk()
    send(dead.log, data(A, 1, ["one"]), data(A, 2, ["two"]), data(B, 1, ["other"]))
    named = [LogSegment.from_json(s.to_json()) for s in dead.checkpoint()]
    heir = DurableLog(ME, CHANNELS, dead.load)
    heir.restore(Generation(8), named, {A: 2, B: 1, C: 0})
    assert [f.payload.batch for f in heir.after(A, 1) if f.payload] == [["two"]]
    assert [f.payload.batch for f in heir.after(B, 0) if f.payload] == [["other"]]


def test_what_is_in_the_store_leaves_memory_and_is_not_read_for_nothing() -> None:
    disk = Disk()
    send(disk.log, data(A, 1))
    disk.checkpoint()
    assert disk.log.seal()[0].frames is None
    assert numbers(disk.log, A, 1) == [] and disk.loads == 0
    assert numbers(disk.log, A, 0) == [1] and disk.loads == 1


def test_a_full_segment_asks_to_be_written_before_the_next_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_log, "SEGMENT_BYTES", 500)
    disk = Disk()
    full: list[Segment] = []
    for n in range(1, 31):
        disk.log.append(Frame(A, FrameKind.DATA, G, n, payload=BatchPayload(encoded=bytes(100))))
        segment = disk.log.full_segment()
        if segment is not None:
            segment.save(disk.put)
            full.append(segment)
    assert [segment.last[str(A)] for segment in full] == [5, 10, 15, 20, 25, 30]
    assert numbers(disk.log, A, 7) == list(range(8, 31))
    writes = len(disk.blobs.files)
    assert len(disk.checkpoint()) == 6
    assert len(disk.blobs.files) == writes, "what was written is not written again"


def test_a_segment_that_could_not_be_saved_is_saved_with_the_next_checkpoint() -> None:
    disk = Disk()
    send(disk.log, data(A, 1))
    disk.blobs.full = True
    with pytest.raises(DiskFull):
        disk.checkpoint()
    assert numbers(disk.log, A, 0) == [1], "it is still in memory"
    disk.blobs.full = False
    send(disk.log, data(A, 2))
    named = disk.checkpoint()
    assert [segment.last for segment in named] == [{str(A): 1}, {str(A): 2}]
    assert numbers(disk.log, A, 0) == [1, 2]


def test_a_rotten_segment_is_noticed_when_it_is_read() -> None:
    disk = Disk()
    send(disk.log, data(A, 1))
    disk.checkpoint()
    for path in disk.blobs.list(""):
        disk.blobs.rot(path)
    assert numbers(disk.log, A, 1) == []
    with pytest.raises(CorruptObject):
        disk.log.after(A, 0)


def test_a_log_in_memory_dies_with_its_process_but_remembers_that_the_shard_had_ended() -> None:
    log = MemoryLog(CHANNELS)
    send(log, data(A, 1), data(A, 2))
    assert log.seal() == [] and log.full_segment() is None
    assert numbers(log, A, 1) == [2]
    heir = MemoryLog(CHANNELS)
    heir.restore(Generation(8), [], {A: 2, B: 0, C: 0})
    [missing] = heir.after(A, 0)
    assert stands_for_a_lost_one(missing) and missing.sequence == 2
    assert not stands_for_a_lost_one(data(A, 1, []))
    assert not stands_for_a_lost_one(Frame(A, FrameKind.DATA, G, 1, watermark=5))
    assert not stands_for_a_lost_one(Frame(A, FrameKind.END, G, 1))
    assert numbers(heir, A, 2) == numbers(heir, B, 0) == []
    for _ in range(2):
        heir.ensure_end(A, 2)
        assert [(f.kind, f.sequence) for f in heir.after(A, 1)] == [(FrameKind.END, 2)]


def test_a_log_in_memory_is_cut_at_a_rollback_and_pruned() -> None:
    log = MemoryLog(CHANNELS)
    send(log, *(data(A, n) for n in range(1, 6)), data(B, 1))
    log.restore(Generation(8), [], {A: 3, B: 1, C: 0})
    assert numbers(log, A, 0) == [1, 2, 3]
    log.prune({str(A): 2})
    assert numbers(log, A, 0) == [3] and numbers(log, B, 0) == [1]


def test_a_scheme_says_where_the_log_is() -> None:
    kinds = [
        type(log_of(kind, ME, CHANNELS, Disk().load)) for kind in ("none", "durable", "memory")
    ]
    assert kinds == [type(None), DurableLog, MemoryLog]


def test_a_rotten_segment_is_read_from_its_copy(tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path))
    told: list[str] = []
    store.on_damage = told.append
    log = DurableLog(ME, CHANNELS, lambda refs: [store.get(ref) for ref in refs])
    for sequence in range(1, 4):
        log.append(data(A, sequence))
    sent = log.after(A, 0)
    (segment,) = log.seal()
    segment.save(store.put)
    (written,) = (tmp_path / "objects").rglob("*.log.*")
    rotten = bytearray(written.read_bytes())
    rotten[-1] ^= 1
    written.write_bytes(rotten)
    assert [facts(frame) for frame in log.after(A, 0)] == [facts(frame) for frame in sent]
    assert len(told) == 1 and "was read from its copy" in told[0]
