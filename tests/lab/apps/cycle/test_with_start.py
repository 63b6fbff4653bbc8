"""What is compared leaves out the start of a program, and says what it comes to with it."""

from everstream_lab.apps.cycle.benchmarks import Planned
from everstream_lab.apps.cycle.outcome import outcome_of
from everstream_lab.apps.cycle.results import sides
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.job import Done


def test_a_side_tells_its_throughput_without_and_with_its_start() -> None:
    planned = Planned(0, "tiny-everstream", "tiny", "everstream", "test", 2, 1, 0, Settings())
    found = outcome_of(planned, Done(60, 2.0, startup_s=4.0), True)
    (side,) = sides([found])
    told = side.to_json()
    assert (told["throughput"]["mean"], told["throughput_with_start"]["mean"]) == (30.0, 10.0)
