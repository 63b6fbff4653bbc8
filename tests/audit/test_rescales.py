"""Changes of shards that an audit draws."""

from pathlib import Path

import pytest

import everstream as es
from everstream.audit.rescales import MOST, Rescales
from everstream.core.plan import make_plan
from everstream.state.control import read_settings
from everstream.state.signing import blobs_at
from tests.cli.commands import ROOT, Command


def counting() -> es.Pipeline:
    pipeline = es.Pipeline("drawn")
    numbers = pipeline.source(es.Range(10), name="numbers")
    counted = numbers.key_by(lambda n: n).fold(int, lambda c, _: c + 1, name="count", shards=2)
    counted.sink(es.Collect(), name="out")
    return pipeline


def test_the_same_seed_asks_for_the_same_shards(tmp_path: Path) -> None:
    found = []
    for store in (tmp_path / "a", tmp_path / "b"):
        rescales = Rescales(make_plan(counting(), 1), 5, None)
        rescales.ask(store)
        rescales.ask(store)
        found.append(read_settings(blobs_at(str(store), None)).shards)
    assert found[0] == found[1]
    assert set(found[0]) == {"count", "out"}
    assert found[0]["count"].written == 2
    assert 1 <= found[0]["count"].wanted <= MOST
    assert found[0]["count"].wanted == found[0]["out"].wanted


def test_a_pipeline_none_of_whose_shards_can_change_is_refused() -> None:
    pipeline = es.Pipeline("fixed")
    pipeline.source(es.Range(10)).sink(es.Collect())
    with pytest.raises(es.UserError, match="no operator of this pipeline"):
        Rescales(make_plan(pipeline, 1), 5, None)


@pytest.mark.long
def test_an_audit_changes_shards_among_its_kills_and_finds_nothing_wrong() -> None:
    arguments = ("examples/word_count.py", "--kills", "6", "--seed", "3", "--rescale")
    command = Command("audit", *arguments, cwd=ROOT)
    assert command.end() == 0, command.output
    assert command.says("lost 0, duplicated 0")
    assert not command.says("shards changed 0 time(s)")
