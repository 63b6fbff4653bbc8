"""What waits at a feedback edge: in order, within its bound of memory, and without a trace on disk."""

import errno
import os
import pickle
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream.core.frames import FrameKind
from everstream.errors import CorruptObject, EnvironmentFault
from everstream.pipeline.graph import ByKey, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.runtime import spilled, waiting
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.explaining import will_recur
from everstream.runtime.payload import BatchPayload
from everstream.runtime.spilled import SpillSpace
from everstream.runtime.waiting import Item, SpillingQueue
from everstream.state import saved
from everstream.state.storage import unnamed
from tests.runtime.stores import Store
from tests.runtime.wires import CHANNELS, A, Wire

MB = 1 << 20


def queue_of(store: Store, most_bytes: int, folder: str = "") -> SpillingQueue:
    return SpillingQueue(SpillSpace(folder, store.load, "shard hop:0"), A, most_bytes)


def item(number: int, batch: Any = None) -> Item:
    batch = [number] if batch is None else batch
    return (FrameKind.DATA, number, BatchPayload(batch), len(batch))


def seen(found: Item) -> tuple[Any, ...]:
    kind, number, payload, records = found
    return kind, number, None if payload is None else payload.batch, records


def drained(queue: SpillingQueue | waiting.PlainQueue) -> list[tuple[Any, ...]]:
    return [seen(queue.popleft()) for _ in range(len(queue))]


def in_memory(queue: SpillingQueue) -> int:
    """The bytes of all payloads that it holds, counted by somebody else."""
    held = [*queue._front, *queue._end]
    return sum(len(payload.encoded) for _, _, payload, _ in held if payload is not None)


def checkpoint(store: Store, queue: SpillingQueue, number: int = 1) -> bytes:
    """What a checkpoint has of it, with its segments in the store."""
    channels = ChannelState(outputs={0: {str(A): queue.saved()}})
    channels.save(store.put, f"hop-0/{number}")
    return saved.dumps(channels)


def restored(store: Store, data: bytes, most_bytes: int) -> SpillingQueue:
    channels: ChannelState = pickle.loads(data)
    queue = queue_of(store, most_bytes)
    queue.requeue(channels.outputs[0][str(A)])
    return queue


@pytest.fixture(autouse=True)
def counted_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "UNCOUNTED", 0)


Does = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 200)),
    st.tuples(st.just("pop"), st.integers(1, 20)),
    st.tuples(st.sampled_from(["save and go back", "save"]), st.just(0)),
)


@given(
    st.lists(Does, max_size=120),
    st.sampled_from([1, 8, 700, 3000, 20_000]),
    st.sampled_from([0, 8]),
)
def test_whatever_comes_and_goes_it_is_a_queue(
    does: list[tuple[str, int]], most_bytes: int, uncounted: int
) -> None:
    store, model = Store(), deque[tuple[Any, ...]]()
    queue, checkpoints = queue_of(store, most_bytes), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "UNCOUNTED", uncounted)
        for number, (what, amount) in enumerate(does):
            if what == "append":
                queue.append(item(number, ["x" * amount]))
                model.append((FrameKind.DATA, number, ["x" * amount], 1))
            elif what == "pop":
                for _ in range(min(amount, len(model))):
                    assert seen(queue[0]) == model[0]
                    assert seen(queue.popleft()) == model.popleft()
            else:
                checkpoints += 1
                data = checkpoint(store, queue, checkpoints)
                if what == "save and go back":
                    queue.append(item(10_000))
                    queue = restored(store, data, most_bytes)
            assert (len(queue), bool(queue)) == (len(model), bool(model))
        assert drained(queue) == list(model)
    assert not queue


def test_order_is_kept_across_the_bound_for_rows_objects_and_ends() -> None:
    queue = queue_of(Store(), 4000)
    frame = pl.DataFrame({"n": range(50)})
    for number in range(300):
        queue.append(item(number, frame if number % 3 == 0 else [number, "text"]))
    queue.append((FrameKind.END, 300, None, 0))
    assert queue.spilled_bytes
    found = drained(queue)
    assert [number for _, number, _, _ in found] == list(range(301))
    assert found[-1] == (FrameKind.END, 300, None, 0)
    for kind, number, batch, records in found[:-1]:
        assert kind is FrameKind.DATA and records == len(batch)
        assert batch.equals(frame) if number % 3 == 0 else batch == [number, "text"]


