"""Everstream: stream processing on Spark that survives failure, and can prove it."""

from everstream.connectors import (
    Callback,
    Collect,
    Console,
    FromFunction,
    FromGenerator,
    FromList,
    JsonLines,
    Paced,
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
from everstream.inspection import read_state
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline, Stream
from everstream.planning.adviser import Advice, advise

__all__ = [
    "END",
    "Advice",
    "Callback",
    "Collect",
    "Console",
    "Context",
    "Coordinated",
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
    "advise",
    "read_state",
]
