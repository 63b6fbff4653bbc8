"""Rules of sinks that tests of the rules must be able to miss: a checksum, and an owner.

Each test breaks the real code by one rule, and output goes wrong that does not otherwise.
"""

import pickle
from pathlib import Path

import pytest

from everstream.connectors import JsonLines
from everstream.connectors.files.parts import PartTransaction
from everstream.connectors.ownership import Claim
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.sink import SinkShard
from tests.output import records_in
from tests.state.holders import running


def sink_shard(store: Path, generation: int = 1) -> SinkShard:
    return SinkShard("words", "counts", 0, 1, generation, str(store))


def commit_what_has_rotted(folder: Path) -> list[int]:
    writer = JsonLines(folder / "out").open(sink_shard(folder))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    (pending,) = (folder / "out").rglob("_pending/*")
    pending.write_bytes(pending.read_bytes().replace(b"1", b"7"))
    heir = JsonLines(folder / "out").open(sink_shard(folder, 2))
    heir.recover([pickle.loads(pickle.dumps(transaction))], permit(1))
    return [record["n"] for record in records_in(folder / "out")]


def test_without_the_checksum_damaged_output_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectorError, match="checksum"):
        commit_what_has_rotted(tmp_path / "real")
    monkeypatch.setattr(PartTransaction, "require_whole", lambda self, size_bytes, checksum: None)
    assert commit_what_has_rotted(tmp_path / "mutant") == [7]


def two_runs_in_one_folder(folder: Path) -> list[int]:
    sink = JsonLines(folder / "out")
    for number in (1, 2):
        sink.start_fresh("words", "counts", str(folder / f"store-{number}"), replace=number == 2)
        writer = sink.open(sink_shard(folder / f"store-{number}"))
        writer.write([{"n": number}])
        transaction = writer.prepare(1)
        assert transaction is not None
        transaction.commit(permit(1))
    return [record["n"] for record in records_in(folder / "out")]


def test_without_an_owner_a_second_run_takes_away_the_output_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running(str(tmp_path / "real" / "store-1"), "the first"),
        pytest.raises(UserError, match="'the first' is running"),
    ):
        two_runs_in_one_folder(tmp_path / "real")
    assert [record["n"] for record in records_in(tmp_path / "real" / "out")] == [1]
    monkeypatch.setattr(Claim, "_refuse_if_alive", lambda self, theirs: None)
    with running(str(tmp_path / "mutant" / "store-1"), "the first"):
        assert two_runs_in_one_folder(tmp_path / "mutant") == [2]
