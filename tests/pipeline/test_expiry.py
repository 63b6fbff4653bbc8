"""State with a time to live: what is seen, what is swept, and what an upgrade makes of it."""

from typing import Any

import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.keyed_state.expiry import SWEPT_AT_ONCE


class Totals(es.Operator):
    """Adds up; a record with `look` only reads."""

    total = es.Keyed[int](init=int, ttl="10s")

    def process(self, record: tuple[str, Any], ctx: es.Context) -> None:
        if record[1] == "look":
            ctx.emit((ctx.key, self.total.get(ctx.key)))
        elif record[1] == "all":
            ctx.emit((sorted(self.total.items()), len(self.total), sorted(self.total)))
        else:
            self.total[ctx.key] += record[1]
            ctx.emit((ctx.key, self.total[ctx.key]))


def with_life(name: str = "Totals", **life: Any) -> es.Operator:
    """The operator with another time to live, or with none."""
    kind = type(name, (Totals,), {"total": es.Keyed(init=int, **life)})
    kind.total.__set_name__(kind, "total")
    return kind()  # type: ignore[no-any-return]


def operator(one: es.Operator | None = None, **options: Any) -> testing.OperatorHarness:
    return testing.operator(one or Totals(), key=lambda record: record[0], **options)


def swept(op: testing.OperatorHarness) -> int:
    """How many values are still stored, seen or not."""
    runners = op._harness._runners_of("operator")
    states = [runner.chain.stages["operator"].operator._keyed["total"] for runner in runners]
    return sum(len(state._values) for state in states)


def test_a_value_is_gone_when_it_was_not_written_for_its_time() -> None:
    with operator() as op:
        op.push([("ada", 1)])
        op.advance("9s")
        op.push([("ada", 1), ("bob", 5), ("ada", "look")])
        op.advance("9999ms")
        op.push([("ada", "look")])
        assert op.state("total") == {"ada": 2, "bob": 5}
        op.advance("1ms")
        op.push([("ada", "look"), ("ada", 7), ("ada", "all")])
        assert op.output()[-3:] == [("ada", None), ("ada", 7), ([("ada", 7)], 1, ["ada"])]


def test_reads_keep_a_value_alive_if_wanted() -> None:
    for refresh, expected in (("write", None), ("read", 1)):
        with operator(with_life(ttl="10s", refresh=refresh)) as op:
            op.push([("ada", 1)])
            op.advance("6s")
            op.push([("ada", "look")])
            op.advance("6s")
            op.push([("ada", "look")])
            assert op.output()[-1] == ("ada", expected)


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_what_has_expired_is_swept_without_being_touched_and_in_steps(state: Any) -> None:
    keys = 2 * SWEPT_AT_ONCE + 500
    with operator(with_life(ttl="10s", state=state)) as op:
        op.push([(f"key {n}", 1) for n in range(keys)])
        assert swept(op) == keys
        op.advance("10s")
        assert 0 < swept(op) <= keys - SWEPT_AT_ONCE
        op.advance("1s")
        assert swept(op) == 0 and op.state("total") == {}


def test_a_crash_neither_revives_nor_ages_a_value() -> None:
    with operator() as op:
        op.push([("ada", 1), ("bob", 2)])
        op.advance("6s")
        op.push([("bob", 1)])
        op.checkpoint()
        op.crash()
        op.advance("5s")
        op.crash()
        op.push([("ada", "look"), ("bob", "look")])
        assert op.output()[-2:] == [("ada", None), ("bob", 3)]
        op.advance("5s")
        op.checkpoint()
        assert swept(op) == 0


class Events(Totals):
    total = es.Keyed[int](init=int, ttl="10s", ttl_time="event")


def timed(one: es.Operator, shards: int = 1) -> es.Pipeline:
    pipeline = es.Pipeline("timed")
    rows = pipeline.source(es.FromList([]), name="rows")
    keyed = rows.event_time(lambda r: r[2], unit="s", lateness="1m").key_by(lambda r: r[0])
    keyed.process(one, name="totals", shards=shards).sink(es.Collect(), name="out", shards=1)
    return pipeline


