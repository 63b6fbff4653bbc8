"""Everstream: stream processing on Spark that survives failure, and can prove it.

These are all the names a program needs. What takes long to load (Spark, compilers) is loaded by
those who use it.
"""

from typing import TYPE_CHECKING, Any

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
from everstream.datasource import register
from everstream.errors import (
    ConnectorError,
    CorruptObject,
    EnvironmentFault,
    EverstreamError,
    FramesLost,
    GraphError,
    InternalError,
    LeaseLost,
    NotStored,
    OperatorError,
    RunFailed,
    SparkGone,
    StoreError,
    UserError,
)
from everstream.extras import MissingExtra
from everstream.inspection import SavepointEdit, StateEdit, edit_savepoint, read_state, read_tables
from everstream.monitoring.monitor import Monitor
from everstream.pipeline.aggregates import avg, count, custom, max, min, sum, top_k
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import Coordinated, Induced, Uncoordinated
from everstream.pipeline.keyed import KeyedStream
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.renamed import EverstreamDeprecationWarning
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK
from everstream.pipeline.windowed import WindowedStream
from everstream.pipeline.windows import Session, Sliding, Tumbling
from everstream.planning.adviser import Advice, advise
from everstream.spark.handle import RunHandle
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.spark.result import RunResult

if TYPE_CHECKING:
    from everstream.transactions import ABORT, Table, transaction

__all__ = [
    "ABORT",
    "END",
    "END_OF_TIME",
    "NO_WATERMARK",
    "Advice",
    "AutoScale",
    "Avro",
    "Binary",
    "Callback",
    "Collect",
    "ConnectorError",
    "Console",
    "Context",
    "Coordinated",
    "CorruptObject",
    "Csv",
    "Delivery",
    "Delta",
    "EnvironmentFault",
    "EverstreamDeprecationWarning",
    "EverstreamError",
    "FramesLost",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "GraphError",
    "Iceberg",
    "Induced",
    "InternalError",
    "Journal",
    "JsonLines",
    "Kafka",
    "Keyed",
    "KeyedStream",
    "Kill",
    "LeaseLost",
    "Listener",
    "Load",
    "MissingExtra",
    "Monitor",
    "NotStored",
    "Operator",
    "OperatorError",
    "Paced",
    "Parquet",
    "Permit",
    "Pipeline",
    "Postgres",
    "PostgresChanges",
    "PostgresTable",
    "Range",
    "Reader",
    "Redis",
    "RedisLookup",
    "RunFailed",
    "RunHandle",
    "RunResult",
    "SavepointEdit",
    "Session",
    "Sink",
    "SinkShard",
    "Sliding",
    "Snapshot",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "SparkGone",
    "SparkStream",
    "Sqlite",
    "Stage",
    "StateEdit",
    "StoreError",
    "Stream",
    "Table",
    "TextLines",
    "ToStream",
    "Transaction",
    "Tumbling",
    "Uncoordinated",
    "UserError",
    "Webhook",
    "WindowedStream",
    "Writer",
    "advise",
    "annotated",
    "avg",
    "count",
    "custom",
    "edit_savepoint",
    "max",
    "min",
    "read_state",
    "read_tables",
    "register",
    "sum",
    "top_k",
    "transaction",
]

_TRANSACTIONS = ("ABORT", "Table", "transaction")

if not TYPE_CHECKING:  # a type checker has them from above, and knows that there are no others

    def __getattr__(name: str) -> Any:
        """Transactions are compiled: numba is loaded by those who write some, and nobody else."""
        if name == "__version__":
            from importlib.metadata import version

            return version("everstream")
        if name not in _TRANSACTIONS:
            raise AttributeError(f"module 'everstream' has no attribute {name!r}")
        from everstream import transactions

        return getattr(transactions, name)
