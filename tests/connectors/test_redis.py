"""Redis as a sink and as a table to look up in, on a real server that is killed."""

import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import polars as pl
import pytest

import everstream as es
from everstream.connectors.redis.lookup import _Cache
from everstream.connectors.redis.sink import ROWS_PER_CALL
from everstream.core.ids import first_generation
from everstream.core.permits import permit
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard, Writer
from everstream.testing.sinks import check_sink
from everstream_lab.bench.connectors.redis_server import LocalRedis
from tests.connectors.redis_servers import redis_server
from tests.spark import MASTER

SECRET = "hunter2-and-more"


@pytest.fixture(scope="module")
def running() -> Iterator[LocalRedis]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(running: LocalRedis) -> LocalRedis:
    """The server of this module, empty."""
    running.client().flushall()
    return running


def sink_shard(generation: int = 1, shard: int = 0) -> SinkShard:
    return SinkShard("p", "out", shard, 1, generation, "/nowhere")


def opened(sink: es.Redis, generation: int = 1) -> Writer:
    writer = sink.open(sink_shard(generation))
    writer.recover([], permit(0))
    return writer


def keys_of(server: LocalRedis, prefix: str) -> list[str]:
    return sorted(server.client().scan_iter(f"{prefix}*", count=10_000))


def test_json_values_are_idempotent(server: LocalRedis) -> None:
    def read_back(_: object, __: object) -> list[dict[str, Any]]:
        return [json.loads(server.client().get(key)) for key in keys_of(server, "row:")]

    check_sink(lambda _: es.Redis(server.address, key="row:{n}", form="json"), read_back)


def test_hashes_are_idempotent(server: LocalRedis) -> None:
    def read_back(_: object, __: object) -> list[dict[str, Any]]:
        rows = [server.client().hgetall(key) for key in keys_of(server, "row:")]
        return [{**row, "n": int(row["n"])} for row in rows]

    check_sink(lambda _: es.Redis(server.address, key="row:{n}"), read_back)


def test_a_shard_whose_number_is_gone_cannot_put_old_values_back(server: LocalRedis) -> None:
    sink = es.Redis(server.address, key="row:{n}", value="text")
    zombies = [sink.open(SinkShard("p", "out", shard, 3, 1, "/nowhere")) for shard in range(3)]
    for zombie in zombies:
        zombie.recover([], permit(0))
    for shard in range(3):
        sink.open(SinkShard("p", "out", shard, 3, 2, "/nowhere")).recover([], permit(1))
    heir = sink.open(SinkShard("p", "out", 0, 1, 2, "/nowhere"))
    heir.recover([], permit(1))
    heir.write([{"n": 1, "text": "right"}])
    for zombie in zombies:
        with pytest.raises(ConnectorError, match="must stop"):
            zombie.write([{"n": 1, "text": "old"}])
    assert server.client().get("row:1") == "right"


def test_one_column_becomes_plain_text_and_a_column_alone_can_be_the_key(
    server: LocalRedis,
) -> None:
    writer = opened(es.Redis(server.address, key="word", value="count"))
    writer.write(pl.DataFrame({"word": ["to", "be", "to"], "count": [1, 1, 2]}))
    assert server.client().mget("to", "be") == ["2", "1"]


def test_a_hash_has_what_the_row_has_and_nothing_of_the_row_before(server: LocalRedis) -> None:
    writer = opened(es.Redis(server.address, key="{kind}:{n}"))
    row: dict[str, Any] = {"kind": "a", "n": 1, "sure": True, "share": 0.5, "at": {"x": 1}}
    writer.write([row])
    stored = {"kind": "a", "n": "1", "sure": "1", "share": "0.5", "at": '{"x":1}'}
    assert server.client().hgetall("a:1") == stored
    writer.write([{**row, "sure": None, "share": None}])
    assert server.client().hgetall("a:1") == {"kind": "a", "n": "1", "at": '{"x":1}'}


