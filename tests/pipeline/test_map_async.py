"""Calls to services: retries, limits, caches, order, checkpoints, and what a crash leaves."""

import asyncio
import pickle
import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import everstream as es
from everstream import testing
from everstream.core.checkpointing.manifest import KEPT_MANIFESTS
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.calls.attempts import Answer, Limiter, answer, wait_asked_by
from everstream.pipeline.calls.options import CallOptions, RateLimit
from everstream.pipeline.calls.performers import _VirtualLoop
from everstream.pipeline.calls.result_log import ResultLog, content_key
from everstream.pipeline.calls.services import CallServices
from everstream.simulation.disk import SimulatedDisk
from tests.engines import on_all_engines, on_all_engines_at_length

asked: Counter[Any] = Counter()
"""By this process, in the harness."""


@pytest.fixture(autouse=True)
def nobody_asked() -> None:
    asked.clear()


async def double(number: int) -> int:
    asked[number] += 1
    await asyncio.sleep(number % 7 / 1000)
    return number * 2


def doubling(function: Any = double, **options: Any) -> es.Pipeline:
    pipeline = es.Pipeline("doubling")
    numbers = pipeline.source(es.FromList([]), name="numbers")
    numbers.map_async(function, name="ask", **options).collect(name="out")
    return pipeline


# In the harness: time passes only where a test says so.


def test_answers_come_in_the_order_of_their_records_or_as_they_arrive() -> None:
    numbers = [6, 0, 3]
    with testing.harness(doubling()) as h:
        h.push("numbers", numbers)
        assert h.uncommitted("out") == []
        h.advance("3ms")
        assert h.uncommitted("out") == []
        h.advance("3ms")
        assert h.uncommitted("out") == [12, 0, 6]
    with testing.harness(doubling(ordered=False)) as h:
        h.push("numbers", numbers)
        assert h.uncommitted("out") == [0]
        h.advance("6ms")
        assert h.uncommitted("out") == [0, 6, 12]


def test_a_checkpoint_does_not_wait_for_calls_and_a_crash_repeats_only_those_under_way() -> None:
    with testing.harness(doubling(ordered=False)) as h:
        h.push("numbers", [1, 2, 3, 6])
        h.advance("2ms")
        h.checkpoint()
        assert h.output("out") == [2, 4]
        h.advance("1ms")
        assert h.uncommitted("out") == [6]
        h.crash("ask:0")
        assert asked == {1: 1, 2: 1, 3: 1, 6: 2}, "the answer for 3 is in the log"
        h.advance("6ms")
        h.end()
        assert Counter(h.output("out")) == Counter([2, 4, 6, 12])
        assert asked[6] == 2


def test_calls_that_may_be_repeated_are_repeated() -> None:
    with testing.harness(doubling(ordered=False, replay="repeat")) as h:
        h.push("numbers", [1, 6])
        h.checkpoint()
        h.advance("1ms")
        h.crash("ask:0")
        h.advance("9ms")
        assert Counter(h.uncommitted("out")) == Counter([2, 12]) and asked == {1: 2, 6: 2}


def test_no_more_calls_are_under_way_than_wanted() -> None:
    with testing.harness(doubling(concurrency=2)) as h:
        h.push("numbers", [1] * 9)
        assert asked[1] == 2
        h.advance("3ms")
        assert asked[1] == 8 and h.uncommitted("out") == [2] * 6


def test_calls_keep_to_their_rate() -> None:
    with testing.harness(doubling(lambda n: asked.update([n]) or n, rate="10/s")) as h:
        h.push("numbers", list(range(5)))
        assert h.uncommitted("out") == [0]
        h.advance("200ms")
        assert h.uncommitted("out") == [0, 1, 2]


def test_the_costs_of_calls_keep_to_their_budget() -> None:
    rate = es.RateLimit(budget=10, cost=lambda n: n, per="1s")
    with testing.harness(doubling(lambda n: n, rate=rate)) as h:
        h.push("numbers", [5, 10, 1])
        h.advance("499ms")
        assert h.uncommitted("out") == [5]
        h.advance("2ms")
        assert h.uncommitted("out") == [5, 10]
        h.advance("1s")
        assert h.uncommitted("out") == [5, 10, 1]


