"""Everstream: stream processing on Spark that survives failure, and can prove it."""

from everstream.connectors import (
    Callback,
    Collect,
    Console,
    Csv,
    FromFunction,
    FromGenerator,
    FromList,
    JsonLines,
    Paced,
    Parquet,
    Range,
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
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline, Stream

__all__ = [
    "END",
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
    "JsonLines",
    "Keyed",
    "Operator",
    "OperatorError",
    "Paced",
    "Parquet",
    "Permit",
    "Pipeline",
    "Range",
    "Reader",
    "RunFailed",
    "Sink",
    "SinkShard",
    "Source",
    "Stream",
    "TextLines",
    "Transaction",
    "UserError",
    "Writer",
]
