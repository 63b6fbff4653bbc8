"""Sinks that act at once: `Console` prints, `Callback` calls a function.

Both are at-least-once: after a failure, records since the last checkpoint come again.
"""

import sys
from collections.abc import Callable
from typing import Any

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer


class Console(Sink):
    """Prints each record on its own line; rows as dicts. At-least-once.

    Each shard prints on the standard output of the process it runs in.

    >>> _ = es.Pipeline("shown").source(es.Range(2)).sink(es.Console("n = ")).run()
    n = 0
    n = 1
    """

    delivery = Delivery.AT_LEAST_ONCE

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def open(self, shard: SinkShard) -> Writer:
        return _CallingWriter(self._print)

    def _print(self, batch: Batch) -> None:
        sys.stdout.write("".join(f"{self._prefix}{record}\n" for record in records_of(batch)))
        sys.stdout.flush()


class Callback(Sink):
    """Calls `function(record)`, or with `batches=True` `function(batch)`. At-least-once.

    After a failure the function is called again for records it has already seen: make it
    idempotent, or use an exactly-once sink.

    >>> def send(record):
    ...     print("sending", record)
    >>> _ = es.Pipeline("sent").source(es.FromList(["to", "be"])).sink(es.Callback(send)).run()
    sending to
    sending be
    """

    delivery = Delivery.AT_LEAST_ONCE

    def __init__(self, function: Callable[[Any], object], *, batches: bool = False) -> None:
        if not callable(function):
            raise UserError(
                f"Callback needs a function, not {type(function).__name__}: "
                "Callback(lambda record: ...)."
            )
        self._function = function
        self._batches = batches

    def open(self, shard: SinkShard) -> Writer:
        return _CallingWriter(self._function if self._batches else self._call_for_each)

    def _call_for_each(self, batch: Batch) -> None:
        for record in records_of(batch):
            self._function(record)


class _CallingWriter(Writer):
    def __init__(self, call: Callable[[Batch], object]) -> None:
        self._call = call

    def write(self, batch: Batch) -> None:
        self._call(batch)
