"""The driver is killed between our manifest and Spark's own note of a batch: every row counts once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from everstream.core.orders import Outcome
from everstream.pipeline.checkpointing import EngineName
from tests.chaos.streamed import FILES, LAST, ROWS, run, write

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_a_batch_that_the_manifest_has_and_spark_has_not_noted_counts_once(
    engine: EngineName, tmp_path: Path
) -> None:
    write(tmp_path / "in")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.chaos.streamed", engine, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    query = tmp_path / "store" / "sources" / "rows" / "query"
    assert (query / "offsets" / str(LAST)).exists() and not (query / "commits" / str(LAST)).exists()
    result = run(engine, tmp_path)
    assert result.outcome is Outcome.FINISHED and result.resumed_from > 0
    totals = Counter(n % 3 for n in range(FILES * ROWS))
    each = Counter((key, count + 1) for key, total in totals.items() for count in range(total))
    assert Counter(result.collected("out")) == each
