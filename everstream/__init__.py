"""Everstream: stream processing on Spark that survives failure, and can prove it.

These are the names that a program needs. Further public modules: `everstream.errors` (all errors),
`everstream.connectors` (to write your own source or sink), `everstream.inspection` (to look into a
store and edit savepoints), `everstream.planning` (advice) and `everstream.testing`. Each name is
imported on first use: a program loads only the connectors that it uses, and Spark only to run on it.
"""

from typing import TYPE_CHECKING, Any

from everstream.lazy import lazy_names

if TYPE_CHECKING:
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
    from everstream.connectors.sql.lookup import SqliteTable
    from everstream.engine.faults.kills import Kill
    from everstream.engine.handle import RunHandle
    from everstream.engine.reporting.listener import Listener
    from everstream.engine.result import RunResult
    from everstream.errors import EverstreamError, RunFailed, UserError
    from everstream.events import RunEvent, RunStatus
    from everstream.observability.monitoring.sampler import Monitor
    from everstream.pipeline.aggregation.aggregates import avg, count, custom, max, min, sum, top_k
    from everstream.pipeline.aggregation.window_functions import cumulative, lag, lead, rank
    from everstream.pipeline.autoscale import AutoScale
    from everstream.pipeline.calls.options import AnswerCache, RateLimit, RetryAfter
    from everstream.pipeline.checkpointing import CommunicationInduced, Coordinated, Uncoordinated
    from everstream.pipeline.event_time.windows import (
        Calendar,
        CountWindow,
        Session,
        Sliding,
        Tumbling,
    )
    from everstream.pipeline.keyed_state.collections import KeyedList, KeyedMap
    from everstream.pipeline.methods.keyed import KeyedStream
    from everstream.pipeline.methods.time import WindowedStream
    from everstream.pipeline.operator import Context, Keyed, Operator
    from everstream.pipeline.options import Recovery, Resources, RunOptions, Upgrade
    from everstream.pipeline.sink import Sink
    from everstream.pipeline.source import Source
    from everstream.pipeline.stream import Pipeline, Stream
    from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK
    from everstream.transactions import ABORT, Table, transaction

__all__ = [
    "ABORT",
    "END_OF_TIME",
    "NO_WATERMARK",
    "AnswerCache",
    "AutoScale",
    "Avro",
    "Binary",
    "Calendar",
    "Callback",
    "Collect",
    "CommunicationInduced",
    "Console",
    "Context",
    "Coordinated",
    "CountWindow",
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
    "KeyedList",
    "KeyedMap",
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
    "RateLimit",
    "Recovery",
    "Redis",
    "RedisLookup",
    "Resources",
    "RetryAfter",
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
    "SqliteTable",
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
    "cumulative",
    "custom",
    "events",
    "lag",
    "lead",
    "max",
    "min",
    "rank",
    "sum",
    "top_k",
    "transaction",
]

_HOMES = {
    "everstream.annotations": "Stage ToStream annotated",
    "everstream.connectors": (
        "Avro Binary Callback Collect Console Csv Delta FromFunction FromGenerator "
        "FromList Iceberg Journal JsonLines Kafka Load Paced Parquet Postgres "
        "PostgresChanges PostgresTable Range Redis RedisLookup SocketLines SparkDataFrame "
        "SparkStream Sqlite TextLines Webhook"
    ),
    "everstream.engine.faults.kills": "Kill",
    "everstream.engine.handle": "RunHandle",
    "everstream.engine.reporting.listener": "Listener",
    "everstream.engine.result": "RunResult",
    "everstream.errors": "EverstreamError RunFailed UserError",
    "everstream.events": "RunEvent RunStatus",
    "everstream.inspection": "",
    "everstream.observability.monitoring.sampler": "Monitor",
    "everstream.pipeline.aggregation.aggregates": "avg count custom max min sum top_k",
    "everstream.connectors.sql.lookup": "SqliteTable",
    "everstream.pipeline.aggregation.window_functions": "cumulative lag lead rank",
    "everstream.pipeline.autoscale": "AutoScale",
    "everstream.pipeline.calls.options": "AnswerCache RateLimit RetryAfter",
    "everstream.pipeline.checkpointing": "CommunicationInduced Coordinated Uncoordinated",
    "everstream.pipeline.event_time.windows": "Calendar CountWindow Session Sliding Tumbling",
    "everstream.pipeline.keyed_state.collections": "KeyedList KeyedMap",
    "everstream.pipeline.methods.keyed": "KeyedStream",
    "everstream.pipeline.methods.time": "WindowedStream",
    "everstream.pipeline.operator": "Context Keyed Operator",
    "everstream.pipeline.options": "Recovery Resources RunOptions Upgrade",
    "everstream.pipeline.sink": "Sink",
    "everstream.pipeline.source": "Source",
    "everstream.pipeline.stream": "Pipeline Stream",
    "everstream.pipeline.times": "END_OF_TIME NO_WATERMARK",
    "everstream.planning": "",
    "everstream.testing": "",
    "everstream.transactions": "ABORT Table transaction",
}
"""Module -> what the facade has from it. The imports above say the same to type checkers."""

if not TYPE_CHECKING:  # a type checker has them from above, and knows there are no others
    _load, __dir__ = lazy_names(globals(), _HOMES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("everstream")
        return _load(name)