def test_keys_are_forgotten_when_they_expire(server: LocalRedis) -> None:
    for name, form in (("h", "hash"), ("j", "json")):
        sink = es.Redis(server.address, key=f"{name}:{{n}}", form=form, expire="1h")
        opened(sink).write([{"n": 1}])
        assert 3_500 < server.client().ttl(f"{name}:1") <= 3_600


def test_more_rows_than_one_call_takes_are_all_written(server: LocalRedis) -> None:
    rows = 2 * ROWS_PER_CALL + 7
    writer = opened(es.Redis(server.address, key="n:{n}", form="json"))
    writer.write(pl.DataFrame({"n": range(rows), "text": ["\u2028 é \x85"] * rows}))
    assert len(keys_of(server, "n:")) == rows
    assert json.loads(server.client().get(f"n:{rows - 1}"))["text"] == "\u2028 é \x85"


def test_a_writer_that_was_replaced_cannot_put_old_values_back(server: LocalRedis) -> None:
    sink = es.Redis(server.address, key="n:{n}", value="v")
    zombie = opened(sink, 1)
    zombie.write([{"n": 1, "v": "old"}])
    opened(sink, 2).write([{"n": 1, "v": "new"}])
    with pytest.raises(ConnectorError, match="generation 1 must stop"):
        zombie.write([{"n": 1, "v": "old"}])
    with pytest.raises(ConnectorError, match="generation 1 must stop"):
        zombie.recover([], permit(0))
    assert server.client().get("n:1") == "new"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (first_generation(2_048), first_generation(2_048) + 1),
        (first_generation(100_000) + 8, first_generation(100_000) + 9),
        (9, 10),
    ],
)
def test_generations_of_the_thousandth_driver_are_told_apart_as_those_of_the_first(
    server: LocalRedis, old: int, new: int
) -> None:
    sink = es.Redis(server.address, key="row:{n}", value="v")
    zombie = opened(sink, old)
    heir = opened(sink, new)
    heir.write([{"n": 1, "v": "new"}])
    with pytest.raises(ConnectorError, match="newer generation"):
        zombie.write([{"n": 1, "v": "old"}])
    with pytest.raises(ConnectorError, match="newer generation"):
        zombie.recover([], permit(0))
    heir.write([{"n": 1, "v": "newest"}])
    assert server.client().get("row:1") == "newest"


def test_a_server_that_is_killed_is_waited_for_and_has_everything_when_it_is_back() -> None:
    with redis_server() as server:
        writer = opened(es.Redis(server.address, key="n:{n}", value="n", patience="60s"))
        writer.write(pl.DataFrame({"n": range(5_000)}))
        server.stop()
        back = threading.Timer(0.2, server.start)
        back.start()
        writer.write(pl.DataFrame({"n": range(5_000, 10_000)}))
        back.join()
        assert len(keys_of(server, "n:")) == 10_000


def test_a_server_that_does_not_come_back_is_an_error_that_says_so() -> None:
    with redis_server() as server:
        writer = opened(es.Redis(server.address, key="n:{n}", value="n", patience="100ms"))
        server.stop()
        with pytest.raises(ConnectorError, match=rf"no answer .*127\.0\.0\.1:{server.port}"):
            writer.write([{"n": 1}])


def test_a_server_that_forgot_what_was_written_is_noticed() -> None:
    with redis_server(save=False) as server:
        writer = opened(es.Redis(server.address, key="n:{n}", value="n", patience="60s"))
        writer.write([{"n": 1}])
        server.stop()
        server.start()
        with pytest.raises(ConnectorError, match="has lost data"):
            writer.write([{"n": 2}])


