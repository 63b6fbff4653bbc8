"""Connections that are watched: what a cut looks like to the worker that sends."""

from collections.abc import Iterator

import pytest
import zmq

from everstream.core.ids import Generation, WorkerId
from everstream.core.messages import LinkCut
from everstream.engine.continuous.transport.control_messages import Unreachable
from everstream.engine.continuous.transport.endpoints import RunKeys, SocketFactory
from everstream.engine.continuous.transport.links import GRACE_S, Peers, Watch
from tests.chaos.relay import Relay

ME, PEER = WorkerId(0), WorkerId(1)


class Two:
    """Two workers on a network of their own, with a relay before the second."""

    def __init__(self, always_tcp: bool = True) -> None:
        keys = RunKeys.make()
        self.relay = Relay()
        self.mine = SocketFactory(keys, "127.0.0.1", always_tcp=always_tcp, silence_s=0.5)
        self.others = SocketFactory(keys, "127.0.0.1", always_tcp=always_tcp)
        self.inbox, self.address = self.others.listen(zmq.PULL, "inbox")
        self.inbox.rcvtimeo = 30_000
        self.peers = Peers(self.mine, ME, slow_after_s=5.0)

    def meet(self, generation: int = 1) -> None:
        addresses = {ME: self.address, PEER: self.relay.address(self.address)}
        self.peers.meet(addresses, Generation(generation), now_s=0.0)

    def say(self, word: bytes) -> None:
        self.peers[PEER].send(word)
        assert self.inbox.recv() == word

    def wait_for_cut(self, now_s: float) -> list[object]:
        """What is told of the next cut; the events are waited for, not the clock."""
        events = self.peers[PEER].get_monitor_socket()
        while not (told := list(self.peers.news(now_s))):
            assert events.poll(30_000)
        return told

    def close(self) -> None:
        self.relay.close()
        self.peers.close()
        self.inbox.close()
        self.mine.close()
        self.others.close()


@pytest.fixture
def two() -> Iterator[Two]:
    two = Two()
    yield two
    two.close()


CUT = LinkCut(ME, PEER, Generation(1), "it broke")


def test_a_connection_that_broke_and_came_back_is_a_cut_at_once(two: Two) -> None:
    two.meet()
    two.say(b"before")
    assert list(two.peers.news(0.0)) == []
    two.relay.heal()  # resets what is open
    assert two.wait_for_cut(0.0) == [CUT]
    assert list(two.peers.news(99.0)) == [], "it is told once"


def test_a_silent_network_is_noticed_though_nobody_hangs_up(two: Two) -> None:
    two.meet()
    two.say(b"before")
    two.relay.swallow()
    watch = two.peers._watches[PEER]
    watch.look(0.0)
    while watch.is_up:
        assert two.peers[PEER].get_monitor_socket().poll(30_000)
        watch.look(0.0)
    assert list(two.peers.news(GRACE_S / 2)) == [], "its peer may have died, which others tell"
    assert list(two.peers.news(GRACE_S)) == [CUT]


def test_a_peer_that_is_never_reached_is_told_and_no_cut(two: Two) -> None:
    two.relay.swallow()
    two.meet()
    assert list(two.peers.news(0.0)) == list(two.peers.news(4.0)) == []
    assert list(two.peers.news(5.0)) == [Unreachable(ME, PEER, 5.0)]


def test_meeting_again_forgets_the_cuts_of_before(two: Two) -> None:
    two.meet()
    two.say(b"before")
    two.relay.heal()
    assert two.wait_for_cut(0.0) == [CUT]
    two.meet(generation=2)
    two.say(b"after")
    assert list(two.peers.news(99.0)) == []


def test_missing_frames_are_told_once_and_only_a_network_can_lose_them(two: Two) -> None:
    two.meet()
    assert two.peers.over_network(PEER) and not two.peers.over_network(ME)
    assert list(two.peers.frames_lost(PEER)) == [
        LinkCut(PEER, ME, Generation(1), "frames are missing")
    ]
    assert list(two.peers.frames_lost(PEER)) == []


def test_unix_sockets_are_up_and_never_cut() -> None:
    two = Two(always_tcp=False)
    watch = Watch(two.mine, zmq.PUSH, two.address)
    watch.look(0.0)
    assert watch.is_up and not watch.over_network and not watch.is_cut(99.0)
    watch.close()
    two.close()
