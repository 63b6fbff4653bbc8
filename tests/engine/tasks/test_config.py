"""What makes no sense is refused before anything has started."""

from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.engine.settings.options import RunConfig, store_url
from everstream.engine.spark import slots


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"transport": "pigeon"}, "say one of auto, tcp"),
        ({"timeout": "banana"}, "is not a duration"),
        ({"heartbeat_timeout": "banana"}, "is not a duration"),
        ({"restart_window": "banana"}, "is not a duration"),
        ({"slow_after": "banana"}, "is not a duration"),
        ({"checkpoint_timeout": "banana"}, "is not a duration"),
        ({"checkpoint_timeout": 0}, "checkpoint_timeout=0: the time must be positive"),
        ({"checkpoint_timeout": -1.5}, "checkpoint_timeout=-1.5: the time must be positive"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout=0: the time must be positive"),
        ({"timeout": 0}, "timeout=0: the time must be positive"),
        ({"kill": ["copy"]}, "write OPERATOR"),
        ({"kill": ["nobody@5s"]}, "nobody"),
        ({"kill": ["copy:7@5s"]}, "copy"),
    ],
)
def test_a_wrong_wish_is_refused_before_spark_and_the_store_see_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(slots, "make_context", never)
    pipeline = es.Pipeline("asked")
    pipeline.source(es.Range(10)).map(abs, name="copy").collect()
    with pytest.raises(es.UserError, match=says):
        pipeline.run(store=tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()


def test_a_store_is_named_so_that_every_process_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_url("here") == str(tmp_path / "here")
    assert store_url(Path("here")) == str(tmp_path / "here")
    assert store_url("memory://there") == "memory://there"
    assert store_url(None) is None


def test_the_coordinator_goes_by_what_was_chosen() -> None:
    recovery = es.Recovery(
        max_restarts=7, restart_window="2m", slow_after=3, checkpoint_timeout="5m"
    )
    options = es.RunOptions(checkpoint=es.Coordinated(every_records=500), recovery=recovery)
    chosen = RunConfig.of(options).policy
    assert (chosen.checkpoints, chosen.every_records, chosen.max_restarts) == (True, 500, 7)
    assert (chosen.restart_window_s, chosen.slow_after_s) == (120.0, 3.0)
    assert chosen.checkpoint_timeout_s == 300.0
    own = RunConfig.of(es.RunOptions(checkpoint=es.Uncoordinated(every="2s"))).policy
    assert (own.checkpoints, own.every_s, own.every_records) == (True, 2.0, None)
    assert not RunConfig.of(es.RunOptions(checkpoint=None)).policy.checkpoints