def test_in_event_time_a_record_finds_what_lives_at_its_own_time() -> None:
    records = [("ada", 1, at) for at in (0, 9, 8, 18, 28, 29)]
    expected = [("ada", total) for total in (1, 2, 3, 4, 1, 2)]
    for batches in ([records], [[one] for one in records]):
        with testing.harness(timed(Events())) as h:
            for batch in batches:
                h.push("rows", batch)
            assert h.uncommitted("out") == expected


def test_the_end_of_the_input_expires_nothing() -> None:
    class AtTheEnd(Events):
        def on_end(self, ctx: es.Context) -> None:
            ctx.emit(self.total.items())

    with testing.harness(timed(AtTheEnd())) as h:
        h.push("rows", [("ada", 1, 0), ("bob", 1, 5)])
        h.watermark("rows", 12)
        h.end()
        assert h.output("out")[-1] == [("bob", 1)]


def keyed(one: es.Operator, shards: int = 1) -> es.Pipeline:
    pipeline = es.Pipeline("keyed")
    rows = pipeline.source(es.FromList([]), name="rows").key_by(lambda r: r[0])
    rows.process(one, name="totals", shards=shards).sink(es.Collect(), name="out", shards=1)
    return pipeline


def test_a_time_to_live_moves_with_the_keys_when_the_shards_change() -> None:
    names = [f"key {n}" for n in range(20)]
    with testing.harness(keyed(Totals())) as h:
        h.push("rows", [(name, 1) for name in names])
        h.advance("6s")
        h.push("rows", [(name, 1) for name in names[:5]])
        h.checkpoint()
        h.restart(keyed(Totals(), shards=3))
        h.advance("5s")
        h.push("rows", [(name, 1) for name in names])
        assert dict(h.uncommitted("out")) == {n: 3 if n in names[:5] else 1 for n in names}


def test_a_time_to_live_may_be_added_changed_and_removed() -> None:
    with testing.harness(keyed(with_life())) as h:
        h.push("rows", [("ada", 1)])
        h.checkpoint()
        h.advance("1h")
        h.restart(keyed(Totals()))  # it begins now
        h.advance("9s")
        h.push("rows", [("ada", "look")])
        assert h.uncommitted("out") == [("ada", 1)]
        h.checkpoint()
        h.restart(keyed(with_life(ttl="1m")))
        h.advance("50s")
        h.push("rows", [("ada", "look")])
        assert h.uncommitted("out") == [("ada", 1)]
        h.checkpoint()
        h.restart(keyed(with_life()))
        h.advance("1h")
        h.push("rows", [("ada", "look")])
        assert h.uncommitted("out") == [("ada", 1)]
        h.checkpoint()
        h.restart(keyed(with_life(ttl="1m")))
        h.advance("59s")
        h.push("rows", [("ada", "look")])
        assert h.uncommitted("out") == [("ada", 1)], "it began again"


def test_lists_that_were_read_count_as_written() -> None:
    class Lists(es.Operator):
        seen = es.Keyed[list[int]](init=list, ttl="10s")

        def process(self, record: tuple[str, int], ctx: es.Context) -> None:
            self.seen[ctx.key].append(record[1])
            ctx.emit(list(self.seen[ctx.key]))

    with operator(Lists()) as op:
        for number in range(3):
            op.push([("ada", number)])
            op.advance("6s")
        assert op.output()[-1] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "above 0"),
        ({"ttl": "1h", "ttl_time": "wall"}, "'event' or 'processing'"),
        ({"ttl": "1h", "refresh": "never"}, "'write' or 'read'"),
    ],
)
def test_a_time_to_live_that_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        es.Keyed(init=int, **options)


def test_event_time_needs_times_of_records() -> None:
    rows = es.Pipeline("p").source(es.FromList([])).key_by(lambda r: r[0])
    with pytest.raises(UserError, match="its records have no event time"):
        rows.process(Events())

    class Batched(Events):
        def process_batch(self, batch: Any, ctx: es.Context) -> None:
            ctx.emit_batch(batch)

    with pytest.raises(UserError, match="define process"):
        rows.event_time(lambda r: r[2], unit="s").key_by(lambda r: r[0]).process(Batched())
