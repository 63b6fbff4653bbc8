"""What measuring costs is judged round by round."""

import pytest

from everstream_lab.bench.metrics_cost import _cost
from everstream_lab.bench.overhead import Timing


def test_a_slow_round_is_compared_with_its_own_other_side() -> None:
    timings = {
        "measured_large": Timing(1, [1.01, 2.02, 5.05], [1.0, 2.0, 4.0]),
        "unmeasured_large": Timing(1, [1.0, 2.0, 5.0], [1.0, 1.0, 4.0]),
    }
    cost = _cost(timings, "throughput", "large", "rounds_s")
    assert cost.repetitions == pytest.approx([0.0099] * 3, abs=1e-4)
    assert cost.value == pytest.approx(0.0099, abs=1e-4) and cost.reached
    processor = _cost(timings, "processor", "large", "cpu_s")
    assert (processor.value, processor.repetitions) == (0.0, (0.0, 0.5, 0.0))
