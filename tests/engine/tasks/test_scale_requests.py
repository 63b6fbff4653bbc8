"""A number of shards that somebody asks for is never forgotten, whenever the request is written."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.plan import Plan, make_plan, rescaled, shard_counts
from everstream.engine.rescaling import ScaleRequests, as_wanted
from everstream.engine.settings.live_settings import Control
from everstream.engine.settings.options import RunConfig
from everstream.engine.store_session import open_store
from everstream.errors import UserError
from everstream.state.control import Shards, read_settings, record_settings
from everstream.state.store import CheckpointStore


def counting() -> Plan:
    pipeline = es.Pipeline("counting")
    counted = pipeline.source(es.Range(9), name="numbers").key_by(lambda n: n % 3)
    counted.fold(init=int, update=lambda count, _: count + 1, name="count", shards=2).collect()
    return make_plan(pipeline, 2)


def controlled(store: CheckpointStore) -> Control:
    return Control(store.blobs, False, {}, lambda text: None)


def requests(control: Control, plan: Plan, store: Path) -> ScaleRequests:
    return ScaleRequests(RunConfig.of(es.RunOptions(store=store)), plan, control)


@pytest.mark.parametrize("moment", ["before the plan", "before the watch", "during the watch"])
def test_a_request_written_while_a_driver_starts_is_found(tmp_path: Path, moment: str) -> None:
    store, plan = CheckpointStore.at(str(tmp_path / "store")), counting()
    lease = store.acquire_lease("driver")

    def ask(now: str) -> None:
        if now == moment:
            record_settings(store.blobs, {}, {"count": Shards(4, 2)})

    ask("before the plan")
    begun = as_wanted(plan, store, None, None)
    ask("before the watch")
    control = controlled(store)
    ask("during the watch")
    control._look()
    wanted = requests(control, begun, tmp_path / "store").wanted
    assert shard_counts(begun)["count"] == 4 or wanted == {"count": 4}
    # A driver that dies before its first checkpoint leaves the request to the next one.
    assert store.acquire_lease("next", lease.number).number == lease.number + 1
    assert shard_counts(as_wanted(plan, store, None, None))["count"] == 4


def test_a_request_written_while_a_fresh_start_begins_is_for_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    before = CheckpointStore.at(url)
    record_settings(before.blobs, {}, {"count": Shards(3, 2)})
    acquire = CheckpointStore.acquire_lease

    def acquire_then_ask(self: CheckpointStore, *given: Any) -> Any:
        lease = acquire(self, *given)
        record_settings(before.blobs, {}, {"count": Shards(4, 2)})
        return lease

    monkeypatch.setattr(CheckpointStore, "acquire_lease", acquire_then_ask)
    plan = counting()
    opened = open_store(RunConfig.of(es.RunOptions(store=url, fresh=True)), plan, url)
    assert shard_counts(opened.plan)["count"] == 4


def refused_while_another_is_asked_for(tmp_path: Path, seen: bool) -> tuple[Control, Any]:
    store, plan = CheckpointStore.at(str(tmp_path / "store")), counting()
    control = controlled(store)
    asking = requests(control, plan, tmp_path / "store")
    first: Future[str] = asking.ask({"count": 3}, plan)
    control._look()
    second: Future[str] = asking.ask({"count": 4}, plan)
    if seen:
        control._look()
    refused = rescaled(plan, {"count": 3}, plan.key_groups)
    asking.withdraw(refused, plan, UserError("three is not to be had"))
    control._look()
    assert isinstance(first.exception(0), UserError) and not second.done()
    assert asking.wanted == {"count": 4}
    return control, read_settings(store.blobs).shards["count"].wanted


@pytest.mark.parametrize("seen", [True, False])
def test_what_was_asked_for_since_a_refused_request_stays_wanted(
    tmp_path: Path, seen: bool
) -> None:
    assert refused_while_another_is_asked_for(tmp_path, seen)[1] == 4


def test_a_refused_request_is_not_tried_again_by_the_next_driver(tmp_path: Path) -> None:
    store, plan = CheckpointStore.at(str(tmp_path / "store")), counting()
    control = controlled(store)
    asking = requests(control, plan, tmp_path / "store")
    asked: Future[str] = asking.ask({"count": 3}, plan)
    control._look()
    refused = rescaled(plan, {"count": 3}, plan.key_groups)
    asking.withdraw(refused, plan, UserError("three is not to be had"))
    control._look()
    assert isinstance(asked.exception(0), UserError)
    assert shard_counts(as_wanted(plan, store, None, None))["count"] == 2
