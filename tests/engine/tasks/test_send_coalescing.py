"""Small messages travel together; none is lost, held back or overtaken."""

from typing import Any

from everstream.core.ids import ShardId, WorkerId
from everstream.engine.continuous.transport.send_coalescing import (
    MOST_BYTES,
    MOST_MESSAGES,
    SLOW_S,
    SendCoalescing,
)

HERE, THERE = WorkerId(1), WorkerId(2)


class Post:
    """Keeps what was handed over."""

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, list[Any], bool]] = []

    def __call__(self, worker: WorkerId, parts: list[Any], copy: bool) -> None:
        self.sent.append((worker, parts, copy))


def test_messages_for_one_worker_wait_for_the_end_of_the_turn_and_go_together() -> None:
    post = Post()
    coalescing = SendCoalescing(post)
    for message in (b"a", b"b"):
        coalescing.add(HERE, message)
        coalescing.add(THERE, message.upper())
    assert not post.sent
    coalescing.send_all()
    coalescing.send_all()
    assert post.sent == [(HERE, [b"ab"], True), (THERE, [b"AB"], True)]


def test_enough_messages_go_at_once() -> None:
    post = Post()
    coalescing = SendCoalescing(post)
    for _ in range(MOST_MESSAGES):
        coalescing.add(HERE, b"x")
    coalescing.add(THERE, b"y" * MOST_BYTES)
    assert post.sent == [(HERE, [b"x" * MOST_MESSAGES], True), (THERE, [b"y" * MOST_BYTES], True)]


def test_a_large_message_goes_at_once_and_overtakes_nothing() -> None:
    post = Post()
    coalescing = SendCoalescing(post)
    coalescing.add(HERE, b"first,")
    coalescing.add_large(HERE, b"header", [b"payload"], copy=False)
    coalescing.add_large(HERE, b"another", [b"payload"], copy=True)
    coalescing.send_all()
    assert post.sent == [
        (HERE, [b"first,header", b"payload"], False),
        (HERE, [b"another", b"payload"], True),
    ]


def test_what_waits_for_one_worker_can_go_alone() -> None:
    post = Post()
    coalescing = SendCoalescing(post)
    coalescing.add(HERE, b"a")
    coalescing.add(THERE, b"b")
    coalescing.send(THERE)
    coalescing.send(THERE)
    assert post.sent == [(THERE, [b"b"], True)]


def test_nothing_waits_for_a_shard_whose_last_step_took_long() -> None:
    post = Post()
    coalescing = SendCoalescing(post)
    slow, quick = ShardId("slow", 0), ShardId("quick", 0)
    coalescing.after_step(slow, 2 * SLOW_S)
    coalescing.after_step(quick, SLOW_S / 2)
    coalescing.add(HERE, b"a")
    coalescing.before_step(quick)
    assert not post.sent
    coalescing.before_step(slow)
    assert post.sent == [(HERE, [b"a"], True)]
    coalescing.after_step(slow, SLOW_S / 2)
    coalescing.add(HERE, b"b")
    coalescing.before_step(slow)
    assert len(post.sent) == 1
