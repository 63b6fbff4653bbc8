"""The conformance suite for sinks: every crash the engine must survive, as one function to call.

The suite simulates the engine. It writes, prepares, persists and commits; stops between any two of
these; lets the dead writer continue as a zombie; and starts a new generation that recovers with the
permit and the transactions a restored checkpoint would have. After every step the output is read
back and compared with what should be visible then: nothing lost, duplicated or early. Then it
repeats this with other numbers of shards (`sink_rescaling`), and with values that drift in type:
records that differ from those before in the type of one value come from a generation that has not
seen the others. What the sink accepts must be read back equal in value and type (only a whole number
may have become a float or a Decimal that equals it); what it refuses must not appear.
"""

import math
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import product
from typing import Any

from everstream.core.permits import permit
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Committable, Delivery
from everstream.testing.sink_rescaling import rescalings
from everstream.testing.sink_world import (
    OPERATOR,
    PIPELINE,
    MakeSink,
    ReadBack,
    SinkGeneration,
    SinkUnderTest,
)

CHECKPOINTS = (1, 2, 3)
SCRIPT = ["w1", "p1", "s1", "w2", "c1", "p2", "s2", "c2", "c2", "w3", "p3", "s3", "c3", "c2", "c3"]
"""Write, prepare, persist (s) and commit the transaction of checkpoint 1, 2, 3, as they overlap."""


def default_batches() -> dict[int, Batch]:
    """What the suite writes before checkpoint 1, 2 and 3, and as a zombie (0)."""
    return {k: [{"n": 10 * k + i, "text": f"é\n{k}"} for i in range(3)] for k in (0, *CHECKPOINTS)}


