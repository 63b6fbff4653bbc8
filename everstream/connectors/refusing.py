"""Finds the records of a batch that cannot be written, for sinks that encode a whole batch at once.

A batch is encoded in one call. Only if that fails are its parts tried, half by half, so that the
records at fault are refused and the others are written.
"""

from collections.abc import Callable
from typing import TypeVar

from everstream.errors import EverstreamError, RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import describe

T = TypeVar("T")


def encoded_or_refused(batch: Batch, encode: Callable[[Batch], T], operator: str) -> T:
    """The result of `encode` for the batch; RefusedRecords names the records that it fails on.

    `encode` must have no side effects, because it may be called again for parts of the batch.
    """
    try:
        return encode(batch)
    except RefusedRecords:
        raise
    except Exception as error:
        if not _is_a_records(error):
            raise
        refused = _refused(batch, encode, operator, 0)
        if not refused:
            raise
        raise RefusedRecords(refused) from error


def _is_a_records(error: Exception) -> bool:
    """Whether a record is to blame: a user's function may raise anything, but not the environment."""
    return isinstance(error, UserError) or not isinstance(error, EverstreamError | OSError)


def _refused(
    batch: Batch, encode: Callable[[Batch], T], operator: str, first: int
) -> dict[int, str]:
    try:
        encode(batch)
        return {}
    except Exception as error:
        if not _is_a_records(error):
            raise
        if len(batch) == 1:
            known = isinstance(error, UserError)
            reason = error.message if known else f"operator '{operator}': {describe(error)}"  # type: ignore[attr-defined]
            return {first: reason}
    half = len(batch) // 2
    return {
        **_refused(batch[:half], encode, operator, first),
        **_refused(batch[half:], encode, operator, first + half),
    }
