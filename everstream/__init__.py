"""Everstream: stream processing on Spark that survives failure, and can prove it."""

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
from everstream.inspection import read_state
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK
from everstream.planning.adviser import Advice, advise

__all__ = [
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
    "Sink",
    "SinkShard",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "Sqlite",
    "Stream",
    "TextLines",
    "Transaction",
    "UserError",
    "Writer",
    "advise",
    "read_state",
]
