"""The programs of the pages on connectors, with real servers."""

import json
from collections import Counter
from pathlib import Path

import polars as pl
import psycopg
import pytest

from tests.connectors.postgres_server import PostgresServer
from tests.connectors.redis_servers import redis_server
from tests.connectors.webhook_receiver import Receiver
from tests.docs.sections import program_under
from tests.kafka_server import KafkaServer
from tests.s3_server import BUCKET, S3Server
from tests.spark import MASTER


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_program_for_redis_looks_up_and_writes() -> None:
    with redis_server() as server:
        client = server.client()
        for number, city in enumerate(("Rome", "Oslo", "Rome")):
            client.hset(f"customer:{number}", "city", city)
        here = {"redis://localhost:6379": server.address}
        program_under("docs/guides/connectors/redis.md", "Write", here)["spent"].run(master=MASTER)
        spent = {city: int(client.get(f"spent:{city}")) for city in ("Rome", "Oslo")}
    oslo = sum(range(1, 1_000, 3))
    assert spent == {"Oslo": oslo, "Rome": sum(range(1_000)) - oslo}


def test_the_program_for_kafka_adds_up_by_the_time_of_the_records(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kafka.create_topic("takings-of-the-page", 3)
    orders = [{"shop": f"s{n % 2}", "cents": n} for n in range(400)]
    kafka.produce(
        "takings-of-the-page",
        (
            {"value": json.dumps(order), "partition": n % 3, "timestamp": 1 + 1_000 * n}
            for n, order in enumerate(orders)
        ),
    )
    here = {"localhost:9092": kafka.bootstrap, '"orders"': '"takings-of-the-page"'}
    program_under("docs/guides/connectors/kafka.md", "Read", here)["takings"].run(master=MASTER)
    lines = [line for file in Path("takings").glob("part-*") for line in file.open()]
    found = sorted((row["shop"], row["cents"]) for row in map(json.loads, lines))
    minutes = [range(start, min(start + 60, 400)) for start in range(0, 400, 60)]
    assert found == sorted(
        (shop, sum(n for n in minute if n % 2 == odd))
        for odd, shop in enumerate(("s0", "s1"))
        for minute in minutes
    )


def test_the_program_for_postgres_adds_up_what_each_customer_paid(postgres: PostgresServer) -> None:
    client = psycopg.connect(postgres.dsn, autocommit=True)
    client.execute("CREATE TABLE orders (id bigint, customer text, cents bigint)")
    client.execute("INSERT INTO orders SELECT n, 'c' || n % 3, n FROM generate_series(0, 999) n")
    here = {"dbname=shop": postgres.dsn}
    program_under("docs/guides/connectors/postgres.md", "Read", here)["paid"].run(master=MASTER)
    found = dict(client.execute("SELECT customer, cents FROM totals").fetchall())
    client.execute("DROP TABLE orders, totals")
    client.close()
    assert found == {f"c{k}": sum(range(k, 1_000, 3)) for k in range(3)}


def test_orders_of_a_topic_become_rows_of_postgres_once_in_two_runs(
    kafka: KafkaServer, postgres: PostgresServer
) -> None:
    topic = "orders-for-postgres"
    kafka.create_topic(topic, 3)
    here = {
        "localhost:9092": kafka.bootstrap,
        "host=localhost dbname=shop": postgres.dsn,
        '"orders"': f'"{topic}"',
    }
    page = program_under(
        "docs/guides/kafka-to-postgres-exactly-once.md", "Kafka to PostgreSQL, exactly-once", here
    )
    client = psycopg.connect(postgres.dsn, autocommit=True)
    expected: Counter[tuple[str, int]] = Counter()
    for first in (0, 200):
        orders = [{"customer": f"c{n % 7}", "cents": n} for n in range(first, first + 200)]
        values = [json.dumps(order) for order in orders] + ["no order"]
        kafka.produce(
            topic, ({"value": value, "partition": n % 3} for n, value in enumerate(values))
        )
        expected.update((order["customer"], order["cents"]) for order in orders if order["cents"])
        result = page["sales"].run(master=MASTER, until="caught-up", store="checkpoints/")
        rows = client.execute("SELECT customer, cents FROM sales").fetchall()
        assert Counter(rows) == expected
    client.execute("DROP TABLE sales")
    client.close()
    assert sum(result.skipped.values()) == 2


def test_the_program_for_webhooks_posts_every_alarm_both_ways() -> None:
    with Receiver() as receiver:
        here = {"http://localhost:8080/alarms": receiver.url}
        program_under("docs/guides/connectors/webhook.md", "Write", here)["alarms"].run(
            master=MASTER
        )
        values = Counter(record["value"] for record in receiver.records())
        lists = [body for _, body in receiver.seen()["taken"] if isinstance(body, list)]
    assert values == Counter(dict.fromkeys(range(71, 100), 2))
    assert sum(map(len, lists)) == 29 and max(map(len, lists)) <= 10


def test_the_program_for_buckets_reads_and_writes_them(s3: S3Server) -> None:
    orders = [{"customer": n % 3, "cents": n} for n in range(100)]
    lines = "".join(f"{json.dumps(order)}\n" for order in orders).encode()
    s3.put(f"{BUCKET}/orders/1.jsonl", lines)
    # A Spark that runs already does not see what the environment says now.
    given = f", storage_options={s3.options!r})"
    here = {"s3://shop": f"s3://{BUCKET}", '.jsonl")': f'.jsonl"{given}', '/")': f'/"{given}'}
    program_under("docs/guides/connectors/files.md", "Buckets", here)["totals"].run(master=MASTER)
    parts = [d for name, d in s3.objects("totals").items() if name.endswith(".parquet")]
    rows = pl.concat([pl.read_parquet(part) for part in parts])
    last = rows.group_by("customer").agg(pl.col("cents").max()).sort("customer")
    assert last["cents"].to_list() == [sum(range(k, 100, 3)) for k in range(3)]


def test_the_program_for_delta_lake_writes_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = program_under("docs/guides/connectors/delta.md", "Read", {})
    names["visits"].run(master=MASTER)
    pages = names["pages"].run(master=MASTER).collected()
    assert Counter(row["page"] for row in pages) == {0: 334, 1: 333, 2: 333}
    assert pl.read_delta("lake/visits")["visit"].sort().to_list() == list(range(1_000))


def test_the_program_for_iceberg_writes_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = program_under("docs/guides/connectors/iceberg.md", "Read", {})
    names["orders"].run(master=MASTER)
    rows = names["reading"].run(master=MASTER).collected()
    assert sorted(row["order"] for row in rows) == list(range(1_000))
