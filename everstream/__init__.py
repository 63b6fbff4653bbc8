"""Everstream: stream processing on Spark that survives failure, and can prove it."""

from typing import TYPE_CHECKING, Any

from everstream.connectors import (
    Callback,
    Collect,
    Console,
    Csv,
    FromFunction,
    FromGenerator,
    FromList,
    Journal,
    JsonLines,
    Paced,
    Parquet,
    Postgres,
    PostgresChanges,
    PostgresTable,
    Range,
    SocketLines,
    SparkDataFrame,
    Sqlite,
    TextLines,
)
from everstream.errors import (
    EnvironmentFault,
    EverstreamError,
    GraphError,
    InternalError,
    OperatorError,
    RunFailed,
    UserError,
)
from everstream.inspection import read_state, read_tables
from everstream.pipeline.aggregates import avg, count, custom, max, min, sum, top_k
from everstream.pipeline.checkpointing import Coordinated, Induced, Uncoordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK
from everstream.pipeline.windows import Session, Sliding, Tumbling
from everstream.planning.adviser import Advice, advise

if TYPE_CHECKING:
    from everstream.transactions import ABORT, Table, transaction

__all__ = [
    "ABORT",
    "END",
    "END_OF_TIME",
    "NO_WATERMARK",
    "Advice",
    "Callback",
    "Collect",
    "Console",
    "Context",
    "Coordinated",
    "Csv",
    "Delivery",
    "EnvironmentFault",
    "EverstreamError",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "GraphError",
    "Induced",
    "InternalError",
    "Journal",
    "JsonLines",
    "Keyed",
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
    "Session",
    "Sink",
    "SinkShard",
    "Sliding",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "Sqlite",
    "Stream",
    "Table",
    "TextLines",
    "Transaction",
    "Tumbling",
    "Uncoordinated",
    "UserError",
    "Writer",
    "advise",
    "avg",
    "count",
    "custom",
    "max",
    "min",
    "read_state",
    "read_tables",
    "sum",
    "top_k",
    "transaction",
]

_TRANSACTIONS = ("ABORT", "Table", "transaction")


def __getattr__(name: str) -> Any:
    """Transactions are compiled: numba is loaded by those who write some, and by nobody else."""
    if name not in _TRANSACTIONS:
        raise AttributeError(f"module 'everstream' has no attribute {name!r}")
    from everstream import transactions

    return getattr(transactions, name)
