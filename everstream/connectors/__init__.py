"""Sources and sinks: where a pipeline's records come from and where they go."""

from everstream.connectors.binary import Binary
from everstream.connectors.collect import Collect
from everstream.connectors.csv_files import Csv
from everstream.connectors.delta import Delta
from everstream.connectors.generate import FromFunction, FromGenerator, FromList, Range
from everstream.connectors.iceberg import Iceberg
from everstream.connectors.journal import Journal
from everstream.connectors.json_lines import JsonLines
from everstream.connectors.kafka import Kafka
from everstream.connectors.kafka_avro import Avro
from everstream.connectors.live import Callback, Console
from everstream.connectors.load import Load
from everstream.connectors.paced import Paced
from everstream.connectors.parquet_files import Parquet
from everstream.connectors.postgres_sink import Postgres
from everstream.connectors.postgres_source import PostgresChanges, PostgresTable
from everstream.connectors.redis_lookup import RedisLookup
from everstream.connectors.redis_sink import Redis
from everstream.connectors.sockets import SocketLines
from everstream.connectors.spark_frame import SparkDataFrame
from everstream.connectors.spark_stream import SparkStream
from everstream.connectors.sqlite import Sqlite
from everstream.connectors.text import TextLines
from everstream.connectors.webhook import Webhook

__all__ = [
    "Avro",
    "Binary",
    "Callback",
    "Collect",
    "Console",
    "Csv",
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
    "Postgres",
    "PostgresChanges",
    "PostgresTable",
    "Range",
    "Redis",
    "RedisLookup",
    "SocketLines",
    "SparkDataFrame",
    "SparkStream",
    "Sqlite",
    "TextLines",
    "Webhook",
]
