"""What a worker does near the limit of its memory: bytes in, decision out."""

from hypothesis import given
from hypothesis import strategies as st

from everstream.core.memory_guard import PATIENCE_S, MemoryGuard, Strain


def test_near_the_limit_nothing_is_taken_in_until_there_is_clearly_less() -> None:
    guard = MemoryGuard(100)
    assert not guard.look(84, 0.0) and guard.strain is Strain.NONE
    assert guard.look(85, 1.0) and guard.strain is Strain.HELD
    assert not guard.look(80, 2.0) and guard.strain is Strain.HELD
    assert guard.look(75, 3.0) and guard.strain is Strain.NONE


def test_when_waiting_is_of_no_use_work_goes_on_until_the_limit() -> None:
    guard = MemoryGuard(100)
    guard.look(90, 0.0)
    assert not guard.look(90, PATIENCE_S - 0.1)
    assert guard.look(90, PATIENCE_S) and guard.strain is Strain.IN_VAIN
    assert not guard.look(99, PATIENCE_S + 50)
    assert guard.look(100, PATIENCE_S + 60) and guard.strain is Strain.OVER


def test_after_it_was_in_vain_it_waits_again_only_once_there_was_less() -> None:
    guard = MemoryGuard(100)
    guard.look(90, 0.0)
    guard.look(90, PATIENCE_S)
    guard.look(80, 20.0)
    assert guard.strain is Strain.IN_VAIN
    guard.look(70, 21.0)
    guard.look(90, 22.0)
    assert guard.strain is Strain.HELD
    guard.look(90, 22.0 + PATIENCE_S - 0.1)
    assert guard.strain is Strain.HELD


@given(st.lists(st.tuples(st.integers(0, 120), st.floats(0.0, 5.0))))
def test_nobody_waits_for_ever_and_over_means_over(looks: list[tuple[int, float]]) -> None:
    guard, now_s, held_s = MemoryGuard(100), 0.0, 0.0
    for used, passed_s in looks:
        now_s += passed_s
        was_held = guard.strain is Strain.HELD
        guard.look(used, now_s)
        assert (guard.strain is Strain.OVER) == (used >= 100)
        held_s = held_s + passed_s if was_held and guard.strain is Strain.HELD else 0.0
        assert held_s < PATIENCE_S