class Flaky:
    """Fails as often as its record says, and may ask to be left alone."""

    def __init__(self, waits: str | None = None) -> None:
        self.waits = waits

    async def __call__(self, record: tuple[str, int]) -> str:
        asked[record[0]] += 1
        if asked[record[0]] <= record[1]:
            if record[1] == 99:
                raise ValueError("never")
            if self.waits is not None:
                raise es.RetryAfter(self.waits)
            raise ConnectionError("busy")
        return record[0]


def test_a_call_that_fails_is_repeated_and_then_rejected() -> None:
    pipeline = doubling(Flaky(), retries=2, backoff="1s", on_error="dead_letter")
    with testing.harness(pipeline) as h:
        h.push("numbers", [("ada", 2), ("bob", 3)])
        h.advance("2999ms")
        assert h.uncommitted("out") == []
        h.advance("1ms")
        assert h.uncommitted("out") == ["ada"] and asked == {"ada": 3, "bob": 3}
        (letter,) = h.dead_letters("ask")
        assert letter.record == ("bob", 3) and letter.error == "ConnectionError: busy"
        h.crash("ask:0")
        h.end()
        assert asked["bob"] == 3, "that it has no answer is an answer"
        assert h.output("out") == ["ada"]


def test_a_call_that_fails_fails_the_run_with_its_record() -> None:
    with (
        pytest.raises(EverstreamError, match=r"'ask'.*ValueError: never(.|\n)*ada"),
        testing.harness(doubling(Flaky())) as h,
    ):
        h.push("numbers", [("ada", 99)])


def test_a_service_that_asks_to_wait_is_left_alone() -> None:
    with testing.harness(doubling(Flaky("5s"), retries=1, backoff=0, concurrency=1)) as h:
        h.push("numbers", [("ada", 1), ("bob", 0)])
        h.advance("4s")
        assert asked == {"ada": 2} and h.uncommitted("out") == []
        h.advance("1s")
        assert h.uncommitted("out") == ["ada", "bob"]


async def silent(number: int) -> int:
    await asyncio.sleep(3600)
    return number


def test_a_call_that_takes_too_long_fails() -> None:
    with testing.harness(doubling(silent, timeout="2s", on_error="dead_letter")) as h:
        h.push("numbers", [1])
        h.advance("2s")
        (letter,) = h.dead_letters("ask")
        assert letter.error == "TimeoutError: no answer within 2 s"


def test_equal_records_use_one_answer_until_it_expires() -> None:
    with testing.harness(doubling(cache="10s")) as h:
        h.push("numbers", [1, 1, 3])
        h.advance("3ms")
        h.push("numbers", [1])
        assert h.uncommitted("out") == [2, 2, 6, 2] and asked == {1: 1, 3: 1}
        h.crash("ask:0")
        h.advance("3ms")
        assert h.uncommitted("out") == [2, 2, 6, 2] and asked == {1: 1, 3: 1}
        h.advance("11s")
        h.push("numbers", [1])
        assert asked[1] == 2


def test_answers_keep_their_place_in_event_time() -> None:
    pipeline = es.Pipeline("timed")
    rows = pipeline.source(es.FromList([]), name="rows").event_time("t", unit="ms")

    async def known(row: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(row["wait"] / 1000)
        return row

    answers = rows.map_async(known, ordered=False, name="ask").key_by("k")
    counts = answers.window(es.Tumbling("10ms")).aggregate(n=es.count(), name="count")
    counts.collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [{"t": 1, "k": 1, "wait": 50}, {"t": 25, "k": 1, "wait": 0}])
        h.advance("40ms")
        assert h.uncommitted("out") == []
        h.checkpoint()
        h.crash("ask:0")
        h.advance("50ms")
        assert [row["n"] for row in h.uncommitted("out")] == [1]
        h.end()
        assert [row["n"] for row in h.output("out")] == [1, 1] and h.late("count") == []


