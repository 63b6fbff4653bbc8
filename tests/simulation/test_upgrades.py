"""State that a changed pipeline takes along: migrated, with more or fewer aggregates, other windows.

Each story stops a run in the middle, changes the pipeline, and goes on with the same store; what is
shown is compared with a plain program that is told how far the first one had come.
"""

from collections import Counter
from typing import Any

import polars as pl
import pytest

from everstream.connectors.generate.sources import FromFunction, Range
from everstream.core.plan import make_plan
from everstream.core.registry import PROTOCOLS
from everstream.core.scheme import scheme_of
from everstream.core.upgrade.compatibility import going_on
from everstream.errors import UserError
from everstream.pipeline.aggregation import running
from everstream.pipeline.aggregation.aggregates import avg, count, custom, max, min, top_k
from everstream.pipeline.aggregation.aggregates import sum as sum_of
from everstream.pipeline.event_time.windows import Session, Sliding, Tumbling
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.outside import OutsideSink
from everstream.simulation.storm import scheme_for
from tests.pipeline.sim import as_tuple
from tests.sampling import first_of
from tests.simulation.changing import Build, Changing

RECORDS, KEYS = 400, 5
EXACT = [
    p.name for p in PROTOCOLS.values() if p.choice is not None and scheme_of(p.choice).exactly_once
]


# Versions of declared state.


class Counting(Operator):
    """Counts per key; later versions keep the same number in other forms."""

    seen = Keyed[Any](init=int)

    def process(self, record: Any, ctx: Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((ctx.key, self.seen[ctx.key]))


class Counting2(Operator):
    seen = Keyed[Any](
        init=lambda: {"n": 0}, version=2, migrate=lambda had, version: {"n": had, "was": version}
    )

    def process(self, record: Any, ctx: Context) -> None:
        self.seen[ctx.key]["n"] += 1
        ctx.emit((ctx.key, self.seen[ctx.key]["n"]))


class Counting3(Operator):
    seen = Keyed[Any](
        init=lambda: [0], version=3, migrate={1: lambda had: {"n": had}, 2: lambda had: [had["n"]]}
    )

    def process(self, record: Any, ctx: Context) -> None:
        self.seen[ctx.key][0] += 1
        ctx.emit((ctx.key, self.seen[ctx.key][0]))


for _kind in (Counting2, Counting3):
    _kind.__name__ = "Counting"


def kept_by(operator: Operator, keys: int = KEYS, records: int = RECORDS) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        numbers = pipeline.source(Range(records, batch=2), name="numbers", shards=2)
        return numbers.key_by(lambda n: n % keys).process(operator, name="count", shards=2)

    return build


def exact(keys: int = KEYS, records: int = RECORDS) -> Counter[Any]:
    totals = Counter(n % keys for n in range(records))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))


@pytest.mark.parametrize("protocol", EXACT)
def test_under_every_protocol_values_are_migrated_exactly(protocol: str) -> None:
    stopped = Changing(kept_by(Counting()), 0, scheme_for(protocol, 0)).stop_at(3)
    stopped.change(kept_by(Counting2()))
    assert stopped.notes == (
        "'count': 'seen' is migrated from version 1 to 2, each value when it is first used",
    )
    assert stopped.finish() == exact()


MANY: dict[str, Any] = {"keys": 300, "records": 3 * RECORDS}
"""Keys that are seen a few times: most of them are not touched between two upgrades."""


@pytest.mark.parametrize("seed", first_of(range(4), 1))
@pytest.mark.parametrize("last", [Counting3, Counting2])
def test_a_second_upgrade_comes_before_all_values_were_touched(
    seed: int, last: type[Operator]
) -> None:
    world = Changing(kept_by(Counting(), **MANY), seed).stop_at(2)
    world.change(kept_by(Counting2(), **MANY)).world.resume()
    world.stop_at(4).change(kept_by(last(), **MANY))
    assert bool(world.notes) == (last is Counting3)
    assert world.finish() == exact(**MANY)


def test_what_a_later_version_has_saved_is_refused_by_an_earlier_one() -> None:
    world = Changing(kept_by(Counting())).stop_at(2)
    world.change(kept_by(Counting2())).world.resume()
    world.stop_at(4)
    with pytest.raises(UserError, match=r"versions: {'seen': 2} is now nothing"):
        world.change(kept_by(Counting()))
    assert world.change(kept_by(Counting2())).finish() == exact()