def check_sink(
    make_sink: MakeSink,
    read_back: ReadBack,
    *,
    batches: dict[int, Batch] | None = None,
    takes_back: bool = True,
    every: int = 1,
) -> None:
    """Check that a sink keeps the guarantees of `Sink`, `Writer` and `Committable`.

    `make_sink(place)` makes a sink whose output goes somewhere under the folder `place` (or to a
    table named after it); the suite uses a new place for each scenario. `read_back(sink, who)`
    returns the visible records of that pipeline and operator; rows as dicts, compared by repr.
    `batches` is what the suite writes: see `default_batches`. Pass `takes_back=False` for a sink
    that cannot remove what it has committed: it must then refuse to resume from an older
    checkpoint, and `Sink.irrevocable` must return the reason. `every=8` runs only each eighth scenario, for a sink with which all of them would
    take minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        sink = make_sink(f"{folder}/0")
        scenarios = _scenarios(sink.delivery)[::every]
        scenarios += rescalings(sink.delivery, sink.max_shards)[::every]
        for number, (name, scenario) in enumerate(scenarios, start=1):
            place = f"{folder}/{number}"
            world = SinkUnderTest(
                make_sink, read_back, place, batches or default_batches(), name, takes_back
            )
            world.sink().check()
            world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=False)
            scenario(world)
            world.close()


def _scenarios(delivery: Delivery) -> list[tuple[str, Callable[[SinkUnderTest], None]]]:
    if delivery is Delivery.AT_LEAST_ONCE:
        return [("at-least-once", _shows_what_was_written)]
    if delivery is Delivery.IDEMPOTENT:
        return [("idempotent", _shows_records_once_though_written_twice)]
    plain: list[Callable[[SinkUnderTest], None]] = [
        _nothing_written_gives_no_transaction,
        _abort_forgets,
        _permit_must_cover_the_checkpoint,
        _persist_and_commit_run_beside_the_writer,
        _rewinding_removes_committed_output,
        _late_starter_changes_nothing,
        _neighbours_are_left_alone,
        _fresh_start_asks_before_it_replaces,
        _another_process_commits_what_tasks_have_prepared,
        values_that_drift_in_type_stay_what_they_are,
    ]
    named = [(scenario.__name__.strip("_").replace("_", " "), scenario) for scenario in plain]
    return [*named, *_crashes(), *_held_back()]


def _another_process_commits_what_tasks_have_prepared(world: SinkUnderTest) -> None:
    """As in micro-batches: only the driver recovers and commits, and a task may have a twin."""
    driver = world.start(1)
    for checkpoint in CHECKPOINTS:
        carried = []
        for generation in (2 * checkpoint, 2 * checkpoint + 1):
            transaction = world.prepare(world.open(generation), checkpoint)
            transaction.persist()
            carried.append(pickle.loads(pickle.dumps(transaction)))
        world.must_show(range(1, checkpoint), "before the driver commits")
        [adopted] = driver.adopt([carried[checkpoint % 2]])
        adopted.commit(permit(checkpoint))
        world.must_show(range(1, checkpoint + 1), "after the driver has committed")
    heir = world.open(100)
    heir.recover([], permit(CHECKPOINTS[-1]))
    world.must_show(CHECKPOINTS, "after the next driver has recovered")


def _crashes() -> Iterator[tuple[str, Callable[[SinkUnderTest], None]]]:
    """A crash after every prefix of the script, in each way that makes a difference there."""
    for steps in range(len(SCRIPT) + 1):
        done = SCRIPT[:steps]
        persisted = max((what[1] for what in done if what[0] == "s"), default="")
        committed = max((what[1] for what in done if what[0] == "c"), default="")
        for zombie, held, others in product(
            ("silent", "active"),
            ("all", "uncommitted") if committed else ("all",),
            ("done", "lagging") if persisted != committed else ("done",),
        ):
            name = f"crash after [{' '.join(done)}], zombie {zombie}, held {held}, others {others}"
            yield name, partial(_crash, steps=steps, zombie=zombie, held=held, others=others)


def _crash(world: SinkUnderTest, steps: int, zombie: str, held: str, others: str) -> None:
    life = SinkGeneration(world)
    for what in SCRIPT[:steps]:
        life.step(what)
    # If another shard had not persisted the newest checkpoint, an older one is restored.
    restored = max(life.committed if others == "lagging" else life.saved, default=0)
    for generation in (2, 3):
        heir = world.open(generation)
        heir.recover(life.restored(restored, held == "uncommitted"), permit(restored))
        world.must_show(range(1, restored + 1), f"after generation {generation} recovered")
        if zombie == "active":
            life.haunt(restored)
            world.must_show(range(1, restored + 1), "while a zombie continues")
        # Stopped while writing, so that the next one finds that too.
        if generation == 2:
            heir.write(world.batches[0])
    for checkpoint in range(restored + 1, CHECKPOINTS[-1] + 1):
        transaction = world.prepare(heir, checkpoint)
        transaction.persist()
        if zombie == "active":
            life.haunt(checkpoint)
        world.must_show(range(1, checkpoint), "before the successor commits")
        transaction.commit(permit(checkpoint))
        world.must_show(range(1, checkpoint + 1), "after the successor committed")
    if zombie == "active":
        for transaction in life.prepared.values():
            if transaction.checkpoint > restored:
                with suppress(EverstreamError):
                    transaction.abort()
        life.writer.close()
    world.must_show(CHECKPOINTS, "at the end")


def _held_back() -> Iterator[tuple[str, Callable[[SinkUnderTest], None]]]:
    """Restores of a checkpoint that is not stable yet, as with uncoordinated checkpoints."""
    for restored, zombie, again in product((2, 3), ("silent", "active"), ("once", "twice")):
        name = f"checkpoint {restored} restored {again} with a permit for 1, zombie {zombie}"
        yield name, partial(_hold_back, restored=restored, zombie=zombie, again=again)


def _hold_back(world: SinkUnderTest, restored: int, zombie: str, again: str) -> None:
    life = SinkGeneration(world)
    for what in ("w1", "p1", "s1", "c1", "w2", "p2", "s2", "w3", "p3", "s3"):
        life.step(what)
    given = life.restored(restored, only_uncommitted=False)
    for generation in (2, 3) if again == "twice" else (2,):
        heir = world.open(generation)
        held = {t.checkpoint: t for t in heir.recover(given, permit(1))}
        wanted = set(range(2, restored + 1))
        assert set(held) == wanted, f"{world.scenario}: recover returned {sorted(held)}"
        world.must_show([1], f"after generation {generation} recovered")
        if zombie == "active":
            life.haunt(restored)
            world.must_show([1], "while a zombie continues")
        # As the next checkpoint has them; and the next generation finds half a transaction.
        given = [pickle.loads(pickle.dumps(transaction)) for transaction in held.values()]
        if generation == 2 and again == "twice":
            heir.write(world.batches[0])
    for checkpoint in range(2, CHECKPOINTS[-1] + 1):
        transaction = held.get(checkpoint)
        if transaction is None:
            transaction = world.prepare(heir, checkpoint)
            transaction.persist()
        world.must_show(range(1, checkpoint), "before the permit comes")
        for _ in range(2):
            transaction.commit(permit(checkpoint))
            world.must_show(range(1, checkpoint + 1), "after the permit came")
    assert not world.open(4).recover(given, permit(3)), f"{world.scenario}: nothing is pending"
    world.must_show(CHECKPOINTS, "at the end")


def _nothing_written_gives_no_transaction(world: SinkUnderTest) -> None:
    writer = world.start(1)
    assert writer.prepare(1) is None, f"{world.scenario}: prepare gave a transaction"
    writer.write(world.batches[1][:0])
    assert writer.prepare(2) is None, f"{world.scenario}: an empty batch gave a transaction"
    world.commit_next(writer, 3)
    world.must_show([3], "after a checkpoint with records")


def _abort_forgets(world: SinkUnderTest) -> None:
    writer = world.start(1)
    world.prepare(writer, 1).abort()
    transaction = world.prepare(writer, 2)
    transaction.persist()
    transaction.abort()
    transaction.abort()
    world.commit_next(writer, 3)
    world.must_show([3], "after two aborts and a commit")


def _permit_must_cover_the_checkpoint(world: SinkUnderTest) -> None:
    transaction = world.prepare(world.start(1), 2)
    transaction.persist()
    try:
        transaction.commit(permit(1))
    except EverstreamError:
        world.must_show([], "after a commit without the right permit")
        return
    raise AssertionError(f"{world.scenario}: committed checkpoint 2 with a permit for 1")


def _persist_and_commit_run_beside_the_writer(world: SinkUnderTest) -> None:
    writer = world.start(1)

    def finish(transaction: Committable) -> None:
        transaction.persist()
        transaction.commit(permit(transaction.checkpoint))

    with ThreadPoolExecutor(1) as background:
        finished = [
            background.submit(finish, world.prepare(writer, checkpoint))
            for checkpoint in CHECKPOINTS
        ]
        for one in finished:
            one.result()
    world.must_show(CHECKPOINTS, "after commits on another thread")


def _rewinding_removes_committed_output(world: SinkUnderTest) -> None:
    writer = world.start(1)
    transactions = [world.commit_next(writer, checkpoint) for checkpoint in CHECKPOINTS]
    heir = world.open(2)
    if not world.takes_back:
        assert world.sink().irrevocable(), (
            f"{world.scenario}: it cannot remove its output, but irrevocable() gives no reason"
        )
        try:
            heir.recover(transactions[:1], permit(1))
        except EverstreamError:
            world.must_show(CHECKPOINTS, "after it refused to resume from checkpoint 1")
            return
        raise AssertionError(f"{world.scenario}: resumes from before what it has committed")
    heir.recover(transactions[:1], permit(1))
    world.must_show([1], "after a restore of checkpoint 1")
    world.commit_next(heir, 2)
    world.must_show([1, 2], "after resuming from checkpoint 1")


def _late_starter_changes_nothing(world: SinkUnderTest) -> None:
    late, later = world.open(1), world.open(1)
    writer = world.start(2)
    world.commit_next(writer, 1)
    with suppress(EverstreamError):
        late.recover([], permit(0))
    world.must_show([1], "after an older generation recovered with nothing prepared")
    held = world.prepare(writer, 2)
    held.persist()
    writer.write(world.batches[3])
    with suppress(EverstreamError):
        later.recover([], permit(0))
    world.must_show([1], "after an older generation recovered with output prepared")
    held.commit(permit(2))
    last = writer.prepare(3)
    assert last is not None, f"{world.scenario}: records are missing"
    last.persist()
    last.commit(permit(3))
    world.must_show(CHECKPOINTS, "after the newer generation committed")


def _neighbours_are_left_alone(world: SinkUnderTest) -> None:
    others: list[dict[str, Any]] = [
        {"shard": 1},
        {"operator": "out-0000"},
        {"operator": "out.b"},
        {"pipeline": f"{PIPELINE}.{OPERATOR}", "operator": "b"},
    ]
    held = []
    for other in others:
        writer = world.start(1, **other)
        world.commit_next(writer, 1)
        held.append(world.prepare(writer, 2))
        held[-1].persist()
    world.start(5)
    world.sink().start_fresh(PIPELINE, OPERATOR + "-none", world.store, replace=True)
    for transaction in held:
        transaction.commit(permit(2))
    world.must_show([1, 2], "another shard's output")
    for other in others[1:]:
        world.must_show([1, 2], f"output of {other}", **other)


def _fresh_start_asks_before_it_replaces(world: SinkUnderTest) -> None:
    for other in ({}, {"operator": "neighbour"}):
        writer = world.start(4, **other)
        world.commit_next(writer, 1)
        world.prepare(writer, 2).persist()
    try:
        world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=False)
    except UserError:
        world.must_show([1], "after start_fresh refused")
    else:
        raise AssertionError(f"{world.scenario}: earlier output was not noticed")
    world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=True)
    stays = [] if world.takes_back else [1]
    world.must_show(stays, "after start_fresh with replace")
    world.must_show([1], "a neighbour after start_fresh with replace", operator="neighbour")
    world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=False)
    world.commit_next(world.start(1), 2)
    world.must_show([*stays, 2], "after a fresh run")


def _shows_what_was_written(world: SinkUnderTest) -> None:
    writer = world.start(1)
    for checkpoint in CHECKPOINTS:
        writer.write(world.batches[checkpoint])
        assert writer.prepare(checkpoint) is None, f"{world.scenario}: prepare must give None"
        world.must_show(range(1, checkpoint + 1), f"after checkpoint {checkpoint}")


def _shows_records_once_though_written_twice(world: SinkUnderTest) -> None:
    for generation in (1, 2):
        writer = world.start(generation)
        for checkpoint in CHECKPOINTS:
            writer.write(world.batches[checkpoint])
            assert writer.prepare(checkpoint) is None, f"{world.scenario}: prepare must give None"
        world.must_show(CHECKPOINTS, f"after generation {generation}")


LARGE = 2**53 + 1
"""The first whole number that equals no float."""


def drifts(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The record with one value of another type."""
    for name, value in record.items():
        others: list[Any] = [None, 4000.5, True, LARGE, "4000"]
        for other in others:
            if other is None or type(other) is not type(value):
                yield {**record, name: other}


