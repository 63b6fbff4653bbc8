"""The events of a run: each has a sentence or none by declaration, is kept as it was sent, and hides secrets."""

import dataclasses
import json
import logging
import pickle
import tarfile
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream import events
from everstream.core.fault_points import Point
from everstream.core.measuring import Meter, WorkerMeasures
from everstream.core.orders import Phase
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting import building
from everstream.engine.reporting.listener import (
    LONGEST,
    Listener,
    Listeners,
    Logging,
    listening,
    sent,
)
from everstream.errors import UserError
from everstream.events import RunEvent, RunStatus, is_warning, sentence
from everstream.observability.history.run_view import RunView
from everstream.observability.history.stored import (
    KIND_OF,
    KINDS,
    LIVE_ONLY,
    StoredHistory,
    decoded,
    encoded,
    from_entry,
    to_entry,
)
from everstream.state.signing import StoreKey, blobs_at
from tests.docs.scripts import script
from tests.fixtures.make import FOLDER
from tests.fixtures.pipelines import KEY_FILE, STORES

EVENTS: tuple[type, ...] = get_args(RunEvent)
FIGURES = {
    events.RunStarted,
    events.Progressed,
    events.MetricsSampled,
    events.RunEnded,
    events.WorkerStarted,
    events.RecoveryUpdated,
    events.CheckpointStarted,
    events.EpochStable,
}
"""Those without a sentence: what they hold is shown as figures, or by the events around them."""
AT = 1_700_000_000.5
SECRET = "hunter2"
WITH_SECRET = f"cannot reach postgres://me:{SECRET}@db/x"
OPERATOR = events.OperatorLayout("count", "operator", "count", 2)
EDGE = events.EdgeLayout("numbers", "count", "by key", False)
METER: dict[str, Any] = {
    **building.plain(Meter(busy_s=1.5)),
    **building.plain(WorkerMeasures("here", 100, 0)),
    "counts": {"count": [1, 2]},
}
"""What a shard and a worker have measured."""
VALUES: dict[str, Any] = {
    "str": WITH_SECRET,
    "str | None": WITH_SECRET,
    "int": 3,
    "int | None": 3,
    "float": 1.5,
    "float | None": 1.5,
    "bool": True,
    "RunStatus": RunStatus(Phase.RUNNING, 2, 10, {"count": 5}, 3, []),
    "tuple[str, ...]": ("count:0", "count:1"),
    "tuple[OperatorLayout, ...]": (OPERATOR,),
    "tuple[EdgeLayout, ...]": (EDGE,),
    "tuple[ShardCheckpoint, ...]": (
        events.ShardCheckpoint("count:0", 3, 0.1, 0.2, 0.3, 400, forced=True, spilled=True),
    ),
    "dict[str, int]": {"count": 2},
    "dict[str, str]": {"numbers.pattern": "4000"},
    "dict[str, dict[str, Any]]": {"count:0": METER},
}


def type_of(field: "dataclasses.Field[Any]") -> str:
    name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return name.replace("everstream.events.", "").replace("typing.", "")


def made(kind: type, **changed: Any) -> Any:
    """An event in which no field is left at its default, so that nothing can get lost unseen."""
    fields = dataclasses.fields(kind)
    values = {field.name: VALUES[type_of(field)] for field in fields}
    values |= {"phase": "running"} if "phase" in values else {}  # an enum's value
    return kind(**{**values, "at": AT, **changed})


every_event = pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)


# Sentences.


def test_every_event_of_the_module_is_in_the_union() -> None:
    defined = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event)
    }
    assert defined - {events.Event, events.Failure} == set(EVENTS)
    assert {kind for kind in defined if issubclass(kind, events.Failure)} - {events.Failure} == set(
        get_args(events.AnyFailure)
    )


@every_event
def test_an_event_has_a_sentence_unless_it_only_carries_figures(kind: type) -> None:
    quiet = {"repeated", "explained"} & {field.name for field in dataclasses.fields(kind)}
    event = made(kind, **dict.fromkeys(quiet, False))
    text = sentence(event)
    assert (text is None) == (kind in FIGURES)
    assert text is None or (text and "None" not in text and not text.endswith("."))


