"""The store in a bucket of a real object store, with hosts, the driver and the object store killed."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.s3_server import BUCKET, KEY, SECRET, S3Server

TOTAL = 60_000
PIPELINE = f"""
from pathlib import Path

import everstream as es

GATE = Path("gate").absolute()

class Gated(es.Source):
    '''Whole numbers, up to where the test has opened the gate.'''
    max_shards = 1

    def open(self, shard, shards):
        return GatedReader()

class GatedReader(es.Reader):
    offset = 0

    def seek(self, offset):
        self.offset = offset

    def read(self):
        if self.offset == {TOTAL}:
            return es.END
        until = min(self.offset + 500, int(GATE.read_text()))
        batch = list(range(self.offset, until))
        self.offset = until
        return batch or None

pipeline = es.Pipeline("in-a-bucket")
(
    pipeline.source(Gated(), name="numbers")
    .key_by(lambda number: number % 10)
    .fold(init=int, update=lambda sum, number: sum + number, name="sum", shards=2)
    .sink(es.JsonLines("out/"), name="out")
)
"""


def open_gate(folder: Path, gate: int) -> None:
    (folder / "gate.tmp").write_text(str(gate))
    (folder / "gate.tmp").rename(folder / "gate")


def written(folder: Path) -> Counter[tuple[int, int]]:
    lines = (line for part in folder.glob("*.jsonl") for line in part.read_text().splitlines())
    return Counter(tuple(json.loads(line)) for line in lines)


def expected() -> Counter[tuple[int, int]]:
    sums, found = Counter[int](), Counter[tuple[int, int]]()
    for number in range(TOTAL):
        sums[number % 10] += number
        found[number % 10, sums[number % 10]] += 1
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path / "s3") as server:
        yield server


@pytest.mark.timeout(900)
def test_hosts_the_driver_and_the_object_store_are_killed_and_the_output_is_exact(
    tmp_path: Path, server: S3Server
) -> None:
    (tmp_path / "bucketed.py").write_text(PIPELINE)
    open_gate(tmp_path, 20_000)
    command = Command(
        *("run", "bucketed.py", "--every", "200ms", "--master", "local[3]"),
        *("--store", f"s3://{BUCKET}/checkpoints", "--kill", "sum:1@3000", "--json", "end.json"),
        cwd=tmp_path,
        variables=server.variables,
    )

    def wait_for(records: int) -> None:
        command.wait_for(f"{records}", lambda: written(tmp_path / "out").total() >= records)

    wait_for(20_000)
    server.kill()
    open_gate(tmp_path, 40_000)
    server.start()
    wait_for(40_000)
    command.driver().kill()
    open_gate(tmp_path, TOTAL)
    assert command.end() == 0, command.output
    command.wait_until_all_gone()
    result = json.loads((tmp_path / "end.json").read_text())
    assert result["outcome"] == "finished"
    assert result["drivers_lost"] == 1
    assert [recovery["injected"] for recovery in result["recoveries"]][:1] == [True]
    assert written(tmp_path / "out") == expected()
    objects = server.objects("checkpoints")
    assert objects, "the checkpoints were there"
    assert not any(SECRET.encode() in data for data in objects.values())
    assert SECRET not in command.output and KEY not in command.output
