"""What an operator learns about a record: exact while the process lives, and never wrong after it died."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import everstream as es
from everstream import testing
from everstream.core.orders import Outcome
from everstream.errors import UserError
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from tests.engine.microbatch.world import LocalWorld, Rates
from tests.protocol_choices import CHOICES

SEEN: list[tuple[str, Any]] = []
"""Per record: the shard, and the envelope."""


class Looking(es.Operator):
    def process(self, record: Any, ctx: es.Context) -> None:
        SEEN.append((f"{ctx.operator}:{ctx.shard}", ctx.envelope))
        ctx.emit(record)


class LookingAtBatches(es.Operator):
    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        SEEN.append((f"{ctx.operator}:{ctx.shard}", ctx.envelope))
        ctx.emit_batch(batch)


def looking(second: es.Operator | None = None) -> es.Pipeline:
    pipeline = es.Pipeline("looking")
    numbers = pipeline.source(es.FromList([]), name="numbers").key_by(lambda n: n)
    first = numbers.process(Looking(), name="first", shards=2)
    both = first.key_by(lambda n: 0).process(second or Looking(), name="second", shards=1)
    return both.sink(es.Collect(), name="out")


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def envelopes(shard: str) -> list[Any]:
    return [envelope for name, envelope in SEEN if name == shard]


@pytest.mark.parametrize("name", CHOICES)
def test_a_record_comes_from_a_sender_at_a_position(name: str) -> None:
    with testing.harness(looking(), checkpoint=CHOICES[name], workers=4) as h:
        h.push("numbers", range(6))
        epoch = h.checkpoint()
        h.push("numbers", range(4))
        assert epoch
        first = [*envelopes("first:0"), *envelopes("first:1")]
        assert {e.sender for e in first} == {"numbers:0"}
        assert [e.position for e in envelopes("first:0")] == list(range(len(envelopes("first:0"))))
        second = envelopes("second:0")
        for sender in ("first:0", "first:1"):
            got = [e.position for e in second if e.sender == sender]
            assert got == list(range(len(envelopes(sender)))), sender
        assert {e.epoch for e in second[:6]} == {0} and {e.epoch for e in second[6:]} != {0}
        assert all(e.attempt == 1 and e.reprocessed is False for _, e in SEEN)


@pytest.mark.parametrize("name", CHOICES)
def test_survivors_know_exactly_which_records_come_again(name: str) -> None:
    with testing.harness(looking(), checkpoint=CHOICES[name], workers=4) as h:
        h.push("numbers", range(6))
        h.checkpoint()
        h.push("numbers", range(6, 10))
        before = {(s, e.sender, e.position) for s, e in SEEN}
        SEEN.clear()
        h.crash("first:0")
        h.push("numbers", range(10, 20))
        again = [(s, e) for s, e in SEEN if s != "first:0"]
        assert any(e.reprocessed for _, e in again)
        for shard, e in again:
            assert e.reprocessed is ((shard, e.sender, e.position) in before), (shard, e)
            if e.reprocessed:
                assert e.attempt == 2
        lost = envelopes("first:0")
        assert lost and all(e.reprocessed is None and e.attempt == 2 for e in lost)
        h.checkpoint()
        SEEN.clear()
        h.push("numbers", range(20, 30))
        assert SEEN and all(e.reprocessed is False for _, e in SEEN)
        h.checkpoint()
        assert sorted(h.output("out")) == list(range(30))


def test_of_a_batch_it_is_the_envelope_of_its_first_record() -> None:
    with testing.harness(looking(LookingAtBatches())) as h:
        h.push("numbers", range(6))
        h.push("numbers", range(6))
        second = envelopes("second:0")
        for sender in {e.sender for e in second}:
            sizes = [e.position for e in second if e.sender == sender]
            assert sizes[0] == 0 and sizes == sorted(sizes)


class TooEarly(es.Operator):
    def on_start(self, ctx: es.Context) -> None:
        assert ctx.envelope

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit(record)


def test_without_a_record_there_is_no_envelope() -> None:
    pipeline = es.Pipeline("early")
    pipeline.source(es.Range(3)).process(TooEarly(), name="early").sink(es.Collect())
    with pytest.raises(es.RunFailed, match=r"'early'.*no record whose envelope"):
        pipeline.run(store=None)


# Against the truth, over seeds: operators fail, and their processes live on.


class Checking(es.Operator):
    """Knows, in this process, what it was given, and fails now and then."""

    given: ClassVar[set[tuple[int, str, str, int]]] = set()
    failed: ClassVar[set[int]] = set()
    again = 0
    unknown = 0
    wrong: ClassVar[list[str]] = []

    def __init__(self, world: int, fails_at: int) -> None:
        self.world, self.fails_at = world, fails_at

    def process(self, record: Any, ctx: es.Context) -> None:
        e = ctx.envelope
        at = (self.world, f"{ctx.operator}:{ctx.shard}", e.sender, e.position)
        if e.reprocessed is not None and e.reprocessed is not (at in Checking.given):
            Checking.wrong.append(f"{at}: {e}")
        if e.reprocessed is None and e.attempt == 1:
            Checking.unknown += 1
        Checking.again += bool(e.reprocessed)
        Checking.given.add(at)
        if len(Checking.given) >= self.fails_at and self.fails_at not in Checking.failed:
            Checking.failed.add(self.fails_at)
            raise OSError(f"trouble {self.fails_at}")
        ctx.emit(record)


def _checked(pipeline: es.Pipeline, world: int) -> None:
    numbers = pipeline.source(es.Range(90), name="numbers", shards=2)
    keyed = numbers.key_by(lambda n: n).process(Checking(world, 70), name="first", shards=2)
    again = keyed.key_by(lambda n: n // 2).process(Checking(world, 110), name="second", shards=2)
    again.sink(OutsideSink(world), name="out")


CHECKED = Shape("checked", 3, _checked, lambda: {"out": list(range(90))})


def check(protocol: str, seeds: range) -> None:
    Checking.again = Checking.unknown = 0
    for seed in seeds:
        Checking.given, Checking.failed, Checking.wrong = set(), set(), []
        history = World(seed, CHECKED, NO_FAULTS, scheme_for(protocol, seed)).run()
        assert history.right, f"{protocol}, seed {seed}: {history.violations}"
        assert not Checking.wrong, f"{protocol}, seed {seed}: {Checking.wrong[:3]}"
    assert Checking.again and not Checking.unknown


PROTOCOLS = ["aligned", "unaligned", "at-least-once", "uncoordinated", "hmnr", "bcs"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_comes_again_is_known_exactly_while_processes_live(protocol: str) -> None:
    check(protocol, range(8))


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_comes_again_is_known_exactly_over_many_seeds(protocol: str) -> None:
    check(protocol, range(100, 400))


@pytest.mark.parametrize("seed", range(6))
def test_micro_batches_never_call_a_record_new_that_came_before(seed: int) -> None:
    Checking.given, Checking.failed, Checking.wrong = set(), set(), []
    world = LocalWorld(seed, CHECKED, Rates(lost_job=0.1, dead_driver=0.0, twin=0.0, zombie=0.0))
    assert world.run() is Outcome.FINISHED and not world.violations
    assert not Checking.wrong, Checking.wrong[:3]


def test_outside_a_run_there_is_no_envelope() -> None:
    from everstream.state.backends.memory import MemoryBackend

    with pytest.raises(UserError, match="no run"):
        assert es.Context("alone", 0, 1, MemoryBackend()).envelope
