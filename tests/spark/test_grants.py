"""Credit travels together: nothing of it is lost, and nobody waits for more of it."""

from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.spark.grants import TOGETHER, Grants
from everstream.spark.wire import Credit

LEFT = ChannelId(0, ShardId("source", 0), ShardId("sink", 0))
RIGHT = ChannelId(0, ShardId("source", 1), ShardId("sink", 0))


def credit(
    channel: ChannelId = LEFT, frames: int = 1, most: int = 0, generation: int = 1
) -> Credit:
    return Credit(channel, Generation(generation), frames, most)


def test_half_of_the_credit_goes_at_once_with_the_latest_wish() -> None:
    sent: list[Credit] = []
    grants = Grants(sent.append)
    for most in range(TOGETHER):
        assert sent == []
        grants.add(credit(most=most))
    assert sent == [credit(frames=TOGETHER, most=TOGETHER - 1)]
    grants.flush()
    assert len(sent) == 1


def test_less_goes_when_the_turn_is_over_for_each_channel() -> None:
    sent: list[Credit] = []
    grants = Grants(sent.append)
    grants.add(credit(LEFT))
    grants.add(credit(RIGHT, most=7))
    assert sent == []
    grants.flush()
    assert sorted(sent) == [credit(LEFT), credit(RIGHT, most=7)]


def test_what_was_granted_before_a_channel_began_anew_is_void() -> None:
    sent: list[Credit] = []
    grants = Grants(sent.append)
    grants.add(credit(generation=1))
    grants.add(credit(generation=2))
    grants.flush()
    assert sent == [credit(generation=2)]
