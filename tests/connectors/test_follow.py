"""File sources that go on: new files are read once, by one shard, and broken lines left out."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import JsonLines, Paced, TextLines
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.testing.sources import check_source


def read_available(reader: Reader) -> list[Any]:
    """What can be read until there is nothing more just now."""
    records: list[Any] = []
    while True:
        batch = reader.read()
        if isinstance(batch, EndOfStream) or (batch is None and reader.ready_in_s() > 0):
            return records
        records += records_of(batch) if batch is not None else []


def test_files_that_come_later_are_read_once_by_one_shard(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a1\na2\n")
    source = TextLines(tmp_path, follow=True, batch_bytes=4)
    source.check()
    readers = [source.open(shard, 3) for shard in range(3)]
    assert sorted(line for r in readers for line in read_available(r)) == ["a1", "a2"]
    assert readers[0].ready_in_s() == 1.0
    found: list[str] = []
    for name in "bcdefgh":
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2")
        (tmp_path / f"_{name}.tmp").write_text("in the making\n")
        found += [line for reader in readers for line in read_available(reader)]
    assert sorted(found) == sorted(f"{name}{n}" for name in "bcdefgh" for n in (1, 2))
    for reader in readers:
        assert reader.read() is None


def test_a_reader_that_follows_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    make = partial(TextLines, tmp_path, follow=True, batch_bytes=2)
    reader = make().open(0, 1)
    assert read_available(reader) == ["1", "2"]
    (tmp_path / "b.txt").write_text("3\n4\n5\n")
    assert reader.read() == ["3"]
    saved = pickle.dumps(reader.offset)
    (tmp_path / "a0.txt").write_text("6\n")
    for _ in range(2):
        again = make().open(0, 1)
        again.seek(pickle.loads(saved))
        assert read_available(again) == ["4", "5", "6"]


def test_a_reader_that_follows_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(9)))
    check_source(
        lambda: TextLines(tmp_path, follow=True, batch_bytes=10),
        expected=[f"{name}{n}" for name in "abcde" for n in range(9)],
        endless=True,
        max_reads=40,
        wait=lambda _: None,
    )


def test_the_memory_of_files_is_not_larger_than_the_folder(tmp_path: Path) -> None:
    reader = TextLines(tmp_path, follow=True).open(0, 1)
    for number in range(20):
        file = tmp_path / f"{number}.txt"
        file.write_text(f"{number}\n")
        assert read_available(reader) == [str(number)]
        file.unlink()
    assert len(reader.offset.seen) == len(reader.offset.splits) == 1


def test_an_empty_file_is_taken_up_when_it_has_content(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    reader = JsonLines(tmp_path, follow=True).open(0, 1)
    assert read_available(reader) == []
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    assert read_available(reader) == [{"n": 1}]


def test_a_run_that_did_not_follow_can_go_on_following(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    saved = TextLines(tmp_path).open(0, 1).offset
    (tmp_path / "b.txt").write_text("2\n")
    reader = TextLines(tmp_path, follow=True).open(0, 1)
    reader.seek(saved)
    assert read_available(reader) == ["1", "2"]


def test_a_folder_may_be_empty_at_first(tmp_path: Path) -> None:
    for source in (TextLines(tmp_path, follow=True), JsonLines(f"{tmp_path}/*.x", follow=True)):
        source.check()
        assert source.open(0, 1).read() is None


@pytest.mark.parametrize("make", [TextLines, JsonLines])
def test_a_folder_that_is_not_there_yet_is_waited_for_and_said(
    tmp_path: Path, make: Callable[..., Source]
) -> None:
    waits = make(tmp_path / "in", follow=True)
    waits.check()
    assert f"there is no '{tmp_path}/in' yet: the run waits for it" in str(waits.waits_for())
    reader = waits.open(0, 1)
    assert reader.read() is None
    (tmp_path / "in").mkdir()
    assert waits.waits_for() is None
    (tmp_path / "in" / "a").write_text("1\n")
    assert len(read_available(reader)) == 1
    assert "no file matches" in str(make(tmp_path / "*.x", follow=True).waits_for())
    assert Paced(make(tmp_path / "*.x", follow=True), 10).waits_for() is not None
    assert make(tmp_path / "in").waits_for() is None


BROKEN = b'{"n": 1}\n{"n": \n\n{"n": 3}\n\xff\n{"n": 5}'


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
@pytest.mark.parametrize("how", [{}, {"schema": {"n": pl.Int64}}])
@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_broken_lines_are_left_out_and_named(
    tmp_path: Path, how: dict[str, Any], batch_bytes: int, on_error: Any
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(BROKEN)
    source = JsonLines(file, batch_bytes=batch_bytes, on_error=on_error, **how)
    reader = source.open(0, 1)
    assert read_available(reader) == [{"n": 1}, {"n": 3}, {"n": 5}]
    rejected = reader.take_rejected()
    assert [one.place for one in rejected] == [
        f"'{file}', line 2, byte 9",
        f"'{file}', line 5, byte 26",
    ]
    assert [one.record for one in rejected] == ['{"n": ', "\ufffd"]
    assert all(one.error for one in rejected)
    check_source(
        lambda: JsonLines(file, batch_bytes=batch_bytes, on_error=on_error, **how),
        expected=[{"n": 1}, {"n": 3}, {"n": 5}],
    )


def test_lines_in_another_encoding_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\r\n\xe9\ntwo")
    reader = TextLines(file, on_error="dead_letter").open(0, 1)
    assert read_available(reader) == ["one", "two"]
    (rejected,) = reader.take_rejected()
    assert rejected.place == f"'{file}', line 2, byte 5"
    assert "not utf-8 at byte 5" in rejected.error


def test_rejects_come_once_though_a_read_failed_in_between(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\nfine\n")
    (tmp_path / "b.txt").write_text("gone\n")
    source = TextLines(tmp_path, on_error="skip")
    source.check()
    (tmp_path / "b.txt").unlink()
    reader = source.open(0, 1)
    for _ in range(2):
        with pytest.raises(ConnectorError, match=r"b\.txt"):
            reader.read()
    assert reader.take_rejected() == []


@pytest.mark.parametrize("make", [TextLines, JsonLines])
def test_a_wrong_choice_of_on_error_is_refused(tmp_path: Path, make: Callable[..., Source]) -> None:
    with pytest.raises(UserError, match="on_error='no'"):
        make(tmp_path, on_error="no")
