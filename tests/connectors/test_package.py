"""What the package as a whole must hold to."""

from pathlib import Path

from everstream.connectors import JsonLines
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import Reader, Source


def test_json_lines_opens_as_what_it_is_asked_to_be(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    who = SinkShard("words", "counts", 0, 1, 1, "")
    both = JsonLines(tmp_path)
    assert isinstance(both, Source)
    assert isinstance(both, Sink)
    for reader in (both.open(0, 1), both.open(shard=0, shards=1), both.open(0, shards=1)):
        assert isinstance(reader, Reader)
        assert reader.read() == [1, 2]
    for writer in (both.open(who), both.open(shard=who)):
        assert isinstance(writer, Writer)
