"""`Pipeline.explain`: what it says is what runs."""

from xml.etree import ElementTree

import polars as pl
import pytest

import everstream as es
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline


@pytest.fixture
def shop() -> Pipeline:
    pipeline = Pipeline("shop")
    rows = [{"customer": "<a & b>", "cents": 5, "at": 1}]
    orders = pipeline.source(es.FromList(rows), name="orders").event_time("at", unit="s")
    windows = orders.key_by("customer").window(es.Tumbling("10s"))
    windows.aggregate(total=es.sum("cents"), name="totals", shards=2).collect(name="out")
    large = orders.filter(pl.col("cents") > 3, name="large", on_error="skip")
    large.key_by("customer").fold(int, lambda n, _: n + 1, name="counts", shards=3).collect(
        name="n"
    )
    return pipeline


def test_the_text_has_operators_columns_shards_routes_and_state(shop: Pipeline) -> None:
    text = shop.explain()
    assert text.startswith("Pipeline 'shop': 8 operators in 3 chains, 6 shards\n")
    for line in (
        "orders (source FromList, 1 shard, chain 1)",
        "    columns: customer String, cents Int64, at Int64",
        "    checkpoint: how far each shard has read",
        "    from orders: same process, no copy",
        "    aggregates in advance, by customer",
        "    from totals-local: one row per key and batch, by key",
        "    state in memory (aggregates: total=sum(cents); window: 10 s every 10 s)",
        "    records with an error: skip",
        "counts (operator Fold, 3 shards, chain 3)",
        "    from large: by key customer",
        "    delivery: exactly-once",
        "    checkpoint: output to commit",
        "    columns: customer String, window_start Int64, window_end Int64, total Int64",
    ):
        assert line + "\n" in text, line


def test_the_inputs_of_a_join_are_told_apart() -> None:
    pipeline = Pipeline("joins")
    orders = pipeline.source(es.FromList([{"k": 1, "at": 1}]), name="a").event_time("at", unit="s")
    rates = pipeline.source(es.FromList([{"k": 1, "at": 1, "r": 2.5}]), name="b")
    table = rates.event_time("at", unit="s", name="rates")
    orders.broadcast_join(table, on="k", name="joined", shards=3).collect(name="out")
    text = pipeline.explain()
    assert "    from event_time: left side: on demand\n" in text
    assert "    from rates: right side: broadcast\n" in text
    assert "    columns: k Int64, at Int64, at_right Int64, r Float64\n" in text


def test_the_flowchart_names_every_operator_and_stream(shop: Pipeline) -> None:
    chart = shop.explain("mermaid").splitlines()
    assert chart[0] == "flowchart TD"
    assert sum("[" in line for line in chart) == 8 and sum("-->" in line for line in chart) == 7
    assert '    n3 -->|"by key customer"| n5' in chart


def test_the_drawing_is_well_formed_and_boxes_do_not_overlap(shop: Pipeline) -> None:
    drawing = ElementTree.fromstring(shop.explain("svg"))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(one.get(name, "0")) for name in ("x", "y", "width", "height"))
        for one in drawing.iter(f"{space}rect")
        if one.get("stroke")
    ]
    assert len(boxes) == 8
    for n, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[n + 1 :]:
            beside = x + width <= x2 or x2 + width2 <= x
            assert beside or y + height <= y2 or y2 + height2 <= y
    texts = [one.text for one in drawing.iter(f"{space}text")]
    assert "orders" in texts and "customer String" in texts


def test_a_pipeline_that_cannot_run_is_refused_as_by_run(shop: Pipeline) -> None:
    with pytest.raises(UserError, match="has no sink"):
        half = Pipeline("half")
        half.source(es.Range(3))
        half.explain()
    with pytest.raises(UserError, match="use one of 'text', 'mermaid', 'svg'"):
        shop.explain("png")  # type: ignore[arg-type]
