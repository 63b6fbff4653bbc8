"""What a reader sees of a store's output: all that is committed, once, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.errors import StoreError, UserError
from everstream.inspection import rewind
from everstream.inspection.datasource.asked import Asked
from everstream.inspection.datasource.committed import START, CommittedOutput, OutputPosition
from everstream.inspection.datasource.stream_before_42 import EarlierOutputStream
from everstream.state.manifests import path_of
from tests.inspection.datasource.stores import SINK, Query, Written


def test_an_epoch_is_read_when_all_of_its_output_is_committed_and_not_before(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path, shards=2)
    query = Query(written.stream())
    assert query.step() == [], "there is no epoch yet"
    written.prepare(0, 1, [1, 2])
    written.prepare(1, 1, [3])
    assert query.step() == [], "not even a manifest"
    written.epoch(1)
    assert query.step() == [], "stable, but not committed"
    written.commit(0, 1)
    assert query.step() == [], "half of it"
    written.commit(1, 1)
    assert query.step() == [1, 2, 3]
    assert query.step() == []


def test_a_commit_that_is_late_holds_back_its_epoch_and_not_those_before(tmp_path: Path) -> None:
    written = Written(tmp_path)
    query = Query(written.stream())
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    written.prepare(0, 2, [2])
    written.epoch(2)
    assert query.step() == [1]
    written.prepare(0, 3, [3])
    written.epoch(3)
    assert query.step() == [], "epoch 3 needs the output of 2 as well"
    written.commit(0, 2)
    assert query.step() == [2]
    written.commit(0, 3)
    assert query.step() == [3]


def test_output_prepared_after_the_newest_epoch_is_not_read_though_it_lies_there(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path)
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    written.prepare(0, 2, [2])
    written.commit(0, 2)
    assert Query(written.stream()).step() == [1]


def test_shards_with_checkpoints_of_their_own_are_read_each_up_to_the_line(tmp_path: Path) -> None:
    written = Written(tmp_path, shards=2)
    for shard, checkpoint in ((0, 1), (0, 2), (1, 7)):
        written.prepare(shard, checkpoint, [10 * shard + checkpoint])
    written.epoch(1, {0: 2, 1: 7})
    written.prepare(0, 3, [3])
    for shard in (0, 1):
        written.commit(shard, 9)
    query = Query(written.stream())
    assert query.step() == [1, 2, 17]
    written.epoch(2, {0: 3, 1: 7})
    assert query.step() == [3]


def test_output_of_shards_that_are_no_more_is_read_once_and_stays(tmp_path: Path) -> None:
    written = Written(tmp_path, shards=3)
    query = Query(written.stream())
    for shard in range(3):
        written.prepare(shard, 1, [10 + shard])
    written.epoch(1)
    written.commit(0, 1)
    assert query.step() == [], "not all of it"
    written.rescale(1)
    assert query.step() == [10, 11, 12]
    for number in (2, 3):
        written.prepare(0, number, [10 * number])
        written.epoch(number)
        written.commit(0, number)
    assert query.step() == [20, 30]
    assert Query(written.stream()).step() == [10, 11, 12, 20, 30]
    written.rescale(3)
    for shard in range(3):
        written.prepare(shard, 4, [40 + shard])
    written.epoch(4)
    written.commit(2, 4)
    assert query.step() == [], "a number that came back has committed, and others have not"
    assert Query(written.stream()).step() == [10, 11, 12, 20, 30]
    for shard in range(2):
        written.commit(shard, 4)
    assert query.step() == [40, 41, 42]
    assert Query(written.stream()).step() == [10, 11, 12, 20, 30, 40, 41, 42]


def test_what_waits_when_the_number_of_shards_changes_is_found_under_its_own_number(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path, shards=3)
    for shard in range(3):
        written.prepare(shard, 1, [10 + shard])
    written.epoch(1)
    written.redistribute(1, 1)
    query = Query(written.stream())
    written.commit(0, 1)
    assert query.step() == [], "two of three wait"
    for shard in (1, 2):
        written.commit(shard, 1)
    assert query.step() == [10, 11, 12]


def test_output_of_shards_that_are_no_more_counts_by_their_own_checkpoints(tmp_path: Path) -> None:
    written = Written(tmp_path, shards=2)
    written.prepare(0, 3, [3])
    written.prepare(1, 57, [57])
    written.epoch(1, {0: 3, 1: 60})
    written.rescale(1)
    written.prepare(0, 4, [4])
    written.epoch(2, {0: 5})
    written.commit(0, 5)
    query = Query(written.stream())
    assert sorted(query.step()) == [3, 4, 57]
    written.rescale(2)
    written.prepare(1, 61, [61])
    written.epoch(3, {0: 6, 1: 61})
    assert query.step() == []
    written.commit(1, 61)
    assert query.step() == [61]


def test_a_batch_asked_for_again_is_the_same(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    stream = written.stream()
    start = stream.initialOffset()
    end = stream.latestOffset(start, None)
    first = stream.partitions(start, end)
    written.prepare(0, 2, [2])
    written.epoch(2)
    written.commit(0, 2)
    assert written.stream().partitions(start, end) == first


def test_epochs_without_output_make_no_batches(tmp_path: Path) -> None:
    written = Written(tmp_path)
    query = Query(written.stream())
    written.epoch(1)
    start = query.offset
    assert query.step() == [] and query.offset == start


def test_available_now_ends_with_what_there_was(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    query = Query(written.stream())
    query.stream.prepareForTriggerAvailableNow()
    written.prepare(0, 2, [2])
    written.epoch(2)
    written.commit(0, 2)
    assert query.step() == [1] and query.step() == []


def read_three(tmp_path: Path) -> tuple[Written, Query]:
    written = Written(tmp_path)
    query = Query(written.stream())
    for epoch in (1, 2, 3):
        written.prepare(0, epoch, [epoch])
        written.epoch(epoch)
        written.commit(0, epoch)
        query.step()
    assert query.seen == [1, 2, 3]
    return written, query


def test_a_store_that_went_back_behind_the_reader_is_refused_however_far_it_has_come_since(
    tmp_path: Path,
) -> None:
    written, query = read_three(tmp_path)
    rewind(written.store, 2, owner="test", now=0.0)
    written.take_back(0, 3)
    with pytest.raises(StoreError, match=r"went back to epoch 2 since then.*checkpointLocation"):
        query.step()
    lease = written.store.acquire_lease("next run")
    written.lease = lease
    (newest, *_) = written.store.manifests()
    returns = EpochManifest.from_json(newest.body).returns
    assert returns == (2,)
    for epoch in (3, 4, 5, 6, 7):
        written.prepare(0, epoch, [100 + epoch])
        written.epoch(epoch, returns=returns)
        written.commit(0, epoch)
        written.store.prune(3)
    with pytest.raises(StoreError, match="went back to epoch 2"):
        query.step()
    assert Query(written.stream()).step() == [1, 2, 103, 104, 105, 106, 107]


def test_a_reader_that_had_not_come_so_far_goes_on(tmp_path: Path) -> None:
    written, ahead = read_three(tmp_path)
    behind = Query(written.stream())
    rewind(written.store, 2, owner="test", now=0.0)
    written.take_back(0, 3)
    behind.step()
    assert behind.seen == [1, 2]
    written.lease = written.store.acquire_lease("next run")
    written.prepare(0, 3, [103])
    written.epoch(3, returns=(2,))
    written.commit(0, 3)
    assert behind.step() == [103]
    with pytest.raises(StoreError):
        ahead.step()


def test_a_pipeline_that_was_started_over_is_refused(tmp_path: Path) -> None:
    _, query = read_three(tmp_path)
    anew = Written(tmp_path, fresh=True)
    for epoch in (1, 2, 3, 4):
        anew.epoch(epoch)
    with pytest.raises(StoreError, match="started over"):
        query.step()


def test_another_store_in_its_place_is_refused(tmp_path: Path) -> None:
    _, query = read_three(tmp_path / "one")
    other = Written(tmp_path / "two")
    query.stream = other.stream()
    with pytest.raises(StoreError, match="another store has replaced it"):
        query.step()
    other.epoch(1)
    with pytest.raises(StoreError, match="another store has replaced it"):
        query.step()


def test_a_manifest_that_was_damaged_after_it_was_read_is_refused(tmp_path: Path) -> None:
    written, query = read_three(tmp_path)
    path = tmp_path / path_of(written.store.manifests()[0].slot)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match="damaged"):
        query.step()


def test_a_store_that_does_not_say_what_is_committed_is_refused_unless_it_is_done(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path)
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    body = written.store.manifests()[0].body
    for record in body["records"]:
        del record["uncommitted"]
    written.store.append_manifest(written.lease, {**body, "epoch": 2})
    with pytest.raises(StoreError, match="earlier Everstream"):
        Query(written.stream()).step()
    written.store.note_shown()
    assert Query(written.stream()).step() == [1]


def test_a_sink_that_keeps_nothing_in_the_store_is_refused_with_those_that_do(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path)
    written.epoch(1)
    with pytest.raises(UserError, match=f"'files' keeps no output.*there are: {SINK}"):
        CommittedOutput(Asked(written.url, what="output", operator="files"))


def test_a_position_survives_its_way_through_spark() -> None:
    position = OutputPosition(7, 12, {"out:0": 7, "out:1": 5}, (2, 4))
    assert OutputPosition.from_json(position.to_json()) == position
    assert OutputPosition.from_json(START.to_json()) == START


def test_the_stream_for_earlier_sparks_gives_every_epoch_once_and_its_last_offset_without_a_new_one(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path)
    stream = written.earlier_stream()
    start = stream.initialOffset()
    assert stream.latestOffset() == start == START.to_json()
    written.prepare(0, 1, [1])
    written.epoch(1)
    written.commit(0, 1)
    first = stream.latestOffset()
    assert values(stream, start, first) == [1]
    written.epoch(2)
    assert stream.latestOffset() == first, "an epoch without output"
    written.prepare(0, 3, [3])
    written.epoch(3)
    written.commit(0, 3)
    assert values(stream, first, stream.latestOffset()) == [3]


def test_a_stream_for_earlier_sparks_that_starts_again_notices_that_its_store_went_back(
    tmp_path: Path,
) -> None:
    written, query = read_three(tmp_path)
    rewind(written.store, 2, owner="test", now=0.0)
    written.take_back(0, 3)
    again = written.earlier_stream()
    with pytest.raises(StoreError, match="went back to epoch 2"):
        again.partitions(query.offset, again.latestOffset())


def values(
    stream: EarlierOutputStream, start: dict[str, Any], end: dict[str, Any]
) -> list[int | None]:
    return [
        value
        for partition in stream.partitions(start, end)
        for rows in stream.read(partition)
        for value in rows.column("value").to_pylist()
    ]
