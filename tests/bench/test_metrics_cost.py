"""What measuring costs is judged round by round."""

import pytest

from everstream.bench.metrics_cost import Share, _share
from everstream.bench.overhead import Timing


def test_a_slow_round_is_compared_with_its_own_other_side() -> None:
    timings = {
        "measured_large": Timing(1, [1.01, 2.02, 5.05], [1.0, 2.0, 4.0]),
        "unmeasured_large": Timing(1, [1.0, 2.0, 5.0], [1.0, 1.0, 4.0]),
    }
    share = _share(timings, "large", "rounds_s")
    assert [share.cost, share.low, share.high] == [pytest.approx(0.0099, abs=1e-4)] * 3
    assert _share(timings, "large", "cpu_s") == Share(0.0, 0.0, 0.5)