@pytest.mark.parametrize(
    "event",
    [
        events.CheckpointAborted(3, "epoch 3 given up: no room", repeated=True),
        events.IntervalChanged(5.0),
        events.DriverLost("killed by SIGKILL"),
        dataclasses.replace(made(events.PlanChanged), explained=True),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_another_event_has_explained_is_not_told_twice(event: RunEvent) -> None:
    assert sentence(event) is None


def test_a_failure_is_a_warning_unless_it_was_injected() -> None:
    for kind in get_args(events.AnyFailure):
        assert not is_warning(made(kind, injected=True))
        assert is_warning(made(kind, injected=False))
    assert is_warning(events.Note("input", "x", True)) and not is_warning(events.Note("input", "x"))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            events.WorkerLost(1, "killed", shards=("a:0",), from_epoch=4),
            "worker 1 is lost (killed): rolling back to epoch 4",
        ),
        (
            events.OperatorFailed("away", shards=("a:0", "b:0"), from_epoch=4, retry_s=2.0),
            "a:0, b:0 failed (away): retrying in 2 s, rolling back to epoch 4",
        ),
        (
            events.ConnectionCut(0, 1, "reset", shards=("a:0",)),
            "the connection from worker 0 to worker 1 was cut (reset): looking for the recovery line",
        ),
        (
            events.StoreDamaged("line 4", "torn", 3),
            "line 4 cannot be restored (torn); falling back to number 3",
        ),
        (
            events.StoreDamaged("manifests/1.json", "torn"),
            "manifests/1.json is skipped: torn",
        ),
        (
            events.StoppedWithoutCheckpoint("epoch 2", 0),
            "stopping without a checkpoint, which did not complete in time (epoch 2 is not complete): "
            "the next run resumes from the start",
        ),
        (
            events.Stalled("epoch 2", 10.0, tuple("abcdef"), "the store"),
            "epoch 2 is taking longer than 10 s; still missing: a, b, c, d and 2 more. Held up by "
            "the store",
        ),
        (
            events.TimeHeldBack("shard 1 of 'orders'", 10.0, 3.0),
            "windows wait for shard 1 of 'orders': its event time has not advanced for 10 s and is 3 s "
            "behind the fastest source. If it has nothing to send, set idle_after",
        ),
        (
            events.MemoryNear(1, 86_000_000, 100_000_000),
            "worker 1 uses 86 MB of the 100 MB it may use (worker_memory): its shards wait until "
            "it uses less",
        ),
        (
            events.QuiesceStarted({"a": 1, "b": 2}, {"a": 3, "b": 2}, 2, 2),
            "a change of shards (a 1 to 3): waiting until nothing is in flight",
        ),
        (
            events.QuiesceStarted({"a": 1}, {"a": 1}, 2, 4),
            "a change of shards (the same on 4 worker(s) instead of 2): waiting until nothing is "
            "in flight",
        ),
        (
            events.WorkerSilent(1, 12.0, None),
            "worker 1 has not sent a heartbeat for 12 s, but its process is alive: it probably "
            "holds the interpreter lock. Waiting for it",
        ),
        (events.Killing("driver", 0, "driver:0@5s", True), "killing the driver, as requested"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_sentence_holds_what_a_reader_needs(event: RunEvent, text: str) -> None:
    assert sentence(event) == text


# Sending.


@every_event
def test_an_event_is_sent_with_its_time_and_without_secrets(kind: type) -> None:
    event = sent(made(kind, at=0.0), lambda: AT)
    assert event.at == AT and sent(event) == event
    assert sentence(event) is None or SECRET not in str(sentence(event))
    assert SECRET not in str(event)


def test_a_long_text_is_cut() -> None:
    note = sent(events.Note("input", "x" * 10 * LONGEST))
    assert isinstance(note, events.Note) and len(note.text) == LONGEST + 3


def test_a_listener_is_an_object_or_a_function() -> None:
    heard: list[RunEvent] = []

    class Duck:
        def on_event(self, event: RunEvent) -> None:
            heard.append(event)

    class Own(Listener):
        def on_event(self, event: RunEvent) -> None:
            heard.append(event)

    note = events.Note("input", "x", at=AT)
    for given_by_a_user in (heard.append, Duck(), Own(), None):
        listening(given_by_a_user).on_event(note)  # type: ignore[arg-type]
    assert heard == [note] * 3
    for wrong in (3, "loud", Own):
        with pytest.raises(UserError, match="pass a function that takes an event"):
            listening(wrong)  # type: ignore[arg-type]


def test_all_listeners_get_the_same_event() -> None:
    first: list[RunEvent] = []
    second: list[RunEvent] = []
    both = Listeners(listening(first.append), listening(second.append), clock=lambda: AT)
    both.on_event(events.SpareLost(WITH_SECRET))
    assert first == second == [events.SpareLost("cannot reach postgres://db/x", at=AT)]


def test_what_has_no_sentence_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "everstream"):
        for kind in FIGURES:
            Logging("quiet").on_event(made(kind))
    assert not caplog.records


@every_event
def test_an_event_survives_the_pipe_between_processes(kind: type) -> None:
    assert pickle.loads(pickle.dumps(made(kind))) == made(kind)


# Keeping.


@every_event
def test_an_event_is_read_from_a_history_as_it_was_sent(kind: type) -> None:
    event = made(kind)
    if kind in LIVE_ONLY:
        assert from_entry({"kind": KIND_OF[kind], "at": AT}) is None
        return
    assert decoded(encoded([event])) == [event]
    assert RunView().take(event) is None


def test_figures_that_are_infinite_are_read_as_they_were_sent() -> None:
    event = events.StartDelayed("away", float("inf"))
    assert decoded(encoded([event])) == [event]


def test_kinds_are_saved_and_never_change() -> None:
    assert {name: kind.__name__ for name, kind in KINDS.items()} == {
        "run": "RunStarted",
        "resumed": "Resumed",
        "progressed": "Progressed",
        "sample": "MetricsSampled",
        "stopping": "Stopping",
        "stopped_without_checkpoint": "StoppedWithoutCheckpoint",
        "end": "RunEnded",
        "driver_lost": "DriverLost",
        "start_delayed": "StartDelayed",
        "start_reached": "StartReached",
        "store_taken": "StoreTaken",
        "workers_limited": "WorkersLimited",
        "waiting_for_workers": "WaitingForWorkers",
        "worker_started": "WorkerStarted",
        "start_failed": "StartFailed",
        "spare_lost": "SpareLost",
        "worker_lost": "WorkerLost",
        "operator_failed": "OperatorFailed",
        "connection_cut": "ConnectionCut",
        "epoch_repeated": "EpochRepeated",
        "failure": "RecoveryUpdated",
        "peer_unreachable": "PeerUnreachable",
        "worker_silent": "WorkerSilent",
        "memory_near": "MemoryNear",
        "kill": "Killing",
        "checkpoint_started": "CheckpointStarted",
        "checkpoint": "EpochStable",
        "checkpoint_failed": "CheckpointAborted",
        "checkpoints_succeed": "CheckpointsSucceed",
        "interval": "IntervalChanged",
        "store_damaged": "StoreDamaged",
        "stalled": "Stalled",
        "time_held_back": "TimeHeldBack",
        "settings_changed": "SettingsChanged",
        "quiesce_started": "QuiesceStarted",
        "quiesce_given_up": "QuiesceGivenUp",
        "plan_changed": "PlanChanged",
        "workers_packed": "WorkersPacked",
        "request_honoured": "RequestHonoured",
        "request_refused": "RequestRefused",
        "note": "Note",
    }


def test_what_a_later_version_writes_is_passed_over() -> None:
    assert from_entry({"kind": "weather", "at": AT}) is None
    entry = {**to_entry(events.Note("input", "x", at=AT)), "color": "red"}
    assert from_entry(entry) == events.Note("input", "x", at=AT)


def test_entries_of_the_first_version_become_events() -> None:
    """There, notes were entries of their own: the other entries have no sentence."""
    earlier: list[dict[str, Any]] = [
        {"kind": "note", "at": AT, "text": "epoch 3 given up", "warning": True},
        {"kind": "checkpoint_failed", "at": AT, "epoch": 3, "reason": "epoch 3 given up"},
        {"kind": "interval", "at": AT, "interval_s": 2.0},
        {"kind": "driver_lost", "at": AT, "how": "SIGKILL"},
        {"kind": "kill", "at": AT, "operator": "count", "shard": 1},
        {"kind": "end", "at": AT, "outcome": "stopped", "error": None},
    ]
    found = [from_entry(entry) for entry in earlier]
    assert found == [
        events.Note("", "epoch 3 given up", True, at=AT),
        events.CheckpointAborted(3, "epoch 3 given up", repeated=True, at=AT),
        events.IntervalChanged(2.0, at=AT),
        events.DriverLost("SIGKILL", at=AT),
        events.Killing("count", 1, at=AT),
        events.RunEnded("stopped", None, at=AT),
    ]
    assert [sentence(event) for event in found if event is not None] == [
        "epoch 3 given up",
        None,
        None,
        None,
        "killing the process of count:1, as requested",
        None,
    ]


@pytest.mark.parametrize(
    "fixture", sorted(FOLDER.glob("*/*.tar.gz")), ids=lambda path: path.name.partition(".")[0]
)
def test_the_history_in_a_store_of_an_earlier_version_is_read(
    fixture: Path, tmp_path: Path
) -> None:
    with tarfile.open(fixture) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    store = str(next(tmp_path.glob("**/history")).parent)
    signed = STORES[fixture.name.removesuffix(".tar.gz")].signed
    key = StoreKey.given(str(tmp_path / KEY_FILE)) if signed else None
    blobs = blobs_at(store, key)
    run_view = RunView()
    for event in StoredHistory(blobs).new_events():
        assert not (isinstance(event, events.Note) and event.topic == "history"), event.text
        run_view.take(event)
    view = run_view.view(AT)
    assert view["pipeline"] and view["operators"] and view["shards"] and view["workers"]
    assert json.dumps(view)


# Kills, which events carry as texts.

names = st.from_regex(r"[a-z][a-z0-9_ -]{0,8}", fullmatch=True)
kills = st.one_of(
    st.builds(Kill, names, st.integers(0, 99), after_s=st.floats(1e-6, 1e6)),
    st.builds(
        Kill, names.filter("driver".__ne__), st.integers(0, 99), after_records=st.integers(0)
    ),
    st.builds(
        Kill,
        names,
        st.integers(0, 99),
        at=st.sampled_from(Point),
        occurrence=st.integers(1, 99),
    ),
)


@given(kills)
def test_a_kill_is_read_as_it_was_written(kill: Kill) -> None:
    assert Kill.parse(str(kill)) == kill


# The page of the documentation.


def test_the_page_of_events_is_made_from_their_definition() -> None:
    reference = script("event_reference")
    page = reference.page()
    assert page == reference.PAGE.read_text(), "run: python scripts/event_reference.py"
    for kind in EVENTS:
        assert f"### {kind.__name__}\n" in page
