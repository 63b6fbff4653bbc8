"""`everstream run --until caught-up` with real processes, killed on the way, again and again."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.output import records_in

pytestmark = pytest.mark.timeout(900)
PROGRAM = """
import everstream as es

pipeline = es.Pipeline("sums")
(
    pipeline.source(es.TextLines("in/", batch_bytes=500), name="lines", shards=2)
    .map(int)
    .key_by(lambda n: n % 5)
    .fold(init=int, update=lambda total, n: total + n, name="sum", shards=2)
    .sink(es.JsonLines("out/"), name="out")
)
"""


def add(folder: Path, first: int, count: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "in" / f"{first:08d}.txt"
    path.write_text("".join(f"{n}\n" for n in range(first, first + count)))


def shown(folder: Path) -> Counter[int]:
    """The number of sums that each key has shown: one for every record."""
    return Counter(key for key, _ in records_in(folder / "out"))


def expected(total: int) -> Counter[int]:
    return Counter(n % 5 for n in range(total))


def test_a_killed_driver_and_a_killed_command_leave_nothing_out_and_nothing_twice(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    same = ("run", "app.py", "--until", "caught-up", "--every", "100ms", "--master", "local[3]")
    add(tmp_path, 0, 5_000)
    first = Command(*same, "--kill", "driver@after-snapshot", cwd=tmp_path)
    assert first.end() == 0, first.output
    assert "the driver died" in first.output and "caught up" in first.output
    assert shown(tmp_path) == expected(5_000)

    add(tmp_path, 5_000, 5_000)
    second = Command(*same, "--max-restarts", "0", "--kill", "driver@after-prepare", cwd=tmp_path)
    assert second.end() == 1, second.output
    third = Command(*same, "--json", "third.json", cwd=tmp_path)
    assert third.end() == 0, third.output
    assert shown(tmp_path) == expected(10_000)
    assert json.loads((tmp_path / "third.json").read_text())["outcome"] == "caught up"

    fourth = Command(*same, cwd=tmp_path)
    assert fourth.end() == 0
    assert "nothing to do: there is no new input" in fourth.output
    assert "caught up; the same command processes what arrives later" in fourth.output
    assert "operators in" not in fourth.output, "no Spark was started"
