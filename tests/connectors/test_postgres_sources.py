"""PostgreSQL as a source: every row once, whatever the key, and changes in the order of commits."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pytest

import everstream as es
from everstream.connectors import PostgresChanges, PostgresTable
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader
from everstream.testing.sources import check_source
from tests.connectors.postgres_server import PostgresServer, postgres_server


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def execute(server: PostgresServer, *statements: str) -> None:
    with psycopg.connect(server.dsn) as connection:
        for statement in statements:
            connection.execute(statement)


def read_available(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while True:
        batch = reader.read()
        if isinstance(batch, EndOfStream) or (batch is None and reader.ready_in_s() > 0):
            return records
        records += records_of(batch) if batch is not None else []


def test_a_table_keeps_the_promises_of_a_source(postgres: PostgresServer, table: str) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (id integer PRIMARY KEY, t text)",
        f"INSERT INTO {table} SELECT n * 3, CASE WHEN n % 4 > 0 THEN 'é' || n END "
        "FROM generate_series(1, 24) n",
    )
    rows = [{"id": 3 * n, "t": f"é{n}" if n % 4 else None} for n in range(1, 25)]
    for batch_rows in (7, 1000):
        check_source(
            lambda size=batch_rows: PostgresTable(postgres.dsn, table, key="id", batch_rows=size),  # type: ignore[misc]
            expected=rows,
            shards=(1, 3),
            redistributes=True,
        )


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 50])
def test_rows_with_equal_keys_are_all_read_once(
    postgres: PostgresServer, table: str, batch_rows: int
) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (k text, v integer)",
        f"INSERT INTO {table} SELECT 'k' || (n * n % 5), n FROM generate_series(1, 30) n",
    )
    source = PostgresTable(postgres.dsn, table, key="k", columns=["v"], batch_rows=batch_rows)
    source.check()
    found = [row["v"] for shard in range(3) for row in read_available(source.open(shard, 3))]
    assert sorted(found) == list(range(1, 31))


def test_a_query_can_be_read_and_its_shards_share_it(postgres: PostgresServer, table: str) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} AS SELECT n AS id, n % 10 AS g FROM generate_series(1, 1000) n",
    )
    query = f"SELECT id, g AS \"p%\" FROM {table} WHERE g % 2 = 0 AND 'a%b' LIKE 'a%'"
    source = PostgresTable(postgres.dsn, query=query, key="id", batch_rows=20)
    source.check()
    found = [read_available(source.open(shard, 4)) for shard in range(4)]
    assert sorted(row["id"] for part in found for row in part) == [
        n for n in range(1, 1001) if n % 2 == 0
    ]
    assert min(map(len, found)) > 90
    assert set(found[0][0]) == {"id", "p%"}


def test_types_do_not_depend_on_the_values(postgres: PostgresServer, table: str) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (id bigint, s smallint, f real, d numeric(10, 2), n numeric, "
        "b boolean, t varchar(5), raw bytea, day date, at timestamp, z timestamptz, j jsonb, "
        "u uuid, l integer[], ip inet)",
        f"INSERT INTO {table} (id) VALUES (1)",
        f"INSERT INTO {table} VALUES (2, 3, 1.5, 1.25, 0.5, true, 'é', '\\xff', '2020-01-02', "
        "'2020-01-02 03:04:05', '2020-01-02 03:04:05+00', '{\"a\": [1]}', "
        "'00000000-0000-0000-0000-000000000001', '{1,2}', '10.0.0.1')",
    )
    reader = PostgresTable(postgres.dsn, table, key="id", batch_rows=1).open(0, 1)
    empty, full = reader.read(), reader.read()
    assert isinstance(empty, pl.DataFrame)
    assert isinstance(full, pl.DataFrame)
    assert empty.schema == full.schema
    assert full.row(0, named=True) == {
        "id": 2,
        "s": 3,
        "f": 1.5,
        "d": Decimal("1.25"),
        "n": Decimal("0.5"),
        "b": True,
        "t": "é",
        "raw": b"\xff",
        "day": date(2020, 1, 2),
        "at": datetime(2020, 1, 2, 3, 4, 5),
        "z": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        "j": '{"a": [1]}',
        "u": "00000000-0000-0000-0000-000000000001",
        "l": [1, 2],
        "ip": "10.0.0.1",
    }


def test_an_empty_table_ends_at_once(postgres: PostgresServer, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id integer)")
    check_source(lambda: PostgresTable(postgres.dsn, table, key="id"), expected=[])


def test_null_keys_missing_tables_and_wrong_arguments_are_named(
    postgres: PostgresServer, table: str
) -> None:
    execute(postgres, f"CREATE TABLE {table} (id integer)", f"INSERT INTO {table} VALUES (NULL)")
    with pytest.raises(UserError, match=f"'{table}' has rows whose key 'id' is NULL"):
        PostgresTable(postgres.dsn, table, key="id").check()
    with pytest.raises(UserError, match=r"table 'nope': .*does not exist"):
        PostgresTable(postgres.dsn, "nope", key="id").check()
    with pytest.raises(UserError, match=r"column .*nope.* does not exist"):
        PostgresChanges(postgres.dsn, table, column="nope").check()
    with pytest.raises(UserError, match="give one of the two"):
        PostgresTable(postgres.dsn, "a", query="SELECT 1", key="id")


def test_a_connection_lost_while_reading_is_opened_again_or_named(
    postgres: PostgresServer, table: str
) -> None:
    execute(postgres, f"CREATE TABLE {table} AS SELECT n AS id FROM generate_series(1, 6) n")
    reader = PostgresTable(postgres.dsn, table, key="id", batch_rows=2).open(0, 1)
    first = reader.read()
    postgres.stop()
    try:
        before = reader.offset
        with pytest.raises(ConnectorError, match=f"table '{table}'.*Check that the server runs"):
            reader.read()
        assert reader.offset == before
    finally:
        postgres.start()
    second = reader.read()
    execute(
        postgres,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND application_name = 'everstream'",
    )
    rest = read_available(reader)
    assert isinstance(first, pl.DataFrame)
    assert isinstance(second, pl.DataFrame)
    assert [row["id"] for row in [*first.to_dicts(), *second.to_dicts(), *rest]] == list(
        range(1, 7)
    )


def changes_table(server: PostgresServer, table: str) -> None:
    execute(server, f"CREATE TABLE {table} (id bigserial, v integer)")


def test_changes_are_found_in_order_and_only_once(postgres: PostgresServer, table: str) -> None:
    changes_table(postgres, table)
    source = PostgresChanges(postgres.dsn, table, column="id", batch_rows=3, columns=["v"])
    source.check()
    reader = source.open(0, 1)
    assert read_available(reader) == []
    assert reader.ready_in_s() == 1.0
    for start in (0, 10, 20):
        execute(
            postgres,
            f"INSERT INTO {table} (v) SELECT * FROM generate_series({start}, {start + 7})",
        )
        assert [row["v"] for row in read_available(reader)] == list(range(start, start + 8))
    again = PostgresChanges(postgres.dsn, table, column="id", start=20).open(0, 1)
    assert [row["id"] for row in read_available(again)] == [21, 22, 23, 24]
    check_source(
        lambda: PostgresChanges(postgres.dsn, table, column="id", batch_rows=5),
        endless=True,
        max_reads=12,
        wait=lambda _: None,
    )


def test_a_value_that_is_drawn_early_and_committed_late_is_not_lost(
    postgres: PostgresServer, table: str
) -> None:
    changes_table(postgres, table)
    reader = PostgresChanges(postgres.dsn, table, column="id").open(0, 1)
    with psycopg.connect(postgres.dsn) as slow, psycopg.connect(postgres.dsn) as later:
        slow.execute(f"INSERT INTO {table} (v) VALUES (1)")
        execute(postgres, f"INSERT INTO {table} (v) VALUES (2)")
        assert read_available(reader) == [], "a transaction with a lower value is still open"
        later.execute(f"INSERT INTO {table} (v) VALUES (3)")
        slow.commit()
        # One that began after the row was seen does not hold it back.
        assert [row["v"] for row in read_available(reader)] == [1, 2]
        execute(postgres, f"INSERT INTO {table} (v) VALUES (4)")
        assert read_available(reader) == []
        later.rollback()
    assert [row["v"] for row in read_available(reader)] == [4]


def test_updates_are_changes_if_the_column_grows_with_them(
    postgres: PostgresServer, table: str
) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (id integer, at timestamptz)",
        f"INSERT INTO {table} VALUES (1, now() - interval '1 h'), (2, now() - interval '1 min')",
    )
    source = PostgresChanges(postgres.dsn, table, column="at", lag="10s")
    reader = source.open(0, 1)
    assert [row["id"] for row in read_available(reader)] == [1, 2]
    execute(
        postgres,
        f"UPDATE {table} SET at = now() - interval '20 s' WHERE id = 1",
        f"INSERT INTO {table} VALUES (3, now())",
    )
    assert [row["id"] for row in read_available(reader)] == [1], "3 is within the lag"


def test_changes_are_read_by_one_shard(postgres: PostgresServer, table: str) -> None:
    with pytest.raises(UserError, match="shards=1"):
        PostgresChanges(postgres.dsn, table, column="id").open(0, 2)


def test_a_value_that_is_drawn_before_the_insert_is_not_lost(
    postgres: PostgresServer, table: str
) -> None:
    changes_table(postgres, table)
    reader = PostgresChanges(postgres.dsn, table, column="id").open(0, 1)
    with psycopg.connect(postgres.dsn) as slow:
        (drawn,) = slow.execute(f"SELECT nextval('{table}_id_seq')").fetchone() or (None,)
        execute(postgres, f"INSERT INTO {table} (v) VALUES (2)")
        assert read_available(reader) == []
        slow.execute(f"INSERT INTO {table} VALUES (%s, 1)", (drawn,))
        assert read_available(reader) == []
        slow.commit()
    assert [row["v"] for row in read_available(reader)] == [1, 2]


def test_a_row_that_a_slow_transaction_puts_into_a_partition_is_not_lost(
    postgres: PostgresServer, table: str
) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (id bigserial, v integer) PARTITION BY LIST (v)",
        f"CREATE TABLE {table}_odd PARTITION OF {table} FOR VALUES IN (1, 3)",
        f"CREATE TABLE {table}_even PARTITION OF {table} FOR VALUES IN (2, 4)",
    )
    source = PostgresChanges(postgres.dsn, table, column="id")
    source.check()
    reader = source.open(0, 1)
    with psycopg.connect(postgres.dsn) as slow:
        slow.execute(f"INSERT INTO {table}_odd (v) VALUES (1)")
        execute(postgres, f"INSERT INTO {table} (v) VALUES (2)")
        assert read_available(reader) == []
        slow.commit()
    assert [row["v"] for row in read_available(reader)] == [1, 2]


def test_a_transaction_that_is_prepared_for_a_second_phase_is_waited_for(
    postgres: PostgresServer, table: str
) -> None:
    with postgres_server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        server.stop("fast")
        server.start()
        changes_table(server, table)
        reader = PostgresChanges(server.dsn, table, column="id").open(0, 1)
        with psycopg.connect(server.dsn, autocommit=True) as slow:
            slow.execute("BEGIN")
            slow.execute(f"INSERT INTO {table} (v) VALUES (1)")
            execute(server, f"INSERT INTO {table} (v) VALUES (2)")
            assert read_available(reader) == []
            slow.execute("PREPARE TRANSACTION 'later'")
            assert read_available(reader) == []
            assert read_available(reader) == []
            slow.execute("COMMIT PREPARED 'later'")
        assert [row["v"] for row in read_available(reader)] == [1, 2]


def test_transactions_that_only_read_hold_nothing_back(
    postgres: PostgresServer, table: str
) -> None:
    changes_table(postgres, table)
    reader = PostgresChanges(postgres.dsn, table, column="id").open(0, 1)
    with psycopg.connect(postgres.dsn) as backup:
        backup.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        backup.execute(f"SELECT count(*) FROM {table}")
        execute(postgres, f"INSERT INTO {table} (v) VALUES (1)")
        assert [row["v"] for row in read_available(reader)] == [1]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("CREATE VIEW {0}_x AS SELECT * FROM {0}", "is a view"),
        ("CREATE MATERIALIZED VIEW {0}_x AS SELECT * FROM {0}", "is a materialized view"),
        ("CREATE TABLE {0}_x (id bigserial); ALTER SEQUENCE {0}_x_id_seq CACHE 5", "5 values"),
        ("CREATE TABLE {0}_x (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 9))", "9 values"),
        ("CREATE TABLE {0}_x (id bigserial); ALTER SEQUENCE {0}_x_id_seq CYCLE", "NO CYCLE"),
        (
            "CREATE SEQUENCE {0}_s INCREMENT -1; "
            "CREATE TABLE {0}_x (id bigint DEFAULT nextval('{0}_s'))",
            "counts down",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(
    postgres: PostgresServer, table: str, what: str, said: str
) -> None:
    changes_table(postgres, table)
    execute(postgres, *what.format(table).split("; "))
    with pytest.raises(UserError, match=said):
        PostgresChanges(postgres.dsn, f"{table}_x", column="id").check()
    PostgresChanges(postgres.dsn, table, column="id").check()


def test_a_replica_is_refused(postgres: PostgresServer, table: str) -> None:
    with postgres_server() as server:
        changes_table(server, table)
        source = PostgresChanges(server.dsn, table, column="id")
        source.check()
        server.stop("fast")
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(UserError, match=r"in recovery.*Connect to the primary"):
            source.check()
        with pytest.raises(UserError, match="in recovery"):
            source.open(0, 1).read()


def test_a_table_that_logical_replication_fills_is_refused(
    postgres: PostgresServer, table: str
) -> None:
    changes_table(postgres, table)
    execute(
        postgres,
        # As CREATE SUBSCRIPTION notes it; a real one needs a second server to subscribe to.
        "SET allow_system_table_mods = on",
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) "
        f"VALUES (1, '{table}'::regclass, 'r')",
    )
    try:
        with pytest.raises(UserError, match="logical replication fills it"):
            PostgresChanges(postgres.dsn, table, column="id").check()
    finally:
        execute(
            postgres,
            "SET allow_system_table_mods = on",
            f"DELETE FROM pg_subscription_rel WHERE srrelid = '{table}'::regclass",
        )


def test_a_table_is_asked_for_the_rows_of_some_keys(postgres: PostgresServer, table: str) -> None:
    execute(
        postgres,
        f"CREATE TABLE {table} (id bigint, day date, city text, cents numeric(10, 2))",
        f"INSERT INTO {table} SELECT n, date '2026-01-01' + n % 2, 'city ' || n, n "
        "FROM generate_series(0, 49) AS s(n)",
    )
    asked = es.PostgresTable(postgres.dsn, table)
    orders = [{"id": n, "day": date(2026, 1, 1)} for n in (2, 3, 70)]
    pipeline = es.Pipeline("orders")
    source = pipeline.source(es.FromList(orders))
    schema = {"city": pl.String(), "cents": pl.Decimal(10, 2)}
    source.lookup(asked, on=["id", "day"], schema=schema).collect()
    assert pipeline.run().to_polars().rows() == [
        (2, date(2026, 1, 1), "city 2", Decimal("2.00")),
        (3, date(2026, 1, 1), None, None),
        (70, date(2026, 1, 1), None, None),
    ]
    cities = es.Pipeline("cities")
    by_name = cities.source(es.FromList([{"city": "city 7"}, {"city": "it's % none"}]))
    query = es.PostgresTable(postgres.dsn, query=f"SELECT * FROM {table} WHERE id % 7 = 0")
    by_name.lookup(
        query, on="city", schema={"id": pl.Int64()}, refresh="10m", how="inner"
    ).collect()
    assert cities.run().to_polars().rows() == [("city 7", 7)]
    with pytest.raises(UserError, match="give key='id'"):
        es.Pipeline("read").source(asked).collect().run()
