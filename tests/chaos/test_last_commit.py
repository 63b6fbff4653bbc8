"""A driver that dies between its last manifest and the last commit leaves nothing unshown."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .conftest import MASTER

SCRIPT = """
import sys
import everstream as es

pipeline = es.Pipeline("short")
numbers = pipeline.source(es.Range(100), name="numbers")
numbers.sink(es.JsonLines(sys.argv[1] + "/out"), name="out")
result = pipeline.run(
    checkpoint=es.Coordinated(every="1h"),
    store=sys.argv[1] + "/store",
    master=sys.argv[2],
    kill=sys.argv[3:],
)
print(result.outcome.value)
"""


def run(folder: Path, *kills: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SCRIPT, str(folder), MASTER, *kills]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def shown(folder: Path) -> Counter[int]:
    lines = (line for part in (folder / "out").glob("*.jsonl") for line in part.open())
    return Counter(json.loads(line) for line in lines)


def test_a_driver_killed_after_its_last_manifest_is_replaced_by_one_that_commits(
    tmp_path: Path,
) -> None:
    """The only epoch is the last one, and the driver dies when its manifest is written, unsaid."""
    killed = run(tmp_path, "driver@after-prepare")
    assert killed.returncode == -9, killed.stderr
    assert shown(tmp_path) == Counter()
    again = run(tmp_path)
    assert again.stdout.split()[0] == "finished", again.stderr
    assert shown(tmp_path) == Counter(range(100))
    third = run(tmp_path)
    assert third.stdout.split()[0] == "finished", third.stderr
    assert shown(tmp_path) == Counter(range(100))
