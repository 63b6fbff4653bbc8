"""Sources and sinks: where a pipeline's records come from and where they go."""

from everstream.connectors.binary import Binary
from everstream.connectors.collect import Collect
from everstream.connectors.csv_files import Csv
from everstream.connectors.generate import FromFunction, FromGenerator, FromList, Range
from everstream.connectors.journal import Journal
from everstream.connectors.json_lines import JsonLines
from everstream.connectors.live import Callback, Console
from everstream.connectors.load import Load
from everstream.connectors.paced import Paced
from everstream.connectors.parquet_files import Parquet
from everstream.connectors.postgres_sink import Postgres
from everstream.connectors.postgres_source import PostgresChanges, PostgresTable
from everstream.connectors.sockets import SocketLines
from everstream.connectors.spark_frame import SparkDataFrame
from everstream.connectors.spark_stream import SparkStream
from everstream.connectors.sqlite import Sqlite
from everstream.connectors.text import TextLines

__all__ = [
    "Binary",
    "Callback",
    "Collect",
    "Console",
    "Csv",
    "FromFunction",
    "FromGenerator",
    "FromList",
    "Journal",
    "JsonLines",
    "Load",
    "Paced",
    "Parquet",
    "Postgres",
    "PostgresChanges",
    "PostgresTable",
    "Range",
    "SocketLines",
    "SparkDataFrame",
    "SparkStream",
    "Sqlite",
    "TextLines",
]
