"""Spark starts tasks twice and loses what was shuffled: micro-batches stay exact."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.chaos.standalone import cluster
from tests.engine.microbatch.pipelines import counted

pytestmark = pytest.mark.spark("about what Spark does to its tasks")

ROOT = Path(__file__).parents[2]


def run(trouble: str, folder: Path, master: str) -> None:
    """To the end; its output must be exact."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.troubled", trouble, str(folder), master],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((folder / "result").read_text())
    assert Counter((key, count) for key, count in rows) == counted()


def read_again(folder: Path) -> bool:
    """Whether some record was read by several attempts."""
    attempts: dict[str, set[str]] = defaultdict(set)
    for line in (folder / "reads").read_text().splitlines():
        record, attempt = line.split()
        attempts[record].add(attempt)
    return any(len(several) > 1 for several in attempts.values())


def test_shuffle_files_lost_between_two_stages_change_nothing(tmp_path: Path) -> None:
    run("lost-files", tmp_path, "local[1,100]")
    assert int((tmp_path / "swept").read_text()) > 0
    assert read_again(tmp_path), "Spark had to run the stage before once more"


@pytest.mark.long
def test_a_twin_that_speculation_starts_changes_nothing(tmp_path: Path) -> None:
    # Spark starts a twin on another machine only: as that, another address will do.
    with cluster(tmp_path, ["127.0.0.1", "127.0.0.2"]) as (master, _):
        run("twins", tmp_path, master)
    assert (tmp_path / "twin").exists(), "Spark has started one"
