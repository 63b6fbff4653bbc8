"""Small messages travel together; none is lost, held back or overtaken."""

from typing import Any

from everstream.core.ids import HostId, ShardId
from everstream.spark.parcels import MOST_BYTES, MOST_MESSAGES, SLOW_S, Parcels

HERE, THERE = HostId(1), HostId(2)


class Post:
    """Keeps what was handed over."""

    def __init__(self) -> None:
        self.sent: list[tuple[HostId, list[Any], bool]] = []

    def __call__(self, host: HostId, parts: list[Any], copy: bool) -> None:
        self.sent.append((host, parts, copy))


def test_messages_for_one_host_wait_for_the_end_of_the_turn_and_go_together() -> None:
    post = Post()
    parcels = Parcels(post)
    for message in (b"a", b"b"):
        parcels.add(HERE, message)
        parcels.add(THERE, message.upper())
    assert not post.sent
    parcels.send_all()
    parcels.send_all()
    assert post.sent == [(HERE, [b"ab"], True), (THERE, [b"AB"], True)]


def test_enough_messages_go_at_once() -> None:
    post = Post()
    parcels = Parcels(post)
    for _ in range(MOST_MESSAGES):
        parcels.add(HERE, b"x")
    parcels.add(THERE, b"y" * MOST_BYTES)
    assert post.sent == [(HERE, [b"x" * MOST_MESSAGES], True), (THERE, [b"y" * MOST_BYTES], True)]


def test_a_large_message_goes_at_once_and_overtakes_nothing() -> None:
    post = Post()
    parcels = Parcels(post)
    parcels.add(HERE, b"first,")
    parcels.add_large(HERE, b"header", [b"payload"], copy=False)
    parcels.add_large(HERE, b"another", [b"payload"], copy=True)
    parcels.send_all()
    assert post.sent == [
        (HERE, [b"first,header", b"payload"], False),
        (HERE, [b"another", b"payload"], True),
    ]


def test_what_waits_for_one_host_can_go_alone() -> None:
    post = Post()
    parcels = Parcels(post)
    parcels.add(HERE, b"a")
    parcels.add(THERE, b"b")
    parcels.send(THERE)
    parcels.send(THERE)
    assert post.sent == [(THERE, [b"b"], True)]


def test_nothing_waits_for_a_shard_whose_last_step_took_long() -> None:
    post = Post()
    parcels = Parcels(post)
    slow, quick = ShardId("slow", 0), ShardId("quick", 0)
    parcels.after_step(slow, 2 * SLOW_S)
    parcels.after_step(quick, SLOW_S / 2)
    parcels.add(HERE, b"a")
    parcels.before_step(quick)
    assert not post.sent
    parcels.before_step(slow)
    assert post.sent == [(HERE, [b"a"], True)]
    parcels.after_step(slow, SLOW_S / 2)
    parcels.add(HERE, b"b")
    parcels.before_step(slow)
    assert len(post.sent) == 1
