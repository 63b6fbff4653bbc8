"""Values that drift in type, in real runs on both engines: killed or not, the output is the same."""

import json
from pathlib import Path

import polars as pl
import pytest

import everstream as es
from tests.engines import on_all_engines_at_length
from tests.spark import MASTER


def drifting(n: int) -> dict[str, object]:
    """Whole numbers, and later now and then something that no column of integers holds."""
    if n >= 200 and n % 10 == 7:
        return {"n": n, "a": n + 0.5 if n % 20 == 7 else n % 40 == 17}
    return {"n": n, "a": None if n % 10 == 3 else n}


@on_all_engines_at_length
@pytest.mark.parametrize(
    "kill", [("files@100",), pytest.param((), marks=pytest.mark.long)], ids=["killed", "calm"]
)
def test_a_run_with_a_failure_stores_the_same_values_as_one_without(
    tmp_path: Path, kill: tuple[str, ...]
) -> None:
    numbers = es.Pipeline("drift").source(
        es.Paced(es.Range(400, batch=10), rate=800), name="numbers"
    )
    records = numbers.map(drifting, name="drifting").on_demand()
    files = es.Parquet(f"{tmp_path}/out/")
    pipeline = records.sink(files, name="files", shards=2, on_error="dead_letter")
    result = pipeline.run(
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="100ms"),
        master=MASTER,
        kill=kill,
        progress=False,
    )
    assert len(result.recoveries) == len(kill)
    refused = {n for n in range(200, 400) if n % 10 == 7}
    assert result.skipped == {"files": len(refused)}
    found = pl.read_parquet(f"{tmp_path}/out/*.parquet")
    assert found.schema == {"n": pl.Int64, "a": pl.Int64}
    stored = {n: drifting(n)["a"] for n in range(400) if n not in refused}
    assert dict(sorted(found.rows())) == stored
    assert found.height == len(stored)
    parts = (tmp_path / "store/dead_letters/files").glob("*.jsonl")
    letters = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert sorted(letter["record"]["n"] for letter in letters) == sorted(refused)
    assert all("operator 'files', column 'a': " in letter["error"] for letter in letters)
