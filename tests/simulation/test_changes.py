"""A pipeline that has changed finds its state, or is refused and told how to say what is meant.

Each story stops a run in the middle, changes the pipeline, and goes on with the same store.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everstream.connectors.files.text import TextLines
from everstream.connectors.generate.sources import FromFunction, Range
from everstream.core.orders import Outcome
from everstream.core.registry import PROTOCOLS
from everstream.core.scheme import scheme_of
from everstream.core.upgrade.compatibility import UpgradeOverrides
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import count, max
from everstream.pipeline.aggregation.aggregates import sum as sum_of
from everstream.pipeline.event_time.windows import Session, Tumbling
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.storm import scheme_for
from tests.pipeline.sim import as_tuple
from tests.simulation.changing import Build, Changing

RECORDS, KEYS = 400, 5
EXACT = [
    p.name for p in PROTOCOLS.values() if p.choice is not None and scheme_of(p.choice).exactly_once
]


def counting(
    name: str | None = "count", source: str = "numbers", above: str | None = None
) -> Build:
    """Counts per key; `above` is the name of another fold over the records before ("": none)."""

    def build(pipeline: Pipeline) -> Stream:
        numbers = pipeline.source(Range(RECORDS, batch=2), name=source, shards=2)
        if above is not None:
            seen = numbers.key_by(lambda n: n % KEYS).fold(
                init=int, update=lambda had, n: n, name=above or None, shards=2
            )
            numbers = seen.map(lambda pair: pair[1], name="again")
        keyed = numbers.key_by(lambda n: n % KEYS)
        return keyed.fold(init=int, update=lambda had, _: had + 1, name=name, shards=2)

    return build


def exact(records: int = RECORDS) -> Counter[Any]:
    """What the sequential program puts out, in some order."""
    totals = Counter(n % KEYS for n in range(records))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))


# Names.


@pytest.mark.parametrize("seed", range(3))
def test_a_renamed_operator_is_refused_until_its_new_name_is_said(seed: int) -> None:
    stopped = Changing(counting(), seed).stop_at(3)
    with pytest.raises(
        UserError, match=r"'count' \(Fold\) is in the checkpoint.*--renamed count=t"
    ):
        stopped.change(counting("total"))
    stopped.change(counting("total"), UpgradeOverrides({"count": "total"}))
    assert stopped.notes == ("'total' resumes with the state of 'count'",)
    assert stopped.finish() == exact()


def test_a_renaming_is_done_once_and_may_be_said_again() -> None:
    renamed = UpgradeOverrides({"count": "total"})
    world = Changing(counting()).stop_at(2).change(counting("total"), renamed)
    world.world.resume()
    world.stop_at(4).change(counting("total"), renamed)
    assert world.notes == ("the checkpoint has no 'count' any more: there is nothing to rename",)
    assert world.finish() == exact()


def test_dropped_state_begins_with_nothing_while_the_others_go_on() -> None:
    stopped = Changing(counting()).stop_at(3)
    before, read = stopped.shown(), stopped.read_by("numbers")
    assert 0 < read < RECORDS
    stopped.change(counting(), UpgradeOverrides(dropped=frozenset({"count"})))
    assert stopped.notes == ("the state of 'count' is dropped: it begins with no state",)
    after = stopped.finish() - before
    assert after.total() == RECORDS - read
    assert sum(number == 1 for _, number in after) == KEYS, "every key begins at one again"


def test_a_renamed_source_is_refused_and_when_renamed_goes_on_where_it_was() -> None:
    stopped = Changing(counting()).stop_at(3)
    with pytest.raises(UserError, match=r"'numbers' \(Range\).*--renamed numbers=input"):
        stopped.change(counting(source="input"))
    stopped.change(counting(source="input"), UpgradeOverrides({"numbers": "input"}))
    assert stopped.finish() == exact()


def test_a_source_that_had_ended_and_is_renamed_has_still_ended() -> None:
    def two(short: str) -> Build:
        def build(pipeline: Pipeline) -> Stream:
            first = pipeline.source(Range(4, batch=2), name=short)
            second = pipeline.source(Range(4, RECORDS, batch=2), name="long")
            keyed = first.union(second).key_by(lambda n: n % KEYS)
            return keyed.fold(init=int, update=lambda had, _: had + 1, name="count", shards=2)

        return build

    stopped = Changing(two("short")).stop_at(4)
    ended = [r.shard.operator for r in stopped.manifests()[0].records.values() if r.final]
    assert ended == ["short"]
    with pytest.raises(UserError, match="'short' has already ended"):
        stopped.change(two("short"), UpgradeOverrides(dropped=frozenset({"short"})))
    stopped.change(two("brief"), UpgradeOverrides({"short": "brief"}))
    assert stopped.finish() == exact()


def test_two_operators_that_exchange_names_keep_their_own_state() -> None:
    def both(first: str, second: str) -> Build:
        return counting(name=second, above=first)

    stopped = Changing(both("seen", "count")).stop_at(3)
    stopped.change(both("count", "seen"), UpgradeOverrides({"seen": "count", "count": "seen"}))
    assert stopped.finish() == exact()


@pytest.mark.parametrize("above", ["", "seen"])
def test_an_operator_without_a_name_does_not_take_the_state_of_another(above: str) -> None:
    """Whether the new one is called "fold" now or the old one still is, nobody can tell."""
    stopped = Changing(counting(name=None)).stop_at(3)
    either = "have no name=" if not above else "may have had this name by default"
    with pytest.raises(UserError, match=f"'fold'.* {either}.*name="):
        stopped.change(counting(name=None, above=above))
    stopped.change(counting(name="fold", above="seen"))
    assert stopped.finish() == exact()


def test_beside_an_operator_with_a_name_of_its_own_one_without_may_be_added() -> None:
    stopped = Changing(counting("count")).stop_at(3)
    assert stopped.change(counting("count", above="")).finish() == exact()


def test_a_sink_keeps_its_name() -> None:
    stopped = Changing(counting()).stop_at(3)
    stopped.sink = "results"
    with pytest.raises(UserError, match="A sink keeps its name: call it 'out' again"):
        stopped.change(counting())
    with pytest.raises(UserError, match=r"a sink keeps its name.*Call it 'out' again"):
        stopped.change(counting(), UpgradeOverrides({"out": "results"}))
    stopped.sink = "out"
    assert stopped.change(counting()).finish() == exact()


@pytest.mark.parametrize("protocol", EXACT)
def test_under_every_protocol_a_rename_is_exact_or_refused(protocol: str) -> None:
    stopped = Changing(counting(), 0, scheme_for(protocol, 0)).stop_at(3)
    try:
        stopped.change(counting("total"), UpgradeOverrides({"count": "total"}))
    except UserError as error:
        assert "its checkpoint holds records in flight" in str(error)
        stopped.change(counting())
    assert stopped.finish() == exact()


# What stands under a name.


def windowed(window: Any, **more: Any) -> Build:
    """Counts in windows; the records of window after window, in order."""

    def rows(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"at": range(start, stop), "room": [n % 2 for n in range(start, stop)]})

    def build(pipeline: Pipeline) -> Stream:
        source = pipeline.source(FromFunction(rows, RECORDS, 3), name="rows")
        timed = source.event_time("at", unit="s", name="time").key_by("room")
        windows = timed.window(Tumbling(window) if isinstance(window, str) else window)
        done = windows.aggregate(n=count(), **more, name="windows", shards=2)
        return done.map(as_tuple, name="tuples")

    return build


def test_a_window_of_another_kind_is_refused_and_the_old_one_goes_on() -> None:
    stopped = Changing(windowed("50s")).stop_at(3)
    with pytest.raises(UserError, match=r"window: '50 s every 50 s' is now 'a gap of 5 s'"):
        stopped.change(windowed(Session("5s")))
    stopped.change(windowed("50s"))
    shown = stopped.finish()
    assert sum(n for _, _, _, n in shown.elements()) == RECORDS and len(shown) == 2 * RECORDS // 50


def test_with_another_window_and_its_state_dropped_the_rest_is_windowed_anew() -> None:
    stopped = Changing(windowed("50s")).stop_at(3)
    before, read = stopped.shown(), stopped.read_by("rows")
    stopped.change(windowed("70s"), UpgradeOverrides(dropped=frozenset({"windows"})))
    after = stopped.finish() - before
    assert {end - start for _, start, end, _ in after} == {70}
    assert sum(n for _, _, _, n in after.elements()) == RECORDS - read


def test_another_aggregate_under_the_same_name_is_refused_and_begins_anew_when_dropped() -> None:
    stopped = Changing(windowed("50s", last=max("at"))).stop_at(3)
    other = windowed("50s", last=sum_of("at"))
    with pytest.raises(
        UserError, match=r"aggregates: .*'last=max\(at\)'.* is now .*'last=sum\(at\)'"
    ):
        stopped.change(other)
    with pytest.raises(UserError, match=r"aggregates: .*'last=max\(at\)'.* is now .*'latest=max"):
        stopped.change(windowed("50s", latest=max("at")))
    read = stopped.read_by("rows")
    before = stopped.shown()
    stopped.change(other, UpgradeOverrides(dropped=frozenset({"windows"})))
    after = stopped.finish() - before
    assert sum(row[3] for row in after.elements()) == RECORDS - read


class Total(Operator):
    total = Keyed[int](init=int)

    def process(self, record: Any, ctx: Context) -> None:
        self.total[ctx.key] += 1
        ctx.emit((ctx.key, self.total[ctx.key]))


class Renamed(Operator):
    amount = Keyed[int](init=int)

    def process(self, record: Any, ctx: Context) -> None:
        self.amount[ctx.key] += 1
        ctx.emit((ctx.key, self.amount[ctx.key]))


Renamed.__name__ = "Total"


def processed(operator: Operator) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        numbers = pipeline.source(Range(RECORDS, batch=2), name="numbers", shards=2)
        return numbers.key_by(lambda n: n % KEYS).process(operator, name="total", shards=2)

    return build


def test_a_renamed_attribute_with_state_is_refused() -> None:
    stopped = Changing(processed(Total())).stop_at(3)
    with pytest.raises(UserError, match=r"keyed: {'total': 'int'} is now {'amount': 'int'}"):
        stopped.change(processed(Renamed()))
    assert stopped.change(processed(Total())).finish() == exact()


class Sum(Total):
    """Another name for the same thing."""


def test_an_operator_renamed_to_itself_goes_on_though_it_has_changed() -> None:
    stopped = Changing(processed(Total())).stop_at(3)
    with pytest.raises(UserError, match=r"operator: 'Total' is now 'Sum'.*--renamed total=total"):
        stopped.change(processed(Sum()))
    stopped.change(processed(Sum()), UpgradeOverrides({"total": "total"}))
    assert stopped.finish() == exact()


def lines_in(folder: Path) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        lines = pipeline.source(TextLines(folder, batch_bytes=8), name="lines")
        counted = lines.key_by(lambda line: int(line) % KEYS)
        return counted.fold(init=int, update=lambda had, _: had + 1, name="count", shards=2)

    return build


def test_input_in_another_folder_is_refused_and_read_again_only_if_that_is_said(
    tmp_path: Path,
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "numbers.txt").write_text("".join(f"{n}\n" for n in range(RECORDS)))
    stopped = Changing(lines_in(before)).stop_at(3)
    read = stopped.read_by("lines")
    before.rename(after)
    with pytest.raises(UserError, match=r"'lines' is not what it was \(path: '.*before' is now '"):
        stopped.change(lines_in(after))
    stopped.change(lines_in(after), UpgradeOverrides(dropped=frozenset({"lines"})))
    assert stopped.finish().total() == read + RECORDS


# What is of no account.


class Passing(Operator):
    def process(self, record: Any, ctx: Context) -> None:
        ctx.emit(record)


def test_operators_without_state_come_and_go() -> None:
    def build(pipeline: Pipeline) -> Stream:
        counted = counting()(pipeline)
        return counted.process(Passing(), name="passing").map(lambda pair: pair)

    stopped = Changing(build).stop_at(3)
    assert stopped.change(counting()).finish() == exact()


def test_an_operator_with_state_that_is_taken_out_is_refused_until_it_is_dropped() -> None:
    stopped = Changing(counting(above="seen")).stop_at(3)
    with pytest.raises(UserError, match=r"'seen' \(Fold\).*not in the pipeline.*--drop-state seen"):
        stopped.change(counting())
    stopped.change(counting(), UpgradeOverrides(dropped=frozenset({"seen"})))
    assert stopped.finish() == exact()


def test_a_finished_pipeline_is_finished_whatever_has_changed() -> None:
    world = Changing(counting())
    assert world.world.run().outcome is Outcome.FINISHED
    world.change(counting("total"))


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        (
            UpgradeOverrides({"count": "nobody"}),
            "the pipeline has no operator 'nobody'; it has: numbers",
        ),
        (
            UpgradeOverrides({"nobody": "total"}),
            "the checkpoint has no operator 'nobody'; it has: count",
        ),
        (UpgradeOverrides({"count": "total", "numbers": "total"}), "one operator's state only"),
        (UpgradeOverrides({"numbers": "count"}), "has state of an operator 'count' already"),
        (
            UpgradeOverrides(dropped=frozenset({"nobody"})),
            "no operator 'nobody' whose state could be",
        ),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wishes: UpgradeOverrides, says: str) -> None:
    stopped = Changing(counting()).stop_at(2)
    build = counting("count" if wishes.renamed.get("numbers") == "count" else "total")
    with pytest.raises(UserError, match=says):
        stopped.change(build, wishes)


def test_sums_of_another_column_are_another_aggregate() -> None:
    assert sum_of("price").describe() == "sum(price)" != sum_of("cost").describe()


# Whatever the change.


class Stage(Operator):
    """Counts per key what passes; nothing but its state tells one from another."""

    seen = Keyed[int](init=int)

    def __init__(self, label: str) -> None:
        self.label = label

    def process(self, record: Any, ctx: Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((*record, (self.label, self.seen[ctx.key])))


Stages = list[tuple[str, str | None]]
"""The label of each stage, and its name."""


def staged(stages: Stages) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        numbers = pipeline.source(Range(RECORDS, batch=2), name="numbers")
        stream = numbers.map(lambda n: (n % 3,), name="start")
        for label, name in stages:
            stream = stream.key_by(lambda record: record[0]).process(Stage(label), name=name)
        return stream

    return build


@st.composite
def edits(draw: st.DrawFn) -> tuple[Stages, Stages]:
    """A pipeline, and the same after somebody has edited a line of it."""
    labels = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    unnamed = draw(st.sampled_from([None, *labels]))
    before: Stages = [(label, None if label == unnamed else f"name-{label}") for label in labels]
    after = list(before)
    place = draw(st.integers(0, len(after) - 1))
    label = after[place][0]
    match draw(st.sampled_from(["rename", "unname", "add", "add and name", "remove", "move"])):
        case "rename":
            after[place] = (label, draw(st.sampled_from(["other", "name-a", "stage"])))
        case "unname":
            after[place] = (label, None)
        case "add":
            after.insert(place, ("new", draw(st.sampled_from([None, "new", "stage"]))))
        case "add and name":
            after[place] = (label, "named")
            after.insert(place, ("new", None))
        case "remove":
            del after[place]
        case "move":
            after.insert(draw(st.integers(0, len(after) - 1)), after.pop(place))
    return before, after


@settings(max_examples=40)
@given(edits())
@example(([("a", None)], [("new", None), ("a", "named")]))
@example(([("a", None)], [("new", "stage"), ("a", None)]))
def test_after_any_edit_every_operator_has_its_own_state_or_the_run_is_refused(
    edit: tuple[Stages, Stages],
) -> None:
    before, after = edit
    stopped = Changing(staged(before)).stop_at(1)
    try:
        stopped.change(staged(after))
    except UserError:
        after = before
        stopped.change(staged(before))
    seen: dict[tuple[str, int], list[int]] = {}
    for key, *passed in stopped.finish().elements():
        for label, number in passed:
            seen.setdefault((label, key), []).append(number)
    assert {label for label, _ in after} <= {label for label, _ in seen}
    for numbers in seen.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
