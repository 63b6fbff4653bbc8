"""Text and JSON files as sources: every line exactly once, however the files are cut."""

import pickle
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.connectors import JsonLines, TextLines
from everstream.connectors.files.ranges import deal
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.source import EndOfStream, Reader
from everstream.testing.sources import check_source


def lines_of(content: bytes) -> list[str]:
    """What a plain sequential program takes for the lines: ends are \\n and \\r\\n."""
    lines = content.decode().replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read_all(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while not isinstance(batch := reader.read(), EndOfStream):
        assert batch is not None
        assert len(batch), "an empty batch"
        records += batch.to_dicts() if isinstance(batch, pl.DataFrame) else batch
    return records


pieces = st.sampled_from(
    ["\n", "\r\n", "\r", "a", "é", "漢", "🙂", "\u2028", "\x0b", " ", "abcdefgh" * 3]
)
contents = st.lists(st.lists(pieces, max_size=25).map("".join), min_size=1, max_size=4)


@settings(max_examples=300)
@given(contents, st.integers(1, 7), st.integers(1, 40))
def test_every_line_is_read_exactly_once(texts: list[str], shards: int, batch_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected: list[str] = []
        for number, text in enumerate(texts):
            Path(folder, f"{number}.txt").write_bytes(text.encode())
            expected += lines_of(text.encode())
        source = TextLines(f"{folder}/*.txt", batch_bytes=batch_bytes)
        source.check()
        found: list[str] = []
        for shard in range(shards):
            found += read_all(source.open(shard, shards))
        assert sorted(found) == sorted(expected)
        if shards == 1:
            assert found == expected


@settings(max_examples=25)
@given(contents, st.integers(1, 40))
def test_text_lines_keeps_the_promises_of_a_source(texts: list[str], batch_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected: list[str] = []
        for number, text in enumerate(texts):
            Path(folder, f"{number}.txt").write_bytes(text.encode())
            expected += lines_of(text.encode())
        check_source(
            lambda: TextLines(folder, batch_bytes=batch_bytes),
            expected=expected,
            redistributes=True,
        )


def test_the_shards_share_one_large_file_evenly(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_text("".join(f"line {n}\n" for n in range(100_000)))
    counts = [len(read_all(TextLines(file, batch_bytes=4096).open(k, 4))) for k in range(4)]
    assert sum(counts) == 100_000
    assert max(counts) < 1.1 * min(counts)


def test_files_are_dealt_by_size() -> None:
    hands = deal([("a", 900), ("b", 10), ("c", 10), ("d", 880)], shards=2, smallest_bytes=1000)
    assert [sum(s.stop - s.start for s in hand) for hand in hands] == [900, 900]


def test_small_files_are_read_together_in_one_batch(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}.txt").write_text(f"{number}\n")
    assert TextLines(tmp_path).open(0, 1).read() == [str(number) for number in range(50)]


def test_any_filesystem_will_do() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/texts/a.txt", "é\nb\n".encode())
    fs.pipe_file("/texts/b.txt", b"c\r\nd")
    check_source(lambda: TextLines("memory://texts/*.txt", batch_bytes=2), expected="ébcd")


def test_other_encodings_and_their_errors(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("ok\nné\n".encode("latin-1"))
    assert read_all(TextLines(file, encoding="latin-1").open(0, 1)) == ["ok", "né"]
    reader = TextLines(file).open(0, 1)
    for _ in range(2):  # the offset stays in front of what cannot be read
        with pytest.raises(
            ConnectorError, match=r"latin\.txt', line 2, byte 3: not utf-8 at byte 4"
        ):
            reader.read()
    with pytest.raises(UserError, match="UTF-8"):
        TextLines(file, encoding="utf-16")
    with pytest.raises(UserError, match="no encoding"):
        TextLines(file, encoding="utf-99")


def test_the_byte_order_mark_is_dropped_where_a_file_starts_and_only_there(tmp_path: Path) -> None:
    file = tmp_path / "marked.txt"
    file.write_bytes("\ufeffa\n\ufeffb\n".encode())
    for batch_bytes in (1, 100):
        source = TextLines(file, encoding="UTF-8-SIG", batch_bytes=batch_bytes)
        assert read_all(source.open(0, 1)) == ["a", "\ufeffb"]


def test_files_that_nobody_can_unpack_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt.xz").write_bytes(b"\xfd7zXZ")
    with pytest.raises(UserError, match="has a compression"):
        TextLines(tmp_path).check()
    with pytest.raises(UserError, match="has a compression"):
        JsonLines(tmp_path).open(0, 1)
    JsonLines(tmp_path).check()  # as a sink it may share the folder


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    for name in ("*.txt", "missing.txt", "folder"):
        with pytest.raises(UserError, match="nothing to read") as caught:
            TextLines(tmp_path / name).check()
        assert str(tmp_path / name) in str(caught.value)


def test_a_filesystem_that_is_not_known_is_named() -> None:
    with pytest.raises(UserError, match="nosuch://x"):
        TextLines("nosuch://x")


def test_a_later_change_of_the_folder_does_not_move_the_splits(tmp_path: Path) -> None:
    for name in ("b", "d"):
        (tmp_path / name).write_text("".join(f"{name}{n}\n" for n in range(100)))
    readers = [TextLines(tmp_path, batch_bytes=50).open(shard, 2) for shard in range(2)]
    given = [reader.read() for reader in readers]
    saved = [pickle.dumps(reader.offset) for reader in readers]
    for name in ("a", "c", "e"):
        (tmp_path / name).write_text("intruder\n" * 100)
    (tmp_path / "d").open("a").write("appended\n")
    found = [line for batch in given if isinstance(batch, list) for line in batch]
    for shard in range(2):
        reader = TextLines(tmp_path, batch_bytes=50).open(shard, 2)
        reader.seek(pickle.loads(saved[shard]))
        found += read_all(reader)
    assert sorted(found) == sorted(f"{name}{n}" for name in "bd" for n in range(100))


def test_all_shards_see_the_files_that_were_there_at_the_check(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("1\n2\n3\n")
    source = TextLines(tmp_path, batch_bytes=1)
    source.check()
    shipped = pickle.dumps(source)
    found = read_all(pickle.loads(shipped).open(0, 2))
    (tmp_path / "a").write_text("intruder\n")
    found += read_all(pickle.loads(shipped).open(1, 2))
    assert sorted(found) == ["1", "2", "3"]


@pytest.fixture
def half_read(tmp_path: Path) -> tuple[Path, bytes]:
    """A file of 700 bytes in 7-byte lines, and the offset of a reader that is at byte 210."""
    file = tmp_path / "numbers.txt"
    file.write_text("".join(f"{n:06d}\n" for n in range(100)))
    reader = TextLines(file, batch_bytes=210).open(0, 1)
    assert reader.read() == [f"{n:06d}" for n in range(30)]
    return file, pickle.dumps(reader.offset)


def test_a_file_that_vanished_is_named_with_the_position(half_read: tuple[Path, bytes]) -> None:
    file, saved = half_read
    source = TextLines(file, batch_bytes=210)
    source.check()
    file.unlink()
    reader = source.open(0, 1)
    reader.seek(pickle.loads(saved))
    with pytest.raises(ConnectorError, match=r"numbers\.txt' at byte 210: .*No such file"):
        reader.read()


def test_a_file_that_shrank_is_named_with_the_position(half_read: tuple[Path, bytes]) -> None:
    file, saved = half_read
    file.write_bytes(file.read_bytes()[:300])
    reader = TextLines(file, batch_bytes=210).open(0, 1)
    reader.seek(pickle.loads(saved))
    with pytest.raises(
        ConnectorError, match=r"numbers\.txt' cannot be read at byte 300.* 700 bytes"
    ):
        reader.read()
    assert reader.offset == pickle.loads(saved), "the offset stays where all is well"


def test_relative_paths_start_where_the_pipeline_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("here\n")
    monkeypatch.chdir(tmp_path)
    shipped = pickle.dumps(TextLines("a.txt"))
    monkeypatch.chdir("/")
    assert read_all(pickle.loads(shipped).open(0, 1)) == ["here"]


VALUES = [{"a": 1, "b": "é"}, [1, 2], "text", None, 2.5, {"nested": {"x": [True]}}]
ROWS = [{"a": n, "b": f"é{n}" if n % 3 else None} for n in range(40)]


def test_json_lines_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    file = tmp_path / "values.jsonl"
    file.write_text(
        '{"a": 1, "b": "é"}\n[1, 2]\r\n\n"text"\n  \nnull\n2.5\n{"nested":{"x":[true]}}'
    )
    for batch_bytes in (1, 20, 10_000):
        check_source(
            partial(JsonLines, file, batch_bytes=batch_bytes), expected=VALUES, redistributes=True
        )


@pytest.mark.parametrize("how", [{"columns": True}, {"schema": {"a": pl.Int64, "b": pl.String}}])
def test_json_lines_as_columns_keeps_the_promises_of_a_source(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    pl.DataFrame(ROWS[:25]).write_ndjson(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text(pl.DataFrame(ROWS[25:]).write_ndjson().rstrip("\n"))
    for batch_bytes in (200, 10_000):
        check_source(
            partial(JsonLines, f"{tmp_path}/*.jsonl", batch_bytes=batch_bytes, **how),
            expected=ROWS,
            redistributes=True,
        )


def test_columns_keep_the_schema_the_run_began_with(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    reader = JsonLines(tmp_path, columns=True, batch_bytes=10).open(0, 1)
    assert isinstance(reader.read(), pl.DataFrame)
    saved = pickle.dumps(reader.offset)
    rest = read_all(reader)
    assert rest
    (tmp_path / "a.jsonl").write_text('{"z": "other"}\n')
    again = JsonLines(tmp_path, columns=True, batch_bytes=10).open(0, 1)
    again.seek(pickle.loads(saved))
    assert read_all(again) == rest


@pytest.mark.parametrize("how", [{}, {"schema": {"a": pl.Int64}}])
@pytest.mark.parametrize("broken", ['{"a": 3', "nope", '{"a": 1} {"a": 2}', '{"a": 1},'])
def test_a_broken_line_is_named_with_file_line_and_byte(
    tmp_path: Path, how: dict[str, Any], broken: str
) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text(f'{{"a": 1}}\n\n{{"a": 2}}\n{broken}\n{{"a": 4}}\n')
    source = JsonLines(file, **how)
    reader = source.open(0, 1)
    for _ in range(2):
        with pytest.raises(ConnectorError, match=r"broken\.jsonl', line 4, byte 19") as caught:
            reader.read()
    assert broken in str(caught.value)
    assert "on_error" in str(caught.value)


def test_a_value_that_does_not_fit_the_schema_is_named(tmp_path: Path) -> None:
    file = tmp_path / "typed.jsonl"
    file.write_text('{"a": 1}\n{"a": "x"}\n')
    with pytest.raises(ConnectorError, match=r"typed\.jsonl', line 2, byte 9") as caught:
        JsonLines(file, schema={"a": pl.Int64}).open(0, 1).read()
    assert "schema=" in str(caught.value)


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'"ok"\n"n\xe9"\n')
    with pytest.raises(ConnectorError, match=r"latin\.jsonl', line 2, byte 5"):
        JsonLines(file).open(0, 1).read()


def test_a_missing_json_file_is_named_by_the_check(tmp_path: Path) -> None:
    for name in ("missing.jsonl", "*.jsonl"):
        with pytest.raises(UserError, match="nothing to read"):
            JsonLines(tmp_path / name).check()
    for folder in (tmp_path / "folder", f"{tmp_path}/folder.v2/"):
        JsonLines(folder).check()  # as a sink it would be created
    with pytest.raises(UserError, match="nothing to read"):
        JsonLines(tmp_path / "folder").open(0, 1)