def test_a_field_more_begins_with_nothing_and_the_others_go_on() -> None:
    class More(Counting):
        other = Keyed[int](init=int)

        def process(self, record: Any, ctx: Context) -> None:
            self.other[ctx.key] += 1
            super().process(record, ctx)

    More.__name__ = "Counting"
    stopped = Changing(kept_by(Counting())).stop_at(3).change(kept_by(More()))
    assert stopped.notes == ("'count': 'other' is new: begins empty",)
    assert stopped.finish() == exact()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"version": 2}, "version=2 needs migrate="),
        ({"version": 0}, "must be 1, 2, 3"),
        ({"version": 3, "migrate": {2: str}}, "no function from version 1 to 2"),
    ],
)
def test_a_version_says_how_earlier_ones_become_it(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Keyed[int](init=int, **options)


# Aggregates.


def rows(start: int, stop: int) -> pl.DataFrame:
    numbers = range(start, stop)
    return pl.DataFrame({"at": numbers, "room": [n % KEYS for n in numbers]})


def hashable(row: dict[str, Any]) -> Any:
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in row.items())


def aggregated(columns: dict[str, Any], emit: Any = "changes") -> Build:
    def build(pipeline: Pipeline) -> Stream:
        source = pipeline.source(FromFunction(rows, RECORDS, 3), name="rows")
        keyed = source.key_by("room")
        done = keyed.aggregate(**columns, emit=emit, name="running", shards=2)
        return done.map(hashable, name="tuples")

    return build


def one_more(had: int, _: Any) -> int:
    return had + 1


NEW: dict[str, Any] = {
    "total": sum_of("at"),
    "mean": avg("at"),
    "low": min("at"),
    "best": top_k("at", 1),
    "own": custom(init=int, add=one_more, merge=lambda a, b: a + b),
}