@pytest.mark.parametrize("kind", ["objects", "rows"])
def test_with_many_megabytes_waiting_the_queue_stays_within_its_bound_of_memory(kind: str) -> None:
    most_bytes, store = 4 * MB, Store()
    queue = queue_of(store, most_bytes)
    rows = pl.DataFrame({"n": range(8000)})
    waits, most_held = 0, 0
    for number in range(1000):
        one = item(number, rows if kind == "rows" else ["x" * 64_000, number])
        queue.append(one)
        waits += 64_000
        most_held = max(most_held, in_memory(queue))
    assert waits > 15 * most_bytes and queue.spilled_bytes > 14 * most_bytes
    data = checkpoint(store, queue)
    assert len(data) <= most_bytes, "what is on disk is only named"
    assert store.largest <= most_bytes // 2, "and goes to the store in pieces"
    again = restored(store, data, most_bytes)
    for one in (queue, again):
        for number in range(1000):
            assert one.popleft()[1] == number
            most_held = max(most_held, in_memory(one))
    assert most_held <= most_bytes
    assert queue.memory_bytes == again.memory_bytes == 0


def test_below_the_bound_nothing_is_encoded_but_a_few_samples_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "UNCOUNTED", 8)
    queue = queue_of(Store(), 32 * MB)
    items = [item(number) for number in range(1000)]
    for one in items:
        queue.append(one)
    encoded = [payload for _, _, payload, _ in items if payload and payload._encoded is not None]
    assert len(encoded) <= 1000 // waiting.SAMPLED + 1
    assert queue.spilled_bytes == 0 and queue._end == []
    assert [queue.popleft() for _ in items] == items, "the very same ones"


def test_what_has_to_wait_on_disk_is_as_it_was_when_it_came() -> None:
    queue = queue_of(Store(), 8)
    records = [[number] for number in range(20)]
    for number, record in enumerate(records):
        queue.append(item(number, [record]))
    for record in records[1:]:
        record.append("changed by the operator later")
    assert [batch for _, _, batch, _ in drained(queue)][1:] == [[[n]] for n in range(1, 20)]


def test_a_checkpoint_puts_only_segments_into_the_store_that_no_earlier_one_has_put() -> None:
    store = Store()
    queue = queue_of(store, 2000)
    for number in range(100):
        queue.append(item(number, ["x" * 100]))
    checkpoint(store, queue, 1)
    first = set(store.objects)
    for number in range(100, 150):
        queue.append(item(number, ["x" * 100]))
    data = checkpoint(store, queue, 2)
    added = set(store.objects) - first
    assert first and 0 < len(added) < len(first)
    again = restored(store, data, 2000)
    checkpoint(store, again, 3)
    assert set(store.objects) == first | added, "nor does one after a restore"
    assert [number for _, number, _, _ in drained(again)] == list(range(150))


def open_files(folder: Path) -> list[str]:
    """What this process has open there, with or without a name."""
    links = (Path("/proc/self/fd") / fd for fd in os.listdir("/proc/self/fd"))
    found = []
    for link in links:
        try:
            found.append(os.readlink(link))
        except FileNotFoundError:  # the one that listed them
            continue
    return [path for path in found if path.startswith(str(folder))]


def test_its_files_have_no_names_and_go_as_they_are_read_and_when_it_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unnamed, "FILE_BYTES", 4000)
    folder, store = tmp_path, Store()
    queue = queue_of(store, 1000, str(folder))
    for number in range(200):
        queue.append(item(number, ["x" * 100]))
    assert list(folder.iterdir()) == [], "a process that is killed leaves nothing behind"
    most = len(open_files(folder))
    assert most > 4
    for _ in range(150):
        queue.popleft()
    assert 0 < len(open_files(folder)) < most / 2
    kept = queue.saved()
    drained(queue)
    assert open_files(folder), "an upload may still want it"
    del kept
    assert not open_files(folder)
    queue.append(item(0, ["x" * 100]))
    queue.append(item(1, ["x" * 1000]))
    assert open_files(folder)
    del queue
    assert not open_files(folder)


