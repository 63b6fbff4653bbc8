"""Credit: nothing of it is lost, it grows where frames are quick, and goes back where they are not."""

from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.engine.continuous.transport.credit import MOST_MORE, QUICK_S, SLOW_S, CreditGrants
from everstream.engine.continuous.transport.wire import Credit
from everstream.runtime.outlets import CREDIT_ON_DEMAND

LEFT = ChannelId(0, ShardId("source", 0), ShardId("sink", 0))
RIGHT = ChannelId(0, ShardId("source", 1), ShardId("sink", 0))
QUICK, USUAL, SLOW = QUICK_S / 2, (QUICK_S + SLOW_S) / 2, 2 * SLOW_S


def credit(
    channel: ChannelId = LEFT, frames: int = 1, most: int = 0, generation: int = 1
) -> Credit:
    return Credit(channel, Generation(generation), frames, most)


class Sender:
    """Hears the credit; `net` is what it has beyond what it began with and has used."""

    def __init__(self, small: bool = True) -> None:
        self.heard: list[Credit] = []
        self.used = 0
        self.grants = CreditGrants(self.heard.append)
        self.grants.saw(LEFT, small)

    def take(self, frames: int, took_s: float, generation: int = 1) -> None:
        for _ in range(frames):
            self.used += 1
            self.grants.add(credit(generation=generation), took_s)
        self.grants.flush()

    @property
    def net(self) -> int:
        return sum(one.frames for one in self.heard) - self.used


def test_half_of_the_credit_goes_at_once_with_the_latest_wish() -> None:
    sent: list[Credit] = []
    grants = CreditGrants(sent.append)
    for most in range(CREDIT_ON_DEMAND // 2):
        assert sent == []
        grants.add(credit(most=most), USUAL)
    assert sent == [credit(frames=CREDIT_ON_DEMAND // 2, most=CREDIT_ON_DEMAND // 2 - 1)]
    grants.flush()
    assert len(sent) == 1


def test_less_goes_when_the_turn_is_over_for_each_channel() -> None:
    sent: list[Credit] = []
    grants = CreditGrants(sent.append)
    grants.add(credit(LEFT), USUAL)
    grants.add(credit(RIGHT, most=7), USUAL)
    assert sent == []
    grants.flush()
    assert sorted(sent) == [credit(LEFT), credit(RIGHT, most=7)]


def test_quick_small_frames_get_more_credit_up_to_a_bound_in_few_messages() -> None:
    sender = Sender()
    sender.take(10 * MOST_MORE, QUICK)
    assert sender.net == MOST_MORE
    assert len(sender.heard) < 60, "of six hundred frames"


def test_slow_frames_take_it_back_and_leave_what_a_sender_began_with() -> None:
    sender = Sender()
    sender.take(MOST_MORE, QUICK)
    sender.take(MOST_MORE // 2, SLOW)
    assert sender.net == MOST_MORE - MOST_MORE // 2
    sender.take(10 * MOST_MORE, SLOW)
    assert sender.net == 0


def test_large_frames_and_those_that_take_a_while_get_no_more_than_they_use() -> None:
    large, usual = Sender(small=False), Sender()
    large.take(100, QUICK)
    usual.take(100, USUAL)
    assert (large.net, usual.net) == (0, 0)


def test_whoever_goes_back_begins_with_the_first_credit() -> None:
    sender = Sender()
    sender.take(MOST_MORE, QUICK)
    sender.heard.clear()
    sender.used = 0
    sender.take(10, SLOW, generation=2)
    assert sender.net == 0, "nothing is kept of what was granted before"
    assert {one.generation for one in sender.heard} == {2}


def test_what_was_granted_before_a_channel_began_anew_is_void() -> None:
    sent: list[Credit] = []
    grants = CreditGrants(sent.append)
    grants.add(credit(generation=1), USUAL)
    grants.add(credit(generation=2), USUAL)
    grants.flush()
    assert sent == [credit(generation=2)]