@pytest.mark.parametrize("page", [2, 4096])
def test_aggregates_that_are_added_begin_at_nothing_and_those_taken_out_are_dropped(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PAGE", page)
    stopped = Changing(aggregated({"n": count(), "high": max("at")})).stop_at(3)
    read = stopped.read_by("rows")
    before = stopped.shown()
    stopped.change(aggregated({"n": count(), **NEW}))
    assert "'running': low=min(at) is new: begins empty" in stopped.notes[2]
    assert stopped.notes[-1] == "'running': high=max(at) is dropped"
    after = stopped.finish() - before
    final = {dict(row)["room"]: dict(row) for row in sorted(after, key=lambda r: dict(r)["n"])}
    for room, row in final.items():
        since = [n for n in range(read, RECORDS) if n % KEYS == room]
        assert row == {
            "room": room,
            "n": RECORDS // KEYS,
            "total": sum(since),
            "low": since[0],
            "mean": sum(since) / len(since),
            "best": (since[-1],),
            "own": len(since),
        }
    assert len(final) == KEYS


def test_an_aggregate_that_comes_back_begins_at_nothing_again() -> None:
    both, one = {"n": count(), "m": count("at")}, {"n": count()}
    world = Changing(aggregated(both, "record")).stop_at(2)
    world.change(aggregated(one, "record")).world.resume()
    world.stop_at(4).change(aggregated(both, "record"))
    read = world.read_by("rows")
    shown = [dict(row) for row in world.finish()]
    since = [row for row in shown if row["at"] >= read]
    assert len(shown) == RECORDS and since
    for row in since:
        assert row["n"] == row["at"] // KEYS + 1
        assert row["m"] == len([n for n in range(read, row["at"] + 1) if n % KEYS == row["room"]])


@pytest.mark.parametrize("protocol", EXACT)
def test_under_every_protocol_other_aggregates_are_exact_or_refused(protocol: str) -> None:
    columns = {"n": count()}
    stopped = Changing(aggregated(columns), 0, scheme_for(protocol, 0)).stop_at(3)
    try:
        stopped.change(aggregated({**columns, "low": min("at")}))
    except UserError as error:
        assert "holds rows in flight that were made for its earlier version" in str(error)
        stopped.change(aggregated(columns))
    last = [dict(row)["n"] for row in stopped.finish()]
    assert sorted(last)[-KEYS:] == [RECORDS // KEYS] * KEYS


# Windows.


def windowed(window: Any, **more: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        source = pipeline.source(FromFunction(rows, RECORDS, 3), name="rows")
        timed = source.event_time("at", unit="s", name="time").key_by("room")
        done = timed.window(window).aggregate(n=count(), **more, name="windows", shards=2)
        return done.map(as_tuple, name="tuples")

    return build


def windows_of(size: int, every: int, numbers: range) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for start in range(-size, RECORDS, every):
        if start % every == 0:
            for room in range(KEYS):
                within = [n for n in numbers if start <= n < start + size and n % KEYS == room]
                if within:
                    found[room, start, start + size, len(within)] += 1
    return found


@pytest.mark.parametrize("seed", first_of(range(3), 1))
@pytest.mark.parametrize(
    ("first", "then"), [((50, 50), (70, 70)), ((60, 20), (30, 30)), ((35, 35), (80, 20))]
)
def test_open_windows_are_finished_under_the_old_rule_and_new_ones_begin_under_the_new(
    first: tuple[int, int], then: tuple[int, int], seed: int
) -> None:
    old, new = (Sliding(f"{size}s", every=f"{every}s") for size, every in (first, then))
    stopped = Changing(windowed(old), seed).stop_at(3)
    read = stopped.read_by("rows")
    assert 0 < read < RECORDS
    stopped.change(windowed(new))
    assert "finish as they are, with the records received so far" in stopped.notes[0]
    expected = windows_of(*first, range(read)) + windows_of(*then, range(read, RECORDS))
    assert stopped.finish() == expected


def test_rules_that_change_before_the_first_windows_are_over_are_all_finished() -> None:
    world = Changing(windowed(Tumbling("300s"))).stop_at(2)
    reads = [world.read_by("rows")]
    sizes = (250, 300, 170)
    for number, size in enumerate(sizes):
        world.change(windowed(Tumbling(f"{size}s")))
        if number < 2:
            world.world.resume()
            world.stop_at(4 + 2 * number)
            reads.append(world.read_by("rows"))
    ranges = [range(a, b) for a, b in zip([0, *reads], [*reads, RECORDS], strict=True)]
    under = [300, *sizes]
    assert len(set(reads)) == 3
    both = [n for n, size in zip(ranges, under, strict=True) if size == 300]
    expected = windows_of(250, 250, ranges[1]) + windows_of(170, 170, ranges[3])
    joined: Counter[Any] = Counter()
    for part in both:
        for room, start, end, n in windows_of(300, 300, part).elements():
            joined[room, start, end] += n
    expected.update((*window, n) for window, n in joined.items())
    assert world.finish() == expected


def test_open_windows_have_the_aggregates_of_now() -> None:
    stopped = Changing(windowed(Tumbling("100s"), high=max("at"))).stop_at(3)
    read, before = stopped.read_by("rows"), stopped.shown()
    more = {"low": min("at"), "best": top_k("at", 1), "own": NEW["own"], "mean": avg("at")}
    stopped.change(windowed(Tumbling("100s"), **more))
    after = stopped.finish() - before
    assert sum(row[3] for row in (before + after).elements()) == RECORDS
    opened = read // 100 * 100
    for room, start, _, n, low, best, own, mean in after:
        since = [k for k in range(read, start + 100) if k >= start and k % KEYS == room]
        assert n == 20 and own == len(since) and low == (since[0] if since else None)
        assert (mean is None) == (not since)
        assert (start == opened) or len(since) == 20
        assert [*best] == since[-1:]


@pytest.mark.parametrize(("first", "then"), [("40s", "90s"), ("90s", "40s")])
def test_open_sessions_go_on_with_the_new_gap(first: str, then: str) -> None:
    many = 3 * RECORDS

    def sparse(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"at": [n * 50 for n in range(start, stop)]})

    def build(gap: str) -> Build:
        def made(pipeline: Pipeline) -> Stream:
            source = pipeline.source(FromFunction(sparse, many, 1), name="rows")
            timed = source.event_time("at", unit="s", name="time")
            done = timed.window(Session(gap)).aggregate(n=count(), name="windows")
            return done.map(as_tuple, name="tuples")

        return made

    stopped = Changing(build(first)).stop_at(2)
    before = stopped.shown()
    stopped.change(build(then))
    assert "open sessions continue with a gap of" in stopped.notes[0]
    shown = stopped.finish()
    assert sum(n for _, _, n in shown.elements()) == many and before <= shown
    alone, together = (
        [row for row in shown if (row[2] == 1) is is_one] for is_one in (True, False)
    )
    assert len(together) == 1, "those that hang together under the one gap, and not the other"
    assert len(alone) == many - together[0][2] > 10


def test_a_run_falls_back_only_to_checkpoints_of_the_rule_it_was_told_of() -> None:
    world = Changing(windowed(Tumbling("50s"))).stop_at(3)
    world.change(windowed(Tumbling("70s"))).world.resume()
    world.stop_at(5)
    rules = [(m.described or {})["windows"]["window"] for m in world.manifests()]
    assert rules == ["70 s every 70 s"] * 2 + ["50 s every 50 s"]
    for size, kept in (("70s", 2), ("90s", 2), ("50s", 2)):
        pipeline = Pipeline("changing")
        windowed(Tumbling(size))(pipeline).on_demand().sink(OutsideSink(0), name="out", shards=2)
        found = going_on(world.manifests(), make_plan(pipeline, 3))
        assert len(found.manifests) == kept
        assert found.before.keys() == ({"windows"} if size != "70s" else set())
