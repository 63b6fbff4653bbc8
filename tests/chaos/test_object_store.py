"""The store in a bucket of a real object store, with workers, the driver and the object store killed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.output import rows_in
from tests.s3_server import BUCKET, KEY, SECRET, S3Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path / "s3") as server:
        yield server


@pytest.mark.timeout(900)
def test_workers_the_driver_and_the_object_store_are_killed_and_the_output_is_exact(
    tmp_path: Path, server: S3Server
) -> None:
    prepare(tmp_path, 20_000)
    command = Command(
        *("run", "steady.py", "--every", "200ms", "--master", "local[3]"),
        *("--store", f"s3://{BUCKET}/checkpoints", "--kill", "sum:1@3000", "--json", "end.json"),
        cwd=tmp_path,
        variables=server.variables,
    )

    def wait_for(records: int) -> None:
        command.wait_for(f"{records}", lambda: rows_in(tmp_path / "out").total() >= records)

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
    assert rows_in(tmp_path / "out") == expected()
    objects = server.objects("checkpoints")
    assert objects, "the checkpoints were there"
    assert not any(SECRET.encode() in data for data in objects.values())
    assert SECRET not in command.output and KEY not in command.output
