"""Webhooks, against a real web server that fails in every way and does each key's work once."""

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.webhook import wait_asked_for_s
from everstream.core.permits import permit
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.pipeline.sink import Sink, SinkShard
from everstream.testing.sink_rescaling import tours
from everstream.testing.sink_world import SinkUnderTest
from everstream.testing.sinks import _crashes, _held_back, check_sink, default_batches
from tests.connectors.webhook_receiver import Receiver
from tests.spark import MASTER

SECRET = "hunter2-and-more"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def sink_shard(store: Path, generation: int = 1) -> SinkShard:
    return SinkShard("p", "out", 0, 1, generation, str(store))


def test_records_under_their_own_keys_are_idempotent(receiver: Receiver) -> None:
    check_sink(lambda _: es.Webhook(receiver.url, key="n-{n}"), lambda *_: receiver.records())
    assert set(receiver.seen()["tries"].values()) == {2 + 4}, "by as many generations"


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize(
    "scenarios", [_crashes, _held_back, tours], ids=["crashes", "held back", "rescaled"]
)
def test_batches_are_seen_once_whoever_crashes_where(scenarios: Any, receiver: Receiver) -> None:
    """The scenarios that exactly-once sinks pass, read back at a receiver that knows keys."""
    url = receiver.url
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, scenario) in enumerate(scenarios()):
            receiver.forget()
            world = SinkUnderTest(
                lambda _: es.Webhook(url, batch=2),
                lambda *_: receiver.records(),
                f"{folder}/{number}",
                default_batches(),
                name,
            )
            scenario(world)
            world.close()
            assert not receiver.seen()["differing"], name


def test_a_batch_that_is_sent_again_has_the_same_key_and_the_same_bytes(
    receiver: Receiver, tmp_path: Path
) -> None:
    sink = es.Webhook(receiver.url, batch=3, patience=0)
    writer = sink.open(sink_shard(tmp_path))
    writer.recover([], permit(0))
    writer.write([{"n": n} for n in range(8)])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    saved = pickle.dumps(transaction)
    receiver.fail("", "lost")
    with pytest.raises(ConnectorError, match="did not accept a request"):
        transaction.commit(permit(1))
    # Another run has another batch size: what waits keeps its own.
    heir = es.Webhook(receiver.url, batch=5).open(sink_shard(tmp_path, 2))
    heir.recover([pickle.loads(saved)], permit(1))
    seen = receiver.seen()
    assert [len(body) for _, body in seen["taken"]] == [3, 3, 2]
    assert receiver.records() == [{"n": n} for n in range(8)]
    assert not seen["differing"] and max(seen["tries"].values()) == 2
    heir.recover([pickle.loads(saved)], permit(1))
    assert receiver.seen() == seen, "what was sent is not sent again"


def test_records_of_another_history_have_other_keys(receiver: Receiver, tmp_path: Path) -> None:
    """After a rewind a checkpoint of the same number can hold other records."""
    for generation in (1, 2):
        writer = es.Webhook(receiver.url).open(sink_shard(tmp_path, generation))
        writer.recover([], permit(0))
        writer.write([{"n": generation}])
        transaction = writer.prepare(1)
        assert transaction is not None
        transaction.persist()
        transaction.commit(permit(1))
    assert receiver.records() == [{"n": 1}, {"n": 2}]


