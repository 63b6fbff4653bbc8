"""Sources and sinks: where a pipeline's records come from and go to, and how to write your own."""

from typing import TYPE_CHECKING

from everstream.lazy import lazy_names

if TYPE_CHECKING:
    from everstream.connectors.collect import Collect
    from everstream.connectors.files.binary import Binary
    from everstream.connectors.files.csv import Csv
    from everstream.connectors.files.json_lines import JsonLines
    from everstream.connectors.files.parquet import Parquet
    from everstream.connectors.files.text import TextLines
    from everstream.connectors.generate.load import Load
    from everstream.connectors.generate.paced import Paced
    from everstream.connectors.generate.sources import FromFunction, FromGenerator, FromList, Range
    from everstream.connectors.journal.sockets import SocketLines
    from everstream.connectors.journal.source import Journal
    from everstream.connectors.kafka.connector import Kafka
    from everstream.connectors.kafka.formats import Avro
    from everstream.connectors.lake.delta import Delta
    from everstream.connectors.lake.iceberg import Iceberg
    from everstream.connectors.live import Callback, Console
    from everstream.connectors.redis.lookup import RedisLookup
    from everstream.connectors.redis.sink import Redis
    from everstream.connectors.spark.sources import SparkDataFrame, SparkStream
    from everstream.connectors.sql.postgres import Postgres
    from everstream.connectors.sql.postgres_source import PostgresChanges, PostgresTable
    from everstream.connectors.sql.sqlite import Sqlite
    from everstream.connectors.webhook import Webhook
    from everstream.pipeline.sink import (
        Committable,
        Delivery,
        Permit,
        Sink,
        SinkShard,
        Writer,
    )
    from everstream.pipeline.source import END, Reader, Source

__all__ = [
    "END",
    "Avro",
    "Binary",
    "Callback",
    "Collect",
    "Committable",
    "Console",
    "Csv",
    "Delivery",
    "Delta",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "Iceberg",
    "Journal",
    "JsonLines",
    "Kafka",
    "Load",
    "Paced",
    "Parquet",
    "Permit",
    "Postgres",
    "PostgresChanges",
    "PostgresTable",
    "Range",
    "Reader",
    "Redis",
    "RedisLookup",
    "Sink",
    "SinkShard",
    "SocketLines",
    "Source",
    "SparkDataFrame",
    "SparkStream",
    "Sqlite",
    "TextLines",
    "Webhook",
    "Writer",
]

_HOMES = {
    "everstream.connectors.collect": "Collect",
    "everstream.connectors.files.binary": "Binary",
    "everstream.connectors.files.csv": "Csv",
    "everstream.connectors.files.json_lines": "JsonLines",
    "everstream.connectors.files.parquet": "Parquet",
    "everstream.connectors.files.text": "TextLines",
    "everstream.connectors.generate.load": "Load",
    "everstream.connectors.generate.paced": "Paced",
    "everstream.connectors.generate.sources": "FromFunction FromGenerator FromList Range",
    "everstream.connectors.webhook": "Webhook",
    "everstream.connectors.journal.sockets": "SocketLines",
    "everstream.connectors.journal.source": "Journal",
    "everstream.connectors.kafka.formats": "Avro",
    "everstream.connectors.kafka.connector": "Kafka",
    "everstream.connectors.lake.delta": "Delta",
    "everstream.connectors.lake.iceberg": "Iceberg",
    "everstream.connectors.live": "Callback Console",
    "everstream.connectors.redis.lookup": "RedisLookup",
    "everstream.connectors.redis.sink": "Redis",
    "everstream.connectors.spark.sources": "SparkDataFrame SparkStream",
    "everstream.connectors.sql.postgres": "Postgres",
    "everstream.connectors.sql.postgres_source": "PostgresChanges PostgresTable",
    "everstream.connectors.sql.sqlite": "Sqlite",
    "everstream.pipeline.sink": "Committable Delivery Permit Sink SinkShard Writer",
    "everstream.pipeline.source": "END Reader Source",
}
"""Module -> what comes from it. The imports above say the same to type checkers."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), _HOMES)
