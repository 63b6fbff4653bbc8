"""What is compared leaves out the start of a program, and says what it comes to with it."""

from everstream.apps.cycle.compare import sides
from everstream.apps.cycle.outcome import outcome_of
from everstream.apps.cycle.plan import Planned
from everstream.apps.cycle.settings import Settings
from everstream.apps.interfaces.job import Done


def test_a_side_tells_its_throughput_without_and_with_its_start() -> None:
    planned = Planned(0, "tiny-everstream", "tiny", "everstream", "test", 2, 1, 0, Settings())
    found = outcome_of(planned, Done(60, 2.0, startup_s=4.0), True)
    (side,) = sides([found])
    told = side.to_json()
    assert (told["throughput"]["mean"], told["throughput_with_start"]["mean"]) == (30.0, 10.0)