def test_what_may_go_well_next_time_is_tried_again(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstream.connectors.webhook.FIRST_PAUSE_S", 0.001)
    receiver.fail("500", "cut", "429 0", "lost", "408", "409", "503")
    es.Webhook(receiver.url, key="n").open(sink_shard(tmp_path)).write([{"n": 1}, {"n": 2}])
    seen = receiver.seen()
    assert seen["taken"] == [["1", {"n": 1}], ["2", {"n": 2}]]
    assert seen["tries"] == {"1": 8, "2": 1}


def test_no_answer_in_time_is_a_reason_to_try_again(receiver: Receiver, tmp_path: Path) -> None:
    receiver.fail("silent")
    es.Webhook(receiver.url, key="n", timeout="300ms").open(sink_shard(tmp_path)).write([{"n": 1}])
    assert receiver.seen()["tries"] == {"1": 2}


def test_a_server_that_asks_for_more_patience_than_there_is_gets_none(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.fail("429 3600")
    writer = es.Webhook(receiver.url, key="n").open(sink_shard(tmp_path))
    with pytest.raises(ConnectorError, match=r"for 60 s: it answered 429 no: .*patience="):
        writer.write([{"n": 1}])
    assert receiver.seen()["tries"] == {"1": 1}


def test_the_header_says_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert wait_asked_for_s("7", now) == 7.0
    assert wait_asked_for_s("Thu, 01 Jan 2026 12:00:30 GMT", now) == 30.0
    assert wait_asked_for_s("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0.0
    assert wait_asked_for_s("soon", now) == wait_asked_for_s(None, now) == 0.0


@pytest.mark.parametrize("status", ["400", "301", "422"])
def test_a_refusal_ends_it_with_the_beginning_of_the_servers_words(
    receiver: Receiver, tmp_path: Path, status: str
) -> None:
    receiver.fail(status)
    writer = es.Webhook(receiver.url, key="n").open(sink_shard(tmp_path))
    with pytest.raises(UserError, match=f"it answered {status} no: ") as refused:
        writer.write([{"n": 1}])
    assert len(str(refused.value)) < 700
    assert receiver.seen()["tries"] == {"1": 1}


def test_several_connections_bring_all_of_them(receiver: Receiver, tmp_path: Path) -> None:
    receiver.fail("500", "", "cut")
    writer = es.Webhook(receiver.url, key="n-{n}", connections=4).open(sink_shard(tmp_path))
    writer.write(pl.DataFrame({"n": range(40)}))
    writer.close()
    assert sorted(record["n"] for record in receiver.records()) == list(range(40))


def test_keys_of_any_text_fit_into_a_header(receiver: Receiver, tmp_path: Path) -> None:
    writer = es.Webhook(receiver.url, key="{a}").open(sink_shard(tmp_path))
    writer.write([{"a": "Größe 1%\n", "not": {"a": ["column"]}}, {"a": "plain/key:1", "not": 3}])
    keys = [key for key, _ in receiver.seen()["taken"]]
    assert keys == ["Gr%C3%B6%C3%9Fe%201%25%0A", "plain/key:1"]


@pytest.mark.parametrize(
    "key", [pytest.param("n", marks=pytest.mark.long), None], ids=["records", "batches"]
)
def test_killed_hosts_and_a_failing_server_lose_and_double_nothing(
    receiver: Receiver, tmp_path: Path, key: str | None
) -> None:
    receiver.fail("", "500", "", "", "lost", "", "cut", "", "", "", "lost", "503")
    pipeline = es.Pipeline("to-web")
    numbers = pipeline.source(es.Paced(es.Range(400, column="n", batch=20), rate=1_000))
    numbers.key_by("n").sink(es.Webhook(receiver.url, key=key, batch=7), name="out", shards=1)
    result = pipeline.run(
        master=MASTER,
        workers=2,
        store=tmp_path,
        checkpoint=es.Coordinated(every="100ms"),
        kill=["out@150"] if key else ["out@150", "out@after-prepare"],
    )
    assert result.recovery_count >= (1 if key else 2)
    assert Counter(record["n"] for record in receiver.records()) == Counter(range(400))
    assert not receiver.seen()["differing"]


def test_secrets_are_sent_and_found_nowhere(
    receiver: Receiver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"{receiver.host}/hook/{SECRET}?token={SECRET}"
    hook = es.Webhook(url, headers={"Authorization": f"Bearer {SECRET}"})
    assert SECRET not in f"{hook!r} {vars(hook)!r}"
    pipeline = es.Pipeline("secret")
    pipeline.source(es.Range(50, batch=10)).map(lambda n: {"n": n}).sink(hook, name="out")
    pipeline.run(master=MASTER, workers=1, store=tmp_path / "store", kill=["out@after-prepare"])
    assert set(receiver.seen()["authorization"]) == {f"Bearer {SECRET}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err


@pytest.mark.parametrize("fault", ["400", "503", "cut"])
def test_an_error_does_not_tell_a_secret(receiver: Receiver, tmp_path: Path, fault: str) -> None:
    receiver.fail(fault)
    hook = es.Webhook(
        f"{receiver.host}/hook/{SECRET}",
        key="n",
        headers={"Authorization": f"Bearer {SECRET}"},
        patience=0,
    )
    with pytest.raises(EverstreamError) as refused:
        hook.open(sink_shard(tmp_path)).write([{"n": 1}])
    shown: BaseException | None = refused.value
    while shown is not None:
        assert SECRET not in str(shown) + repr(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


@pytest.mark.parametrize("url", [f"ftp://{SECRET}", SECRET, f"https://x:{SECRET}/", "https://"])
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UserError, match="is not valid") as refused:
        es.Webhook(url)
    assert SECRET not in str(refused.value) and refused.value.__cause__ is None


def test_a_transaction_that_waits_holds_no_secret(tmp_path: Path) -> None:
    sink: Sink = es.Webhook(f"https://me:{SECRET}@x/{SECRET}", headers={"X": SECRET})
    writer = sink.open(sink_shard(tmp_path))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert SECRET.encode() not in pickle.dumps(transaction)
    assert SECRET not in repr(transaction)
    writer.close()
