"""Every application gives the sequential program's result, although a process is killed meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstream as es
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.running import run_pipeline
from tests.sampling import sampled

from .conftest import MASTER, Folder, application

KILLS = {
    "prime": "count@2500",
    "mandelbrot": "binary@30",
    "compress": "binary@in-commit",
    "decompress": "binary@after-prepare",
    "eye": "binary@2",
    "sentiment": "score@after-snapshot",
    "lane": "binary@after-commit",
    "face": "binary@4",
    "ferret": "queries@6",
}
"""Each is at a place that every run comes to, whichever shard asks first."""
OPTIONS = ("--kills", "6", "--seed", "7", "--drivers")


@pytest.mark.parametrize("name", sampled(NAMES, ["prime", "compress", "lane", "ferret"]))
def test_an_application_gives_the_sequential_result_through_a_kill(
    name: str, folder: Folder, tmp_path: Path
) -> None:
    app = application(name)
    run = run_pipeline(
        app,
        folder(name),
        tmp_path / app.result,
        checkpoint=es.Coordinated(every="200ms"),
        kill=[KILLS[name]],
        master=MASTER,
    )
    assert any(report.injected for report in run.run.recoveries), "nobody was killed"
    assert run.exact


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_an_audit_finds_nothing_lost_and_nothing_doubled(
    name: str, folder: Folder, tmp_path: Path
) -> None:
    folder(name)  # made before the audit measures how long a run takes
    done = subprocess.run(
        [sys.executable, "-m", "everstream", "audit", f"everstream_lab.pipelines:{name}", *OPTIONS],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0" in done.stdout
