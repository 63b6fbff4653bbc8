"""Numbers of shards change while a pipeline runs on Spark, and between two runs."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.orders import Outcome
from everstream.events import RequestHonoured
from everstream.state.control import Shards, read_settings, record_settings
from everstream.state.signing import blobs_at
from everstream.state.store import CheckpointStore
from tests.hearing import Heard
from tests.sampling import sampled
from tests.spark import MASTER

KEYS, ENDLESS = 23, 10**9
PROTOCOLS = {
    "aligned": es.Coordinated(every="300ms"),
    "unaligned": es.Coordinated(every="300ms", mode="unaligned"),
    "hmnr": es.CommunicationInduced(every="300ms"),
}


def counting(shards: int = 2) -> es.Pipeline:
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Paced(es.Range(ENDLESS), rate=1_000), name="numbers", shards=2)
    counted = numbers.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=shards
    )
    counted.sink(es.Collect(), name="out")
    return pipeline


class Stubborn(es.Operator):
    """Counts the records of each key, and cannot be given to other shards."""

    counts = es.Keyed[int](init=int)

    def process(self, record: int, ctx: es.Context) -> None:
        self.counts[ctx.key] += 1
        ctx.emit((ctx.key, self.counts[ctx.key]))

    def redistribute(self, parts: Any, place: Any) -> Any:
        raise ValueError("my counts stay together")


def stubborn(shards: int = 1) -> es.Pipeline:
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Paced(es.Range(ENDLESS), rate=1_000), name="numbers", shards=2)
    counted = numbers.key_by(lambda n: n % KEYS).process(Stubborn(), name="count", shards=shards)
    counted.sink(es.Collect(), name="out")
    return pipeline


def check_exact(result: es.RunResult, all_read: bool = False) -> None:
    """Every key was counted from 1 on without a gap and none twice.

    all_read: also that all that was read was counted. Under other protocols than the aligned one a
    run stops with records on their way, which are not counted yet.
    """
    assert result.outcome is Outcome.STOPPED
    found = Counter(result.collected("out"))
    assert set(found.values()) == {1}
    highest = Counter[int]()
    for key, count in found:
        highest[key] = max(highest[key], count)
    assert highest.total() == len(found)
    assert 0 < len(found) <= result.counts["numbers"][1]
    assert not all_read or len(found) == result.counts["numbers"][1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shards_change_while_a_pipeline_runs_and_nothing_is_lost_or_doubled(
    protocol: str, tmp_path: Path
) -> None:
    heard = Heard()
    run = counting().start(
        checkpoint=PROTOCOLS[protocol],
        store=tmp_path / "store",
        workers=2,
        listener=heard,
    )
    for records, shards in ((500, 4), (1_500, 1), (2_500, 3)):
        heard.wait_for(records)
        run.scale({"count": shards})
    heard.wait_for(heard.records + 500)
    run.stop()
    result = run.wait()
    check_exact(result, all_read=protocol == "aligned")
    assert [counts["count"] for counts in heard.plans] == [4, 1, 3]
    assert not result.recoveries


def test_the_next_run_has_the_shards_that_were_asked_for_until_its_program_says_others(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"checkpoint": PROTOCOLS["aligned"], "store": store}
    options |= {"workers": 2, "master": MASTER}

    def stopped(pipeline: es.Pipeline, more: int, scale: int | None) -> Heard:
        heard = Heard()
        run = pipeline.start(**options, listener=heard)
        heard.wait_for(more)
        if scale is not None:
            run.scale({"count": scale})
        run.stop()
        heard.result = run.wait()
        assert heard.result.outcome is Outcome.STOPPED
        return heard

    stopped(counting(), 300, 3)
    assert read_settings(blobs_at(str(store), None)).shards == {"count": Shards(3, 2)}
    second = stopped(counting(), 800, None)
    (honoured,) = [event for event in second.events if isinstance(event, RequestHonoured)]
    assert honoured.request == "rescale" and "'count' has 3 shard(s)" in honoured.text
    other = stopped(counting(shards=1), 1_500, None)
    assert other.noted("'count' resumes with 1 shard(s) instead of 3")
    check_exact(other.result, all_read=True)


@pytest.mark.parametrize(
    "engine", sampled(["tasks", "microbatch", "local"], ["microbatch", "local"])
)
def test_a_change_of_shards_that_is_refused_leaves_the_store_as_it_was(
    engine: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"checkpoint": PROTOCOLS["aligned"], "store": store}
    options |= {"engine": engine}
    heard = Heard()
    run = stubborn().start(**options, listener=heard)
    heard.wait_for(500)
    run.stop()
    run.wait()
    before = [manifest.body for manifest in CheckpointStore.at(str(store)).manifests()]
    with pytest.raises(es.EverstreamError, match=r"cannot go from 1 shard.s. to 2: ValueError: my"):
        stubborn(shards=2).run(**options)
    after = [manifest.body for manifest in CheckpointStore.at(str(store)).manifests()]
    assert after == before
    again = Heard()
    run = stubborn().start(**options, listener=again)
    again.wait_for(heard.records + 500)
    run.stop()
    check_exact(run.wait(), all_read=True)


@pytest.mark.parametrize("protocol", ["aligned", "hmnr"])
def test_a_run_resumes_with_its_former_shards_if_new_ones_cannot_have_their_share(
    protocol: str, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    options: dict[str, Any] = {"checkpoint": PROTOCOLS[protocol], "store": store}
    run = stubborn().start(**options, workers=2, listener=heard)
    heard.wait_for(500)
    with pytest.raises(es.UserError, match=r"'count' cannot go from 1 shard.s. to 3: ValueError"):
        run.scale({"count": 3})
    heard.wait_for(heard.records + 1_000)
    run.stop()
    result = run.wait()
    check_exact(result, all_read=protocol == "aligned")
    assert [counts["count"] for counts in heard.plans] == [3, 1]
    assert read_settings(blobs_at(str(store), None)).shards == {"count": Shards(1, 1)}


@pytest.mark.parametrize("protocol", ["unaligned", "hmnr"])
def test_records_on_their_way_arrive_before_a_changed_program_goes_on(
    protocol: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint": PROTOCOLS[protocol], "store": tmp_path / "store"}
    options |= {"workers": 2, "master": MASTER}
    heard = Heard()
    run = counting().start(**options, listener=heard)
    heard.wait_for(1_000)
    run.stop()
    run.wait()
    after = Heard()
    again = counting(shards=3).start(**options, listener=after)
    after.wait_for(heard.records + 1_000)
    again.stop()
    check_exact(again.wait())
    assert after.noted("'count' resumes with 3 shard(s) instead of 2")


def test_micro_batches_go_on_with_other_numbers_of_shards(tmp_path: Path) -> None:
    options: dict[str, Any] = {"store": tmp_path / "store", "master": MASTER}
    options |= {"checkpoint": PROTOCOLS["aligned"], "engine": "microbatch"}
    heard = Heard()
    run = counting().start(**options, listener=heard)
    heard.wait_for(500)
    run.stop()
    run.wait()
    after = Heard()
    again = counting(shards=3).start(**options, listener=after)
    after.wait_for(heard.records + 500)
    again.stop()
    check_exact(again.wait())


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"nobody": 2}, "there is no operator 'nobody'"),
        ({"count": 0}, "at least one shard"),
        ({"count": 200}, "more than the 128 key groups"),
    ],
)
def test_what_cannot_be_is_said_to_whoever_asks(
    wanted: dict[str, int], why: str, tmp_path: Path
) -> None:
    heard = Heard()
    with counting().start(checkpoint=PROTOCOLS["aligned"], workers=1, listener=heard) as run:
        heard.wait_for(1)
        with pytest.raises(es.UserError, match=why):
            run.scale(wanted)


def test_a_run_without_checkpoints_keeps_its_shards() -> None:
    heard = Heard()
    with counting().start(checkpoint=None, workers=1, listener=heard) as run:
        heard.wait_for(1)
        with pytest.raises(es.UserError, match="takes no checkpoints"):
            run.scale({"count": 3})


def test_of_two_who_ask_at_once_neither_wish_is_lost(tmp_path: Path) -> None:
    blobs = blobs_at(str(tmp_path / "store"), None)
    record_settings(blobs, {}, {"count": Shards(4, 2)})
    record_settings(blobs, {"numbers": {"frequency": "5"}})
    record_settings(blobs, {}, {"out": Shards(1, 2)})
    found = read_settings(blobs)
    assert found.shards == {"count": Shards(4, 2), "out": Shards(1, 2)}
    assert found.settings == {"numbers": {"frequency": "5"}}


def test_a_run_scales_itself(tmp_path: Path) -> None:
    def busy(count: int, _: int) -> int:
        threading.Event().wait(0.002)
        return count + 1

    pipeline = es.Pipeline("itself")
    numbers = pipeline.source(es.Paced(es.Range(ENDLESS), rate=700), name="numbers")
    numbers.key_by(lambda n: n % KEYS).fold(int, busy, name="count", shards=1).sink(
        es.Collect(), name="out"
    )
    heard = Heard()
    autoscale = es.AutoScale(max=3, up_after="1s", down_after="1m", calm="1s")
    result = pipeline.run(
        checkpoint=PROTOCOLS["aligned"],
        autoscale=autoscale,
        listener=heard,
        until=lambda _: bool(heard.plans),
    )
    assert heard.plans[-1]["count"] > 1
    check_exact(result, all_read=True)
