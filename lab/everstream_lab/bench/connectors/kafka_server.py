"""An Apache Kafka that leaves nothing behind: one broker or several, which can be killed and started.

Every broker is a process that is broker and controller at once (KRaft), so that any of them can
be killed. They listen on the loopback interface only, in a folder of their own.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from everstream.connectors.kafka.client import administration, driver
from everstream.errors import EnvironmentFault
from everstream_lab.bench.connectors.servers import Server

JARS = Path(sys.prefix) / "kafka"
PATIENCE_S = 180.0
"""Only guards against waiting for ever: far more than a start takes on a busy machine."""
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


class LocalKafka(Server):
    """Brokers are numbered from 0; what was killed starts again with all it had."""

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        self.folder = folder
        self.brokers = brokers
        ports = _lasting_ports(2 * brokers)
        self._ports, self._controllers = ports[:brokers], ports[brokers:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.address = self.bootstrap

    @staticmethod
    def missing() -> str | None:
        return None if JARS.is_dir() and any(JARS.iterdir()) else "install Kafka (scripts/kafka.sh)"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def start(self, broker: int | None = None) -> None:
        """Start one broker or all, and wait until every broker that runs is in the cluster."""
        which = range(self.brokers) if broker is None else [broker]
        self._format(each for each in which if not self._config(each).exists())
        for each in which:
            assert each not in self._processes, f"broker {each} runs already"
            self._processes[each] = self._spawn("kafka.Kafka", str(self._config(each)), of=each)
        self._wait_until_ready()

    def kill(self, broker: int | None = None) -> None:
        """SIGKILL: one broker or all of them."""
        self.end(broker, signal.SIGKILL)

    def stop(self) -> None:
        """SIGKILL: all of them."""
        self.kill()

    def end(self, broker: int | None, how: signal.Signals) -> None:
        """End one broker or all, one after the other."""
        for each in list(self._processes) if broker is None else [broker]:
            process = self._processes.pop(each)
            process.send_signal(how)
            process.wait(PATIENCE_S)

    def _config(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.properties"

    def _format(self, brokers: Iterable[int]) -> None:
        """What an operator does once with the empty folder of a broker."""
        running = []
        for each in brokers:
            data = self.folder / f"data-{each}"
            data.mkdir(parents=True)
            lines = (f"{name}={value}\n" for name, value in self._settings(each, data).items())
            config = self._config(each)
            config.write_text("".join(lines))
            tool = "kafka.tools.StorageTool"
            running.append(self._spawn(tool, "format", "-t", CLUSTER, "-c", str(config), of=each))
        for process in running:
            if process.wait(PATIENCE_S):
                raise EnvironmentFault(f"Kafka could not format its folder:\n{self._logs()}")

    def _settings(self, broker: int, data: Path) -> dict[str, object]:
        copies = self.brokers
        voters = (f"{n}@127.0.0.1:{port}" for n, port in enumerate(self._controllers))
        here = f"BROKER://127.0.0.1:{self._ports[broker]}"
        return {
            "node.id": broker,
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{here},CONTROLLER://127.0.0.1:{self._controllers[broker]}",
            "advertised.listeners": here,
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": min(2, copies),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, copies),
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": min(2, copies),
            "group.initial.rebalance.delay.ms": 0,
            # Large files that are filled with zeros beforehand would cost the disk of many tests.
            "log.index.size.max.bytes": 1 << 20,
            "log.segment.bytes": 64 << 20,
            # Records may have any time: none is too old.
            "log.retention.ms": -1,
            # Until then a broker that was killed cannot come back. Of three, one that stalls on a busy
            # machine is not to be taken for dead.
            "broker.session.timeout.ms": 2000 if self.brokers == 1 else 6000,
            "broker.heartbeat.interval.ms": 500,
        }

    def _spawn(self, program: str, *arguments: str, of: int) -> subprocess.Popen[bytes]:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        with (self.folder / f"broker-{of}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(
                        str(java),
                        "-Xmx256m",
                        "-Xms64m",
                        "-XX:+UseSerialGC",
                        "-XX:TieredStopAtLevel=1",
                    ),
                    *("-Xshare:auto", "-Djava.awt.headless=true"),
                    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{_newest()}/*"),
                    *(program, *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        client, trouble = administration().AdminClient, driver().KafkaException
        until_s, wanted = time.monotonic() + PATIENCE_S, set(self._processes)
        for each in wanted:  # a broker that was killed stays in the others' lists for a while
            own = {"bootstrap.servers": f"127.0.0.1:{self._ports[each]}", "log_level": 0}
            while True:
                why: object = "not all brokers are in the cluster"
                try:
                    if wanted <= set(client(own).list_topics(timeout=2).brokers):
                        break
                    time.sleep(0.05)
                except trouble as error:
                    why = error
                dead = [n for n, process in self._processes.items() if process.poll() is not None]
                if dead or time.monotonic() > until_s:
                    raise EnvironmentFault(f"Kafka did not start: {why}\n{self._logs()}")

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("broker-*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)


def _lasting_ports(count: int) -> list[int]:
    """Below those the system gives to clients: free still when a killed broker wants its own again."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


def _newest() -> Path:
    return max(JARS.iterdir(), key=lambda path: path.stat().st_mtime)
