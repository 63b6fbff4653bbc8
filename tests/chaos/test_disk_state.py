"""Real kills of workers that keep their state on disk: while a checkpoint is saved, and in a restore."""

from dataclasses import replace
from pathlib import Path

import pytest

import everstream as es

from .conftest import MASTER, Killer, expected, killable, shown
from .places import store_of

KILLS = {
    "while files are saved": ["count:0@in-snapshot#2", "count:1@in-snapshot#4"],
    "around a restore": ["count:1@after-snapshot#3", "count:0@in-restore"],
}


def on_disk(folder: Path) -> es.Pipeline:
    pipeline = killable(folder)
    return pipeline.with_nodes({"count": replace(pipeline.graph.nodes["count"], state="disk")})


@pytest.mark.parametrize("story", KILLS)
def test_workers_with_state_on_disk_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, story: str
) -> None:
    result = on_disk(tmp_path).run(
        checkpoint=es.Coordinated(every="200ms"),
        store=store_of(tmp_path),
        master=MASTER,
        workers=6,
        kill=KILLS[story],
        listener=Killer(tmp_path, len(KILLS[story])),
    )
    assert shown(tmp_path) == expected()
    assert [report.injected for report in result.recoveries] == [True] * len(KILLS[story])
    counted = result.checkpoints[-1].records
    assert any(record.files for record in counted.values()), "nothing was on disk"
