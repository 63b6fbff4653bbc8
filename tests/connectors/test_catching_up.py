"""Sources in runs that end when they have caught up: what was there, then what is new, each once."""

import pickle
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest

import everstream as es
from everstream.connectors.files.ranges import LinesOffset
from everstream.errors import UserError
from everstream.pipeline.source import END, Source
from everstream.testing.catching_up import check_catching_up
from tests.connectors.kafka_reading import topic_of
from tests.connectors.lake_places import LakePlace
from tests.connectors.postgres_server import PostgresServer
from tests.kafka_server import KafkaServer

TWICE_AND_OTHER_SHARDS = (2, 2, 3, 1)


class Numbers:
    """Adds files with numbers that nobody has had."""

    def __init__(self, folder: Path, write: Callable[[Path, list[int]], None]) -> None:
        self._folder = folder
        self._write = write
        self._files = count()

    def add(self) -> list[int]:
        added = list[int]()
        for _ in range(4):
            number = next(self._files)
            values = list(range(10 * number, 10 * number + 10))
            self._write(self._folder / f"{number:04d}", values)
            added += values
        return added


def text(path: Path, values: list[int]) -> None:
    path.with_suffix(".txt").write_text("".join(f"{n}\n" for n in values))


def parquet(path: Path, values: list[int]) -> None:
    pl.DataFrame({"n": values}).write_parquet(path.with_suffix(".parquet"))


def csv(path: Path, values: list[int]) -> None:
    pl.DataFrame({"n": values}).write_csv(path.with_suffix(".csv"))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    "make, write, made",
    [
        (partial(es.TextLines, batch_bytes=8), text, str),
        (partial(es.JsonLines, batch_bytes=8), text, int),
        (partial(es.Parquet, batch_rows=3), parquet, lambda n: {"n": n}),
        (partial(es.Csv, batch_bytes=8), csv, lambda n: {"n": n}),
    ],
)
def test_files_are_read_once_whether_the_source_follows_them_or_not(
    tmp_path: Path, make: Any, write: Any, made: Callable[[int], Any], follow: bool
) -> None:
    numbers = Numbers(tmp_path, write)
    check_catching_up(
        lambda: make(tmp_path, follow=follow),
        lambda: [made(n) for n in numbers.add()],
        shards=TWICE_AND_OTHER_SHARDS,
    )


def test_a_list_that_has_grown_gives_what_was_added_also_in_the_midst_of_a_block() -> None:
    records = list[int]()

    def add() -> list[int]:
        added = list(range(len(records), len(records) + 7))
        records.extend(added)
        return added

    made = lambda: es.FromList(records, batch=5)  # noqa: E731
    check_catching_up(made, add, shards=(2, 2, 3, 1, 4))


def test_a_generator_is_asked_again_from_where_it_was() -> None:
    source = es.FromGenerator(_Growing(), batch=2)
    first = source.open(0, 1)
    first.stop_at(source.stopping_point())
    assert [first.read(), first.read(), first.read()] == [[0, 1], [2], END]
    again = es.FromGenerator(_Growing(5), batch=2).open(0, 1)
    again.stop_at(source.stopping_point())
    again.seek(first.offset)
    assert [again.read(), again.read()] == [[3, 4], END]


class _Growing:
    def __init__(self, total: int = 3) -> None:
        self._total = total

    def __call__(self, offset: int) -> Iterator[int]:
        yield from range(offset, self._total)


def test_a_journal_reads_what_its_feed_has_and_does_not_note_an_end(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "in", text)
    (tmp_path / "in").mkdir()
    numbers.add()

    def run(offset: Any) -> tuple[list[str], Any]:
        source = es.Journal(es.TextLines(tmp_path / "in"), tmp_path / "journal")
        source.check()
        reader = source.open(0, 1)
        reader.stop_at(source.stopping_point())
        if offset is not None:
            reader.seek(offset)
        found = list[str]()
        while (batch := reader.read()) is not END:
            found += batch or []
        stands = reader.offset
        reader.close()
        return found, stands

    first, stands = run(None)
    assert len(first) == 40
    assert run(stands) == ([], stands)
    numbers.add()
    second, _ = run(stands)
    assert len(second) == 40 and not {*first} & {*second}


def test_a_paced_source_stops_where_the_one_it_paces_does(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path, text)
    check_catching_up(
        lambda: es.Paced(es.TextLines(tmp_path), rate=1e9),
        lambda: [str(n) for n in numbers.add()],
    )