def test_workers_and_the_server_killed_in_the_middle_lose_nothing(tmp_path: Path) -> None:
    with redis_server() as server:

        class KillsTheServer(es.Listener):
            killed = 0

            def on_event(self, event: es.RunEvent) -> None:
                if isinstance(event, es.events.EpochStable) and not self.killed:
                    server.stop()
                    self.killed += 1
                    server.start()

        killer = KillsTheServer()

        pipeline = es.Pipeline("to-redis")
        numbers = pipeline.source(es.Paced(es.Range(3_000, column="n", batch=50), rate=3_000))
        squares = numbers.with_columns((pl.col("n") ** 2).alias("square"))
        squares.key_by("n").sink(
            es.Redis(server.address, key="n:{n}", patience="60s"), name="out", shards=2
        )
        result = pipeline.run(
            master=MASTER,
            workers=3,
            store=tmp_path,
            checkpoint=es.Coordinated(every="100ms"),
            kill=["out@1000"],
            listener=killer,
        )
        assert killer.killed == 1
        assert result.recovery_count >= 1 and result.checkpoint_count > 2
        client = server.client()
        found = {key: client.hget(key, "square") for key in keys_of(server, "n:")}
    assert found == {f"n:{n}": str(n * n) for n in range(3_000)}


def test_keys_belong_to_one_store_at_a_time(server: LocalRedis, tmp_path: Path) -> None:
    sink = es.Redis(server.address, key="n:{n}", value="n")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    sink.start_fresh("p", "out", one, replace=False)
    sink.before_resume("p", "out", one)
    sink.start_fresh("p", "out", other, replace=False)
    with pytest.raises(UserError, match=r"takes the output of .*other'"):
        sink.before_resume("p", "out", one)


@pytest.mark.parametrize(
    "rows, options, problem",
    [
        ([{"m": 1}], {}, "records have no n, which key='n:{n}' names; they have m"),
        ([{"n": None, "m": 2}], {}, "no value for key='n:{n}'"),
        ([{"n": 1, "m": None}], {"value": "m"}, "Redis has no null"),
        ([{"n": 1}], {"value": "m"}, "records have no m, which value= names"),
        ([{"n": 1, "m": b"1"}], {"form": "json"}, "has no JSON form"),
        ([{"n": 1, "m": [1]}], {}, "has no plain text"),
    ],
)
def test_rows_that_cannot_be_written_are_named(
    server: LocalRedis, rows: Batch, options: dict[str, Any], problem: str
) -> None:
    writer = opened(es.Redis(server.address, key="n:{n}", **options))
    with pytest.raises(UserError) as refused:
        writer.write(rows)
    assert problem in str(refused.value)


@pytest.mark.parametrize("key", ["", "{}", "user:{id", "user:}"])
def test_a_key_that_is_no_template_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="is not a template"):
        es.Redis("redis://localhost", key=key)


@pytest.mark.parametrize("options", [{"form": "list"}, {"form": "json", "value": "n"}])
def test_a_form_that_there_is_not_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="a row becomes a hash"):
        es.Redis("redis://localhost", key="n", **options)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://me:{SECRET}@localhost:no-port/0",
        f"redis://me:{SECRET}/x@localhost:6379/0",
        f"redis://:{SECRET}",
        f"http://me:{SECRET}@localhost",
        SECRET,
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(EverstreamError) as refused:
        es.Redis(url, key="n", patience=0).check()
    _must_not_tell(refused.value)


def test_a_password_is_used_and_found_nowhere(tmp_path: Path) -> None:
    with redis_server(password=SECRET) as server:
        sink = es.Redis(server.address, key="n:{n}")
        lookup = es.RedisLookup(server.address, key="n:{n}", columns={"m": pl.Int64})
        assert SECRET not in f"{sink!r} {vars(sink)!r} {lookup!r} {vars(lookup)!r}"
        pipeline = es.Pipeline("secret")
        numbers = pipeline.source(es.FromList([{"n": n} for n in range(10)]))
        numbers.map_batches(lookup).select("n").sink(sink)
        pipeline.run(master=MASTER, workers=1, store=tmp_path)
        assert len(keys_of(server, "n:")) == 10
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]
        for wrong in (f"redis://:{SECRET}x@", f"redis://{SECRET}@", "redis://"):
            url = f"{wrong}127.0.0.1:{server.port}/0"
            with pytest.raises(EverstreamError) as refused:
                es.Redis(url, key="n").check()
            _must_not_tell(refused.value)


