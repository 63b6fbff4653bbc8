"""A real Apache Kafka for tests: one broker or three on ports of its own, loopback only.

As a program it is what `scripts/kafka.sh start` and `stop` do.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstream_lab.bench.connectors.kafka_server import PATIENCE_S, LocalKafka
from tests.installing import install
from tests.processes import wait_until_gone


def install_kafka() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    pytest.importorskip("confluent_kafka", reason="there is no confluent-kafka here")
    install("kafka")


class KafkaServer(LocalKafka):
    """Used with `with`, or `start` and `kill`. Brokers are numbered from 0."""

    def __enter__(self) -> "KafkaServer":
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def stop(self, broker: int | None = None) -> None:
        """Ask one broker or all to end, as an operator would."""
        self.end(broker, signal.SIGTERM)

    def pause(self, broker: int) -> None:
        """SIGSTOP: it holds its connections and answers nothing, until `resume`."""
        self._processes[broker].send_signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self._processes[broker].send_signal(signal.SIGCONT)

    def create_topic(
        self, name: str, partitions: int = 1, settings: dict[str, str] | None = None
    ) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(name, partitions, self.brokers, config=settings or {})
        admin.create_topics([new], operation_timeout=PATIENCE_S)[name].result(PATIENCE_S)

    def produce(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Send records, each given as the client takes it: value, key, partition, timestamp."""
        from confluent_kafka import Producer

        client = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        failed: list[Any] = []
        for record in records:
            client.produce(
                topic, **record, on_delivery=lambda error, _: error and failed.append(error)
            )
        assert client.flush(PATIENCE_S) == 0
        assert not failed, failed[0]


def main() -> None:
    """Start a cluster that outlives this program, or end it."""
    parser = argparse.ArgumentParser(prog="scripts/kafka.sh")
    parser.add_argument("what", choices=["start", "stop"])
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir(), f"everstream-kafka-{os.getuid()}"),
    )
    asked = parser.parse_args()
    pids = asked.folder / "pids"
    if asked.what == "start":
        if asked.folder.exists():
            sys.exit(
                f"{asked.folder} is there already: scripts/kafka.sh stop --folder {asked.folder}"
            )
        asked.folder.mkdir(mode=0o700)
        server = KafkaServer(asked.folder, asked.brokers)
        try:
            server.start()
        except BaseException:
            server.kill()
            raise
        pids.write_text("\n".join(map(str, server.pids)))
        print(server.bootstrap)
        return
    if not pids.exists():
        sys.exit(f"there is no Kafka in {asked.folder}")
    own = [int(line) for line in pids.read_text().split() if _is_ours(int(line), asked.folder)]
    for pid in own:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until_gone(own)
    shutil.rmtree(asked.folder)


def _is_ours(pid: int, folder: Path) -> bool:
    """A number may belong to somebody else by now."""
    try:
        return str(folder / "broker-") in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
