"""All rows of `everstream bench connectors`, in the order of its table."""

from collections.abc import Sequence

from everstream.errors import UserError
from everstream_lab.bench.connectors import (
    databases,
    file_sinks,
    file_sources,
    kafka_sinks,
    key_values,
    lakes,
    streams,
    web,
    word_count,
)
from everstream_lab.bench.connectors.kafka_server import LocalKafka
from everstream_lab.bench.connectors.postgres_server import PostgresServer
from everstream_lab.bench.connectors.redis_server import LocalRedis
from everstream_lab.bench.connectors.row import Row
from everstream_lab.bench.connectors.servers import Server
from everstream_lab.bench.connectors.web import LocalHttp

ROWS: dict[str, type[Row]] = {
    row.name: row
    for row in (
        *file_sources.ROWS,
        *file_sinks.ROWS,
        *databases.ROWS,
        *key_values.ROWS,
        *web.ROWS,
        *lakes.ROWS,
        *streams.ROWS,
        *kafka_sinks.ROWS,
        *word_count.ROWS,
    )
}
SERVERS: dict[str, type[Server]] = {
    "http": LocalHttp,
    "kafka": LocalKafka,
    "postgres": PostgresServer,
    "redis": LocalRedis,
}
"""What `Row.server` names, where it can be started here."""


def chosen(names: Sequence[str]) -> list[type[Row]]:
    """The rows of these names, or whose name begins with one of them; all if none is given."""
    for name in names:
        if not any(row.startswith(name) for row in ROWS):
            raise UserError(f"there is no row '{name}'. There are: {', '.join(ROWS)}.")
    return [row for name, row in ROWS.items() if not names or name.startswith(tuple(names))]
