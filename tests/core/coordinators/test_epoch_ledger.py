"""When an epoch is complete."""

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.coordinated_strategy import EpochLedger
from everstream.core.ids import CheckpointNumber, Epoch, ShardId

A, B = ShardId("a", 0), ShardId("b", 0)


def record(shard: ShardId, number: int, final: bool = False, last: int = 0) -> CheckpointRecord:
    return CheckpointRecord(
        shard,
        CheckpointNumber(number),
        (shard.operator,),
        final=final,
        previous=CheckpointNumber(last),
    )


def ledger() -> EpochLedger:
    return EpochLedger(frozenset({A, B}))


def test_an_epoch_is_complete_only_when_every_upload_is_reported() -> None:
    book = ledger()
    assert book.complete() is None
    assert book.start(5.0) == 1
    book.add(record(A, 1))
    assert book.complete() is None
    book.add(record(B, 1))
    assert book.complete() == {A: record(A, 1), B: record(B, 1)}
    assert book.began_s == 5.0


def test_records_of_another_epoch_do_not_count() -> None:
    book = ledger()
    book.start(0.0)
    book.abort()
    book.start(0.0)
    for shard in (A, B):
        book.add(record(shard, 1))
    assert book.complete() is None


def test_an_aborted_number_is_not_used_again() -> None:
    book = ledger()
    book.start(0.0)
    book.abort()
    assert book.in_flight is None
    assert book.start(0.0) == 2


def test_a_shard_that_ended_before_the_epoch_counts_with_its_last_checkpoint() -> None:
    book = ledger()
    book.add(record(A, 1, final=True))
    book.start(0.0)
    book.add(record(B, 1))
    complete = book.complete()
    assert complete is not None and complete[A].final


def test_a_last_checkpoint_does_not_stand_for_an_epoch_its_shard_took_part_in() -> None:
    book = ledger()
    book.start(0.0)
    book.add(record(B, 1))
    book.add(record(A, 2, final=True, last=1))
    assert book.complete() is None, "A's checkpoint of epoch 1 is still on its way"
    book.add(record(A, 1))
    assert book.complete() == {A: record(A, 1), B: record(B, 1)}


def test_when_all_have_ended_their_last_checkpoints_make_an_epoch() -> None:
    book = ledger()
    book.add(record(A, 1, final=True))
    assert not book.all_final()
    book.add(record(B, 1, final=True))
    assert book.all_final()
    assert set(book.close_with_finals(1.0)) == {A, B}
    assert book.in_flight == 1


def test_a_rollback_keeps_only_the_ends_that_are_in_the_line() -> None:
    book = ledger()
    book.start(0.0)
    book.add(record(A, 1, final=True))
    book.add(record(B, 1, final=True))
    book.roll_back({A: record(A, 1, final=True), B: record(B, 1)}, [Epoch(7)])
    assert set(book.finals) == {A} and book.in_flight is None
    assert book.start(0.0) == 8
