"""Random histories of a shard's state against plain dicts.

Whatever is put, deleted, changed in place (also by somebody who held on to a value), captured,
uploaded in any order or lost: each durable chain restores exactly the dicts of its instant.
"""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.state.histories import STEPS, History, Step


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**20)), min_size=60, max_size=90))
def test_each_durable_chain_restores_exactly_its_instant(steps: list[tuple[Step, int]]) -> None:
    history = History()
    for step, seed in steps:
        step(history, Random(seed))
        history.check()