def test_records_that_wait_move_with_their_keys_when_the_shards_change() -> None:
    def pipeline(shards: int) -> es.Pipeline:
        pipeline = es.Pipeline("moving")
        numbers = pipeline.source(es.FromList([]), name="numbers")
        numbers.map_async(double, ordered=False, name="ask", shards=shards).sink(
            es.Collect(), name="out", shards=1
        )
        return pipeline

    with testing.harness(pipeline(1)) as h:
        h.push("numbers", [1, 2, 3, 4, 5, 6, 13, 20])
        h.checkpoint()
        h.advance("2ms")
        h.restart(pipeline(3))
        assert asked[1] == asked[2] == 1
        h.advance("2ms")
        h.restart(pipeline(2))
        assert asked[1] == asked[2] == 1, "their answers are in the log"
        h.advance("9ms")
        h.end()
        assert sorted(h.output("out")) == [2, 4, 6, 8, 10, 12, 26, 40]


def test_an_upgrade_may_change_the_options_and_the_function() -> None:
    async def triple(number: int) -> int:
        return number * 3

    with testing.harness(doubling()) as h:
        h.push("numbers", [1, 6])
        h.advance("1ms")
        h.checkpoint()
        h.restart(doubling(triple, ordered=False, concurrency=1, rate="100/s"))
        assert (h.output("out"), h.uncommitted("out")) == ([2], [18])