def values_that_drift_in_type_stay_what_they_are(world: SinkUnderTest) -> None:
    first = records_of(world.batches[1])
    if not isinstance(first[0], Mapping):
        return
    sent = list(first)
    writer = world.start(1)
    writer.write(world.batches[1])
    _commit(writer, 1)
    checkpoint = 1
    for generation, record in enumerate(drifts(first[0]), start=2):
        writer = world.open(generation)
        writer.recover([], permit(checkpoint))
        try:
            writer.write([record])
        except UserError:
            continue
        checkpoint += 1
        _commit(writer, checkpoint)
        sent.append(record)
    found = list(world.read_back(world.sink(), world.who(0)))
    for record in sent:
        place = next((n for n, other in enumerate(found) if alike(record, other)), None)
        assert place is not None, (
            f"{world.scenario}: {record!r} was accepted, but is not there unchanged: {found[:5]!r}"
        )
        del found[place]
    assert not found, f"{world.scenario}: there is {found[:5]!r}, which was refused or never sent"


def _commit(writer: Any, checkpoint: int) -> None:
    transaction = writer.prepare(checkpoint)
    if transaction is not None:
        transaction.persist()
        transaction.commit(permit(checkpoint))


def alike(sent: Any, found: Any) -> bool:
    """Equal in value and type.

    >>> alike({"a": 1}, {"a": 1.0}), alike({"a": 1}, {"a": True}), alike({"a": 1.0}, {"a": 1})
    (True, False, False)
    """
    if isinstance(sent, Mapping) and isinstance(found, Mapping):
        names = {*sent, *found}
        return all(alike(sent.get(name), found.get(name)) for name in names)
    if isinstance(sent, list | tuple) and isinstance(found, list | tuple):
        return len(sent) == len(found) and all(map(alike, sent, found))
    if type(sent) is int and type(found) in (int, float, Decimal):
        return bool(sent == found)
    if isinstance(sent, float) and math.isnan(sent):
        return isinstance(found, float) and math.isnan(found)
    return type(sent) is type(found) and bool(sent == found)
