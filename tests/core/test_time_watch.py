"""Who holds back event time is found out, and named when it lasts."""

from everstream.core.coordinators.time_watch import TimeWatch, holding_back
from everstream.core.measuring import Meter
from everstream.events import is_warning, sentence


def source(number: int, watermark: int | None) -> Meter:
    return Meter(
        source_time_us=None if watermark is None else watermark * 1_000,
        time_waits_for=f"shard {number} of 'orders'",
    )


def test_the_slowest_source_holds_back_time_if_another_is_ahead() -> None:
    meters = [source(0, 9_000), source(1, 4_000), Meter(watermark=1_000)]
    assert holding_back(meters) == (meters[1], 9_000_000)
    meters.append(source(2, None))
    assert holding_back(meters) == (meters[3], 9_000_000)
    assert holding_back([source(0, 5), source(1, 5)])[0] is None
    assert holding_back([source(0, None), Meter()])[0] is None
    assert holding_back([Meter()])[0] is None
    partition = Meter(time_waits_for="partition 3 of topic 'orders'", split_behind=True)
    assert holding_back([partition])[0] is partition, "another partition of this shard is ahead"


def test_a_warning_comes_when_a_source_has_not_advanced_for_long_and_not_before() -> None:
    watch = TimeWatch(10)
    for now_s in range(9):
        assert watch.due([source(0, now_s * 1_000), source(1, 500)], now_s) is None
    assert watch.due([source(0, 9_000), source(1, 600)], 9) is None, "it has advanced"
    assert watch.due([source(0, 18_000), source(1, 600)], 18) is None
    warning = watch.due([source(0, 20_600), source(1, 600)], 20)
    assert warning is not None and is_warning(warning)
    assert sentence(warning) == (
        "windows wait for shard 1 of 'orders': its event time has not advanced for 11 s and is 20 s "
        "behind the fastest source. If it has nothing to send, set idle_after"
    )
    assert watch.due([source(0, 21_000), source(1, 600)], 21) is None
    assert watch.due([source(0, 21_000), source(1, 600)], 42) is not None


def test_a_source_without_any_event_time_is_named_too() -> None:
    watch = TimeWatch(1)
    assert watch.due([source(0, 1), source(3, None)], 0) is None
    warning = watch.due([source(0, 1), source(3, None)], 2)
    assert warning is not None and warning.by == "shard 3 of 'orders'" and warning.behind_s is None
