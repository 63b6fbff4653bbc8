"""What the package as a whole must hold to."""

import ast
from pathlib import Path

import everstream.connectors
from everstream.connectors import JsonLines
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import Reader, Source

ALLOWED = ("everstream.errors", "everstream.pipeline", "everstream.connectors")


def test_connectors_depend_on_nothing_but_the_interfaces() -> None:
    folder = Path(everstream.connectors.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("everstream") or name.startswith(ALLOWED), (file, name)


def test_json_lines_opens_as_what_it_is_asked_to_be(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    who = SinkShard("words", "counts", 0, 1, 1, "")
    both = JsonLines(tmp_path)
    assert isinstance(both, Source)
    assert isinstance(both, Sink)
    for reader in (both.open(0, 1), both.open(shard=0, shards=1), both.open(0, shards=1)):
        assert isinstance(reader, Reader)
        assert reader.read() == [1, 2]
    for writer in (both.open(who), both.open(who=who)):
        assert isinstance(writer, Writer)