def test_what_an_earlier_process_has_left_in_the_folder_is_nobodys_business(tmp_path: Path) -> None:
    for name in ("unnamed-0", "unnamed-abc", "hop-0"):
        (tmp_path / name).write_bytes(b"left behind")
    queue = queue_of(Store(), 8, str(tmp_path))
    for number in range(30):
        queue.append(item(number))
    assert [number for _, number, _, _ in drained(queue)] == list(range(30))


def test_where_the_folder_of_the_run_is_not_another_one_is_used_and_none_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    queue = queue_of(Store(), 8, str(tmp_path / "on the machine of the driver"))
    for number in range(5):
        queue.append(item(number))
    assert open_files(tmp_path / "tmp")
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_said_with_what_to_do_and_may_be_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> tuple[int, str]:
        path = tmp_path / "full"
        path.touch()
        return os.open("/dev/full", os.O_RDWR), str(path)

    queue = queue_of(Store(), 8, str(tmp_path))
    queue.append(item(0))
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        with pytest.raises(
            EnvironmentFault, match=r"records that wait at shard hop:0 to .* larger disk"
        ) as raised:
            queue.append(item(1))
    assert "No space left" in str(raised.value) and str(tmp_path) in str(raised.value)
    assert not will_recur(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).message == raised.value.message


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EMFILE, "ulimit"), (errno.EROFS, "TMPDIR"), (errno.EDQUOT, "larger disk")],
)
def test_any_trouble_with_the_disk_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(*_: Any, **__: Any) -> tuple[int, str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    queue = queue_of(Store(), 1)
    queue.append(item(0))
    with pytest.raises(EnvironmentFault, match=words):
        queue.append(item(1))


def test_other_bytes_than_were_written_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(Store(), 8)
    for number in range(3):
        queue.append(item(number))
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: bytes(reversed(read(*args))))
    with pytest.raises(EnvironmentFault, match="other bytes than were written"):
        drained(queue)
    monkeypatch.setattr(os, "pread", lambda *args: b"")
    with pytest.raises(EnvironmentFault, match="cut short"):
        checkpoint(Store(), queue)


def test_a_segment_that_is_damaged_in_the_store_is_told_while_there_are_older_checkpoints() -> None:
    store = Store()
    queue = queue_of(store, 8)
    for number in range(5):
        queue.append(item(number))
    data = checkpoint(store, queue)
    for ref in store.objects:
        store.objects[ref] = b"something else"
    with pytest.raises(CorruptObject):
        restored(store, data, 8)


@pytest.mark.parametrize("routing", [OnDemand(), ByKey(Keying(lambda x: x))])
def test_an_outlet_that_spills_sends_all_in_order_and_is_saved_as_it_is(
    routing: Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled, "MEMORY_BYTES", 500)
    store = Store()
    wire = Wire(routing, space=SpillSpace("", store.load))
    for number in range(200):
        wire.emit([number])
    before = {channel: wire.on(channel) for channel in CHANNELS}
    channels = ChannelState(outputs={0: wire.outlet.queued()})
    assert any(True for _ in channels.spilled), "it does spill"
    channels.save(store.put, "hop-0/1")
    other = Wire(routing, space=SpillSpace("", store.load))
    other.outlet.requeue(pickle.loads(saved.dumps(channels)).outputs[0])
    for one in (wire, other):
        while not one.outlet.idle:
            for channel in CHANNELS:
                one.outlet.grant(channel, 1)
            one.outlet.pump()
    got = [sorted(n for c in CHANNELS for [n] in one.on(c)) for one in (wire, other)]
    sent = {n for batches in before.values() for [n] in batches}
    assert got == [list(range(200)), [n for n in range(200) if n not in sent]]
    for one in (wire, other):
        for channel in CHANNELS:
            numbers = [n for [n] in one.on(channel)]
            assert numbers == sorted(numbers)


def test_an_edge_that_makes_its_sender_wait_has_a_plain_queue() -> None:
    wire = Wire(OnDemand())
    assert type(wire.outlet._queue(A, 1)) is waiting.PlainQueue


def test_each_channel_of_an_edge_has_its_share_of_the_memory_but_never_a_tiny_one() -> None:
    space = SpillSpace("", Store().load)
    assert space.share_bytes(1) == spilled.MEMORY_BYTES
    assert space.share_bytes(4) == spilled.MEMORY_BYTES // 4
    assert space.share_bytes(1000) == spilled.LEAST_BYTES
    space.memory_bytes = 100
    assert space.share_bytes(1000) == 100
