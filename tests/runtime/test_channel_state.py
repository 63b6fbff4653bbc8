"""Frames that belong to a checkpoint: within a bound of memory, while it is open and after a restore."""

import pickle

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import Generation
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.payload import BatchPayload
from everstream.runtime.spilled import Spill, SpillSpace
from everstream.state import saved
from tests.runtime.stores import Store
from tests.runtime.wires import CHANNELS


def arriving(number: int) -> Frame:
    payload = BatchPayload(["x" * 1000, number])
    channel = CHANNELS[number % 2]
    return Frame(channel, FrameKind.DATA, Generation(1), number, number, 2, payload=payload)


def test_frames_of_an_open_checkpoint_are_in_memory_up_to_a_bound_and_so_after_a_restore() -> None:
    store, most_bytes = Store(), 20_000
    space = SpillSpace("", store.load)
    channels = ChannelState(spill=Spill(space, CHANNELS), most_bytes=most_bytes)
    for number in range(500):
        channels.add(arriving(number))
        held = sum(len(entry[2] or b"") for queue in channels.inputs.values() for entry in queue)
        assert held < most_bytes
    cut = arriving(500)
    cut.start = 1
    channels.add(cut)
    assert channels and space.written_bytes > 20 * most_bytes
    channels.save(store.put, "work-0/1")
    assert store.largest < 2 * most_bytes
    assert set(channels.saved_segments) == set(store.objects)
    again: ChannelState = pickle.loads(saved.dumps(pickle.loads(saved.dumps(channels))))
    again.fetch(Spill(space, CHANNELS))
    found = again.waiting(CHANNELS, Generation(7))
    on_disk = [
        f for frames in found.values() for f in frames if type(f.payload) is not BatchPayload
    ]
    assert len(on_disk) > 450, "they are read when it is their turn"
    for channel in CHANNELS:
        numbers = [frame.number for frame in found[channel]]
        assert numbers == [n for n in range(501) if CHANNELS[n % 2] == channel]
        for frame in found[channel]:
            assert (frame.generation, frame.sequence) == (7, 0) and frame.payload is not None
            whole = ["x" * 1000, frame.number]
            assert frame.payload.batch == (whole if frame.number < 500 else whole[1:])
    once_more = ChannelState(spill=Spill(space, CHANNELS), most_bytes=most_bytes)
    for frames in found.values():
        for frame in frames:
            once_more.add(frame)
    assert sum(segment.length for segment in once_more.segments) > 450, "saved as they wait"


def test_snapshots_without_segments_are_as_they_ever_were() -> None:
    channels = ChannelState(spill=Spill(SpillSpace("", Store().load), CHANNELS), most_bytes=1 << 20)
    channels.add(arriving(0))
    assert set(channels.__getstate__()) == {"outputs", "inputs"}
    earlier: ChannelState = saved.revive("channel-state", {"outputs": {}, "inputs": {}})
    assert not earlier and earlier.segments == () and earlier.waiting(CHANNELS, Generation(1)) == {}
