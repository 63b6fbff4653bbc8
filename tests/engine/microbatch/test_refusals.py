"""What makes no sense with one job per epoch is refused before Spark starts, with the reason."""

from typing import Any

import pytest

import everstream as es
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Checkpointing


def numbers() -> es.Pipeline:
    pipeline = es.Pipeline("numbers")
    return pipeline.source(es.Range(10), name="numbers").collect()


@pytest.mark.parametrize(
    "checkpoint",
    [
        es.Coordinated(mode="unaligned"),
        es.Coordinated(mode="at-least-once"),
        es.Uncoordinated(),
        es.CommunicationInduced(),
        None,
    ],
)
def test_other_protocols_are_refused(checkpoint: Checkpointing | None) -> None:
    with pytest.raises(UserError, match="takes aligned checkpoints only"):
        numbers().run(engine="microbatch", checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"transport": "tcp"}, "Spark moves the records"),
        ({"monitor": "100ms"}, "only during an epoch"),
        ({"kill": ["numbers@in-commit"]}, "driver@in-commit"),
        ({"workers": 2}, "as many tasks as"),
    ],
)
def test_options_of_the_other_engine_are_refused(option: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        numbers().run(engine="microbatch", **option)


def test_an_engine_that_does_not_exist_is_named() -> None:
    wrong: Any = "batch"
    with pytest.raises(UserError, match="say one of tasks, microbatch"):
        numbers().run(engine=wrong)


def test_sources_that_wait_for_each_other_are_refused() -> None:
    timed = (
        es.Pipeline("drifting")
        .source(es.FromList([{"t": 1}]))
        .event_time("t", unit="s", max_drift="1m")
    )
    pipeline = timed.collect()
    with pytest.raises(UserError, match="has a max_drift"):
        pipeline.run(engine="microbatch")
