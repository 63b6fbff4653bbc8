"""Views, histories and metrics of real runs: measured, killed, steered and looked at afterwards."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

import everstream as es
from everstream.observability.history.run_view import Live, RunView, View
from everstream.observability.history.schema import VIEW
from everstream.observability.history.stored import StoredHistory
from everstream.observability.ui.auth import Guard
from everstream.observability.ui.server import make_app
from everstream.observability.ui.views import Actions, Shown
from everstream.state.blobs import FsspecBlobs
from tests.spark import MASTER

PATIENCE_S = 90
TOKEN = "the-token-that-was-printed"
KNOWS = {"authorization": f"Bearer {TOKEN}"}
SECRET = "hunter2"


class Heard(es.Listener):
    """Wakes whoever waits whenever there is something to see."""

    def __init__(self) -> None:
        self.live = Live()
        self._more = threading.Condition()

    def on_event(self, event: es.RunEvent) -> None:
        self.live.take(event)
        with self._more:
            self._more.notify_all()

    def until(self, holds: Callable[[View], object]) -> View:
        found: list[View] = []

        def look() -> object:
            found[:] = [self.live.view()]
            return holds(found[0])

        with self._more:
            assert self._more.wait_for(look, PATIENCE_S), json.dumps(found[0])[:5000]
        return found[0]


def careful(number: int) -> int:
    if number % 100 == 99:
        raise ValueError(f"{number} is not wanted")
    return number


@dataclass
class Told:
    """A run that was measured, checkpointed, tuned, killed and stopped."""

    store: Path
    views: dict[str, View]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("told")
    pipeline = es.Pipeline("told")
    (
        pipeline.source(es.Paced(es.Range(10**9), rate=1000), name="numbers")
        .map(careful, name="careful", on_error="dead_letter")
        .key_by(lambda number: number % 7)
        .fold(init=int, update=lambda total, number: total + number, name="total", shards=2)
        .sink(es.JsonLines(folder / "out"), name="out")
    )
    heard = Heard()
    views: dict[str, View] = {}
    store = folder / "store"
    every = es.Coordinated(every="10m")
    with pipeline.start(
        store=store, checkpoint=every, listener=heard, master=MASTER, workers=2
    ) as run:
        rates = "in_per_s", "busy"
        views["running"] = heard.until(
            lambda view: (
                all(row[name] for row in view["operators"][1:] for name in rates)
                and view["latency"].get("out", {}).get("p99_ms")
            )
        )
        assert run.checkpoint(PATIENCE_S) == 1
        doing = Actions(run)
        saved = doing.act("savepoint", {"name": "kept"})
        assert saved == "savepoint 'kept' keeps epoch 2"
        for action, wrong in {
            "savepoint": {},
            "interval": {"every": True},
            "kill": {"worker": "0"},
        }.items():
            with pytest.raises(es.UserError, match="send the parameters as JSON"):
                doing.act(action, wrong)
        with pytest.raises(es.UserError, match="there is no worker 7"):
            doing.act("kill", {"worker": 7})
        assert "every 100ms" in doing.act("interval", {"every": "100ms"})
        views["tuned"] = heard.until(lambda view: view["epoch"] > 3)
        views["handle"] = run.metrics()
        run.kill_worker(1)
        views["recovered"] = heard.until(
            lambda view: view["failures"] and view["failures"][0]["caught_up_ms"] is not None
        )
        views["back"] = heard.until(lambda view: all(worker["alive"] for worker in view["workers"]))
    views["ended"] = heard.live.view()
    yield Told(store, views)


def test_every_view_of_a_real_run_fits_the_schema(told: Told) -> None:
    Draft202012Validator.check_schema(VIEW)
    validator = Draft202012Validator(VIEW)
    for name, view in told.views.items():
        assert not list(validator.iter_errors(json.loads(json.dumps(view)))), name


def test_the_view_of_a_running_pipeline_says_how_it_goes(told: Told) -> None:
    view = told.views["running"]
    assert (view["pipeline"], view["engine"], view["protocol"]) == ("told", "local", "aligned")
    by_name = {row["name"]: row for row in view["operators"]}
    assert by_name["total"]["shards"] == 2 and by_name["careful"]["chain"] == "numbers"
    assert [(edge["from"], edge["routing"]) for edge in view["edges"]] == [
        ("numbers", "fused"),
        ("careful", "by key"),
        ("total", "fused"),
    ]
    assert {shard["id"] for shard in view["shards"]} == {"numbers:0", "total:0", "total:1"}
    assert all(worker["alive"] and worker["pid"] for worker in view["workers"])


def test_a_run_is_steered_while_it_goes_on_and_that_is_seen(told: Told) -> None:
    assert told.views["running"]["interval_s"] == 600
    assert told.views["tuned"]["interval_s"] == 0.1
    assert told.views["handle"]["epoch"] >= 4 and told.views["handle"]["pipeline"] == "told"
    (failure,) = told.views["recovered"]["failures"]
    assert failure["injected"] and "worker 1" in failure["what"]
    assert 0 <= failure["detected_ms"] <= failure["restored_ms"] <= failure["caught_up_ms"]
    assert max(worker["attempt"] for worker in told.views["back"]["workers"]) == 1
    assert told.views["ended"]["ended"]["outcome"] == "stopped"


def test_the_store_tells_the_same_story_afterwards(told: Told) -> None:
    run_view = RunView()
    for event in StoredHistory(FsspecBlobs(str(told.store))).new_events():
        run_view.take(event)
    seen, later = told.views["ended"], run_view.view(seen_at(told))
    for name in (
        "pipeline",
        "operators",
        "failures",
        "checkpoints",
        "notes",
        "ended",
        "interval_s",
    ):
        known = [row.get("name") for row in later[name]] if name == "operators" else later[name]
        then = [row.get("name") for row in seen[name]] if name == "operators" else seen[name]
        assert known == then, name
    assert later["series"]["at"]


def seen_at(told: Told) -> float:
    at: float = told.views["ended"]["now"]
    return at


def client(told: Told) -> TestClient:
    live = Live()
    live.take_all(StoredHistory(FsspecBlobs(str(told.store))).new_events())
    app = make_app(Shown(live, store=str(told.store)), Guard(TOKEN))
    return TestClient(app, base_url="http://127.0.0.1", headers=KNOWS)


def test_state_and_dead_letters_are_looked_up_in_the_store(told: Told) -> None:
    page = client(told)
    top: dict[str, Any] = page.get("/api/state", params={"operator": "total", "top": 3}).json()
    assert top["entries"] == 7 and len(top["rows"]) == 3
    (row,) = page.get("/api/state", params={"operator": "total", "key": "6"}).json()["rows"]
    assert row["key"] == "6" and int(row["value"]) > 0
    letters = page.get("/api/dead_letters", params={"operator": "careful", "top": 1}).json()
    assert letters["parts"] >= 1
    assert "is not wanted" in letters["letters"][0]["error"]
    assert int(letters["letters"][0]["record"]) % 100 == 99
    nothing = page.get("/api/dead_letters", params={"operator": "total"}).json()
    assert nothing["letters"] == []
    asked = {"": (400, "name one"), "?operator=x": (404, "there is no operator 'x'")}
    for query, (status, says) in asked.items():
        refused = page.get(f"/api/state{query}")
        assert refused.status_code == status and says in refused.json()["error"]


def test_metrics_of_a_real_run_have_its_counts(told: Told) -> None:
    text = client(told).get("/metrics").text
    assert 'everstream_num_restarts_total{pipeline="told"} 1.0' in text
    assert 'operator="careful"' in text and 'everstream_latency_seconds_bucket{le="0.00' in text


def test_no_secret_is_in_a_view_a_history_or_the_metrics(tmp_path: Path) -> None:
    """Of a run in micro-batches, which has no workers to measure, and of one that fails."""
    key = tmp_path / "key"
    key.write_text(SECRET * 10)
    key.chmod(0o600)
    heard = Heard()

    def leaking(number: int) -> int:
        raise ValueError(f"cannot reach postgres://me:{SECRET}@db/table")

    pipeline = es.Pipeline("silent")
    pipeline.source(es.Range(10), name="numbers").map(leaking).collect()
    store = tmp_path / "store"
    with pytest.raises(es.EverstreamError):
        pipeline.run(
            store=store,
            store_key=key,
            engine="microbatch",
            listener=heard,
            max_restarts=0,
            master=MASTER,
        )
    view = heard.live.view()
    assert view["ended"]["outcome"] == "failed" and "cannot reach" in view["ended"]["error"]
    assert not list(Draft202012Validator(VIEW).iter_errors(view))
    shown = Shown(heard.live)
    seen = TestClient(make_app(shown, Guard(TOKEN)), base_url="http://127.0.0.1", headers=KNOWS)
    texts = [json.dumps(view), seen.get("/metrics").text]
    from everstream.state.signing import StoreKey, blobs_at

    history = list(StoredHistory(blobs_at(str(store), StoreKey.given(key))).new_events())
    assert isinstance(history[-1], es.events.RunEnded)
    assert all(SECRET not in text for text in [*texts, *map(str, history)])
