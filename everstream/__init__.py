"""Everstream: stream processing on Spark that survives failure, and can prove it.

These are all the names a program needs. What takes long to load (Spark, compilers) is loaded by
those who use it.
"""

from typing import TYPE_CHECKING, Any

from everstream.annotations import Stage, ToStream, annotated
from everstream.connectors import (
    Binary,
    Callback,
    Collect,
    Console,
    Csv,
    FromFunction,
    FromGenerator,
    FromList,
    Journal,
    JsonLines,
    Load,
    Paced,
    Parquet,
    Postgres,
    PostgresChanges,
    PostgresTable,
    Range,
    SocketLines,
    SparkDataFrame,
    SparkStream,
    Sqlite,
    TextLines,
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
    StoreError,
    UserError,
)
from everstream.extras import MissingExtra
from everstream.inspection import read_state, read_tables
from everstream.monitoring.monitor import Monitor
from everstream.pipeline.aggregates import avg, count, custom, max, min, sum, top_k
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
    "EnvironmentFault",
    "EverstreamDeprecationWarning",
    "EverstreamError",
    "FramesLost",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "GraphError",
    "Induced",
    "InternalError",
    "Journal",
    "JsonLines",
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
    "RunFailed",
    "RunHandle",
    "RunResult",
    "Session",
    "Sink",
    "SinkShard",
    "Sliding",
    "Snapshot",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "SparkStream",
    "Sqlite",
    "Stage",
    "StoreError",
    "Stream",
    "Table",
    "TextLines",
    "ToStream",
    "Transaction",
    "Tumbling",
    "Uncoordinated",
    "UserError",
    "WindowedStream",
    "Writer",
    "advise",
    "annotated",
    "avg",
    "count",
    "custom",
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