def _must_not_tell(error: BaseException) -> None:
    shown: BaseException | None = error
    while shown is not None:
        assert SECRET not in str(shown) + repr(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


# Looking up.


def test_hashes_texts_and_json_are_looked_up_with_types(server: LocalRedis) -> None:
    client = server.client()
    client.hset("u:1", mapping={"city": "Rome", "age": 30, "sure": 1})
    client.set("j:1", json.dumps({"city": "Rome", "age": 30, "sure": True, "more": []}))
    client.set("t:1", "30")
    people = pl.DataFrame({"id": [2, 1, 1]})
    columns = {"city": pl.String, "age": pl.Int64, "sure": pl.Boolean}
    wanted = [(2, None, None, None), (1, "Rome", 30, True), (1, "Rome", 30, True)]
    for key, form in (("u:{id}", "hash"), ("j:{id}", "json")):
        lookup = es.RedisLookup(server.address, key=key, columns=columns, form=form)
        assert lookup(people).rows() == wanted, form
        assert lookup(people.clear()).schema == {"id": pl.Int64, **columns}
    texts = es.RedisLookup(server.address, key="t:{id}", columns={"n": pl.Int64}, form="text")
    assert texts([{"id": 1}, {"id": 2}])["n"].to_list() == [30, None]


def test_all_keys_of_a_batch_are_asked_for_at_once_and_each_once(server: LocalRedis) -> None:
    client = server.client()
    client.mset({f"t:{n}": str(n) for n in range(100)})
    client.config_resetstat()
    lookup = es.RedisLookup(server.address, key="t:{n}", columns={"v": pl.Int64}, form="text")
    frame = pl.DataFrame({"n": list(range(100)) * 10})
    for _ in range(3):
        assert lookup(frame)["v"].to_list() == list(range(100)) * 10
    stats = client.info("commandstats")
    assert stats["cmdstat_mget"]["calls"] == 1
    assert "cmdstat_get" not in stats


def test_answers_are_kept_for_a_while_and_only_so_many(
    server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    cache = _Cache(2, 10.0)
    cache.keep({"a": 1, "b": None, "c": 3})
    assert cache.known(["a", "b", "c"]) == {"b": None, "c": 3}
    now_s += 5
    cache.keep({"b": 2})
    now_s += 6
    assert cache.known(["b", "c"]) == {"b": 2}
    assert not len(pickle.loads(cloudpickle.dumps(cache)))


def test_without_a_cache_every_batch_sees_the_present_value(server: LocalRedis) -> None:
    columns = {"v": pl.Int64}
    lookup = es.RedisLookup(server.address, key="t:{n}", columns=columns, form="text", cache=0)
    for value in (1, 2):
        server.client().set("t:0", value)
        assert lookup([{"n": 0}])["v"].to_list() == [value]


def test_a_lookup_that_cannot_be_done_says_why(server: LocalRedis) -> None:
    server.client().set("t:1", "not a number")
    lookup = es.RedisLookup(server.address, key="t:{n}", columns={"v": pl.Int64}, form="text")
    with pytest.raises(UserError, match="do not fit columns="):
        lookup([{"n": 1}])
    with pytest.raises(UserError, match="records already have v"):
        lookup([{"n": 1, "v": 2}])
    with pytest.raises(UserError, match="records have no n"):
        lookup([{"m": 1}])
    with pytest.raises(UserError, match="columns= names the added columns"):
        es.RedisLookup(server.address, key="n", columns={})
    hashes = es.RedisLookup(server.address, key="t:{n}", columns={"v": pl.Int64})
    with pytest.raises(UserError, match="values of this type"):
        hashes([{"n": 1}])