def test_what_cannot_be_saved_is_refused() -> None:
    with (
        pytest.raises(EverstreamError, match=r"cannot be saved.*Return plain data"),
        testing.harness(doubling(lambda n: threading.Lock())) as h,
    ):
        h.push("numbers", [1])
    with (
        pytest.raises(EverstreamError, match=r"replay='repeat'"),
        testing.harness(doubling()) as h,
    ):
        h.push("numbers", [lambda: 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout": "0s"}, "must be positive"),
        ({"replay": "once"}, "'logged' or 'repeat'"),
        ({"rate": "ten"}, "100/s"),
        ({"rate": 0}, "above 0"),
        ({"cache": 0}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        doubling(**options)


def test_limits_and_caches_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="needs calls="):
        es.RateLimit()
    with pytest.raises(UserError, match="belong together"):
        es.RateLimit(budget=3)
    with pytest.raises(UserError, match="from 1 up"):
        es.AnswerCache(entries=0)
    with pytest.raises(UserError, match="after broadcast"):
        es.Pipeline("b").source(es.Range(1)).broadcast().map_async(double)
    with pytest.raises(UserError, match=r"or route\(\) cannot log"):
        es.Pipeline("r").source(es.Range(1)).route(lambda n, shards: 0).map_async(double)


# Parts.


def run(coroutine: Any) -> Any:
    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class Response:
    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def test_a_response_that_asks_to_wait_is_not_an_answer() -> None:
    responses = [Response(503, Retry_After="3"), Response(429), Response(200)]
    last = responses[-1]

    async def call(record: Any) -> Any:
        return responses.pop(0)

    async def both() -> tuple[Answer, float]:
        loop = asyncio.get_running_loop()
        options = CallOptions.of(1, None, 5, "1s", None, True, "logged", None)
        limiter = Limiter(None, 1, loop.time)
        return await answer(call, 1, options, limiter, lambda: 1.0), loop.time()

    got, passed_s = run(both())
    assert got.value is last and passed_s == 3 + 2


class HTTPStatusError(Exception):
    def __init__(self, response: Response) -> None:
        self.response = response


def test_the_wait_is_read_from_what_common_clients_raise() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    assert wait_asked_by(HTTPStatusError(Response(429, Retry_After="7"))) == 7
    assert wait_asked_by(es.RetryAfter(timedelta(minutes=1))) == 60
    assert wait_asked_by(pickle.loads(pickle.dumps(es.RetryAfter("2s")))) == 2
    date = soon.strftime("%a, %d %b %Y %H:%M:%S GMT")
    waits = wait_asked_by(HTTPStatusError(Response(429, Retry_After=date)))
    assert waits is not None and 0 < waits <= 100
    assert wait_asked_by(HTTPStatusError(Response(500))) is None
    assert wait_asked_by(ValueError()) is None


def test_a_limit_is_shared_by_the_shards_of_the_operator() -> None:
    limiter = Limiter(RateLimit.of("10/s"), 2, lambda: 0.0)
    assert [limiter.reserve(n) for n in range(3)] == pytest.approx([0.0, 0.2, 0.4])


def test_equal_records_have_one_content_key_however_they_were_made() -> None:
    text = "".join(["a", "b"])
    assert content_key((text, text)) == content_key(("ab", "".join(["a", "b"])))
    assert content_key({1, 2, "x"}) == content_key({"x", 2, 1})
    assert len({content_key(value) for value in (1, 1.0, True, "1", b"1", (1,), [1], {1: 1})}) == 8
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert content_key({"at": when}) == content_key({"at": pickle.loads(pickle.dumps(when))})


def test_what_a_process_that_was_given_up_logs_later_does_not_count() -> None:
    disk = SimulatedDisk(random.Random(0))
    zombie = ResultLog(disk, "ask", 0, 1, 1)
    assert zombie.live({}, ["ask"]) == []
    zombie.write(1, [(1, "a", "first", "")])
    second = ResultLog(disk, "ask", 0, 1, 2)
    assert [entry[2] for entry in second.live({}, ["ask"])] == ["first"]
    second.write(1, [(2, "b", "second", "")])
    zombie.write(2, [(2, "b", "too late", "")])
    third = ResultLog(disk, "ask", 0, 1, 3)
    assert [entry[2] for entry in third.live({}, ["ask"])] == ["first", "second"]
    assert [e[2] for e in ResultLog(disk, "ask", 0, 1, 4).live({"0of1": (1, 1)}, ["ask"])] == [
        "second"
    ]
    third.prune((2, 0))
    assert [path[-10:] for path in disk.list("calls/")] == ["2-00000001"]


def test_a_damaged_object_of_the_log_is_left_out_with_a_warning(caplog: Any) -> None:
    disk = SimulatedDisk(random.Random(0))
    log = ResultLog(disk, "ask", 0, 1, 1)
    log.write(1, [(1, "a", "first", "")])
    disk.rot(disk.list("calls/")[0])
    assert ResultLog(disk, "ask", 0, 1, 2).live({}, ["ask"]) == []
    assert "is damaged: the calls whose answers it had are repeated" in caplog.text


def test_the_log_is_kept_as_long_as_manifests_are() -> None:
    assert CallServices().retention.newest == KEPT_MANIFESTS


# Real time, real threads.


def blocking(number: int) -> int:
    threading.Event().wait(0.005)
    return number + 1


@on_all_engines
def test_coroutines_and_blocking_functions_answer_every_record() -> None:
    numbers = es.Pipeline("both").source(es.Range(300, batch=50))
    answers = numbers.map_async(double, concurrency=20, timeout="30s")
    more = answers.map_async(blocking, concurrency=20, ordered=False, shards=2)
    assert sorted(more.collect().run().collected()) == [2 * n + 1 for n in range(300)]


@on_all_engines_at_length
def test_lambdas_that_return_coroutines_are_awaited() -> None:
    numbers = es.Pipeline("lambda").source(es.Range(20, batch=7))
    answers = numbers.map_async(lambda n: double(n), concurrency=3)
    assert answers.collect().run().collected() == [2 * n for n in range(20)]


def test_a_fresh_start_asks_again(tmp_path: Any) -> None:
    numbers = es.Pipeline("fresh").source(es.Range(3))
    answers = numbers.map_async(double, name="ask").collect(name="out")
    store = tmp_path / "store"
    assert answers.run(engine="local", store=str(store)).collected("out") == [0, 2, 4]
    log = store / "calls" / "ask"
    kept = {path.name for path in log.iterdir()}
    assert answers.run(engine="local", store=str(store), fresh=True).collected("out") == [0, 2, 4]
    assert not kept & {path.name for path in log.iterdir()}