def test_versions_of_a_table_in_a_lake_are_read_one_run_after_the_other(lake: LakePlace) -> None:
    numbers = count()

    def add() -> list[dict[str, int]]:
        rows = [{"n": next(numbers)} for _ in range(5)]
        for row in rows[:2]:
            lake.append(pl.DataFrame([row]))
        lake.append(pl.DataFrame(rows[2:]))
        return rows

    for follow in (False, True):
        check_catching_up(
            lambda follow=follow: lake.open(batch_rows=2, follow=follow),  # type: ignore[misc]
            add if not follow else _with_all_before(lake, add),
            shards=TWICE_AND_OTHER_SHARDS,
        )


def _with_all_before(lake: LakePlace, add: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """The first time, what the table holds already is added as well."""
    before = [lake.rows()]
    return lambda: [*(before.pop() if before else []), *add()]


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("kind", ["table", "changes"])
def test_rows_that_are_added_to_a_database_are_read_by_the_next_run(
    postgres: PostgresServer, table: str, kind: str
) -> None:
    ids = count(1)

    def add() -> list[dict[str, int]]:
        rows = [{"id": next(ids)} for _ in range(70)]
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (id integer PRIMARY KEY)")
            connection.cursor().executemany(
                f"INSERT INTO {table} VALUES (%s)", [(row["id"],) for row in rows]
            )
        return rows

    if kind == "table":
        made: Callable[[], Source] = lambda: es.PostgresTable(  # noqa: E731
            postgres.dsn, table, key="id", batch_rows=9
        )
        check_catching_up(made, add, shards=TWICE_AND_OTHER_SHARDS)
    else:
        check_catching_up(
            lambda: es.PostgresChanges(
                postgres.dsn, table, column="id", every="10ms", batch_rows=9
            ),
            add,
            shards=(1, 1, 1),
        )


def test_a_row_that_was_not_committed_when_the_run_started_is_waited_for(
    postgres: PostgresServer, table: str
) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id integer)")
        with psycopg.connect(postgres.dsn) as slow:
            slow.execute(f"INSERT INTO {table} VALUES (1)")
            connection.execute(f"INSERT INTO {table} VALUES (2)")
            source = es.PostgresChanges(postgres.dsn, table, column="id", every="10ms")
            reader = source.open(0, 1)
            reader.stop_at(source.stopping_point())
            assert reader.read() is None, "somebody may still commit a smaller number"
            slow.commit()
        connection.execute(f"INSERT INTO {table} VALUES (3)")
        found = list[int]()
        while (batch := reader.read()) is not END:
            found += batch["id"].to_list() if isinstance(batch, pl.DataFrame) else []
        assert found == [1, 2]
        reader.close()


@pytest.mark.parametrize("shards", [(1, 1, 1), (2, 3, 1)])
def test_a_topic_is_read_up_to_its_ends_when_the_run_started(
    kafka: KafkaServer, shards: tuple[int, ...]
) -> None:
    topic, numbers = topic_of(kafka, 3), count()

    def add() -> list[int]:
        added = [next(numbers) for _ in range(20)]
        kafka.produce(topic, ({"value": b"%d" % n, "partition": n % 3} for n in added))
        return added

    check_catching_up(lambda: es.Kafka(kafka.bootstrap, topic, batch_records=7), add, shards=shards)


def test_sources_that_cannot_tell_what_there_is_say_so() -> None:
    with pytest.raises(UserError, match="endless without total="):
        es.FromFunction(lambda start, stop: list(range(start, stop))).stopping_point()
    with pytest.raises(UserError, match="SocketLines does not know what there is to read now"):
        es.SocketLines("localhost", 1).stopping_point()
    with pytest.raises(UserError, match="SocketLines does not know"):
        es.Journal(es.SocketLines("localhost", 1), "journal").stopping_point()


def test_a_file_that_has_grown_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    source = es.TextLines(tmp_path)
    reader = source.open(0, 1)
    point = source.stopping_point()
    reader.stop_at(point)
    while reader.read() is not END:
        pass
    assert source.overlooked([reader.offset], point) is None
    with (tmp_path / "a.txt").open("a") as file:
        file.write("2\n")
    point = source.stopping_point()
    assert source.unread([reader.offset], point) is None
    assert "a.txt" in (source.overlooked([reader.offset], point) or "")


def test_offsets_of_earlier_versions_that_followed_go_on_and_others_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    name = str(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("2\n")
    source = es.TextLines(tmp_path)
    followed = LinesOffset((), seen=frozenset({name}))
    reader = source.open(0, 1)
    reader.stop_at(source.stopping_point())
    reader.seek(pickle.loads(pickle.dumps(followed)))
    assert [reader.read(), reader.read()] == [["2"], END]
    reader.seek(LinesOffset(()))
    with pytest.raises(UserError, match="earlier version of Everstream"):
        reader.read()
