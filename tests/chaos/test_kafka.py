"""From Kafka to Kafka with workers, the driver and brokers killed; a reader of another library judges."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.connectors.kafka.sink import KafkaTransaction
from everstream.core.permits import permit
from everstream.pipeline.sink import SinkShard
from tests.chaos.conftest import pid_of
from tests.chaos.kafka_copying import Copying
from tests.cli.commands import Command
from tests.connectors.kafka_topics import Reading, make_topic
from tests.kafka_server import KafkaServer, install_kafka
from tests.shared_memory import folder_in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: brokers sync nothing, but write a lot."""
    with folder_in_memory() as folder:
        yield folder


def commit_with_a_broker_killed_in_it(server: KafkaServer, folder: Path, broker: int) -> list[Any]:
    """The broker dies when the messages have been handed over and the transaction is open."""
    topic = f"out-{broker}"
    make_topic(server, topic)
    who = SinkShard("words", "counts", 0, 1, 1, str(folder / f"store-{broker}"))
    writer = es.Kafka(server.bootstrap, topic, patience="10m").open(who)
    writer.recover([], permit(0))
    writer.write([{"n": 1}, {"n": 2}])
    transaction = writer.prepare(1)
    assert isinstance(transaction, KafkaTransaction)
    frames, killed = transaction._messages, []

    def with_a_kill() -> Any:
        yield from frames()
        if not killed:
            killed.append(broker)
            server.kill(broker)
            if server.brokers == 1:
                server.start(broker)

    transaction._messages = with_a_kill  # type: ignore[method-assign]
    transaction.commit(permit(1))
    transaction.commit(permit(1))
    writer.close()
    assert killed
    if server.brokers > 1:
        server.start(broker)
    reading = Reading(server)
    found = [json.loads(message.value())["n"] for message in reading.messages(topic)]
    reading.close()
    return found


def test_a_broker_that_is_killed_in_the_middle_of_a_commit_neither_loses_nor_doubles_it(
    folder: Path,
) -> None:
    install_kafka()
    with KafkaServer(folder / "kafka") as server:
        assert commit_with_a_broker_killed_in_it(server, folder, 0) == [1, 2]


@pytest.mark.long
def test_any_of_three_brokers_may_die_in_the_middle_of_a_commit(folder: Path) -> None:
    install_kafka()
    with KafkaServer(folder / "kafka", brokers=3) as server:
        for broker in range(3):
            assert commit_with_a_broker_killed_in_it(server, folder, broker) == [1, 2]


def run(folder: Path, *options: str) -> Command:
    return Command(
        *("run", "copying.py", "--every", "200ms", "--master", "local[4]", "--json", "end.json"),
        *("--store", "store", *options),
        cwd=folder,
    )


def end(command: Command, folder: Path) -> dict[str, Any]:
    try:
        assert command.end() == 0, command.output
    except subprocess.TimeoutExpired:
        pytest.fail(f"it does not end:\n{command.output}")
    command.wait_until_all_gone()
    result: dict[str, Any] = json.loads((folder / "end.json").read_text())
    assert result["outcome"] == "finished"
    return result


@pytest.mark.timeout(900)
def test_from_kafka_to_kafka_every_record_comes_once_and_in_order_though_worker_and_driver_are_killed(
    kafka: KafkaServer, folder: Path
) -> None:
    chance = random.Random(7)
    copying = Copying(kafka, folder, 6_000, "small")
    copying.feed(3_000, chance)
    command = run(folder, "--kill", "count:0@1000")
    command.wait_for("half of it", lambda: len(copying.committed()) == 3_000)
    command.driver().kill()
    copying.feed(3_000, chance)
    result = end(command, folder)
    assert result["drivers_lost"] == 1
    assert result["recoveries"]
    assert not copying.problems()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed, rounds", [(1, 12), (2, 12), (3, 4)])
def test_from_kafka_to_kafka_every_record_comes_once_and_in_order_though_everybody_is_killed(
    folder: Path, seed: int, rounds: int
) -> None:
    """Kills of workers, the driver, and brokers, which come back before the next kill."""
    install_kafka()
    chance = random.Random(seed)
    records = 2_700
    with KafkaServer(folder / "kafka", brokers=3) as server:
        copying = Copying(server, folder, rounds * records, f"long-{seed}")
        command = run(folder, "--max-restarts", "100")
        kinds = ["broker", "broker", "driver", "worker"] * (rounds // 4)
        chance.shuffle(kinds)
        for number, kind in enumerate(kinds, start=1):
            copying.feed(records // 3, chance)
            some = (number - 1) * records + chance.randrange(1, records // 3)
            command.wait_for(f"{some} records", lambda: len(copying.committed()) >= some)  # noqa: B023
            if kind == "driver":
                command.driver().kill()
            elif kind == "worker":
                os.kill(pid_of(folder, "back", chance.randrange(2)), signal.SIGKILL)
            else:
                broker = chance.randrange(3)
                server.kill(broker)
            copying.feed(records // 3, chance)
            if kind == "broker":
                server.start(broker)
            copying.feed(records // 3, chance)
        result = end(command, folder)
        assert result["drivers_lost"] == kinds.count("driver")
        assert not copying.problems()
