"""Everstream: stream processing on Spark that survives failure, and can prove it.

These are the names that a program needs. Further public modules: `everstream.errors` (all errors),
`everstream.connectors` (to write your own source or sink), `everstream.inspection` (to look into a
store and edit savepoints), `everstream.planning` (advice) and `everstream.testing`. Slow imports
(Spark, compilers) happen on first use.
"""

from typing import TYPE_CHECKING, Any

from everstream import events
from everstream.annotations import Stage, ToStream, annotated
from everstream.connectors import (
    Avro,
    Binary,
    Callback,
    Collect,
    Console,
    Csv,
    Delta,
    FromFunction,
    FromGenerator,
    FromList,
    Iceberg,
    Journal,
    JsonLines,
    Kafka,
    Load,
    Paced,
    Parquet,
    Postgres,
    PostgresChanges,
    PostgresTable,
    Range,
    Redis,
    RedisLookup,
    SocketLines,
    SparkDataFrame,
    SparkStream,
    Sqlite,
    TextLines,
    Webhook,
)
from everstream.engine.faults.kills import Kill
from everstream.engine.handle import RunHandle
from everstream.engine.reporting.listener import Listener
from everstream.engine.result import RunResult
from everstream.errors import EverstreamError, RunFailed, UserError
from everstream.events import RunEvent, RunStatus
from everstream.observability.monitoring.sampler import Monitor
from everstream.pipeline.aggregation.aggregates import avg, count, custom, max, min, sum, top_k
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import CommunicationInduced, Coordinated, Uncoordinated
from everstream.pipeline.event_time.windows import Session, Sliding, Tumbling
from everstream.pipeline.methods.keyed import KeyedStream
from everstream.pipeline.methods.time import WindowedStream
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.options import Recovery, Resources, RunOptions, Upgrade
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK

if TYPE_CHECKING:
    from everstream.transactions import ABORT, Table, transaction

__all__ = [
    "ABORT",
    "END_OF_TIME",
    "NO_WATERMARK",
    "AutoScale",
    "Avro",
    "Binary",
    "Callback",
    "Collect",
    "CommunicationInduced",
    "Console",
    "Context",
    "Coordinated",
    "Csv",
    "Delta",
    "EverstreamError",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "Iceberg",
    "Journal",
    "JsonLines",
    "Kafka",
    "Keyed",
    "KeyedStream",
    "Kill",
    "Listener",
    "Load",
    "Monitor",
    "Operator",
    "Paced",
    "Parquet",
    "Pipeline",
    "Postgres",
    "PostgresChanges",
    "PostgresTable",
    "Range",
    "Recovery",
    "Redis",
    "RedisLookup",
    "Resources",
    "RunEvent",
    "RunFailed",
    "RunHandle",
    "RunOptions",
    "RunResult",
    "RunStatus",
    "Session",
    "Sink",
    "Sliding",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "SparkStream",
    "Sqlite",
    "Stage",
    "Stream",
    "Table",
    "TextLines",
    "ToStream",
    "Tumbling",
    "Uncoordinated",
    "Upgrade",
    "UserError",
    "Webhook",
    "WindowedStream",
    "annotated",
    "avg",
    "count",
    "custom",
    "events",
    "max",
    "min",
    "sum",
    "top_k",
    "transaction",
]

_TRANSACTIONS = ("ABORT", "Table", "transaction")

if not TYPE_CHECKING:  # a type checker has them from above, and knows there are no others

    def __getattr__(name: str) -> Any:
        """Transactions are compiled: numba is loaded only by programs that use them."""
        if name == "__version__":
            from importlib.metadata import version

            return version("everstream")
        if name not in _TRANSACTIONS:
            raise AttributeError(f"module 'everstream' has no attribute {name!r}")
        from everstream import transactions

        return getattr(transactions, name)
