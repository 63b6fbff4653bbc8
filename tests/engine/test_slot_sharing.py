"""Runs of one process share its Spark: a run that waits says for what, and the first to come is the first to start."""

import threading

import pytest

import everstream as es
from everstream.engine.slot_sharing import (
    NoSlotsLeft,
    Share,
    Shares,
    SlotGrant,
    WaitingRun,
    no_slots_left,
)
from everstream.errors import UserError
from everstream.events import RunEvent, StartDelayed, StartReached
from everstream.pipeline.checkpointing import EngineName
from everstream.pipeline.graph import Graph
from tests.processes import PATIENCE_S
from tests.spark import MASTER

SLOTS = 4


def needing(slots: int) -> object:
    def find(others: tuple[Share, ...]) -> SlotGrant:
        if slots > SLOTS - sum(share.slots for share in others):
            raise no_slots_left(SLOTS, others)
        return SlotGrant(slots, slots)

    return find


class Run(threading.Thread):
    """Takes slots in a thread, and keeps them until it is released."""

    def __init__(self, shares: Shares, name: str, slots: int, **waiting: object) -> None:
        super().__init__(daemon=True)
        self.shares, self.graph, self.slots = shares, Graph(name), slots
        self.said: list[str] = []
        self.told, self.has, self.release = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.waited_s: float | None = None
        self.stopped = False
        self.more = waiting
        self.start()

    def _say(self, what: str) -> None:
        self.said.append(what)
        self.told.set()

    def run(self) -> None:
        waiting = WaitingRun(
            given_up=lambda: self.stopped,
            on_wait=self._say,
            on_end=lambda waited_s: setattr(self, "waited_s", waited_s),
            **{"timeout_s": PATIENCE_S, **self.more},  # type: ignore[arg-type]
        )
        try:
            with self.shares.taking(self.graph, needing(self.slots), waiting) as grant:  # type: ignore[arg-type]
                if grant is None:
                    return
                self.has.set()
                assert self.release.wait(PATIENCE_S)
        except Exception as error:
            self.error = error


@pytest.fixture
def shares() -> Shares:
    return Shares()


def test_a_run_waits_for_the_slots_of_another_and_says_so(shares: Shares) -> None:
    one = Run(shares, "one", 3)
    assert one.has.wait(PATIENCE_S)
    two = Run(shares, "two", 2)
    assert two.told.wait(PATIENCE_S) and not two.has.is_set()
    assert "other runs of this process use them all ('one' 3)" in two.said[0]
    one.release.set()
    assert two.has.wait(PATIENCE_S)
    assert two.waited_s is not None and len(two.said) == 1
    two.release.set()


def test_a_run_that_needs_many_slots_is_not_passed_over(shares: Shares) -> None:
    one = Run(shares, "one", 3)
    assert one.has.wait(PATIENCE_S)
    large = Run(shares, "large", 4)
    assert large.told.wait(PATIENCE_S)
    small = Run(shares, "small", 1)
    assert small.told.wait(PATIENCE_S) and not small.has.is_set()
    assert "'large' waits for slots of Spark, too, and came first" in small.said[0]
    without = Run(shares, "local", 0, in_line=False)
    assert without.has.wait(PATIENCE_S), "a run that needs no slots does not wait"
    one.release.set()
    assert large.has.wait(PATIENCE_S) and not small.has.is_set()
    large.release.set()
    assert small.has.wait(PATIENCE_S)
    small.release.set()
    without.release.set()


def test_the_wait_ends_with_an_error_and_lets_the_next_one_through(shares: Shares) -> None:
    one = Run(shares, "one", 3)
    assert one.has.wait(PATIENCE_S)
    late = Run(shares, "late", 4, timeout_s=0.01)
    late.join(PATIENCE_S)
    assert isinstance(late.error, NoSlotsLeft)
    assert "start_timeout (--start-timeout) is 0.01 s" in str(late.error)
    small = Run(shares, "small", 1)
    assert small.has.wait(PATIENCE_S) and not small.said
    small.release.set()
    one.release.set()


def test_a_run_that_is_stopped_while_it_waits_takes_nothing(shares: Shares) -> None:
    one = Run(shares, "one", 4)
    assert one.has.wait(PATIENCE_S)
    two = Run(shares, "two", 4)
    assert two.told.wait(PATIENCE_S)
    two.stopped = True
    two.join(PATIENCE_S)
    assert two.error is None and not two.has.is_set()
    one.release.set()


def test_a_pipeline_that_waits_cannot_be_started_twice(shares: Shares) -> None:
    one = Run(shares, "one", 4)
    assert one.has.wait(PATIENCE_S)
    two = Run(shares, "two", 4)
    assert two.told.wait(PATIENCE_S)
    with (
        pytest.raises(UserError, match="'two' is already running"),
        shares.taking(two.graph, needing(1)),  # type: ignore[arg-type]
    ):
        pass
    one.release.set()
    two.release.set()


@pytest.mark.spark("its slots are what runs wait for")
@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_two_pipelines_on_one_spark_run_one_after_the_other(engine: EngineName) -> None:
    gate = threading.Event()
    heard: list[RunEvent] = []

    def endless(status: es.RunStatus) -> bool:
        return gate.is_set()

    slots = int(MASTER.removeprefix("local[").removesuffix("]"))
    one = es.Pipeline("one")
    one.source(es.Paced(es.Range(10_000_000), 1_000), name="numbers").map(str).collect()
    first = one.start(engine="tasks", master=MASTER, workers=slots, until=endless, progress=False)
    two = es.Pipeline("two").source(es.Range(100)).map(lambda n: n * n).collect()

    def listen(event: RunEvent) -> None:
        heard.append(event)
        if isinstance(event, StartDelayed):
            gate.set()

    try:
        first.checkpoint()
        result = two.run(engine=engine, master=MASTER, listener=listen)
    finally:
        gate.set()
        first.wait()
    assert result.collected() == [n * n for n in range(100)]
    (delayed,) = [event for event in heard if isinstance(event, StartDelayed)]
    assert f"'one' {slots}" in delayed.reason
    assert any(isinstance(event, StartReached) for event in heard)
