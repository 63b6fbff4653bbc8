"""Savepoints of real runs: gone back to, and taken as the beginning of a run elsewhere."""

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.core.orders import Outcome
from everstream.inspection import edit_savepoint, open_store
from everstream.state.savepoints import savepoint, take_savepoint
from tests.engine.tasks.running import run
from tests.fixtures.make import FOLDER
from tests.fixtures.pipelines import GATE, STORES
from tests.gated_numbers import Gated
from tests.output import rows_in

TOTAL, KEYS = 6_000, 7
WAYS: list[dict[str, Any]] = [
    {"checkpoint": es.Coordinated(every="50ms")},
    {"checkpoint": es.Uncoordinated(every="50ms")},
    {"engine": "microbatch", "checkpoint": es.Coordinated(every="50ms")},
]


def half(snapshot: es.RunStatus) -> bool:
    return snapshot.records_read >= TOTAL // 2


def reciprocal(n: int) -> int:
    return 1 // (n % 1000) * 0 + n


def counting(out: Path) -> es.Pipeline:
    """Counts by key, one record in a thousand is a dead letter."""
    pipeline = es.Pipeline("counted")
    numbers = pipeline.source(Gated(out.parent / "gate", TOTAL, batch=100), name="numbers")
    whole = numbers.map(reciprocal, name="reciprocal", on_error="dead_letter")
    counts = whole.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, n: count + 1, name="count", shards=2
    )
    counts.sink(es.JsonLines(str(out)), name="out")
    return pipeline


def expected() -> Counter[tuple[int, int]]:
    totals = Counter(n % KEYS for n in range(TOTAL) if n % 1000)
    return Counter((key, n + 1) for key, total in totals.items() for n in range(total))


def rejected(store: Path) -> list[int]:
    paths = (store / "dead_letters" / "reciprocal").glob("part-*")
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["record"] for line in lines)


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("way", WAYS, ids=["aligned", "uncoordinated", "microbatch"])
def test_a_run_goes_back_to_a_savepoint_and_another_begins_with_it(
    way: dict[str, Any], tmp_path: Path
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    stopped = run(counting(out), store=store, until=half, **way)
    assert stopped.outcome is Outcome.STOPPED
    before = rows_in(out)
    (tmp_path / "gate").touch()
    command("savepoint", "take", str(store), "half")
    assert run(counting(out), store=store, **way).outcome is Outcome.FINISHED
    assert rows_in(out) == expected()

    fork = tmp_path / "fork"
    options = {"store": tmp_path / "other", "start_from": f"{store}@half", **way}
    assert run(counting(fork), **options).outcome is Outcome.FINISHED
    assert rows_in(fork) == expected() - before, "it has all that comes after, and nothing before"
    assert rows_in(out) == expected(), "the output of the first is its own"
    assert rejected(tmp_path / "other") == [3000, 4000, 5000]

    command("rewind", str(store), "--to", "half", "--yes")
    assert run(counting(out), store=store, **way).outcome is Outcome.FINISHED
    assert rows_in(out) == expected()


def test_a_savepoint_outlives_a_fresh_start_and_can_be_carried_elsewhere(tmp_path: Path) -> None:
    store, out, way = tmp_path / "store", tmp_path / "out", WAYS[0]
    run(counting(out), store=store, until=half, **way)
    before = rows_in(out)
    (tmp_path / "gate").touch()
    taken = take_savepoint(open_store(store), "half", now=1.0)
    run(counting(out), store=store, fresh=True, until=lambda s: s.records_read > 0, **way)
    refused = CliRunner().invoke(app, ["rewind", str(store), "--to", "half", "--yes"])
    assert refused.exit_code == 2 and "--start-from STORE@half" in refused.output
    file, archive = tmp_path / "half.tar", tmp_path / "archive"
    command("savepoint", "export", f"{store}@half", str(file))
    command("savepoint", "import", str(file), str(archive), "--name", "moved")
    assert savepoint(open_store(archive), "moved").body == taken.body
    fork = tmp_path / "fork"
    run(counting(fork), store=tmp_path / "other", start_from=f"{archive}@moved", **way)
    assert rows_in(fork) == expected() - before


def test_what_cannot_be_begun_with_is_refused_before_spark_starts(tmp_path: Path) -> None:
    pipeline, store = counting(tmp_path / "out"), tmp_path / "store"
    for text, why in {
        "nowhere": "write STORE@NAME",
        f"{store}@half": "own store",
        f"{tmp_path}/other@half": "there is no savepoint 'half'",
        f"{tmp_path}/other@1": "no name for a savepoint",
    }.items():
        with pytest.raises(es.UserError, match=why):
            pipeline.run(store=store, start_from=text)
    with pytest.raises(es.UserError, match="needs its own store"):
        pipeline.run(start_from=f"{store}@half")


@pytest.mark.parametrize("kind", ["aligned", "unaligned", "uncoordinated", "microbatch"])
def test_a_run_goes_on_from_an_edited_savepoint_with_what_was_on_its_way(
    kind: str, tmp_path: Path
) -> None:
    kept, store = STORES[kind], tmp_path / "store"
    with tarfile.open(FOLDER / "0.1.0" / f"{kind}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    command("savepoint", "take", str(store), "before")
    with edit_savepoint(store, "before") as edit:
        edit.state("count").map(lambda key, count: count + 1000)
        edit.save("patched")
    assert "here, edited" in command("savepoint", "list", str(store))
    command("rewind", str(store), "--to", "patched", "--yes")
    (tmp_path / GATE).touch()
    options = {"checkpoint": kept.checkpoint, **kept.options}
    assert run(kept.build(tmp_path), store=store, **options).outcome is Outcome.FINISHED
    found = kept.shown(tmp_path)
    assert Counter((key, n % 1000) for key, n in found.elements()) == kept.expected()
    assert any(n > 1000 for _, n in found)
